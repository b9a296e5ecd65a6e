"""Alerts and dashboard ask only for what operator and workers really serve: metrics, labels, and values of labels."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet import enqueue_some
from monitoring import list_dashboard_expressions, list_targets, render_rules
from operator_series import Series, read_operator_series, read_series
from pod import Pod
from promql import find_labels_left, find_metrics, find_wishes, is_granted
from rrq.client import RRQClient
from rrq.settings import RRQSettings
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from helm_client import Helm
    from rrq.embedded import EmbeddedRedis

OPERATOR = "rrq_operator_"
#: Labels that Prometheus gives every series of a target by ServiceMonitor and PodMonitor, with any value.
OF_TARGETS = {OPERATOR: ("namespace", "service", "pod"), "rrq_": ("namespace", "pod", "pool")}
# Not so short that a pod that gets no turn for some seconds loses the job that it is to be killed with.
LEASE_SECONDS = 6.0


def expressions_of(offline: Helm) -> list[str]:
    return [*(rule["expr"] for rule in render_rules(offline)), *list_dashboard_expressions()]


def find_missing(expressions: list[str], series: Series, *, of_operator: bool) -> list[str]:
    """Return what the expressions ask of the operator, or of workers, and nobody serves."""
    given = OF_TARGETS[OPERATOR if of_operator else "rrq_"]
    return sorted(
        {
            f"{wish} in {expression}"
            for expression in expressions
            for wish in find_wishes(expression)
            if wish.metric.startswith(OPERATOR) == of_operator
            and not (wish.metric in series and wish.labels.keys() <= set(given))
            and not is_granted(wish, series)
        }
    )


def test_every_series_that_is_asked_of_the_operator_is_served(offline: Helm) -> None:
    assert find_missing(expressions_of(offline), read_operator_series(), of_operator=True) == []


@pytest.mark.slow
async def test_every_series_that_is_asked_of_workers_is_served_by_a_pod_that_has_seen_trouble(
    offline: Helm, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    expressions = expressions_of(offline)
    client = RRQClient(RRQSettings(redis_dsn=own_redis.dsn))
    await lose_a_pod_with_a_job(client, own_redis, tmp_path)
    with make_pod(own_redis, tmp_path / "busy") as pod:
        await pod.is_up()
        for function, *arguments in (("note",), ("note", "no number"), ("unknown",)):
            await enqueue_some(client, function, *arguments)
        await eventually(lambda: has_ended(pod, "done", "retry", "dead"), 60, "not all outcomes were counted")
        # Only now: what a process has counted within the last second dies with it.
        await enqueue_some(client, "kill_process")
        await client.close()
        await eventually(lambda: (pod.metric("rrq_buried_jobs_total") or 0) > 0, 60, "no job was buried")
        own_redis.kill()
        await eventually(lambda: pod.metric("rrq_redis_up") == 0, 30, "nobody missed Redis")
        own_redis.start()

        def is_all_served() -> bool:
            series = read_series(text_string_to_metric_families(pod.get("/metrics")[1]))
            assert find_missing(expressions, series, of_operator=False) == []
            return True

        await eventually(is_all_served, 60, "some series never came", interval_seconds=0.5)


def has_ended(pod: Pod, *outcomes: str) -> bool:
    served = read_series(text_string_to_metric_families(pod.get("/metrics")[1]))
    return set(outcomes) <= served.get("rrq_jobs_total", {}).get("outcome", set())


async def lose_a_pod_with_a_job(client: RRQClient, server: EmbeddedRedis, folder: Path) -> None:
    """End a pod so that nobody is there to tell of it: only its lease does."""
    with make_pod(server, folder / "lost") as pod:
        await pod.is_up()
        gate = folder / "gate"
        await enqueue_some(client, "wait_for_file", str(gate))
        await pod.has_started(1)
        os.kill(pod.pid, signal.SIGSTOP)
        for pid in (*pod.children(), pod.pid):
            os.kill(pid, signal.SIGKILL)
        pod.wait()
        gate.touch()


def make_pod(server: EmbeddedRedis, folder: Path) -> Pod:
    folder.mkdir()
    return Pod(
        server.dsn,
        folder,
        "--num-workers",
        "1",
        worker_lease_seconds=LEASE_SECONDS,
        unknown_function_patience_seconds=0,
    )


def test_every_metric_of_the_operator_is_on_the_dashboard() -> None:
    asked = set().union(*map(find_metrics, list_dashboard_expressions()))
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in read_operator_series()}
    assert not {name for name in families if not any(metric.startswith(name) for metric in asked)}


def test_words_of_alerts_and_legends_name_labels_that_are_left(offline: Helm) -> None:
    """Else people read of a pool without a name."""
    series = read_operator_series()
    for rule in render_rules(offline):
        words = " ".join(rule["annotations"].values())
        check_words(rule["expr"], set(re.findall(r"\$labels\.(\w+)", words)), series)
    for target in list_targets():
        check_words(target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"])), series)


def check_words(expression: str, named: set[str], series: Series) -> None:
    assert named <= find_labels_left(expression, series), expression


def test_a_mistyped_metric_label_or_value_is_found() -> None:
    series = read_operator_series()
    mistyped = [
        "rrq_operator_du_jobs",
        'rrq_operator_due_jobs{queue="default"}',
        "sum by (reason) (rrq_operator_due_jobs)",
        "rrq_operator_due_jobs > on (function) rrq_operator_busy_jobs",
        'rrq_operator_condition{type="Redy"}',
        'rrq_operator_condition{reason=~"CrashLoopBackOff|OutOfLuck"}',
        "label_values(rrq_operator_due_jobs, queue)",
    ]
    for expression in mistyped:
        assert find_missing([expression], series, of_operator=True), expression
