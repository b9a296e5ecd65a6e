"""A cluster by kind, on an engine of our own: it runs pods and the first story, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster_choice import build_images
from image_bundle import REDIS
from kind_cluster import kind_cluster
from kind_engine import own_kind_engine
from kubernetes_build import KUBECONFIG_VARIABLE, CannotHostKubernetes

if TYPE_CHECKING:
    from control_plane import Cluster

ROOT = Path(__file__).parents[2]
FIRST_STORY = ROOT / "tests" / "e2e" / "test_first_steps.py"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_node_image_of_our_own_makes_a_cluster_that_runs_pods_and_the_first_story(tmp_path: Path) -> None:
    try:
        with own_kind_engine() as engine:
            folder = Path(str(engine.docker.host).removeprefix("unix://")).parent
            with kind_cluster(tmp_path, build_images(), engine) as cluster:
                nodes = read_ready_nodes(cluster)
                assert len(nodes) == 3
                for node in nodes:
                    run_pod(cluster, node)
                run_first_story(cluster)
            assert engine.docker.run("ps", "--all", "--quiet") == ""
    except CannotHostKubernetes as missing:
        pytest.skip(str(missing))
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert list(Path("/sys/fs/cgroup").rglob(folder.name)) == []


def read_ready_nodes(cluster: Cluster) -> list[str]:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output", "json"))["items"]
    return sorted(node["metadata"]["name"] for node in nodes if is_ready(node))


def is_ready(node: dict[str, Any]) -> bool:
    return any(it["type"] == "Ready" and it["status"] == "True" for it in node["status"]["conditions"])


def run_pod(cluster: Cluster, node: str) -> None:
    """Run a pod of the loaded image on a node; it ends well when it reaches the API server by its name."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"on-{node}"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "OnFailure",
            "containers": [
                {
                    "name": "caller",
                    "image": REDIS,  # which has a shell
                    "imagePullPolicy": "Never",
                    "command": ["bash", "-c", "exec 3<>/dev/tcp/kubernetes.default.svc/443"],
                }
            ],
        },
    }
    cluster.kubectl("apply", "--filename", "-", input=json.dumps(pod))
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/on-{node}", "--timeout=100s")


def run_first_story(cluster: Cluster) -> None:
    """Install the chart and run the example, as on any cluster that somebody names."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(FIRST_STORY)],
        cwd=ROOT,
        env={**os.environ, KUBECONFIG_VARIABLE: str(cluster.kubeconfig)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
