"""Options that several commands share, each named and explained once.

Also imported by `kubectl rrq --help`, so nothing here loads the settings or a Redis client.
"""

import functools
import getpass
import json
import os
import socket
from collections.abc import Callable
from typing import Any

import click

from rrq.flow import Limit
from rrq.runtime.installation import describe_other_distribution
from rrq.version import __version__

Command = Callable[..., Any]


def _show_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or context.resilient_parsing:
        return
    click.echo(f"{context.find_root().info_name}, version {__version__}")
    if warning := describe_other_distribution():
        click.echo(f"WARNING: {warning}", err=True)
    context.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
settings_option = click.option(
    "--settings",
    "settings_path",
    metavar="PATH",
    help="Dotted path of the settings object, such as shop.jobs.settings. Default: RRQ_SETTINGS.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    envvar="RRQ_LOG_FORMAT",
    help="auto: text on a terminal, JSON elsewhere. [env: RRQ_LOG_FORMAT]",
)

limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of jobs to show.",
)
audit_limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of entries to show.",
)
offset_option = click.option(
    "--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Number of jobs to skip."
)
dlq_name_option = click.option(
    "--dlq-name", help="Dead letter queue. Default: default_dlq_name of the settings."
)


def max_scan_option(default: int = 10_000) -> Callable[[Command], Command]:
    return click.option(
        "--max-scan",
        type=click.IntRange(min=0),
        default=default,
        show_default=True,
        help="Maximum number of jobs to read; 0 reads all.",
    )


def _check_actor(_: click.Context, parameter: click.Parameter, given: str | None) -> str:
    if given is None:
        return name_login()
    if not given.strip():
        # The audit stream has no entry for an empty name: it stands for a program that acts by itself.
        raise click.BadParameter("the audit needs a name.", param=parameter)
    return given


def name_login() -> str:
    """Return the login name and the host."""
    try:
        login = getpass.getuser()
    # What it raises for a user without a name, as in many containers, depends on the version of Python.
    except (OSError, KeyError, ImportError):
        login = f"uid-{os.getuid()}"
    return f"{login}@{socket.gethostname()}"


as_option = click.option(
    "--as",
    "actor",
    metavar="NAME",
    callback=_check_actor,
    help="Who does this, for `rrq audit`. Default: your login name and host.",
)


def _parse_args(_: click.Context, parameter: click.Parameter, text: str | None) -> list[Any] | None:
    args: list[Any] | None = _parse_json(parameter, text, list, "a JSON list")
    return args


def _parse_kwargs(_: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    kwargs: dict[str, Any] | None = _parse_json(parameter, text, dict, "a JSON object")
    return kwargs


def _parse_json(parameter: click.Parameter, text: str | None, kind: type, wanted: str) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise click.BadParameter(f"must be {wanted}.", param=parameter)
    return value


args_option = click.option("--args", "args", callback=_parse_args, help="Arguments as a JSON list.")
kwargs_option = click.option(
    "--kwargs", "kwargs", callback=_parse_kwargs, help="Keyword arguments as a JSON object."
)


def cancel_options(command: Command) -> Command:
    """Add the options that choose among the jobs of a queue, and those that control the question."""
    options = (
        click.option("--function", "function_name", help="Only jobs of this function in the queue."),
        click.option(
            "--due-for",
            "due_for_seconds",
            type=click.IntRange(0, 1_000_000_000),
            metavar="SECONDS",
            help="Only jobs that have been due for at least this long. Default: all, due or not.",
        ),
        click.option("--dry-run", is_flag=True, help="Only print how many jobs would be cancelled."),
        click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask."),
    )
    for option in reversed(options):
        command = option(command)
    return command


_LIMIT_FIELDS = (
    *("concurrency", "key", "key_position", "per_key"),
    *("rate", "per_seconds", "burst", "is_rate_per_key"),
)


def _parse_rate(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Return the number; for ``10/m``, as other queues write it, explain how to write it here."""
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a number; write 10 a minute as --rate 10 --per 60.", param=parameter
        ) from None
    if rate < 0:
        raise click.BadParameter(f"{text!r} is below 0.", param=parameter)
    return rate


def limit_options(command: Command) -> Command:
    """Add the options of a limit; the command gets them as ``wanted``."""

    @click.option(
        "--concurrency",
        type=click.IntRange(min=0),
        help="Maximum number of jobs running at once; 0 stops them.",
    )
    @click.option(
        "--per-key", type=click.IntRange(min=0), help="Maximum number of jobs running at once for each key."
    )
    @click.option(
        "--key",
        help="Name of the argument whose value is the key, such as tenant. A job's _limit_key overrides it.",
    )
    @click.option(
        "--key-position",
        type=click.IntRange(min=0),
        help="Position of that argument when it is passed without its name, counted from 0.",
    )
    @click.option(
        "--rate",
        metavar="NUMBER",
        callback=_parse_rate,
        help="Maximum number of starts in the period of --per.",
    )
    @click.option(
        "--per",
        "per_seconds",
        type=float,
        default=1.0,
        show_default=True,
        help="Period of --rate in seconds.",
    )
    @click.option(
        "--burst",
        type=click.FloatRange(min=0),
        help="Number of starts that may come at once; the others are spread evenly. Default: a sliding window.",
    )
    @click.option("--rate-per-key", "is_rate_per_key", is_flag=True, help="Apply the rate to each key.")
    @functools.wraps(command)
    def with_limit(*arguments: Any, **options: Any) -> Any:
        wanted = Limit(**{name: options.pop(name) for name in _LIMIT_FIELDS})
        return command(*arguments, wanted=wanted, **options)

    return with_limit
