"""One word per concept: names and words that we no longer use are nowhere in code, pages, chart and tests.

Names are those in Python and Lua: modules, classes, functions, variables. Prose is everything that people read: pages,
comments, docstrings, messages. Redis keys and Lua files keep their names; ALLOWED lists these places with the reason.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

import pytest

from doc_pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYWHERE = ("",)
PACKAGES = ("worker/", "operator/")
OPERATOR = ("operator/", "tests/operator/")
LUA = ("worker/rrq/broker/lua/",)
#: What users read. In tests only a word that stands for another concept is looked for.
READ_BY_USERS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/",
    "charts/",
    "crds/",
    "examples/",
    *PACKAGES,
)


@dataclass(frozen=True)
class Retired:
    """A word that we no longer use, what replaces it, and where it is looked for.

    ``pattern`` matches whole words: in names the parts between capitals and underscores, in lower case and joined by
    underscores; in prose the words themselves.
    """

    pattern: str
    instead: str
    places: tuple[str, ...] = EVERYWHERE


NAMES = (
    Retired(r"spellings?", "suggestions", PACKAGES),
    Retired(r"tall(?:y|ies)", "counts"),
    Retired(r"seats?", "pool slots"),
    Retired(r"worlds?", "cluster cache, or environment in tests"),
    Retired(r"aim(?:s|ed)?", "targets"),
    Retired(r"holding|held_back|hold_back|on_hold", "paused, frozen or blocked"),
    Retired(r"parked|held_jobs", "blocked", PACKAGES),
    Retired(r"watched_worker", "watch_child"),
    Retired(r"wires?", "PipelinedConnection, or connection"),
    Retired(r"pictures?", "snapshot", (*PACKAGES, "tests/operator/", "examples/")),
    Retired(r"scenes?", "SizingInput"),
    Retired(r"weathers?", "what the connection does"),
    Retired(r"way_back", "what it does"),
    Retired(r"voices?", "what it does"),
    Retired(r"foreign_hands?", "another program"),
    Retired(r"(?:pod|deployment|job|budget)_views?", "objects", OPERATOR),
)
#: Whole names, because the words are good ones inside others.
WHOLE_NAMES = (
    Retired(r"on_demand", "lazy_group", PACKAGES),
    Retired(r"shell", "services", OPERATOR),
    Retired(r"views", "objects", OPERATOR),
    Retired(r"held|is_held|was_held", "blocked", PACKAGES),
    Retired(r"(?:build_)?card", "report", OPERATOR),
    Retired(r"sure|try|rare", "what it does", LUA),
)
PROSE = (
    Retired(r"foreign hands?", "another program"),
    Retired(r"on hold", "paused or frozen"),
    Retired(r"parked", "blocked", READ_BY_USERS),
    Retired(
        r"whoever|somebody|anybody|nobody|everybody",
        "the actor: the producer, the worker, a user",
        READ_BY_USERS,
    ),
    Retired(
        r"(?:is|are|was|were|be|been) told|told (?:to|by|of|from)",
        "the actor and what it does",
        READ_BY_USERS,
    ),
    Retired(r"let (?:us )?in|lets (?:it |them )?in", "rejected, accepted or admitted", READ_BY_USERS),
    Retired(r"a moment later", "the order of the steps", READ_BY_USERS),
)
#: Where a word may stay: the start of the path, the word, and why.
ALLOWED = (
    ("tests/docs/test_retired_words.py", r".*", "the list itself"),
    ("CHANGELOG.md", r".*", "names what changed"),
    ("worker/rrq/broker/control_keys.py", r".*parked.*", "Redis keys keep their names"),
    ("worker/rrq/broker/lua/", r".*parked.*|foreign hands?", "Lua files and Redis keys keep their names"),
)
#: Names of the example application, which tests use too.
EXAMPLE_NAMES = re.compile(r"resize_pictures?|pictures|charge_cards?|CardRefused")
SKIPPED = re.compile(
    r"\.(?:svg|png|json|lock|sum|mod)$|^LICENSE$|^tests/chart/snapshots/|^crds/.*\.yaml$|^bench/results/"
)


@dataclass(frozen=True)
class Text:
    """What a file has to check: names as they stand, and prose with the number of its line."""

    names: dict[str, int]
    prose: list[tuple[int, str]]


def find_retired(path: str, text: Text) -> Iterator[str]:
    """Yield every retired word of a file with its line and what to use instead."""
    for name, line in text.names.items():
        parts = split_name(name)
        for retired in _of(path, NAMES, name):
            if re.search(rf"(?:^|_)(?:{retired.pattern})(?:_|$)", parts) and not EXAMPLE_NAMES.fullmatch(
                name
            ):
                yield f"{path}:{line}: name {name!r}: use {retired.instead}"
        for retired in _of(path, WHOLE_NAMES, name):
            if re.fullmatch(retired.pattern, parts):
                yield f"{path}:{line}: name {name!r}: use {retired.instead}"
    for line, words in text.prose:
        for retired in PROSE:
            # Not inside of a key such as rrq:parked:<scope>, nor quoted as code.
            found = re.search(rf"(?<![:\w`])(?:{retired.pattern})\b(?!:)", words, re.IGNORECASE)
            if found and retired in _of(path, PROSE, found[0]):
                yield f"{path}:{line}: {found[0]!r}: use {retired.instead}"


def _of(path: str, retired: tuple[Retired, ...], word: str) -> tuple[Retired, ...]:
    """Return those that are looked for in a file, or none where the word may stay."""
    if any(
        path.startswith(start) and re.fullmatch(words, word, re.IGNORECASE) for start, words, _ in ALLOWED
    ):
        return ()
    return tuple(entry for entry in retired if path.startswith(entry.places))


def split_name(name: str) -> str:
    """Return the parts of a name in lower case, joined by underscores."""
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", name)
    return "_".join(parts).lower()


def read_text(path: str) -> Text:
    source = (ROOT / path).read_text(errors="replace")
    stem = {PurePath(path).stem: 1} if path.endswith((".py", ".lua")) else {}
    if path.endswith(".py"):
        return _read_python(source, stem)
    if path.endswith(".lua"):
        return _read_lua(source, stem)
    if path.endswith(".md"):
        return Text(stem, _read_markdown(source))
    return Text(stem, [(number, line) for number, line in enumerate(source.splitlines(), 1)])


def _read_python(source: str, names: dict[str, int]) -> Text:
    prose = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            names.setdefault(token.string, token.start[0])
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            lines = token.string.splitlines()
            prose += [(number, line) for number, line in enumerate(lines, token.start[0])]
    return Text(names, prose)


def _read_lua(source: str, names: dict[str, int]) -> Text:
    prose = []
    for number, line in enumerate(source.splitlines(), 1):
        code, _, comment = line.partition("--")
        prose.append((number, comment))
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", code)):
            names.setdefault(name, number)
    return Text(names, prose)


def _read_markdown(source: str) -> list[tuple[int, str]]:
    """Return the lines outside of blocks, without inline code: both quote names and messages."""
    prose, is_block = [], False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_block = not is_block
        elif not is_block:
            prose.append((number, re.sub(r"`[^`]*`", "", line)))
    return prose


@cache
def list_files() -> tuple[str, ...]:
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return tuple(path for path in found.splitlines() if not SKIPPED.search(path) and (ROOT / path).is_file())


GROUPS = {
    "pages": lambda path: path.endswith(".md"),
    "chart and examples": lambda path: path.startswith(("charts/", "crds/", "examples/")),
    "library": lambda path: path.startswith("worker/"),
    "operator": lambda path: path.startswith("operator/"),
    "tests and tools": lambda path: path.startswith(("tests/", "tools/", "bench/")),
}


@pytest.mark.parametrize("group", GROUPS)
def test_no_retired_word_is_used(group: str) -> None:
    paths = [path for path in list_files() if GROUPS[group](path)]
    assert paths
    found = [fault for path in paths for fault in find_retired(path, read_text(path))]
    assert found == [], f"{len(found)} retired words:\n" + "\n".join(found)


def test_retired_words_are_found_in_names_and_prose() -> None:
    python = _read_python(
        "class PoolPicture:\n    is_on_hold = True  # a foreign hand\n\ndef decide_seats(): 'Jobs are parked.'\n",
        {},
    )
    found = list(find_retired("worker/rrq/x.py", python))
    assert [fault.split(": ")[1] for fault in found] == [
        "name 'PoolPicture'", "name 'is_on_hold'", "name 'decide_seats'", "'foreign hand'", "'parked'",
    ]  # fmt: skip
    lua = _read_lua("local held = sure('ZCARD', key) -- nobody waits\n", {})
    assert len(list(find_retired("worker/rrq/broker/lua/x.lua", lua))) == 3
    page = Text({}, _read_markdown("`rrq:parked` is a key.\n\n```\nparked\n```\n"))
    assert list(find_retired("docs/x.md", page)) == []
    good = _read_python("install = discard = resize_picture = charge_card = hgetall\n", {})
    assert list(find_retired("operator/x.py", good)) == []
