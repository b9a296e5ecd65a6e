"""What is installed is called `rrq-kubernetes`: no file asks for `rrq`, which on PyPI is another project."""

from __future__ import annotations

import re
import tomllib

from clone import search_files
from doc_pages import ROOT
from rrq.version import DISTRIBUTION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA = re.compile(re.escape(DISTRIBUTION) + r"\[([a-z,]+)\]")
# No file is left out: benches and tests install the other project by its version, such as rrq==0.11.1.
OLD_FORM = r"""(^|[^[:alnum:]._-])rrq\[[a-z]|pip install (-[^ ]+ )*['"]?rrq(['" `,.:]|$)"""


def test_no_file_installs_the_distribution_of_another_project() -> None:
    assert search_files(OLD_FORM) == []


def test_extras_that_files_name_exist_and_the_readme_names_all() -> None:
    extras = PROJECT["optional-dependencies"].keys()
    found = {extra for line in search_files(EXTRA.pattern) for extra in EXTRA.findall(line)}
    assert {extra for together in found for extra in together.split(",")} <= extras
    assert set(EXTRA.findall((ROOT / "README.md").read_text())) == extras


def test_code_and_build_agree_on_the_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION
