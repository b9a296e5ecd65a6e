"""A command line whose commands are imported only when they are called."""

import importlib
import io
import sys
from collections.abc import Mapping
from typing import Any

import click

from rrq.commands.refusal import Refusal
from rrq.runtime.suggestions import suggest


class CommandsOnDemand(click.Group):
    """A group that knows of each command only where it is: ``package.module:attribute``."""

    def __init__(self, *given: Any, places: Mapping[str, str], **options: Any) -> None:
        super().__init__(*given, **options)
        self._places = places

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            # A locale that lacks a letter must not keep a command from answering.
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except UnicodeEncodeError as error:
            if not any("\udc80" <= character <= "\udcff" for character in error.object):
                raise
            # Bytes of an argument that are no text come as halves of surrogate pairs, which Redis never takes.
            raise Refusal(
                f"ERROR: {error.object!r} holds bytes that are not UTF-8, as no name, id or key of RRQ does. "
                "Check the arguments, and the locale of this terminal."
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click looks for what was meant among the commands that it has loaded, and there are none.
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
