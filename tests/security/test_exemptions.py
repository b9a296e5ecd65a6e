"""Exemptions are few and explained: from a lint rule, from a type check, and from catching the narrowest error."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The rules or error codes, then the reason.
EXEMPTION = re.compile(
    r"#\s*(?:ruff: )?noqa: [A-Z]+\d+(?:, [A-Z]+\d+)*(?P<rest>.*)|#\s*type: ignore\[[\w-]+\](?P<other>.*)"
)
ANY_EXEMPTION = re.compile(r"#.*\b(?:noqa|type: ?ignore)\b")

#: Where an error of any kind is caught: foreign code runs there, or a loop must survive.
BROAD_EXCEPTS = {
    "operator/rrq_operator/cluster/cluster_cache.py": 1,  # a pool that cannot be parsed hides no other
    "operator/rrq_operator/cluster/handlers.py": 1,  # kopf failed and is restarted
    "operator/rrq_operator/control/housekeeping.py": 1,  # what any client stored for dashboards
    "operator/rrq_operator/control/leader.py": 2,  # a round; a pool without a Redis
    "operator/rrq_operator/control/pool_group.py": 3,  # a round; the decision for a pool; the action for a pool
    "operator/rrq_operator/control/reporting.py": 1,  # one report
    "operator/rrq_operator/redis/queues.py": 2,  # what any client stored; what any client announced
    "worker/rrq/broker/pipelined_connection.py": 1,  # the reader, on which all calls wait
    "worker/rrq/engine/consumer.py": 2,  # a claim without a reply; an outcome is not given up
    "worker/rrq/engine/executor.py": 2,  # a handler; methods that an application overrides
    "worker/rrq/engine/lease.py": 1,  # the thread that renews the lease
    "worker/rrq/engine/polling.py": 3,  # a round; the start of a job; a claimed job without a task
    "worker/rrq/engine/registration.py": 1,  # a list of jobs without a reply
    "worker/rrq/engine/threads.py": 1,  # a handler that is a plain function
    "worker/rrq/hooks.py": 3,  # a hook is loaded, an exporter is loaded, a hook is called
    "worker/rrq/jobs/codec.py": 1,  # objects that a handler returned
    "worker/rrq/pod/child.py": 1,  # the application as a whole
    "worker/rrq/pod/child_process.py": 1,  # messages of a child
    "worker/rrq/pod/heartbeat.py": 1,  # the heartbeat of a pod
    "worker/rrq/runtime/logs.py": 4,  # objects of the application in a log record
    "worker/rrq/settings_loading.py": 1,  # the settings module of the application
    "worker/rrq/tracing.py": 1,  # the tracer
    "worker/rrq/worker.py": 1,  # the shutdown hook of the application
}


def list_sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def find_unexplained_exemptions(source: str) -> list[int]:
    """Return the lines whose exemption names no rule, or gives no reason of at least two words."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not ANY_EXEMPTION.search(token.string):
            continue
        match = EXEMPTION.search(token.string)
        reason = (match["rest"] or match["other"] or "") if match else ""
        if len(re.findall(r"\w+", reason)) < 2:
            found.append(token.start[0])
    return found


def find_broad_excepts(source: str) -> list[tuple[int, bool]]:
    """Return the line of each broad ``except``, and whether a comment beside, above or below it gives the reason."""
    lines = source.splitlines()
    return [
        (
            node.lineno,
            lines[node.lineno - 2].lstrip().startswith("#")
            or "#" in lines[node.lineno - 1]
            or lines[node.lineno].lstrip().startswith("#"),
        )
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type)
    ]


def _is_broad(caught: ast.expr | None) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def test_each_exemption_names_its_rule_and_its_reason() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in list_sources("worker", "operator", "tools")
        for line in find_unexplained_exemptions(path.read_text())
    ]
    assert found == []


def test_errors_of_any_kind_are_caught_only_at_the_boundaries_that_are_listed() -> None:
    counts = Counter(
        str(path.relative_to(ROOT))
        for path in list_sources("worker", "operator")
        for _ in find_broad_excepts(path.read_text())
    )
    assert counts == BROAD_EXCEPTS


def test_each_broad_except_of_the_library_names_its_boundary() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in list_sources("worker")
        for line, has_reason in find_broad_excepts(path.read_text())
        if not has_reason
    ]
    assert found == []


def test_the_search_finds_what_it_looks_for() -> None:
    exempted = (
        "a = 1  # noqa\n"
        "a = 1  # noqa: B008\n"
        "a = 1  # type: ignore\n"
        "a = 1  # type: ignore[arg-type]\n"
        "a = 1  # type: ignore[arg-type]  # dict is invariant\n"
        "a = 1  # noqa: B008  frozen, so that all calls share it\n"
    )
    assert find_unexplained_exemptions(exempted) == [1, 2, 3, 4]
    caught = (
        "try:\n    run()\nexcept (ValueError, Exception):\n    pass\n"
        "try:\n    run()\n# foreign code\nexcept BaseException:\n    raise\n"
        "try:\n    run()\nexcept ValueError:\n    pass\n"
    )
    assert find_broad_excepts(caught) == [(3, False), (8, True)]
