"""The site of `make docs` is complete and needs no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from site_check import find_broken_links, find_foreign_loads

ROOT = Path(__file__).parents[2]


@pytest.mark.cluster  # not because of Kubernetes: it takes long
def test_the_site_is_complete_and_needs_no_network(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stdout + build.stderr
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 50
    for page in pages:
        name = "index" if page.name == "README.md" else page.stem
        assert (site / page.relative_to(ROOT).with_name(f"{name}.html")).is_file(), page
    assert find_foreign_loads(site) == []
    assert find_broken_links(site) == []
    # The site contains the code that a page links to.
    assert 'href="../examples/jobs.py.html"' in (site / "docs" / "tutorial.html").read_text()
    assert "registry" in (site / "examples" / "jobs.py.html").read_text()


def test_foreign_loads_and_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">Here</h1>')
    (tmp_path / "look.css").write_text(
        '@import "https://example.org/font.css"; b {background: url(//example.org/b)}'
    )
    (tmp_path / "index.html").write_text(
        '<script src="https://example.org/a.js"></script><link href="look.css"><img src="gone.png">'
        '<a href="https://example.org">fine</a><a href="other.html#here">fine</a><a href="/other.html">fine</a>'
        '<a href="other.html#gone">x</a><a href="gone.html">x</a><a href="#gone">x</a><a href="../up.html">x</a>'
    )
    assert find_foreign_loads(tmp_path) == [
        "index.html: https://example.org/a.js",
        "look.css: https://example.org/font.css",
        "look.css: //example.org/b",
    ]
    assert find_broken_links(tmp_path) == [
        "index.html: other.html#gone",
        "index.html: gone.html",
        "index.html: #gone",
        "index.html: ../up.html",
        "index.html: gone.png",
    ]
