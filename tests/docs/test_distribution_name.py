"""The distribution is `rrq-kubernetes`: no file installs `rrq`, which on PyPI is another project."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from clone import search_files
from doc_pages import ROOT
from rrq.version import DISTRIBUTION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA = re.compile(re.escape(DISTRIBUTION) + r"\[([a-z,]+)\]")
# No file is left out: benches and tests install the other project by its version, such as rrq==0.11.1.
OLD_FORM = (
    r"(^|[^[:alnum:]._-])rrq(\[[a-z]|(<|>|<=|>=|~=|!=) ?[0-9]|==[1-9])"
    r"""|(pip|pipx|uv|poetry|pdm) ([a-z]+ )*(add|install) (-[^ ]+ ([a-z]+ )?)*['"]?rrq(['" `,.:]|$)"""
)
# Written so that this file does not have them.
OTHER = "rrq"
OLD_FORMS = [
    *(
        f"{tool} {OTHER}"
        for tool in ("pip install -U", "uv add --group dev", "uv tool install", "pipx install")
    ),
    *(f"poetry add '{OTHER}'", f'"{OTHER}>=1.0",', f"{OTHER}~=1.2", f"{OTHER}==1.0", f"{OTHER}[worker]"),
]


def test_no_file_installs_the_distribution_of_another_project() -> None:
    assert search_files(OLD_FORM) == []


@pytest.mark.parametrize("line", OLD_FORMS)
def test_every_way_to_ask_for_the_other_project_is_found(line: str) -> None:
    searched = subprocess.run(
        ["grep", "-E", OLD_FORM], input=line, check=False, capture_output=True, text=True
    )
    assert searched.stdout.strip() == line


def test_extras_that_files_name_exist_and_the_readme_names_all() -> None:
    extras = PROJECT["optional-dependencies"].keys()
    found = {extra for line in search_files(EXTRA.pattern) for extra in EXTRA.findall(line)}
    assert {extra for together in found for extra in together.split(",")} <= extras
    assert set(EXTRA.findall((ROOT / "README.md").read_text())) == extras


def test_code_and_build_agree_on_the_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION
