"""The cluster that tools/cluster starts for the stories leaves nothing on the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_groups import GROUPS
from kubernetes_build import CannotHostKubernetes, find_programs
from node import KERNEL_SETTINGS, PAUSE_IMAGE
from real_cluster import RealCluster, refuse_where_none_can_run
from waiting import eventually

if TYPE_CHECKING:
    from kubernetes_build import Programs

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
# What goes by the number of a cluster, which the next one may take as soon as it is free.
NUMBERED = ("interfaces", "routes", "control groups")


@pytest.fixture
def programs() -> Programs:
    try:
        refuse_where_none_can_run()
        return find_programs()
    except CannotHostKubernetes as missing:
        pytest.skip(f"no cluster with nodes here. {missing}")


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
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kernel_settings() -> dict[str, str]:
    return {setting: Path("/proc/sys", setting).read_text() for setting in KERNEL_SETTINGS}


async def test_a_cluster_that_ends_leaves_nothing_behind(programs: Programs, tmp_path: Path) -> None:
    settings = kernel_settings()
    with RealCluster(programs, tmp_path, node_count=1) as cluster:
        cluster.kubectl(
            "run", "one", f"--image={PAUSE_IMAGE}", "--image-pull-policy=Never", "--restart=Never"
        )
        cluster.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=60s")
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
