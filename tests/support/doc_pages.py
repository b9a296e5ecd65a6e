"""Reads the pages of the project: fenced blocks, and the commands in blocks and in running text.

No shell: a line is cut into words and at pipes, lists and substitutions, which is as much as our pages use.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_HEREDOC = re.compile(r"<<-?'?(\w+)'?")
# Characters between two commands of a line; `(` also comes with `$(…)`.
_BETWEEN = frozenset("|;&()")
_REDIRECTION = frozenset("<>")

# A prompt, and the words around the commands of a loop.
_NO_COMMANDS = {"$", "until", "while", "do", "done"}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, its text without the indentation of the fence."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def find_pages() -> list[str]:
    """Return every page that users read, by its path in the project."""
    documents = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "SECURITY.md", "CONTRIBUTING.md", "charts/rrq/README.md", *documents]


def find_blocks(page: str, text: str | None = None) -> list[Block]:
    return list(_find_blocks(page, (ROOT / page).read_text() if text is None else text))


@cache
def _find_blocks(page: str, text: str) -> tuple[Block, ...]:
    blocks = []
    for found in _FENCE.finditer(text):
        indent, body = found["indent"], found["body"]
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(page, line, found["language"].strip(), "".join(lines)))
    return tuple(blocks)


def find_inline_code(page: str) -> list[str]:
    """Return the inline code outside of blocks, on one line each."""
    text = _FENCE.sub("", (ROOT / page).read_text())
    return [" ".join(found.split()) for found in _INLINE.findall(text)]


def find_commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command in a piece of shell, without assignments, redirections and documents."""
    lines = iter(script.replace("\\\n", " ").splitlines())
    for line in lines:
        if document := _HEREDOC.search(line):
            line = line[: document.start()]
            for inside in lines:
                if inside.strip() == document[1]:
                    break
        yield from split_commands(line)


def split_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of one line; ValueError where quotes do not close."""
    words: list[str] = []
    skips_next = False
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&()<>")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= _BETWEEN:
            yield from _as_command(words)
            words = []
        elif set(word) <= _REDIRECTION | {"&"}:
            skips_next = True
            if words and words[-1].isdigit():
                words.pop()  # the descriptor of `2>`
        elif skips_next:
            skips_next = False
        else:
            words.append(word)
    yield from _as_command(words)


def _as_command(words: list[str]) -> Iterator[list[str]]:
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _NO_COMMANDS):
        rest.pop(0)
    if rest:
        yield rest
