"""docs/architecture.md names every folder of both packages, and its glossary has one short line for each term."""

from __future__ import annotations

import re

from doc_pages import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()
LONGEST_LINES = 40
MOST_FILES = 14


def read_files(name: str) -> list[str]:
    """Return the files of the block between two markers: the first word of each line."""
    (block,) = re.findall(rf"<!-- {name} -->\n```text\n(.*?)```\n<!-- /{name} -->", PAGE, re.DOTALL)
    return [line.split()[0] for line in block.splitlines()]


def test_every_folder_of_the_packages_is_explained() -> None:
    missing = [
        f"{package}/{folder.name}/"
        for package in ("worker/rrq", "operator/rrq_operator")
        for folder in sorted((ROOT / package).iterdir())
        if (folder / "__init__.py").exists() and f"{folder.name}/" not in PAGE
    ]
    assert missing == []


def test_the_glossary_is_short_and_explains_each_term_once() -> None:
    glossary = PAGE.partition("## Glossary")[2].partition("\n## ")[0].strip().splitlines()
    assert len(glossary) <= LONGEST_LINES
    terms = [
        term
        for line in glossary
        if line.startswith("| ")
        for term in line.split(" | ")[0].strip("| ").split(", ")
    ]
    assert len(terms) == len(set(terms)) > 30


def test_the_two_paths_are_short_lists_of_files_that_exist() -> None:
    for name, package in (("job path", "worker/rrq"), ("pool path", "operator/rrq_operator")):
        files = read_files(name)
        assert 0 < len(files) <= MOST_FILES, name
        assert [file for file in files if not (ROOT / package / file).is_file()] == []
