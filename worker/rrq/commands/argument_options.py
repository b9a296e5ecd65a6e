"""The arguments of a job on a command line, as JSON."""

import json
from typing import Any

import click


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
