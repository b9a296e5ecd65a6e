"""Which cluster the end-to-end stories run on: the one that is given, else kind, else one built from source.

RRQ_E2E_KUBECONFIG names one that is there; its nodes must know the images, or RRQ_E2E_IMAGE_PREFIX says where they
pull them from. kind is taken where a Docker engine answers and a node image is to be had. The one from source needs
root, Go and Debian's packages. A machine with none of these is told in one line what each of them lacks.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from control_plane import Cluster
from docker_engine import PROGRAMS as ENGINE_PACKAGES
from docker_engine import NoDockerEngine, answers
from image_bundle import build_bundle, bundle_folder
from kind_cluster import kind_cluster, why_not
from kubernetes_build import (
    ETCD,
    NODE_PACKAGES,
    CannotHostKubernetes,
    Programs,
    build,
    build_clients,
    find_client,
    given_kubeconfig,
    refuse_where_none_can_be_built,
)
from packages import MissingPackages, install, refuse_where_none_can_be_installed
from progress import CommandFailed, say
from real_cluster import RealCluster, refuse_where_no_machine_can_be, refuse_where_none_can_run
from tier_report import note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE_PREFIX_VARIABLE = "RRQ_E2E_IMAGE_PREFIX"


NOT_HERE = 3  # the exit status of a machine that has no cluster to offer


@contextmanager
def open_cluster(folder: Path) -> Iterator[Cluster]:
    """Give a cluster for the length of the block, or raise `CannotHostKubernetes`."""
    given = given_kubeconfig()
    if given is not None:
        build_clients()
        yield Cluster(given, find_client("kubectl"))
        return
    without_kind = why_not()
    if without_kind is None:
        build_clients()
        with kind_cluster(folder, build_images()) as cluster:
            yield cluster
        return
    say(f"not kind: {without_kind}")
    try:
        programs, images = build_all()
    except CannotHostKubernetes as missing:
        raise CannotHostKubernetes(f"{without_kind} And none can be made from source: {missing}") from missing
    with RealCluster(programs, folder, images=[images]) as real:
        yield real


def has_one_per_process() -> bool:
    """Whether processes that run stories side by side can each have a cluster: only those from source are so small."""
    return given_kubeconfig() is None and why_not() is not None


def build_all() -> tuple[Programs, Path]:
    """Make sure that programs, packages and images are there: seconds when they are, minutes the first time."""
    refuse_where_none_can_be_made()
    programs = build()
    try:
        install(NODE_PACKAGES)
    except MissingPackages as missing:
        raise CannotHostKubernetes(str(missing)) from missing
    refuse_where_none_can_run()
    return programs, build_images()


def refuse_where_none_can_be_made() -> None:
    """Say what is missing before minutes are spent on what would be of no use without it: root, Go, packages."""
    refuse_where_no_machine_can_be()
    refuse_where_none_can_be_built()
    # Images need an engine, but only to be made.
    for_images = {} if bundle_folder().is_dir() or answers(None) else ENGINE_PACKAGES
    try:
        refuse_where_none_can_be_installed({**ETCD, **NODE_PACKAGES, **for_images})
    except MissingPackages as missing:
        raise CannotHostKubernetes(str(missing)) from missing


def build_images() -> Path:
    try:
        return build_bundle().path
    except NoDockerEngine as missing:
        raise CannotHostKubernetes(f"The images cannot be built. {missing}") from missing


def prepare() -> None:
    """Build whatever the cluster of the stories needs, so that they find it ready."""
    given = given_kubeconfig()
    if given is not None:
        build_clients()
        say(f"the stories run on the cluster of {given}")
    elif (without_kind := why_not()) is None:
        build_clients()
        say(f"the stories run on kind, with the images of {build_images()}")
    else:
        say(f"not kind: {without_kind}")
        build_all()
        say("the stories run on a cluster made from source")


def main() -> int:
    try:
        prepare()
    except CannotHostKubernetes as missing:
        say(f"no cluster with nodes here, so no end-to-end stories. {missing}")
        note("stories", str(missing))
        return NOT_HERE
    except CommandFailed as error:
        say(str(error))
        return 1
    return 0


def name_image(name: str) -> str:
    """The name under which the cluster finds an image of ours, as in rrq-worker:test."""
    return os.environ.get(IMAGE_PREFIX_VARIABLE, "") + name


if __name__ == "__main__":
    sys.exit(main())
