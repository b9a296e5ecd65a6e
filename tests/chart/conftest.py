"""Helm for the tests of the chart (marked `cluster`), and for some of them (marked `slow` as well) a control plane.

The control plane is always one of their own: they install, upgrade and delete the definition of RRQWorkerPool, which
would take every pool of somebody's cluster with it.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_plane import ControlPlane
from helm_client import Helm
from kubernetes_build import CannotHostKubernetes, cache_folder, find_client, find_programs
from monitoring_kinds import KINDS, CannotFetchDefinitions, fetch_definitions
from packages import MissingPackages, extract, find
from pool_definition import remove_pool_definition, wait_until_served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROFILE = "pod-security.kubernetes.io"

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        names = set(getattr(item, "fixturenames", ()))
        if names & {
            "helm_program",
            "promtool",
        }:  # the one is built from Go modules, the other a package of Debian
            item.add_marker("cluster")
        if "plane" in names:
            item.add_marker("slow")
            # One control plane for all: another per process costs more than the waiting that it spares.
            item.add_marker(pytest.mark.xdist_group("chart on a control plane"))


@pytest.fixture(scope="session")
def helm_program() -> Path:
    try:
        return find_client("helm")
    except CannotHostKubernetes as missing:
        pytest.skip(f"no helm here. {missing}")


@pytest.fixture(scope="session", autouse=True)
def own_helm_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Helm keeps what it knows of a cluster in the home folder; what is there is nobody else's business."""
    folder = tmp_path_factory.mktemp("helm")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"):
            patch.setenv(name, str(folder / name))
        yield


@pytest.fixture(scope="session")
def offline(helm_program: Path) -> Helm:
    """Helm without a cluster: enough to render and to lint."""
    return Helm(helm_program, Path(os.devnull))


@pytest.fixture
def promtool() -> Path:
    """The checker of Prometheus, fetched when the first test asks for it."""
    try:
        return find("promtool") or extract("promtool", "prometheus", cache_folder())
    except MissingPackages as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without a node, for all tests of the chart."""
    try:
        programs = find_programs()
    except CannotHostKubernetes as missing:
        pytest.skip(f"no Kubernetes here. {missing}")
    with ControlPlane(programs, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def helm(plane: ControlPlane, helm_program: Path) -> Helm:
    return Helm(helm_program, plane.kubeconfig)


@pytest.fixture
def namespaces(plane: ControlPlane, helm: Helm) -> Iterator[Callable[[], str]]:
    """Makes namespaces for releases, strict ones; whatever is installed there is gone after the test."""
    made: list[str] = []

    def make() -> str:
        name = f"chart-{next(_numbers)}"
        labels = {f"{PROFILE}/{mode}": "restricted" for mode in ("enforce", "warn")}
        # In one step: of a namespace that was labelled later, admission may still know the state before.
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        plane.kubectl("create", "--filename=-", input=json.dumps(manifest))
        made.append(name)
        # A controller makes it; no pod is admitted before.
        plane.kubectl(
            *("wait", "--for=create", "serviceaccount/default", "--namespace", name, "--timeout=60s")
        )
        return name

    yield make
    for name in made:
        for release in helm.run("list", "--namespace", name, "--all", "--short").split():
            helm.run("uninstall", release, "--namespace", name, "--no-hooks")
    # What Helm keeps on purpose, so that the next test finds none of it.
    remove_pool_definition(plane)
    for name in made:
        plane.kubectl("delete", "pods", "--all", "--namespace", name, "--grace-period=0", "--force")
        plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def namespace(namespaces: Callable[[], str]) -> str:
    return namespaces()


@pytest.fixture(scope="session")
def monitoring_kinds(plane: ControlPlane) -> None:
    """ServiceMonitor, PodMonitor and PrometheusRule as the Prometheus operator defines them."""
    try:
        files = fetch_definitions()
    except CannotFetchDefinitions as missing:
        pytest.skip(f"no definitions of the Prometheus operator here. {missing}")
    for file in files:
        plane.kubectl("apply", "--server-side", "--filename", str(file))
    for kind in KINDS:
        wait_until_served(plane, f"{kind}.monitoring.coreos.com")
