"""Examples and commands of the pages can be pasted; names, files and links on them exist.

Examples are files that the tests run, and the real programs parse the commands. tests/worker/test_examples.py and
test_tutorial.py show that the examples do what the pages say. Each test checks all pages and lists all faults.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from clone import list_files
from doc_commands import BadCommand, check_command
from doc_pages import ROOT, Block, find_blocks, find_commands, find_inline_code, find_pages, split_commands
from rrq import RRQSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Languages of blocks that quote a file; other blocks are commands (sh) or output (text).
QUOTED = frozenset({"python", "yaml", "conf", "toml", "ini"})
LANGUAGES = QUOTED | {"sh", "text", "promql", "json"}
# Where quoted examples live. Not in pages, because one page does not prove another.
SOURCES = (
    "examples/**/*.py",
    "examples/**/*.y*ml",
    "examples/**/*.conf",
    "charts/rrq/values.yaml",
    ".ci/*.yml",
)
OUR_PROGRAMS = ("rrq ", "rrq-operator ", "kubectl rrq ", "make ")
# Deepest indentation of an example in its file.
DEEPEST = 12

#: Pages with tests of their own, each with its reason.
ELSEWHERE: dict[str, str] = {
    "docs/mistakes.md": "what people get wrong: its commands fail on purpose, and test_mistakes.py runs them",
}
#: Blocks without a file, by page and start of their first line, each with its reason.
NOT_QUOTED: dict[tuple[str, str], str] = {
    ("README.md", "# shop.py"): "a file that the reader makes; test_readme.py runs it",
    ("README.md", "# enqueue.py"): "a file that the reader makes; test_readme.py runs it",
    ("docs/reference/settings.md", "settings = RRQSettings("): "the line of examples/jobs.py, with a remark",
}
#: Pages with blocks without a language, each with its reason. The test checks their commands, too.
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
BLOCKS = [block for page in PAGES for block in find_blocks(page)]
BAD_COMMANDS = {
    "rrq dlq requeue --functions x": "No such option",
    "rrq dlqs list": "No such command",
    "rrq job show": "Missing argument",
    "kubectl rrq top -n shop emails --wach": "No such option",
    "rrq-operator local -f a.yaml --redis URL": "No such option",
    "make demos": "no such target",
    "kubectl apply -f crd/": "there is no crd/",
    "helm install rrq charts/rrq --set watchNamespaces=a": "no value watchNamespaces",
    "helm install rrq charts/rrq --set redis.enabled=true,redis.image.tags=7": "no value redis.image.tags",
    "helm template rrq charts/rrq --show-only templates/rules.yaml": "has no templates/rules.yaml",
    "A=1 rqr check | grep x": "no program",
    "docker build -f examples/Dockerfile -t x examples": "there is no examples/Dockerfile",
    "python -m examples.first_jobs": "no such file",
}

FOLDERS = ("", "worker/", "operator/", "worker/rrq/", "worker/rrq/broker/", "operator/rrq_operator/")
FILE = re.compile(
    r"(?:rrq|rrq_operator|broker|engine|lua|pod|decide|control|cluster|local|docs|tests|tools|worker|operator|charts"
    r"|bench|examples)/[\w./-]+"
)
VARIABLE = re.compile(r"\bRRQ_[A-Z0-9_]*[A-Z0-9]\b")
# The prefix distinguishes these settings from words of other queues and fields of jobs.
SETTING = re.compile(
    r"(?:worker|default|redis)_[a-z_]+_(?:seconds|bytes|jobs|limit|threads|concurrency|name|hosts)"
)
METRIC = re.compile(r"rrq_[a-z_]+")

#: Names that look like ours and are not, each with its reason.
NOT_OURS = {
    "rrq_jobs": "the counter that is sent to StatsD, which has no page of metrics",
    "rrq_operator": "the package",
    "rrq_client": "a key of the context of a handler",
    "rrq_current": "a contender of the benchmarks",
    "rrq_pod": "a contender of the benchmarks",
    "rrq_0_7_workers": "a field of rrq check --json",
}
# A log message is a text without values; three words are not yet a command or an option.
_MESSAGE = re.compile(r"[A-Z]?[a-z]+(?:,? [a-z]+){2,}(?: …)?")
_PROGRAMS = (*OUR_PROGRAMS, "kubectl ", "helm ", "pip ", "docker ", "python ")
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
# The text of a link may continue in the next line, its target may not.
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


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
    """Yield the faults of the commands of a block."""
    is_script = block.language == "sh"
    script = block.text.replace("\n$ ", "\n").removeprefix("$ ")
    commands = find_commands(script) if is_script else _find_our_commands(script)
    for fault in _find_bad(commands):
        yield f"{block}: {fault}"


def _find_bad(commands: Iterator[list[str]], *, is_whole: bool = True) -> Iterator[str]:
    for words in commands:
        try:
            check_command(words, is_whole=is_whole)
        except BadCommand as fault:
            yield f"{' '.join(words)}: {fault}"


def _find_our_commands(text: str) -> Iterator[list[str]]:
    """Yield our commands from a block of mixed text."""
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        # Skips the usage line of a help text, and a column beside commands that explains them.
        if line.startswith((*OUR_PROGRAMS, "helm ", "kubectl ")) and "[OPTIONS]" not in line:
            yield from split_commands(re.split(r"\s{2,}", line)[0])


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


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings, as GitHub names them."""
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
    """Return the link targets of a page that do not exist in the project."""
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


def test_every_block_has_a_language_and_every_example_is_in_a_file() -> None:
    wrong = []
    for block in BLOCKS:
        known = LANGUAGES | {""} if block.page.startswith(tuple(PLAIN_FENCES)) else LANGUAGES
        if block.language not in known:
            wrong.append(f"{block} is {block.language!r}")
        elif block.language in QUOTED and not is_quoted(block) and not is_exempt(block):
            wrong.append(f"{block} is in no file: {block.text.splitlines()[0]}")
    assert wrong == []
    (made_up,) = find_blocks("page.md", "```python\nprint('not in any file')\n```\n")
    (real,) = find_blocks("page.md", "1. Look:\n   ```yaml\n   spec:\n     queues: [shop]\n   ```\n")
    assert (is_quoted(made_up), is_quoted(real)) == (False, True)


def test_every_command_exists_with_its_options_and_files() -> None:
    faults = [fault for block in BLOCKS for fault in find_faults(block)]
    for page in PAGES:
        for code in find_inline_code(page):
            if code.startswith(OUR_PROGRAMS) and "…" not in code:
                faults += [f"{page}: {fault}" for fault in _find_bad(split_commands(code), is_whole=False)]
    assert faults == []


def test_a_wrong_command_is_found() -> None:
    missed = []
    for line, expected in BAD_COMMANDS.items():
        (block,) = find_blocks("page.md", f"```sh\n{line}\n```\n")
        found = list(find_faults(block))
        if len(found) != 1 or expected not in found[0]:
            missed.append((line, found))
    assert missed == []


def test_every_name_and_variable_in_the_text_exists() -> None:
    unknown = []
    for page in find_pages():
        shown = find_inline_code(page)
        unknown += [f"{page}: {name}" for code in shown for name in find_unknown_names(code)]
        shown += [block.text for block in find_blocks(page)]
        unknown += [f"{page}: {name}" for text in shown for name in find_unknown_variables(text)]
    assert unknown == []
    names = ["rrq_job_total", "worker_leases_seconds", "rrq/keyz.py"]
    assert [name for text in names for name in find_unknown_names(text)] == names
    # In two parts, because this file is code as well.
    assert find_unknown_variables("RRQ_" + "REDIS_DNS=x RRQ_REDIS_DSN=x") == ["RRQ_" + "REDIS_DNS"]


def find_quoted_messages(page: str) -> Iterator[str]:
    """Yield what a page quotes from a log or a dashboard: inline code that is a sentence, patterns of grep, italics."""
    for code in find_inline_code(page):
        if _MESSAGE.fullmatch(code) and not code.startswith(_PROGRAMS):
            yield code.removesuffix(" …")
    if page.startswith("docs/runbooks/"):
        text = (ROOT / page).read_text()
        for pattern in re.findall(r"\| grep (?:-E )?'([^']+)'", text):
            yield from (part for part in pattern.split("|") if " " in part)
        yield from re.findall(r"(?<![*\w])\*([^*\n]+)\*(?!\*)", _FENCE.sub("", text))


@cache
def _read_strings() -> str:
    """Return the code of both packages with strings on several lines joined, and the Grafana dashboard."""
    code = "\n".join(
        path.read_text() for top in ("worker", "operator") for path in (ROOT / top).rglob("*.py")
    )
    return re.sub(r'"\s*\n\s*f?"', "", code) + (ROOT / "charts/rrq/dashboards/rrq.json").read_text()


def test_messages_that_the_pages_quote_are_those_of_the_code() -> None:
    quoted = {(page, message) for page in PAGES for message in find_quoted_messages(page)}
    assert len(quoted) > 30
    assert sorted(f"{page}: {message}" for page, message in quoted if message not in _read_strings()) == []


def test_every_link_leads_to_an_existing_file_and_heading(tmp_path: Path) -> None:
    assert [
        f"{name}: {target}" for name in list_files("*.md") for target in find_broken_links(ROOT / name)
    ] == []
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# What `rrq` does\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#what-rrq-does) [c](#here) [d](https://example.org/x)\n"
        "`[e](code.md)`\n```\n[f](fenced.md)\n```\n[g](gone.md) [h](other.md#gone) [i](#gone)\n"
    )
    assert find_broken_links(page) == ["gone.md", "other.md#gone", "#gone"]


def test_a_script_is_split_into_its_commands() -> None:
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
