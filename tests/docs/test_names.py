"""Names in the running text of the pages: metrics, settings, variables and files that the text speaks of exist."""

from __future__ import annotations

import re
from functools import cache

import pytest

from doc_pages import ROOT, find_blocks, find_inline_code, find_pages
from rrq import RRQSettings

FOLDERS = ("", "worker/", "operator/", "worker/rrq/", "operator/rrq_operator/")
FILE = re.compile(
    r"(?:rrq|rrq_operator|lua|local|pod|docs|tests|worker|operator|charts|bench|examples)/[\w./-]+"
)
VARIABLE = re.compile(r"\bRRQ_[A-Z0-9_]*[A-Z0-9]\b")
# Settings of these kinds are told from words of other queues and fields of jobs by how they begin.
SETTING = re.compile(
    r"(?:worker|default|redis)_[a-z_]+_(?:seconds|bytes|jobs|limit|threads|concurrency|name|hosts)"
)
METRIC = re.compile(r"rrq_[a-z_]+")

#: What looks like a name of ours and is none, each with its reason.
NOT_OURS = {
    "rrq_jobs": "the counter that is sent to StatsD, which has no page of metrics",
    "rrq_operator": "the package",
    "rrq_client": "a key of the context of a handler",
    "rrq_current": "a contender of the benchmarks",
    "rrq_pod": "a contender of the benchmarks",
    "rrq_0_7_workers": "a field of rrq check --json",
}


@cache
def _read_code() -> str:
    paths = [
        ROOT / "Makefile",
        *(path for top in ("worker", "operator", "tools", "tests") for path in (ROOT / top).rglob("*.py")),
    ]
    return "\n".join(path.read_text() for path in paths)


def find_unknown_names(text: str) -> list[str]:
    """Return metrics, settings and files in a piece of inline code that this project does not have."""
    unknown = []
    if METRIC.fullmatch(text) and text not in NOT_OURS and f'"{text}"' not in _read_metrics():
        unknown.append(text)
    if SETTING.fullmatch(text) and text not in RRQSettings.model_fields:
        unknown.append(text)
    if FILE.fullmatch(text) and not any((ROOT / f"{folder}{text}").exists() for folder in FOLDERS):
        unknown.append(text)
    return unknown


@cache
def _read_metrics() -> str:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    return " ".join(f'"{name}"' for name in METRIC.findall(page))


def find_unknown_variables(text: str) -> list[str]:
    return [
        name
        for name in VARIABLE.findall(text)
        if name.removeprefix("RRQ_").lower() not in RRQSettings.model_fields and name not in _read_code()
    ]


@pytest.mark.parametrize("page", find_pages())
def test_every_name_in_the_text_exists(page: str) -> None:
    assert [name for code in find_inline_code(page) for name in find_unknown_names(code)] == []


@pytest.mark.parametrize("page", find_pages())
def test_every_variable_exists(page: str) -> None:
    shown = [*find_inline_code(page), *(block.text for block in find_blocks(page))]
    assert [name for text in shown for name in find_unknown_variables(text)] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    names = ["rrq_job_total", "worker_leases_seconds", "rrq/keyz.py"]
    assert [name for text in names for name in find_unknown_names(text)] == names
    # In two parts, because this file is code as well.
    assert find_unknown_variables("RRQ_" + "REDIS_DNS=x RRQ_REDIS_DSN=x") == ["RRQ_" + "REDIS_DNS"]
