"""Builds the pages of docs/reference from the code that they describe. `make reference` runs this file.

With --check it writes nothing; it exits with 1 and prints their names when pages differ from the code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import commands_page
import keys_page
import metrics_page
import pool_page
import settings_page

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page.render,
    "pool.md": pool_page.render,
    "metrics.md": metrics_page.render,
    "keys.md": keys_page.render,
    "command-line.md": commands_page.render,
}


def find_outdated(folder: Path) -> list[str]:
    """Return the pages that are missing or differ from what the code says."""
    return [
        name
        for name, render in PAGES.items()
        if not (folder / name).is_file() or (folder / name).read_text() != render()
    ]


def write_pages(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (folder / name).write_text(render())


def main(arguments: list[str]) -> int:
    if arguments != ["--check"]:
        write_pages(FOLDER)
        return 0
    outdated = find_outdated(FOLDER)
    for name in outdated:
        path = (FOLDER / name).relative_to(ROOT)
        sys.stderr.write(
            f"make: {path} differs from the code. Run make reference and commit what it writes.\n"
        )
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
