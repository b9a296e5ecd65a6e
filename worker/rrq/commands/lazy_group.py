"""A command line that imports a command only when it is called, and prints errors as one clear message."""

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from rrq.commands.refusal import Refusal
from rrq.exc import RRQError
from rrq.runtime.suggestions import suggest


@contextlib.contextmanager
def refusing_errors() -> Iterator[None]:
    """Turn errors of the library into what a person reads; nothing else in the command line does."""
    try:
        yield
    except RRQError as error:
        raise Refusal(f"ERROR: {error}") from error
    except UnicodeEncodeError as error:
        if not any("\udc80" <= character <= "\udcff" for character in error.object):
            raise
        # Python keeps bytes of an argument that are not UTF-8 as halves of surrogate pairs, which Redis refuses.
        raise Refusal(
            f"ERROR: {error.object!r} has bytes that are not UTF-8. Names, ids and keys of RRQ are UTF-8: check the "
            "arguments and the locale of this terminal."
        ) from error


class LazyGroup(click.Group):
    """A group that knows only the place of each command: ``package.module:attribute``."""

    def __init__(self, *given: Any, places: Mapping[str, str], **options: Any) -> None:
        super().__init__(*given, **options)
        self._places = places

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            # A locale that lacks a letter must not keep a command from answering.
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
        with refusing_errors():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click suggests only commands that are loaded, and none is.
        if (
            not args[0].startswith("-")
            and self.get_command(ctx, args[0]) is None
            and not ctx.resilient_parsing
        ):
            ctx.fail(f"No such command {args[0]!r}.{suggest(args[0], self._places)}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command
