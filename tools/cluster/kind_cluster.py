"""A cluster by kind: three nodes that are Docker containers, gone with the block.

Taken where a Docker engine answers and the node image is there, can be pulled, or can be built (`kind_node_image`).
Everywhere else one line says what is missing.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from control_plane import Cluster
from docker_engine import DockerEngine, answers
from kind_engine import KindEngine
from kind_node_image import build_node_image, has_image, own_node_image, refuse_where_none_can_be_built
from kind_programs import PUBLISHED_NODE_IMAGE, find_kind
from kubernetes_build import CannotHostKubernetes, find_client
from progress import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE_VARIABLE = "RRQ_E2E_KIND_IMAGE"  # a node image to use instead
WORKER_COUNT = 2
API_SERVER_PORT = 6443

ASK_TIMEOUT_SECONDS = 15.0
PULL_TIMEOUT_SECONDS = 600.0
READY_TIMEOUT_SECONDS = 180.0
COMMAND_TIMEOUT_SECONDS = 900.0


class KindFailed(Exception):
    """Everything was there and kind failed all the same; the message has the end of what it said."""


def why_not() -> str | None:
    """Say in one line what kind lacks here, or None where a cluster can be made."""
    try:
        engine = find_engine()
        if not has_node_image(engine.docker):
            reason = why_not_pulled(node_image(), ["manifest", "inspect"], ASK_TIMEOUT_SECONDS, engine)
            if reason is not None:
                refuse_where_none_is_built(reason)
        find_kind()
    except CannotHostKubernetes as missing:
        return str(missing)
    return None


@contextmanager
def kind_cluster(folder: Path, images: Path, engine: KindEngine | None = None) -> Iterator[Cluster]:
    """Give a new cluster whose nodes have the images of an archive, or raise `CannotHostKubernetes`.

    `folder` gets its kubeconfig, and the logs of its nodes if it does not come up.
    """
    engine = engine or find_engine()
    image, kubectl = get_node_image(engine), find_client("kubectl")
    kind = Kind(find_kind(), f"rrq-{uuid.uuid4().hex[:8]}", engine.docker.host)
    configuration, kubeconfig = folder / "kind.yaml", folder / "kind.kubeconfig"
    configuration.write_text(build_configuration(engine.address))
    kubeconfig.touch(mode=0o600)
    cluster = Cluster(kubeconfig, kubectl)
    try:
        try:
            kind.create(image, configuration, kubeconfig)
            kind.run("load", "image-archive", str(images))
            wait_for_nodes(cluster)
        except BaseException:
            with suppress(KindFailed):  # whose reason would hide the first one
                kind.run("export", "logs", str(folder / "kind-logs"))
            raise
        yield cluster
    finally:
        kind.run("delete", "cluster", "--kubeconfig", str(kubeconfig))


@dataclass(frozen=True)
class Kind:
    """The program, and the cluster it is about."""

    program: Path
    cluster_name: str
    docker_host: str | None

    def run(self, *arguments: str) -> None:
        command = [str(self.program), *arguments, "--name", self.cluster_name]
        done = run_client(command, self.docker_host, COMMAND_TIMEOUT_SECONDS)
        if done.returncode != 0:
            raise KindFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")

    def create(self, image: str, configuration: Path, kubeconfig: Path) -> None:
        files = ("--config", str(configuration), "--kubeconfig", str(kubeconfig))
        # Nodes that do not come up stay until their logs are taken.
        patience = ("--retain", "--wait", f"{READY_TIMEOUT_SECONDS:.0f}s")
        self.run("create", "cluster", "--image", image, *files, *patience)


def find_engine() -> KindEngine:
    if not answers(None):
        raise CannotHostKubernetes(
            "kind needs a Docker engine and none answers: start one, or name it in DOCKER_HOST."
        )
    return KindEngine(DockerEngine(None, None))


def node_image() -> str:
    return os.environ.get(IMAGE_VARIABLE) or PUBLISHED_NODE_IMAGE


def has_node_image(docker: DockerEngine) -> bool:
    return has_image(docker, node_image()) or has_image(docker, own_node_image())


def get_node_image(engine: KindEngine) -> str:
    """Return an image that the engine has: the published one, even if it must be pulled, else one of our own."""
    published = node_image()
    if has_image(engine.docker, published):
        return published
    if has_image(engine.docker, own_node_image()):
        return own_node_image()
    reason = why_not_pulled(published, ["pull", "--quiet"], PULL_TIMEOUT_SECONDS, engine)
    if reason is None:
        return published
    refuse_where_none_is_built(reason)
    say(reason)
    return build_node_image(engine.docker)


def why_not_pulled(image: str, command: list[str], timeout_seconds: float, engine: KindEngine) -> str | None:
    """Ask docker for an image by a command that ends well if the image can be had."""
    try:
        done = run_client(["docker", *command, image], engine.docker.host, timeout_seconds)
    except subprocess.TimeoutExpired:
        reason = f"nothing in {timeout_seconds:.0f} s"
    else:
        if done.returncode == 0:
            return None
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"The Docker engine has no {image} and cannot pull it ({reason})"


def refuse_where_none_is_built(reason: str) -> None:
    try:
        refuse_where_none_can_be_built()
    except CannotHostKubernetes as missing:
        raise CannotHostKubernetes(f"{reason}; one of our own cannot be built: {missing}") from missing


def build_configuration(address: str | None) -> str:
    """What kind is asked for. An engine that publishes elsewhere needs to be told where, and which port."""
    nodes = [{"role": "control-plane"}, *[{"role": "worker"}] * WORKER_COUNT]
    configuration: dict[str, object] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": nodes,
    }
    if address is not None:
        configuration["networking"] = {"apiServerAddress": address, "apiServerPort": API_SERVER_PORT}
    return yaml.safe_dump(configuration)


def wait_for_nodes(cluster: Cluster) -> None:
    """kind itself waits for the control plane alone."""
    cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=100s")


def run_client(
    command: list[str], docker_host: str | None, timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KIND_EXPERIMENTAL_PROVIDER": "docker"}
    if docker_host is not None:
        environment["DOCKER_HOST"] = docker_host
    return subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=timeout_seconds
    )
