"""The cluster that the stories run on: what it can do, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_groups import GROUPS
from control_plane import Cluster
from kubernetes_build import CannotHostKubernetes, find_programs
from node import KERNEL_SETTINGS, PAUSE_IMAGE
from real_cluster import RealCluster, refuse_where_none_can_run
from standing_cluster import read_state
from waiting import eventually

if TYPE_CHECKING:
    from kubernetes_build import Programs


# Starts a cluster, says so, and then waits to be killed.
STARTS_AND_WAITS = """
import sys, time
from pathlib import Path
from kubernetes_build import find_programs
from real_cluster import RealCluster
with RealCluster(find_programs(), Path(sys.argv[1]), node_count=1) as cluster:
    print(cluster.network, flush=True)
    time.sleep(3600)
"""
# As `make cluster-up` and `make cluster-down` do, each in a process of its own.
STAYS = "import sys, standing_cluster; from pathlib import Path; standing_cluster.{}(Path(sys.argv[1]))"


@pytest.fixture
def programs() -> Programs:
    try:
        refuse_where_none_can_run()
        return find_programs()
    except CannotHostKubernetes as missing:
        pytest.skip(f"no cluster with nodes here. {missing}")


def run_pod(cluster: Cluster, name: str) -> None:
    pod = ["run", name, f"--image={PAUSE_IMAGE}", "--image-pull-policy=Never", "--restart=Never"]
    cluster.kubectl(*pod)
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


# What goes by the number of a cluster, which the next one may take as soon as it is free.
NUMBERED = ("interfaces", "routes", "control groups")


def what_stayed(folder: Path, network: int, interface: int | None) -> set[str]:
    """What is left of a cluster whose interface was this one."""
    now = interface_index(network)
    is_anothers = now is not None and now != interface
    return {what for what in traces(folder, network) if not (is_anothers and what in NUMBERED)}


def traces(folder: Path, network: int) -> dict[str, list[str]]:
    """What there is of a cluster on this computer; other clusters may run beside it."""
    interface, addresses = f"rrq{network}@", f"10.{network}."
    groups = [str(group) for group in GROUPS.glob("*/*")] + [str(group) for group in GROUPS.glob("*")]
    seen = {
        "interfaces": find_lines(interface, output("ip", "-brief", "link")),
        "routes": find_lines(addresses, output("ip", "route")),
        "packet filter": find_lines("KUBE-", output("iptables-save")),
        "mounts": find_lines(str(folder), Path("/proc/self/mountinfo").read_text()),
        "control groups": find_lines(f"rrq-{network}-", "\n".join(groups)),
        "processes": find_lines(str(folder), output("ps", "-eww", "-o", "args")),
    }
    return {what: lines for what, lines in seen.items() if lines}


def interface_index(network: int) -> int | None:
    try:
        return int(Path(f"/sys/class/net/rrq{network}/ifindex").read_text())
    except FileNotFoundError:
        return None


def find_lines(mark: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if mark in line]


def output(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def kernel_settings() -> dict[str, str]:
    return {setting: Path("/proc/sys", setting).read_text() for setting in KERNEL_SETTINGS}


async def test_a_cluster_that_ends_leaves_nothing_behind(programs: Programs, tmp_path: Path) -> None:
    settings = kernel_settings()
    with RealCluster(programs, tmp_path, node_count=1) as cluster:
        run_pod(cluster, "one")
        running, interface = traces(tmp_path, cluster.network), interface_index(cluster.network)
    assert set(running) == {"interfaces", "routes", "control groups", "processes"}
    # The kernel takes interfaces away a moment after the last process.
    await eventually(
        lambda: what_stayed(tmp_path, cluster.network, interface) == set(),
        60,
        "something of the cluster stayed",
    )
    assert not list(tmp_path.glob("node*"))
    assert kernel_settings() == settings


async def test_a_killed_test_run_takes_its_cluster_along(programs: Programs, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        network = int(starter.stdout.readline())
        run_pod(Cluster(tmp_path / "admin.kubeconfig", programs.path("kubectl")), "one")
        assert "processes" in traces(tmp_path, network)
        interface = interface_index(network)
        starter.send_signal(signal.SIGKILL)
    # Empty control groups are all that nobody is left to remove.
    await eventually(
        lambda: what_stayed(tmp_path, network, interface) <= {"control groups"},
        60,
        "something of the cluster stayed",
    )


@pytest.mark.timeout(420)  # it has all images, and its nodes unpack them
async def test_a_cluster_that_stays_outlives_who_started_it_and_goes_when_told(
    programs: Programs, tmp_path: Path
) -> None:
    folder = tmp_path / "standing"

    def call(action: str) -> str:
        return output(sys.executable, "-c", STAYS.format(action), str(folder))

    try:
        assert f"export KUBECONFIG={folder}/admin.kubeconfig" in call("up")
        network = read_state(folder)["network"]
        run_pod(Cluster(folder / "admin.kubeconfig", programs.path("kubectl")), "one")
        running, interface = traces(folder, network), interface_index(network)
    finally:
        said = call("down")
    assert set(running) == {"interfaces", "routes", "control groups", "processes"}
    assert said == "the cluster is gone\n"
    await eventually(
        lambda: what_stayed(folder, network, interface) == set(), 60, "something of the cluster stayed"
    )
    assert not folder.exists()


async def test_clusters_run_side_by_side_and_lose_nodes_one_by_one(
    programs: Programs, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with (
        RealCluster(programs, folders[0], node_count=2) as first,
        RealCluster(programs, folders[1], node_count=1) as second,
    ):
        assert first.network != second.network
        first.nodes[1].kill()

        def lost() -> bool:
            return "NotReady" in first.kubectl("get", "node", "node2")

        await eventually(lost, 60, "the loss of a node was not noticed", interval_seconds=0.5)
        run_pod(first, "here")
        run_pod(second, "there")
        assert "NotReady" not in second.kubectl("get", "nodes")
