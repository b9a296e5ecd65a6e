"""What the pages show can be pasted: examples are files that the tests run, commands are parsed by the real programs.

Whether the examples do what the pages say is told by tests/worker/test_examples.py and by test_tutorial.py.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING

import pytest

from doc_commands import BadCommand, check_command
from doc_pages import ROOT, Block, find_blocks, find_commands, find_inline_code, find_pages, split_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What is quoted from a file; everything else is a command (sh) or shown by a program or a person (text).
QUOTED = frozenset({"python", "yaml", "conf", "toml", "ini"})
LANGUAGES = QUOTED | {"sh", "text", "promql", "json"}
# Where examples may live. Pages are not among them: a page does not make another one true.
SOURCES = (
    "examples/**/*.py",
    "examples/**/*.y*ml",
    "examples/**/*.conf",
    "charts/rrq/values.yaml",
    ".ci/*.yml",
)
OUR_PROGRAMS = ("rrq ", "rrq-operator ", "kubectl rrq ", "make ")
# Deepest indentation at which an example may stand in its file.
DEEPEST = 12

#: Pages with tests of their own, each with its reason.
ELSEWHERE: dict[str, str] = {
    "docs/mistakes.md": "what people get wrong: its commands fail on purpose, and test_mistakes.py runs them",
}
#: Blocks that no file holds, by page and how their first line begins, each with its reason.
NOT_QUOTED: dict[tuple[str, str], str] = {
    ("README.md", "# shop.py"): "shown without types, which examples/ has; test_first_job.py runs it",
    ("README.md", "# anywhere else"): "from inside a coroutine of the reader; test_first_job.py runs it",
    ("docs/reference/settings.md", "settings = RRQSettings("): "the line of examples/jobs.py, with a remark",
}
#: Pages that have blocks without a language, each with its reason. Their commands are checked all the same.
PLAIN_FENCES: dict[str, str] = {
    "README.md": "commands with what they print, in one block",
    "SECURITY.md": "lines for redis-cli, which tests/security reads from the block",
    "CONTRIBUTING.md": "for those who have the clone; commands and a tree of folders",
    "charts/rrq/README.md": "commands only",
    "docs/benchmarks.md": "written by bench/report.py",
    "docs/reliability.md": "written by tests/chaos",
    "docs/reference/": "written from the code: help texts as they are printed",
    "docs/runbooks/": "one block of commands each, by the rules of tests/chart/test_alerts.py",
    "docs/dashboard.md": "commands only",
    "docs/flow-control.md": "one command that runs on, so that its test can leave it out",
    "docs/operator.md": "commands only",
}


PAGES = [page for page in find_pages() if page not in ELSEWHERE]


def is_exempt(block: Block) -> bool:
    return any(block.page == page and block.text.startswith(start) for page, start in NOT_QUOTED)


def is_quoted(block: Block) -> bool:
    """Whether a file has these lines, apart from a common indentation."""
    return any(
        textwrap.indent(block.text, " " * depth) in source
        for source in _read_sources()
        for depth in range(0, DEEPEST + 1, 2)
    )


@cache
def _read_sources() -> tuple[str, ...]:
    return tuple(path.read_text() for pattern in SOURCES for path in sorted(ROOT.glob(pattern)))


def find_faults(block: Block) -> Iterator[str]:
    """Yield what is wrong with the commands of a block."""
    is_script = block.language == "sh"
    script = block.text.replace("\n$ ", "\n").removeprefix("$ ")
    for words in find_commands(script) if is_script else _find_our_commands(script):
        try:
            check_command(words)
        except BadCommand as fault:
            yield f"{block}: {' '.join(words)}: {fault}"


def _find_our_commands(text: str) -> Iterator[list[str]]:
    """Yield commands from a block of mixed text: what begins as one of ours does."""
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        # The usage line of a help text is no command, and a column beside commands says what they do.
        if line.startswith((*OUR_PROGRAMS, "helm ", "kubectl ")) and "[OPTIONS]" not in line:
            yield from split_commands(re.split(r"\s{2,}", line)[0])


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    known = LANGUAGES | {""} if page.startswith(tuple(PLAIN_FENCES)) else LANGUAGES
    strange = [f"{block} {block.language!r}" for block in find_blocks(page) if block.language not in known]
    assert strange == []


@pytest.mark.parametrize("page", PAGES)
def test_every_example_is_part_of_a_file(page: str) -> None:
    unknown = [
        f"{block}: {block.text.splitlines()[0]}"
        for block in find_blocks(page)
        if block.language in QUOTED and not is_quoted(block) and not is_exempt(block)
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_can_be_run(page: str) -> None:
    assert [fault for block in find_blocks(page) for fault in find_faults(block)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_the_text_exists(page: str) -> None:
    faults = []
    for code in find_inline_code(page):
        if not code.startswith(OUR_PROGRAMS) or "…" in code:
            continue
        for words in split_commands(code):
            try:
                check_command(words, is_whole=False)
            except BadCommand as fault:
                faults.append(f"{code}: {fault}")
    assert faults == []


def test_a_block_that_no_file_has_is_found() -> None:
    (made_up,) = find_blocks("page.md", "```python\nprint('not in any file')\n```\n")
    (real,) = find_blocks("page.md", "```yaml\nspec:\n  queues: [shop]\n```\n")
    assert not is_quoted(made_up)
    assert is_quoted(real)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("rrq dlq requeue --functions x", "No such option"),
        ("rrq dlqs list", "No such command"),
        ("rrq job show", "Missing argument"),
        ("kubectl rrq top -n shop emails --wach", "No such option"),
        ("rrq-operator local -f a.yaml --redis URL", "No such option"),
        ("make demos", "no such target"),
        ("kubectl apply -f crd/", "there is no crd/"),
        ("helm install rrq charts/rrq --set watchNamespaces=a", "no value watchNamespaces"),
        (
            "helm install rrq charts/rrq --set redis.enabled=true,redis.image.tags=7",
            "no value redis.image.tags",
        ),
        ("helm template rrq charts/rrq --show-only templates/rules.yaml", "has no templates/rules.yaml"),
        ("A=1 rqr check | grep x", "no program"),
        ("docker build -f examples/Dockerfile -t x examples", "there is no examples/Dockerfile"),
        ("python -m examples.first_jobs", "no such file"),
    ],
)
def test_a_command_that_cannot_work_is_found(line: str, fault: str) -> None:
    (block,) = find_blocks("page.md", f"```sh\n{line}\n```\n")
    (found,) = find_faults(block)
    assert fault in found


def test_a_script_is_cut_into_its_commands() -> None:
    script = (
        "A=1 rrq check > out 2>&1 && make demo   # twice\n"
        "password=$(kubectl get secret x | head)\n"
        "rrq job list \\\n    --limit 3\n"
        "until rrq check | grep -q PONG; do sleep 1; done\n"
        "python - <<'END'\nrrq nonsense\nEND\n"
    )
    assert list(find_commands(script)) == [
        ["rrq", "check"],
        ["make", "demo"],
        ["kubectl", "get", "secret", "x"],
        ["head"],
        ["rrq", "job", "list", "--limit", "3"],
        ["rrq", "check"],
        ["grep", "-q", "PONG"],
        ["sleep", "1"],
        ["python", "-"],
    ]


def test_blocks_are_found_inside_lists(tmp_path: Path) -> None:
    text = "1. Look:\n   ```sh\n   rrq check\n   ```\n"
    assert [(block.line, block.text) for block in find_blocks("page.md", text)] == [(2, "rrq check\n")]
