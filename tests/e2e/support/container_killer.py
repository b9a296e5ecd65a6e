"""kill -9 for a container, on any cluster: by a pod that sees the processes of its node."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from cluster_choice import name_image

if TYPE_CHECKING:
    from pools import PoolDesk

# Where pods may be privileged: the namespaces of the stories are strict.
NAMESPACE = "kube-system"
# The first process of a container cannot be killed from inside. From outside it is found by the name of its group.
SCRIPT = """
import os, pathlib, sys, time
killed_at = None
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if sys.argv[1] in (process / "cgroup").read_text():
            now = time.time()  # not before it is found, which a busy node takes its time for
            os.kill(int(process.name), 9)
            killed_at = now
    except OSError:
        pass  # it has ended meanwhile
if killed_at is None:
    sys.exit("no process of this container is here")
print(killed_at)
"""


def kill_container(desk: PoolDesk, pod: str) -> float:
    """Kill all processes of the one container of a pod at once; returns when that was, by the clock of its node."""
    found = desk.get("pod", pod)
    container_id = found["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    killer = f"killer-{secrets.token_hex(4)}"
    container = {
        "name": "killer",
        "image": name_image("rrq-e2e:test"),
        "command": ["python3", "-c", SCRIPT, container_id],
        "securityContext": {"privileged": True, "runAsUser": 0},
    }
    spec = {
        "nodeName": found["spec"]["nodeName"],
        "hostPID": True,
        "restartPolicy": "Never",
        "containers": [container],
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": killer}, "spec": spec}
    in_namespace = ("--namespace", NAMESPACE)
    desk.cluster.kubectl(*in_namespace, "apply", "--filename", "-", input=json.dumps(manifest))
    finished = ("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{killer}", "--timeout=100s")
    try:
        desk.cluster.kubectl(*in_namespace, *finished)
        return float(desk.cluster.kubectl(*in_namespace, "logs", killer))
    finally:
        desk.cluster.kubectl(*in_namespace, "delete", "pod", killer, "--wait=false")
