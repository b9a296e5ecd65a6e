"""What a failed story leaves on the screen: enough to understand it without running it again."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from control_plane import KubectlFailed

if TYPE_CHECKING:
    from control_plane import Cluster

OPERATOR_NAMESPACE = "rrq-system"
REDIS_STATE = (
    "dbsize",
    "info clients",
    "keys rrq:queue:*",
    "keys rrq:active:*",
    "lrange rrq:dlq:default 0 10",
)


def describe(cluster: Cluster, namespace: str) -> str:
    """Pods, pools, events, logs and Redis of a story; what cannot be had is said so."""
    of_story = ("--namespace", namespace)
    of_operator = ("--namespace", OPERATOR_NAMESPACE)
    views: list[tuple[str, ...]] = [
        ("get", "nodes", "--output=wide"),
        (*of_story, "get", "pods,deployments,jobs", "--output=wide"),
        (*of_story, "get", "rrqpool", "--output=yaml"),
        (*of_story, "get", "events", "--sort-by=.lastTimestamp"),
        (*of_operator, "get", "pods", "--output=wide"),
        (*of_operator, "logs", "--selector=app.kubernetes.io/name=rrq-operator", "--tail=200", "--prefix"),
        (*of_story, "logs", "--selector=app.kubernetes.io/name=rrq-worker", "--tail=40", "--prefix"),
    ]
    redis = (
        *of_story,
        "exec",
        "redis-0",
        "--",
        "sh",
        "-c",
        'for c in "$@"; do echo "> $c"; redis-cli $c; done',
        "-",
    )
    views.append((*redis, *REDIS_STATE))
    return "\n".join(f"--- kubectl {' '.join(view)}\n{look(cluster, view)}" for view in views)


def look(cluster: Cluster, view: tuple[str, ...]) -> str:
    try:
        return cluster.kubectl(*view)
    except (KubectlFailed, subprocess.TimeoutExpired) as error:
        return str(error)
