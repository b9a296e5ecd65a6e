"""A real control plane for the tests of this folder, which are all marked `cluster` and `slow`.

RRQ_E2E_KUBECONFIG names a cluster to use instead of starting one. A machine that has neither skips, and says
what it lacks; `make test` builds what can be built beforehand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio.client import ApiClient, ApiException, CoreV1Api, V1Namespace, V1ObjectMeta

from control_plane import Cluster, ControlPlane
from fake_node import FakeNode
from kubernetes_build import (
    KUBECONFIG_VARIABLE,
    CannotHostKubernetes,
    find_client,
    find_programs,
    given_kubeconfig,
)
from kubernetes_client import open_client
from object_reader import ObjectReader
from operator_process import RunningOperator
from pool_definition import install_pool_definition
from pools import PoolDesk
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from cluster_part import Part


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("cluster")
            item.add_marker("slow")
            if given_kubeconfig() is not None:
                # Operators of several processes would meet in the one cluster.
                item.add_marker(pytest.mark.xdist_group("given cluster"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes with all rights in it, shared by the whole run; tests want `namespace` for their objects."""
    given = given_kubeconfig()
    if given is not None:
        try:
            kubectl = find_client("kubectl")
        except CannotHostKubernetes as missing:
            pytest.skip(f"nothing to reach the cluster by that {KUBECONFIG_VARIABLE} names. {missing}")
        yield Cluster(given, kubectl)
        return
    try:
        programs = find_programs()
    except CannotHostKubernetes as missing:
        pytest.skip(f"no Kubernetes here. {missing}")
    with ControlPlane(programs, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def api_server(control_plane: Cluster) -> Iterator[Part]:
    """The API server, to stop, start, pause and resume; it runs again after the test, and is noticed."""
    if not isinstance(control_plane, ControlPlane):
        pytest.skip(f"the cluster that {KUBECONFIG_VARIABLE} names is not ours to stop")
    part = control_plane.api_server
    yield part
    if part.is_running:
        part.resume()
        part.wait_until_ready()
    else:
        part.start()
    # Controllers wait for up to a minute before they ask again; started anew, they ask at once.
    for other in (control_plane.controller_manager, control_plane.scheduler):
        other.stop()
        other.start()


@pytest.fixture
async def api_client(control_plane: Cluster) -> AsyncIterator[ApiClient]:
    """A client with all rights."""
    async with await open_client(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(api_client: ApiClient) -> AsyncIterator[str]:
    """A namespace of the test's own, in which pods can be created; it is deleted afterwards."""
    core = CoreV1Api(api_client)
    made = await core.create_namespace(V1Namespace(metadata=V1ObjectMeta(generate_name="test-")))
    assert made.metadata is not None
    name = made.metadata.name
    assert name is not None

    async def accepts_pods() -> bool:
        try:
            await core.read_namespaced_service_account("default", name)
        except ApiException as error:
            if error.status == 404:
                return False
            raise
        return True

    # Controllers back off for a while after a test that stopped the API server.
    await eventually(accepts_pods, 60, f"namespace {name} never got its service account")
    yield name
    await core.delete_namespace(name)
    # At once: a pod whose node has left would hold the namespace for ever.
    await core.delete_collection_namespaced_pod(name, grace_period_seconds=0)


@pytest.fixture
async def fake_node(control_plane: Cluster) -> AsyncIterator[FakeNode]:
    """A node on which pods become Ready at once, until the test says otherwise."""
    async with FakeNode(control_plane.kubeconfig) as node:
        yield node


@pytest.fixture(scope="session")
def pool_definition(control_plane: Cluster) -> None:
    """RRQWorkerPool is known to the cluster."""
    install_pool_definition(control_plane)


@pytest.fixture(scope="session")
def object_reader(control_plane: Cluster) -> Iterator[ObjectReader]:
    with ObjectReader(control_plane.kubeconfig) as reader:
        yield reader


@pytest.fixture
def desk(
    control_plane: Cluster, namespace: str, pool_definition: None, object_reader: ObjectReader
) -> PoolDesk:
    """kubectl in the namespace of the test."""
    return PoolDesk(control_plane, namespace, object_reader)


@pytest.fixture
def start_operator(desk: PoolDesk, tmp_path: Path) -> Iterator[Callable[..., RunningOperator]]:
    """Starts operators for the namespace of the test; all are stopped afterwards; a failure shows their logs."""
    started: list[RunningOperator] = []

    def start(name: str = "operator", **options: str) -> RunningOperator:
        running = RunningOperator(desk.cluster.kubeconfig, desk.namespace, tmp_path, name=name, **options)
        started.append(running.start())
        return running

    yield start
    for running in started:
        running.stop()
        sys.stderr.write(f"--- {running.log_path.name}\n{running.log[-20_000:]}\n")


@pytest.fixture
async def operator(start_operator: Callable[..., RunningOperator]) -> RunningOperator:
    """One operator that has been loaded: how long that takes on a busy machine is no test's affair."""
    running = start_operator()
    await running.port()
    return running
