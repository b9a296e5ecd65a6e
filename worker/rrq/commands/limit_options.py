"""The options that make up a limit, for every command that sets one."""

import functools
from collections.abc import Callable
from typing import Any

import click

from rrq.flow import Limit

_NAMES = (
    "concurrency",
    "key",
    "key_position",
    "per_key",
    "rate",
    "per_seconds",
    "burst",
    "is_rate_per_key",
)


def _parse_rate(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Return the number; to what others write as 10/m, say how it is written here."""
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no number; write 10 a minute as --rate 10 --per 60.", param=parameter
        ) from None
    if rate < 0:
        raise click.BadParameter(f"{text!r} is below 0.", param=parameter)
    return rate


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a limit; the command gets them as ``wanted``."""

    @click.option("--concurrency", type=click.IntRange(min=0), help="So many at once; 0 lets nothing start.")
    @click.option("--per-key", type=click.IntRange(min=0), help="So many at once of each key.")
    @click.option(
        "--key", help="The argument that is the key, such as tenant; a job's _limit_key wins over it."
    )
    @click.option(
        "--key-position",
        type=click.IntRange(min=0),
        help="Where that argument stands when it is not given by name, counted from 0.",
    )
    @click.option(
        "--rate", metavar="NUMBER", callback=_parse_rate, help="So many starts in the time of --per."
    )
    @click.option(
        "--per", "per_seconds", type=float, default=1.0, show_default=True, help="Seconds that --rate is for."
    )
    @click.option(
        "--burst",
        type=click.FloatRange(min=0),
        help="So many starts at once, and the rest evenly. Default: a window that slides.",
    )
    @click.option("--rate-per-key", "is_rate_per_key", is_flag=True, help="The rate is that of each key.")
    @functools.wraps(command)
    def with_limit(*arguments: Any, **options: Any) -> Any:
        wanted = Limit(**{name: options.pop(name) for name in _NAMES})
        return command(*arguments, wanted=wanted, **options)

    return with_limit
