"""A real cluster with real pods for the stories of this folder, which are all marked `e2e` and `slow`.

`cluster_choice` says which cluster. A machine that has none skips, and says what it lacks. With `-n` each process has
a cluster of its own where that can be; elsewhere one process runs them all.
"""

from __future__ import annotations

import json
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_choice import has_one_per_process, name_image, open_cluster
from diagnosis import OPERATOR_NAMESPACE, describe
from helm_client import CHART, Helm, HelmFailed
from kubernetes_build import CannotHostKubernetes, find_client
from object_reader import ObjectReader
from pool_definition import remove_pool_definition
from pools import PoolDesk
from port_forward import PortForward
from rrq.client import RRQClient
from rrq_operator.api.crd import CRD_NAME
from story import Story
from story_redis import NAME, PORT, StoryRedis, start_redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from control_plane import Cluster

RELEASE = "rrq"
NAMESPACE_PREFIX = "story-"
STRICT = {"pod-security.kubernetes.io/enforce": "restricted"}
REPORT = pytest.StashKey[pytest.TestReport]()
REMARK = "remark"
LONGEST = "test_scaling.py"


@pytest.hookimpl(tryfirst=True)  # before the processes are counted
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.option.numprocesses and not has_one_per_process():
        config.option.numprocesses = 0


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    stories = [item for item in items if item.path.is_relative_to(here)]
    for story in stories:
        story.add_marker("e2e")
        story.add_marker("slow")
    if hasattr(config, "workerinput"):
        # So that at the end no process waits for another's.
        items.sort(key=lambda item: item.path != here / LONGEST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[REPORT] = report
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what stories have to remark: figures, or that one put less to the test than its name says."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, text in report.user_properties:
            if name == REMARK and report.when == "call":
                terminalreporter.write_line(f"remark: {report.nodeid}: {text}")


@pytest.fixture
def remark(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Shows a line at the end of the run, also of a story that passes."""
    return partial(record_property, REMARK)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes with nodes and all rights in it, shared by the whole run."""
    try:
        with open_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
            yield cluster
    except CannotHostKubernetes as missing:
        pytest.skip(f"no cluster with nodes here. {missing}")


@pytest.fixture(scope="session")
def object_reader(cluster: Cluster) -> Iterator[ObjectReader]:
    with ObjectReader(cluster.kubeconfig) as reader:
        yield reader


@pytest.fixture(scope="session")
def helm(cluster: Cluster) -> Helm:
    try:
        return Helm(find_client("helm"), cluster.kubeconfig)
    except CannotHostKubernetes as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def operator_namespace(cluster: Cluster) -> str:
    """The namespace of the operator, as strict as those of the stories."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": OPERATOR_NAMESPACE, "labels": STRICT},
    }
    cluster.kubectl("apply", "--filename", "-", input=json.dumps(namespace))
    return OPERATOR_NAMESPACE


@pytest.fixture
def install(helm: Helm, operator_namespace: str) -> Callable[..., None]:
    """Installs the chart, or brings what is installed to these values; returns when the operator is ready."""

    def install(*, chart: Path = CHART, **values: object) -> None:
        image = {"repository": name_image("rrq-operator"), "tag": "test"}
        arguments = ["upgrade", RELEASE, str(chart), "--install", "--reset-values", "--wait"]
        # Also of a definition that was applied by kubectl, as the tests of the operator do on a given cluster.
        arguments += ["--namespace", operator_namespace, "--take-ownership"]
        try:
            helm.run(*arguments, values={"image": image, **values})
        except HelmFailed as error:
            if "another operation" not in str(error):
                raise
            # A run that was interrupted, on a cluster that stayed: nobody else installs here.
            try:
                helm.run("rollback", RELEASE, "--namespace", operator_namespace, "--wait")
            except HelmFailed:  # there is nothing to go back to: it was the first install
                helm.run("uninstall", RELEASE, "--namespace", operator_namespace, "--wait")
            helm.run(*arguments, values={"image": image, **values})

    return install


@pytest.fixture
def without_definition(cluster: Cluster, helm: Helm) -> None:
    """No release, and no definition that one has left. With it go all pools, so there must be none but ours."""
    strangers = find_strangers(cluster)
    if strangers:
        pytest.skip(f"this story deletes {CRD_NAME}, and pools of others would go with it: {strangers}")
    helm.run("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait")
    remove_pool_definition(cluster)


def find_strangers(cluster: Cluster) -> list[str]:
    """Pools in namespaces that no test has made."""
    if not cluster.kubectl("get", "crd", CRD_NAME, "--ignore-not-found").strip():
        return []
    found = json.loads(cluster.kubectl("get", CRD_NAME, "--all-namespaces", "--output=json"))["items"]
    places = [(pool["metadata"]["namespace"], pool["metadata"]["name"]) for pool in found]
    return [
        f"{namespace}/{name}"
        for namespace, name in places
        if namespace != OPERATOR_NAMESPACE and not namespace.startswith(NAMESPACE_PREFIX)
    ]


@pytest.fixture
def release(install: Callable[..., None]) -> None:
    """The operator of the chart, with default values."""
    install()


@pytest.fixture
def tell(cluster: Cluster, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Describes a namespace if the story has failed; for the end of a fixture."""

    def tell(namespace: str) -> None:
        report = request.node.stash.get(REPORT, None)
        if report is None or report.failed:
            sys.stderr.write(describe(cluster, namespace))

    return tell


@pytest.fixture
def namespace(cluster: Cluster, tell: Callable[[str], None]) -> Iterator[str]:
    """A strict namespace of the story's own, deleted afterwards; a failed story is described first."""
    name = f"{NAMESPACE_PREFIX}{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, *[f"{label}={value}" for label, value in STRICT.items()])
    yield name
    tell(name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def desk(cluster: Cluster, namespace: str, object_reader: ObjectReader) -> PoolDesk:
    """kubectl in the namespace of the story."""
    return PoolDesk(cluster, namespace, object_reader)


@pytest.fixture
async def redis(desk: PoolDesk) -> AsyncIterator[StoryRedis]:
    """A Redis in the namespace of the story."""
    password = secrets.token_urlsafe(12)
    start_redis(desk, password)
    async with PortForward(desk, NAME, PORT) as way:
        yield StoryRedis(desk, way, password)


@pytest.fixture
async def story(release: None, desk: PoolDesk, redis: StoryRedis) -> AsyncIterator[Story]:
    """Everything a story needs: the operator runs, Redis answers, jobs can be enqueued."""
    client = RRQClient(redis.settings)
    yield Story(desk, redis, client)
    await client.close()
