"""Ways for a worker to die in the middle of a job, none of which it is asked about; `container_killer` has another."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING

from control_plane import KubectlFailed

if TYPE_CHECKING:
    from pools import PoolDesk

CONTAINER = "worker"
HASTE_SECONDS = 2
# Run beside the supervisor, which is process 1 and cannot be killed from inside; says when it was done.
KILL_CHILDREN = """
import os, pathlib, signal, time
for process in pathlib.Path("/proc/1/task/1/children").read_text().split():
    os.kill(int(process), signal.SIGKILL)
    print(time.time())
"""


def kill_processes(desk: PoolDesk, pod: str) -> float:
    """kill -9 what runs the jobs of a pod; returns when that was, by the clock of its node."""
    said = desk.kubectl("exec", pod, "--container", CONTAINER, "--", "python3", "-c", KILL_CHILDREN)
    return float(said.split()[0])


def delete_by_force(desk: PoolDesk, pod: str) -> float:
    """Delete the object without waiting for the node; returns when that began."""
    began_at = time.time()
    desk.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    return began_at


def delete_in_haste(desk: PoolDesk, pod: str) -> float:
    """Delete a pod with less patience than its drain takes, so that its node kills it; returns when that is due."""
    began_at = time.time()
    path = f"/api/v1/namespaces/{desk.namespace}/pods/{pod}?gracePeriodSeconds={HASTE_SECONDS}"
    deleted = json.loads(desk.kubectl("delete", "--raw", path))
    # Not before the API server heard of it, however long kubectl took to say so; it writes whole seconds down.
    due_at = datetime.fromisoformat(deleted["metadata"]["deletionTimestamp"]).timestamp()
    return max(began_at + HASTE_SECONDS, due_at)


def evict(desk: PoolDesk, pod: str) -> bool:
    """Ask for a pod's leave through the API, as a node drain does; False where its budget does not allow it now."""
    eviction = (
        f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}", '
        f'"namespace": "{desk.namespace}"}}}}'
    )
    path = f"/api/v1/namespaces/{desk.namespace}/pods/{pod}/eviction"
    try:
        desk.cluster.kubectl("create", "--raw", path, "--filename", "-", input=eviction)
    except KubectlFailed as refused:
        if "disruption budget" not in str(refused):
            raise
        return False
    return True
