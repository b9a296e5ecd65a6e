"""A real node: containerd, kubelet and kube-proxy on a machine of its own.

Where the programs insist on paths (/run, /var/log/pods, …), the machine has a file system of its own there, so that
the computer underneath keeps nothing. Only control groups are shared with it: `remove_groups` takes them away.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psutil import virtual_memory

from cluster_part import Part
from control_groups import group_trees, remove_groups
from kubernetes_build import CACHE_VARIABLE
from machine import COMMAND_TIMEOUT_SECONDS, MachineFailed

if TYPE_CHECKING:
    from pathlib import Path

    from control_plane import ControlPlane
    from kubernetes_build import Programs
    from machine import Machine

RUNTIME_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "localhost/pause:1"
# Paths that containerd, kubelet and the network plugins write to wherever they are told to work. Not the folders in
# /var/lib that they make, which most computers lack: a mount would need them there, too.
OWN_FILE_SYSTEMS = ("/run", "/var/log", "/var/lib")
NETWORK_PLUGINS = "/usr/lib/cni"
# All images at once, on every node at the same time.
IMPORT_TIMEOUT_SECONDS = 300.0
# Images take 0.8 GB per node, of which there are five where two clusters run stories side by side.
ROOMY_BYTES = 8 * 2**30
# What a kubelet wants of the kernel, and would set for the whole computer. It is shown that it is so.
KERNEL_SETTINGS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}


@dataclass(frozen=True)
class NodeAddress:
    """Where a node is in the network of its cluster."""

    name: str
    address: str  # of the node
    gateway: str  # the machine of the control plane, which knows the way to all pods
    pods: str  # as in 10.200.1.0/24
    group: str  # the control group of all its pods; its name is nobody else's while the cluster runs


class Node:
    """One node. `kill` is a power failure; `disconnect` of the cluster cuts its cable."""

    def __init__(
        self,
        place: NodeAddress,
        programs: Programs,
        plane: ControlPlane,
        machine: Machine,
        *,
        outlives_us: bool = False,
    ) -> None:
        self.place = place
        self.machine = machine
        self.folder = plane.folder / place.name
        self._programs = programs
        self._plane = plane
        self._outlives_us = outlives_us
        self.containerd = self._part("containerd", ["containerd", "--config", "containerd.toml"])
        self.containerd.is_ready = self._runtime_answers
        kubelet = [str(programs.path("kubelet")), "--config=kubelet.json", "--kubeconfig=kubelet.kubeconfig"]
        kubelet += [
            f"--hostname-override={place.name}",
            f"--node-ip={place.address}",
            "--root-dir=/var/lib/kubelet",
        ]
        self.kubelet = self._part("kubelet", kubelet)
        proxy = [str(programs.path("kube-proxy")), "--kubeconfig=proxy.kubeconfig", "--proxy-mode=iptables"]
        proxy += [f"--hostname-override={place.name}", "--nodeport-addresses=primary"]
        # The table of connections belongs to the computer underneath: its limits are not ours to set.
        proxy += ["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"]
        proxy += ["--conntrack-tcp-timeout-close-wait=0s"]
        self.proxy = self._part("kube-proxy", proxy)

    def start_runtime(self) -> None:
        """Start what runs containers; images can be loaded then."""
        self.folder.mkdir()
        self._make_file_systems()
        self._make_groups()
        self._write_configuration()
        self.containerd.start()

    def join(self) -> None:
        """Tell the cluster of this node, which becomes Ready by itself."""
        self.kubelet.launch()
        self.proxy.launch()

    def load(self, archive: Path) -> None:
        """Import the images of an archive, as `docker save` writes it."""
        self.ctr("images", "import", str(archive), timeout_seconds=IMPORT_TIMEOUT_SECONDS)

    def ctr(self, *arguments: str, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> str:
        ctr = ("ctr", "--address", RUNTIME_SOCKET, "--namespace", "k8s.io")
        return self.machine.run(*ctr, *arguments, timeout_seconds=timeout_seconds)

    def kill(self) -> None:
        """End everything on the node at once."""
        was_running = self.machine.is_running
        self.machine.kill()
        for part in (self.proxy, self.kubelet, self.containerd):
            part.stop()
        if was_running:  # else the whole cluster may have ended, and its number and names be another's by now
            remove_groups(self.place.group)

    def _part(self, name: str, command: list[str]) -> Part:
        log = self._plane.logs / f"{self.place.name}-{name}.log"
        return Part(
            [*self.machine.enter(self.folder), *command], self.folder, log, lambda: True, self._outlives_us
        )

    def _runtime_answers(self) -> bool:
        try:
            self.ctr("version")
        except MachineFailed:
            return False
        return True

    def _make_file_systems(self) -> None:
        for path in OWN_FILE_SYSTEMS:
            for needed in (self.folder, self._programs.path("kubelet")):
                if needed.is_relative_to(path):
                    raise MachineFailed(
                        f"{self.place.name} would not see {needed}, because it has its own {path}. Set TMPDIR, or "
                        f"{CACHE_VARIABLE}, to a folder elsewhere."
                    )
            self.machine.run("mount", "-t", "tmpfs", "tmpfs", path)
        for setting, value in KERNEL_SETTINGS.items():
            shown = self.folder / setting.replace("/", ".")
            shown.write_text(f"{value}\n")
            self.machine.run("mount", "--bind", str(shown), f"/proc/sys/{setting}")
        # Mounts that the kubelet makes for pods must be seen by what containerd starts later.
        self.machine.run("mount", "--make-rshared", "/")
        self.machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def _make_groups(self) -> None:
        remove_groups(self.place.group)  # of a cluster that was killed
        for tree in group_trees():
            (tree / self.place.group).mkdir()

    def _write_configuration(self) -> None:
        place, folder = self.place, self.folder
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": place.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        (folder / "cni").mkdir()
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (folder / "containerd.toml").write_text(containerd_configuration(folder))
        self._plane.make_kubeconfig(
            f"system:node:{place.name}", group="system:nodes", file=folder / "kubelet.kubeconfig"
        )
        self._plane.make_kubeconfig("system:kube-proxy", file=folder / "proxy.kubeconfig")
        (folder / "kubelet.json").write_text(json.dumps(self._kubelet_configuration()))

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.folder / "keys" / "authority.pem")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",  # no systemd is needed
            "cgroupRoot": f"/{self.place.group}",
            "clusterDNS": [place_of_names(self.place)],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
            "failSwapOn": False,
            "resolvConf": "",  # names outside the cluster are nobody's business here
            # Pods of a test are many and small.
            "maxPods": 200,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "serializeImagePulls": False,
            # A short silence counts as lost, see FOR_QUICK_NODES.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            # The disk is the computer's: its being full is no matter of the test, nor are its images.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
                "nodefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
        }


def place_of_names(place: NodeAddress) -> str:
    """The name service runs beside the control plane."""
    return place.gateway


def place_of_images(folder: Path) -> str:
    """In memory, where there is plenty: unpacked images are many small files, which some disks are slow to remove."""
    return "/var/lib/containerd" if virtual_memory().available > ROOMY_BYTES else f"{folder}/containerd"


def containerd_configuration(folder: Path) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE, as inside many containers, no sandbox would start.
    return f"""
version = 2
root = "{place_of_images(folder)}"
state = "/run/containerd"
[grpc]
  address = "{RUNTIME_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{NETWORK_PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
