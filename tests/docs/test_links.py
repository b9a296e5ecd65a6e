"""Every relative link in a page of the project leads to a file that is there, and to a heading in it."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
# The text of a link may go on in the next line, its target may not.
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def _pages() -> list[str]:
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(found.stdout.splitlines())


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return what headings are called in links, as GitHub names them."""
    seen: dict[str, int] = {}
    anchors = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        anchors.add(f"{slug}-{count}" if count else slug)
    return frozenset(anchors)


def find_broken_links(page: Path) -> list[str]:
    """Return the targets in a page that lead nowhere inside the project."""
    text = _INLINE_CODE.sub("code", _FENCE.sub("", page.read_text()))
    broken = []
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        led_to = (page.parent / path).resolve() if path else page
        is_missing_anchor = (
            anchor and led_to.suffix == ".md" and led_to.exists() and anchor not in _anchors(led_to)
        )
        if not led_to.exists() or is_missing_anchor:
            broken.append(target)
    return broken


@pytest.mark.parametrize("name", _pages())
def test_every_link_of_the_page_leads_somewhere(name: str) -> None:
    assert find_broken_links(ROOT / name) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# What `rrq` does\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#what-rrq-does) [c](#here) [d](https://example.org/x)\n"
        "`[e](code.md)`\n```\n[f](fenced.md)\n```\n[g](gone.md) [h](other.md#gone) [i](#gone)\n"
    )
    assert find_broken_links(page) == ["gone.md", "other.md#gone", "#gone"]
