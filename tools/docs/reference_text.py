"""Builds the tables of docs/reference, and refuses entries without a description."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTHING = ""

_CODE = re.compile(r"(`[^`]*`)")


class Undescribed(Exception):
    """Something for users that the code does not describe."""


def render_page(title: str, source: str, *parts: str) -> str:
    """Return a page; ``source`` is the code that its tables are made of."""
    note = (
        f"<!-- Made by `make reference` from {source}: change the code, or tools/docs, and not this page. -->"
    )
    return "\n\n".join([f"# {title}", note, *(part.strip("\n") for part in parts)]) + "\n"


def render_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(_escape, line)) + " |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else NOTHING


def words(text: str | None, of: str, remedy: str) -> str:
    """Return a description on one line; raises Undescribed when there is none."""
    joined = " ".join((text or "").split())
    if not joined:
        raise Undescribed(f"{of} has no description. {remedy}")
    # Docstrings mark code with two backticks, Markdown needs one.
    parts = _CODE.split(joined.replace("``", "`"))
    return "".join(part if part.startswith("`") else _escape_prose(part) for part in parts)


def _escape_prose(text: str) -> str:
    """Keep what is meant as it is written, such as '*/5 * * * *', from being taken for Markdown or HTML."""
    return text.replace("*", "\\*").replace("<", "&lt;")


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
