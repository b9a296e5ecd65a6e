"""A real Kubernetes of several nodes on one computer, made of namespaces: a control plane, nodes, a name service.

The control plane's machine is the switch between the nodes and the way in from here: one pair of interfaces, through
which API server and pods are reached under 10.x addresses of their own. Everything ends with that machine.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from cluster_part import Part
from control_groups import group_trees
from control_plane import ControlPlane, OwnCluster
from kubernetes_build import NODE_PACKAGES, CannotHostKubernetes
from machine import Machine, MachineFailed, lay_cable, run
from node import PAUSE_IMAGE, Node, NodeAddress
from packages import MissingPackages, demand
from pause_image import write_pause_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kubernetes_build import Programs

# Each cluster takes one of these second numbers of 10.x.0.0/16, so that several may run side by side.
NETWORKS = range(200, 232)
BRIDGE = "nodes"


def refuse_where_no_machine_can_be() -> None:
    """Raise `CannotHostKubernetes` where nodes cannot be made, whatever is installed."""
    if os.geteuid() != 0:
        raise CannotHostKubernetes("Nodes need namespaces and mounts: run as root.")
    if not group_trees():
        raise CannotHostKubernetes("Nodes need control groups, and none are mounted in /sys/fs/cgroup.")


def refuse_where_none_can_run() -> None:
    """Raise `CannotHostKubernetes` where nodes cannot be started now."""
    refuse_where_no_machine_can_be()
    try:
        demand(NODE_PACKAGES)
    except MissingPackages as missing:
        raise CannotHostKubernetes(str(missing)) from missing


class RealCluster(OwnCluster):
    """A cluster for the length of a `with` block, with all it keeps in `folder`."""

    def __init__(
        self,
        programs: Programs,
        folder: Path,
        *,
        images: Sequence[Path] = (),
        node_count: int = 2,
        outlives_us: bool = False,
    ) -> None:
        self.machine = Machine("control", folder, outlives_us=outlives_us)
        try:
            self.network = join_network(self.machine)
            self.plane = ControlPlane(
                programs,
                folder,
                machine=self.machine,
                address=f"10.{self.network}.0.1",
                outlives_us=outlives_us,
            )
        except BaseException:
            self.machine.kill()  # and with it its end of the cable
            raise
        super().__init__(self.plane.kubeconfig, self.plane.kubectl_program)
        self.logs = self.plane.logs
        self.started_in_seconds = 0.0
        coredns = [*self.machine.enter(folder), str(programs.path("coredns")), "-conf", "Corefile"]
        self.names = Part(coredns, folder, self.logs / "coredns.log", lambda: True, outlives_us)
        self.nodes: list[Node] = []
        self._programs = programs
        self._folder = folder
        self._images = list(images)
        self._node_count = node_count
        self._outlives_us = outlives_us

    def start(self) -> None:
        """Start everything, and return when pods can run on every node."""
        began_at = time.monotonic()
        try:
            self.plane.start()
            (self._folder / "Corefile").write_text(name_service_configuration(self.plane.address))
            self.names.launch()
            pause_image = write_pause_image(
                self._programs.path("pause"), PAUSE_IMAGE, self._folder / "pause.tar"
            )
            self._images.insert(0, pause_image)
            self._add_nodes(self._node_count)
        except BaseException:
            self.stop()
            raise
        self.started_in_seconds = time.monotonic() - began_at

    def stop(self) -> None:
        """End everything; the logs stay."""
        # The number of the network, by which all is named, is ours while the cable is there, which ends with the
        # machine at the latest: so the machine goes last.
        for node in self.nodes:
            node.kill()
        if self.machine.is_running:
            leave_network(self.network)
        self.machine.kill()  # and with it whatever is inside
        self.names.stop()
        self.plane.stop()
        for node in self.nodes:
            shutil.rmtree(node.folder, ignore_errors=True)  # one that did not start has none

    def add_node(self) -> Node:
        """Start one more node, and return when pods can run on it."""
        return self._add_nodes(1)[0]

    def _add_nodes(self, count: int) -> list[Node]:
        nodes = [self._plug_in_node() for _ in range(count)]
        for node in nodes:
            node.start_runtime()
        with ThreadPoolExecutor() as together:  # unpacking takes longest
            list(together.map(self._load_images, nodes))
        for node in nodes:  # not in those threads: what a thread started ends with it
            node.join()
        self.wait_for_nodes(nodes)
        return nodes

    def _load_images(self, node: Node) -> None:
        for archive in self._images:
            node.load(archive)

    def _plug_in_node(self) -> Node:
        number = len(self.nodes) + 1
        place_name = f"node{number}"
        place = NodeAddress(
            name=place_name,
            address=f"10.{self.network}.0.{10 + number}",
            gateway=self.plane.address,
            pods=f"10.{self.network}.{number}.0/24",
            group=name_group(self.network, place_name),
        )
        machine = Machine(place.name, self._folder, inside=self.machine, outlives_us=self._outlives_us)
        plug_in(self.machine, machine, place)
        node = Node(place, self._programs, self.plane, machine, outlives_us=self._outlives_us)
        self.nodes.append(node)
        return node

    def disconnect(self, node: Node) -> None:
        """Cut the cable: node and pods go on, unheard."""
        self.machine.run("ip", "link", "set", node.place.name, "down")

    def connect(self, node: Node) -> None:
        self.machine.run("ip", "link", "set", node.place.name, "up")
        route_to_pods(self.machine, node.place)  # routes go with the link

    def wait_for_nodes(self, nodes: Sequence[Node]) -> None:
        """Wait until these are ready; a kubelet that ends instead says why."""
        for node in nodes:
            node.kubelet.is_ready = partial(self._is_ready, node)
            node.kubelet.wait_until_ready()

    def _is_ready(self, node: Node) -> bool:
        answer = self.plane.read(f"/api/v1/nodes/{node.place.name}")
        conditions = json.loads(answer)["status"].get("conditions", []) if answer else []
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def join_network(control: Machine) -> int:
    """Make the switch, and a cable to it from here; return the number of the network."""
    control.run("ip", "link", "add", BRIDGE, "type", "bridge")
    control.run("ip", "link", "set", BRIDGE, "up")
    control.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    number = lay_cable(control, NETWORKS)
    if number is None:
        raise CannotHostKubernetes(f"All {len(NETWORKS)} networks are taken by clusters that run: end some.")
    control.run("ip", "link", "set", "outside", "master", BRIDGE, "up")
    control.run("ip", "address", "add", f"10.{number}.0.1/24", "dev", BRIDGE)
    run(["ip", "route", "add", f"10.{number}.0.0/16", "via", f"10.{number}.0.1"])
    return number


def name_group(network: int, node: str) -> str:
    """The control group of the pods of a node; `*` stands for all nodes of the cluster."""
    return f"rrq-{network}-{node}"


def leave_network(number: int) -> None:
    """Take the cable away at once; by itself it goes when the kernel has closed the last connection."""
    with suppress(MachineFailed):  # it is gone
        run(["ip", "link", "delete", f"rrq{number}"])


def plug_in(control: Machine, machine: Machine, place: NodeAddress) -> None:
    """Lay a cable from a node to the switch; its end there is named after the node."""
    cable = ["ip", "link", "add", place.name, "type", "veth", "peer", "name", "eth0"]
    # From here, where the number of the node's first process means something, but in the control plane's network.
    in_its_network = ["nsenter", "--target", str(control.first_process_id), "--net", "--"]
    run([*in_its_network, *cable, "netns", str(machine.first_process_id)])
    control.run("ip", "link", "set", place.name, "master", BRIDGE, "up")
    machine.run("ip", "address", "add", f"{place.address}/24", "dev", "eth0")
    machine.run("ip", "link", "set", "eth0", "up")
    machine.run("ip", "route", "add", "default", "via", place.gateway)
    route_to_pods(control, place)


def route_to_pods(control: Machine, place: NodeAddress) -> None:
    control.run("ip", "route", "replace", place.pods, "via", place.address)


def name_service_configuration(address: str) -> str:
    return f"""
.:53 {{
  bind {address}
  errors
  cache 2
  kubernetes cluster.local {{
    kubeconfig admin.kubeconfig tests
  }}
}}
"""
