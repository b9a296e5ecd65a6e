"""Checks that a command of a page can be pasted: its options, files, chart values and targets exist.

Our own commands are parsed by the real click commands, without being run. Of foreign ones only what they name of this
project is looked at.
"""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from doc_pages import ROOT
from rrq.cli import rrq
from rrq_operator.cli import main as rrq_operator
from rrq_operator.plugin.cli import rrq as kubectl_rrq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CHART = ROOT / "charts" / "rrq"
#: Other programs that the pages call.
FOREIGN = frozenset(
    {".", "cat", "curl", "date", "docker", "export", "grep", "gzip", "jq", "kind", "mktemp", "pip", "python"}
    | {"redis-cli", "redis-server", "sed", "sleep", "supervisorctl", "systemctl"}
)
# Files of the reader, or of an earlier command of the page.
OF_THE_READER = re.compile(r"^(-|values\.yaml|pool\.yaml|rrq-\*\.tgz|/.*)$")
_TARGET = re.compile(r"^([\w-]+):", re.MULTILINE)
_MANIFEST_OPTIONS = ("-f", "--filename")
# `kubectl` flags that take a value, as far as the pages use them, so that names are not taken for files.
_HELM_VALUES_OPTIONS = ("--values", "-f")


class BadCommand(Exception):
    """A command of a page cannot run; the message says why."""


def check_command(words: Sequence[str], *, is_whole: bool = True) -> None:
    """Raise BadCommand for a command that cannot work; `is_whole` asks for its arguments as well."""
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "kubectl" and rest[:1] == ["rrq"]:
        _check_ours(kubectl_rrq, "kubectl rrq", rest[1:], is_whole)
    elif program in _OURS:
        _check_ours(_OURS[program], program, rest, is_whole)
    elif program in _CHECKS:
        for fault in _CHECKS[program](rest):
            raise BadCommand(fault)
    elif program not in FOREIGN and not program.startswith("$"):
        raise BadCommand(f"{program} is no program that the pages are known to call")


def _check_ours(group: click.Command, name: str, words: Sequence[str], is_whole: bool) -> None:
    try:
        _parse(group, name, list(words), None)
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        return  # --help and --version; a group by itself, which shows its help
    except click.MissingParameter as error:
        if is_whole:
            raise BadCommand(error.format_message()) from error
    except click.UsageError as error:
        if is_whole or not re.match(r"Missing|Option .* requires an argument", error.format_message()):
            raise BadCommand(error.format_message()) from error


def _parse(command: click.Command, name: str, words: list[str], parent: click.Context | None) -> None:
    if isinstance(command, click.Group):
        with command.make_context(name, words, parent=parent) as context:
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            inner_name, inner, inner_words = command.resolve_command(context, rest)
            assert inner is not None
            _parse(inner, inner_name or "", inner_words, context)
    else:
        command.make_context(name, words, parent=parent).close()


def _check_make(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if "=" not in word and not word.startswith("-") and word not in read_targets():
            yield f"make {word}: the Makefile has no such target"


@cache
def read_targets() -> frozenset[str]:
    return frozenset(_TARGET.findall((ROOT / "Makefile").read_text()))


def _check_kubectl(words: Sequence[str]) -> Iterator[str]:
    for path in _values_of(words, _MANIFEST_OPTIONS):
        if not OF_THE_READER.match(path) and not (ROOT / path).exists():
            yield f"kubectl {words[0]}: there is no {path}"


def _check_helm(words: Sequence[str]) -> Iterator[str]:
    for path in [word for word in words if word.startswith("charts/")]:
        if not (ROOT / path / "Chart.yaml").exists():
            yield f"helm {words[0]}: there is no chart {path}"
    for path in _values_of(words, _HELM_VALUES_OPTIONS):
        if not OF_THE_READER.match(path) and not (ROOT / path).exists():
            yield f"helm {words[0]}: there is no {path}"
    for template in _values_of(words, ("--show-only",)):
        if not (CHART / template).exists():
            yield f"helm {words[0]}: the chart has no {template}"
    for setting in _values_of(words, ("--set",)):
        for pair in setting.split(","):
            if not is_value_of_the_chart(pair.partition("=")[0]):
                yield f"helm {words[0]}: the chart has no value {pair.partition('=')[0]}"


def is_value_of_the_chart(name: str) -> bool:
    """Whether the schema of the chart knows a value such as `redis.image.tag` or `imagePullSecrets[0].name`."""
    schema = _read_schema()
    for part in name.split("."):
        key, bracket, _ = part.partition("[")
        if key not in schema.get("properties", {}):
            # The chart passes an object without listed properties to Kubernetes unchanged.
            return schema.get("type") == "object" and "properties" not in schema
        schema = schema["properties"][key]
        if bracket:
            schema = schema.get("items", {"type": "object"})
    return True


@cache
def _read_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return schema


def _check_docker(words: Sequence[str]) -> Iterator[str]:
    if words[:1] != ["build"]:
        return
    for path in [*_values_of(words, ("-f",)), words[-1]]:
        if not (ROOT / path).exists():
            yield f"docker build: there is no {path}"


def _check_python(words: Sequence[str]) -> Iterator[str]:
    for module in _values_of(words, ("-m",)):
        if not (ROOT / Path(*module.split("."))).with_suffix(".py").exists():
            yield f"python -m {module}: there is no such file"
    if words and words[0].endswith(".py") and not (ROOT / words[0]).exists():
        yield f"python {words[0]}: there is no such file"


def _check_pip(words: Sequence[str]) -> Iterator[str]:
    for path in _values_of(words, ("-r",)):
        if not (ROOT / path).exists():
            yield f"pip {words[0]}: there is no {path}"


def _values_of(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the values of these options, as `--option value` or `--option=value`."""
    found = [after for word, after in itertools.pairwise(words) if word in options]
    return found + [
        word.partition("=")[2] for word in words if "=" in word and word.partition("=")[0] in options
    ]


_OURS = {"rrq": rrq, "rrq-operator": rrq_operator, "kubectl-rrq": kubectl_rrq}
_CHECKS: dict[str, Callable[[Sequence[str]], Iterator[str]]] = {
    "make": _check_make,
    "kubectl": _check_kubectl,
    "helm": _check_helm,
    "docker": _check_docker,
    "python": _check_python,
    "pip": _check_pip,
}
