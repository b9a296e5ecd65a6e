"""Kubernetes quantities, as far as a pool needs them: how many CPUs."""

from typing import Final

QUANTITY_PATTERN: Final = (
    r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]+)?$"
)


def parse_cpus(quantity: int | str) -> float:
    """Return CPUs as a number: ``2``, ``"1.5"`` or ``"500m"``. Raises ValueError for anything else."""
    text = str(quantity)
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        raise ValueError(
            f'CPU quantity {text!r} is not understood. Write CPUs as 2, "1.5" or "500m".'
        ) from None
