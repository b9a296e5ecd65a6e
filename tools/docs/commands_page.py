"""Builds docs/reference/command-line.md from the commands."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import click

from reference_text import NOTHING, code, render_page, render_table, words
from rrq.cli import rrq
from rrq_operator.cli import main as rrq_operator
from rrq_operator.plugin.cli import rrq as kubectl_rrq

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENING = """
There are three programs: [`rrq`](#rrq) for applications and their operators, [`rrq-operator`](#rrq-operator) for pools, in a
cluster or on one machine, and [`kubectl rrq`](#kubectl-rrq), which finds the Redis of a pool by itself. `--help` explains every
command.

Exit code 0 means success, 1 an error, and 2 wrong usage; a burst has [two more](../multi-worker.md#bursts). Errors go to
stderr, so with `--json` stdout has only JSON.
"""

PROGRAMS: dict[str, click.Command] = {
    "rrq": rrq,
    "rrq-operator": rrq_operator,
    "kubectl rrq": kubectl_rrq,
}

#: How click marks such a paragraph.
_KEEPS_LINES = "\b\n"
#: It has a column of its own.
_SHOWN = re.compile(r"\s*\[env: [^]]*\]")


def render() -> str:
    parts = [part for name, program in PROGRAMS.items() for part in render_program(name, program)]
    return render_page(
        "Command line", "the commands in worker/rrq and operator/rrq_operator", OPENING, *parts
    )


def render_program(name: str, program: click.Command) -> Iterator[str]:
    for context in walk(program, click.Context(program, info_name=name, **program.context_settings)):
        level = "##" if context.parent is None else "###"
        yield f"{level} {context.command_path}"
        yield from render_help(context)
        if not isinstance(context.command, click.Group):
            yield f"```\n{' '.join([context.command_path, *context.command.collect_usage_pieces(context)])}\n```"
        rows = list(list_options(context))
        if rows:
            yield render_table(("option", "default", "variable", "what it is"), rows)


def walk(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Yield a context for a command and for every command below it, in the order of --help."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if not below.hidden:
                yield from walk(below, click.Context(below, info_name=name, parent=context))


def render_help(context: click.Context) -> Iterator[str]:
    text = inspect.cleandoc(context.command.help or "")
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(_KEEPS_LINES):
            yield f"```\n{paragraph.removeprefix(_KEEPS_LINES)}\n```"
        else:
            yield words(paragraph, f"Command {context.command_path}", "Give its function a docstring.")


def list_options(context: click.Context) -> Iterator[tuple[str, ...]]:
    """Yield name, default, variable and description of every option, each as a cell of the table."""
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.hidden or option.name == "version":
            continue
        text = _SHOWN.sub("", option.help or "")
        text = words(text, f"Option {option.opts[-1]} of {context.command_path}", "Give it help=...")
        yield _build_name(option, context), _show_default(option), code(_name_variable(option)), text


def _build_name(option: click.Option, context: click.Context) -> str:
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    return names + _build_value(option, context) + (" (required)" if option.required else "")


def _build_value(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return NOTHING
    if isinstance(option.type, click.Choice) and option.metavar is None:
        # A bar would end the cell of the table.
        return " " + "/".join(code(str(choice)) for choice in option.type.choices)
    return " " + code(option.make_metavar(context).removesuffix(" RANGE"))


def _name_variable(option: click.Option) -> str:
    return option.envvar if isinstance(option.envvar, str) else NOTHING


def _show_default(option: click.Option) -> str:
    default: Any = option.default
    if isinstance(default, bool) and option.secondary_opts:
        return code(option.opts[0] if default else option.secondary_opts[0])
    if isinstance(default, (list, tuple)):
        return ", ".join(code(str(one)) for one in default)
    # No default, one that is worked out when the command runs, and flags that are not set.
    if default in (None, "", False) or callable(default) or not isinstance(default, (str, int, float)):
        return NOTHING
    return code(str(default))
