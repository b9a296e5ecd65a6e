"""Reads docs/mistakes.md as a script: what a user does in each section, and what is printed then.

A section is a heading with fenced blocks. ``python`` is run, or written to a file where its first line names one;
``yaml`` is put into a good pool, which becomes pool.yaml; ``sh`` is a command that runs in this process, ``bash`` one that
needs a process of its own; ``text`` is what the block before prints, with ``…`` for what differs from run to run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


@dataclass(frozen=True)
class Mistake:
    title: str
    blocks: tuple[Block, ...]
    advice: str
    """The text outside of the blocks."""


def read_mistakes(text: str) -> list[Mistake]:
    """Return the sections in their order."""
    parts = _HEADING.split(text)
    return [_parse(title, body) for title, body in zip(parts[1::2], parts[2::2], strict=True)]


def _parse(title: str, body: str) -> Mistake:
    body = body.partition("\n## ")[0]
    blocks = tuple(Block(language, text) for language, text in _BLOCK.findall(body))
    return Mistake(title, blocks, _BLOCK.sub("", body).strip())


def is_shown(expected: str, printed: str) -> bool:
    """Whether the output contains the lines of the page, in order and whole."""
    pattern = r"[^\n]*".join(map(re.escape, expected.rstrip("\n").split("…")))
    return re.search(rf"^{pattern}$", printed, re.MULTILINE) is not None
