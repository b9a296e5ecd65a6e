"""What is wrong with a site that was built: what it would load from elsewhere, and links that lead nowhere."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

#: Attributes by which a browser loads something without being asked.
_LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
    "embed": "src",
}
_STYLE_LOAD = re.compile(r"(?:url\(|@import\s+)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)")


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        load = given.get(_LOADS.get(tag, ""))
        if load is not None:
            self.loads.append(load)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


@cache
def _read(path: Path) -> _Page:
    return _Page(path.read_text())


def find_foreign_loads(site: Path) -> list[str]:
    """Return what pages and style sheets would load from another host."""
    found = []
    for path in sorted(site.rglob("*.html")):
        found += [f"{path.relative_to(site)}: {load}" for load in _read(path).loads if _is_foreign(load)]
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.html")]):
        found += [f"{path.relative_to(site)}: {load}" for load in _STYLE_LOAD.findall(path.read_text())]
    return found


def find_broken_links(site: Path) -> list[str]:
    """Return links and loads inside the site that lead to no file, or to no place in it."""
    return [
        f"{path.relative_to(site)}: {link}"
        for path in sorted(site.rglob("*.html"))
        for link in (*_read(path).links, *_read(path).loads)
        if not _leads_somewhere(site, path, link)
    ]


def _is_foreign(link: str) -> bool:
    return urlsplit(link).netloc != ""


def _leads_somewhere(site: Path, page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = page
    if parts.path:
        # The page for what was not found is served under any address, so its links begin at the root.
        base = site if parts.path.startswith("/") else page.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve()
        target = target / "index.html" if target.is_dir() else target
    if not target.is_file() or not target.is_relative_to(site):
        return False
    return target.suffix != ".html" or unquote(parts.fragment) in _read(target).anchors
