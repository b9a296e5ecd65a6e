"""Kubernetes quantities, as far as a pool needs them: how many CPUs."""

import re
from typing import Final

QUANTITY_PATTERN: Final = (
    r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]+)?$"
)

#: Larger suffixes are for bytes: whoever writes 2Gi CPUs means something else.
_CPUS: Final = re.compile(r"([0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(n|u|m|[eE][-+]?[0-9]{1,2})?", re.ASCII)
_EXPONENTS: Final = {"": 0, "n": -9, "u": -6, "m": -3}


def parse_cpus(quantity: int | str) -> float:
    """Return CPUs as a number: ``2``, ``"1.5"`` or ``"500m"``. Raises ValueError for anything else."""
    text = str(quantity)
    match = _CPUS.fullmatch(text)
    if match is None:
        raise ValueError(f'CPU quantity {text!r} is not understood. Write CPUs as 2, "1.5" or "500m".')
    suffix = match[2] or ""
    exponent = _EXPONENTS[suffix] if suffix in _EXPONENTS else int(suffix[1:])
    # By way of text, so that 100m is the same number as 0.1.
    return float(f"{match[1]}e{exponent}")
