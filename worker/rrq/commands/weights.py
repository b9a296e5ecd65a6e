"""The shares of queues on a command line: ``high=6,default=3,low=1``."""

import click

from rrq.settings import RRQSettings

_EXAMPLE = "high=6,default=3,low=1"


def parse_weights(_: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, float] | None:
    """Return the weights by queue, in the order given; None when the option is not."""
    if text is None:
        return None
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.rpartition("="))
        if not name or not equals or not number:
            raise click.BadParameter(
                f"{part.strip()!r} is no QUEUE=NUMBER; write {_EXAMPLE}.", param=parameter
            )
        if name in weights:
            raise click.BadParameter(f"queue {name!r} has two weights.", param=parameter)
        try:
            weights[name] = float(number)
        except ValueError:
            raise click.BadParameter(
                f"the weight of queue {name!r} must be a number, not {number!r}.", param=parameter
            ) from None
    try:
        RRQSettings.check_weights(weights)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param=parameter) from error
    return weights
