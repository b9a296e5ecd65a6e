"""What a failed story leaves on the screen: enough to understand it without running it again."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from control_plane import KubectlFailed
from story_redis import SECRET

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
# The password comes by another way than the commands, which are shown.
ASK_REDIS = 'read -r REDISCLI_AUTH; export REDISCLI_AUTH; for c in "$@"; do echo "> $c"; redis-cli $c; done'
OPERATOR_LOG = ("logs", "--selector=app.kubernetes.io/name=rrq-operator", "--tail=200", "--prefix")
WORKER_LOG = ("logs", "--selector=app.kubernetes.io/name=rrq-worker", "--tail=40", "--prefix")
# What a container said before it was started anew. Most have not been, which is no reason to leave the others out.
BEFORE = ("--previous", "--ignore-errors")


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
        (*of_operator, *OPERATOR_LOG),
        (*of_operator, *OPERATOR_LOG, *BEFORE),
        (*of_story, *WORKER_LOG),
        (*of_story, *WORKER_LOG, *BEFORE),
    ]
    told = [show(cluster, view) for view in views]
    password = read_password(cluster, namespace)
    for pod in find_redis(cluster, namespace):
        ask = (*of_story, "exec", "--stdin", pod, "--", "sh", "-c", ASK_REDIS, "-", *REDIS_STATE)
        told.append(show(cluster, ask, input=f"{password}\n"))
    return "\n".join(told)


def find_redis(cluster: Cluster, namespace: str) -> list[str]:
    """The pods of Redis: that of a story, or that of the chart, which is named after the release."""
    names = look(cluster, ("--namespace", namespace, "get", "pods", "--output=name")).split()
    return [name for name in names if name.endswith("redis-0")]


def read_password(cluster: Cluster, namespace: str) -> str:
    """The one in force: both a story and the chart keep the address in this Secret, and change it there."""
    url = look(cluster, ("--namespace", namespace, "get", "secret", SECRET, "--output=jsonpath={.data.url}"))
    try:
        return urlsplit(b64decode(url, validate=True).decode()).password or ""
    except ValueError:  # there is no such Secret, and what we have is an error
        return ""


def show(cluster: Cluster, view: tuple[str, ...], input: str = "") -> str:
    return f"--- kubectl {' '.join(view)}\n{look(cluster, view, input)}"


def look(cluster: Cluster, view: tuple[str, ...], input: str = "") -> str:
    try:
        return cluster.kubectl(*view, input=input)
    except (KubectlFailed, subprocess.TimeoutExpired) as error:
        return str(error)
