"""Where kind cannot make a cluster one line says what is missing; where it can, one is made and taken away again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster_choice import build_images
from image_bundle import REDIS
from kind_cluster import IMAGE_VARIABLE, KindFailed, build_configuration, kind_cluster, why_not
from kind_engine import own_kind_engine, remove_what_killed_runs_left
from kind_programs import KUBEADM, PUBLISHED_NODE_IMAGE
from kubernetes_build import CACHE_VARIABLE, KUBECONFIG_VARIABLE, KUBERNETES, CannotHostKubernetes
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control_plane import Cluster
    from kind_engine import KindEngine

NO_ENGINE = "kind needs a Docker engine and none answers: start one, or name it in DOCKER_HOST."
NOT_A_NODE = "rrq-not-a-node:test"
FIRST_STORY = Path(__file__).parents[1] / "test_first_steps.py"


@pytest.fixture(scope="module")
def empty_engine() -> Iterator[KindEngine]:
    """An engine with a network and no images."""
    try:
        with own_kind_engine() as engine:
            yield engine
    except CannotHostKubernetes as missing:
        pytest.skip(str(missing))


@pytest.fixture
def engine(empty_engine: KindEngine, monkeypatch: pytest.MonkeyPatch) -> KindEngine:
    """The same as the engine that answers."""
    assert empty_engine.docker.host is not None
    monkeypatch.setenv("DOCKER_HOST", empty_engine.docker.host)
    return empty_engine


def test_without_an_engine_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert why_not() == NO_ENGINE
    with pytest.raises(CannotHostKubernetes, match=NO_ENGINE), kind_cluster(tmp_path, tmp_path / "none.tar"):
        pass


def test_without_a_docker_client_the_line_is_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == NO_ENGINE


@pytest.mark.docker
@pytest.mark.slow
def test_an_engine_without_the_node_image_says_why_it_cannot_be_had(
    engine: KindEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(IMAGE_VARIABLE, "registry.invalid/node:v1")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))  # where no Kubernetes is built
    missing = why_not()
    assert missing is not None
    assert missing.startswith("The Docker engine has no registry.invalid/node:v1 and cannot pull it (")
    assert "one of our own cannot be built: " in missing
    assert missing.endswith("run `make cluster-build` first.")
    assert "\n" not in missing


@pytest.mark.docker
@pytest.mark.slow
def test_an_engine_that_has_the_node_image_lacks_nothing(
    engine: KindEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import_image_of_nothing(engine, tmp_path)
    monkeypatch.setenv(IMAGE_VARIABLE, NOT_A_NODE)
    assert why_not() is None


@pytest.mark.docker
@pytest.mark.slow
def test_a_cluster_that_does_not_come_up_leaves_no_container(
    engine: KindEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import_image_of_nothing(engine, tmp_path)
    monkeypatch.setenv(IMAGE_VARIABLE, NOT_A_NODE)
    with pytest.raises(KindFailed, match="create cluster"), kind_cluster(tmp_path, tmp_path / "none.tar"):
        pass
    assert engine.docker.run("ps", "--all", "--quiet") == ""


@pytest.mark.docker
@pytest.mark.slow
async def test_what_a_killed_run_left_is_removed_by_a_later_one(empty_engine: KindEngine) -> None:
    code = "import kind_engine, time\nwith kind_engine.own_kind_engine() as engine:\n"
    code += "    print(engine.docker.host, flush=True)\n    time.sleep(3600)\n"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stdout is not None
        folder = Path(killed.stdout.readline().strip().removeprefix("unix://")).parent
        killed.kill()
    assert folder.exists()

    def remove() -> bool:  # as every start of an engine does
        remove_what_killed_runs_left()
        return not folder.exists()

    await eventually(remove, message=f"{folder} is still there")


def test_an_engine_that_publishes_elsewhere_is_told_where() -> None:
    assert "networking" not in yaml.safe_load(build_configuration(None))
    configuration = yaml.safe_load(build_configuration("192.0.2.7"))
    assert configuration["networking"]["apiServerAddress"] == "192.0.2.7"
    assert [node["role"] for node in configuration["nodes"]] == ["control-plane", "worker", "worker"]


def test_kubeadm_is_of_the_version_of_the_programs_that_it_sets_up() -> None:
    assert KUBEADM.version == KUBERNETES.version


def test_the_published_node_image_is_the_one_that_the_pinned_kind_is_made_for() -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is missing, which fetches the module of kind")
    module = subprocess.run(
        ["go", "mod", "download", "-json", "sigs.k8s.io/kind"],
        cwd=Path(__file__).parent / "kind",
        check=True,
        capture_output=True,
        text=True,
    )
    source = Path(json.loads(module.stdout)["Dir"]) / "pkg" / "apis" / "config" / "defaults" / "image.go"
    assert f'"{PUBLISHED_NODE_IMAGE}"' in source.read_text()


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
        cwd=FIRST_STORY.parents[2],
        env={**os.environ, KUBECONFIG_VARIABLE: str(cluster.kubeconfig)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


def import_image_of_nothing(engine: KindEngine, folder: Path) -> None:
    with tarfile.open(folder / "nothing.tar", "w"):
        pass
    engine.docker.run("import", str(folder / "nothing.tar"), NOT_A_NODE)
