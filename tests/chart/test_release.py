"""A release from install to uninstall, on a real API server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fake_node import FakeNode
from helm_client import CHART, HelmFailed
from pool_definition import CRD_FILE, install_pool_definition, wait_until_served
from pools import PoolDesk, build_pool
from rendering import HERE, find, parse_objects, read_values
from rrq_operator.api.crd import CRD_NAME
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from control_plane import ControlPlane
    from helm_client import Helm

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def install(helm: Helm, namespace: str, *arguments: str, chart: Path = CHART, **values: Any) -> str:
    # As `helm upgrade --install` the second time too, which is how most people call it.
    return helm.run(
        *("upgrade", "--install", "rrq", str(chart), "--namespace", namespace, "--timeout=100s", *arguments),
        values=values,
    )


def test_an_install_without_values_brings_operator_definition_and_rights(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    said = install(helm, namespace)
    desk = PoolDesk(plane, namespace)
    assert desk.get("deployment", "rrq-operator")["spec"]["replicas"] == 1
    assert desk.get("clusterrole", "rrq-operator")
    # What the notes name next, word for word.
    assert f"helm test rrq --namespace {namespace}" in said
    manifest = said.partition("<<EOF\n")[2].partition("EOF\n")[0]
    pool = yaml.safe_load(manifest)
    assert (pool["kind"], pool["metadata"]["namespace"]) == ("RRQWorkerPool", namespace)
    wait_until_served(plane)
    desk.kubectl(
        "apply", "--dry-run=server", "--filename=-", input=manifest.replace("YOUR-SECRET", "rrq-redis")
    )


def test_an_upgrade_brings_the_new_definition_and_an_uninstall_leaves_it_with_all_pools(
    plane: ControlPlane, helm: Helm, namespace: str, tmp_path: Path
) -> None:
    older = tmp_path / "rrq"
    shutil.copytree(CHART, older)
    file = older / "files" / "crds" / CRD_FILE.name
    file.write_text(file.read_text().replace("    - rrqpool\n", "    - olderpool\n"))
    desk = PoolDesk(plane, namespace)
    install(helm, namespace, chart=older)
    assert read_definition(desk)["spec"]["names"]["shortNames"] == ["olderpool"]
    wait_until_served(plane)
    desk.apply(build_pool())
    uid = desk.get("rrqworkerpool", "emails")["metadata"]["uid"]

    install(helm, namespace)
    assert read_definition(desk)["spec"]["names"]["shortNames"] == ["rrqpool"]
    assert desk.get("rrqworkerpool", "emails")["metadata"]["uid"] == uid

    helm.run("uninstall", "rrq", "--namespace", namespace)
    assert not desk.get("deployment", "rrq-operator")
    assert not desk.get("clusterrole", "rrq-operator")
    assert desk.get("rrqworkerpool", "emails")["metadata"]["uid"] == uid

    install(helm, namespace)
    assert desk.get("deployment", "rrq-operator")


async def test_pools_of_the_values_come_with_the_first_install_and_are_never_made_anew(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    values = read_values(HERE / "values" / "evaluation.yaml")
    desk = PoolDesk(plane, namespace)

    def read_pool() -> dict[str, Any]:
        return desk.get("rrqpool", "emails")

    async with FakeNode(plane.kubeconfig) as node:
        assert await install_with_job(plane, helm, desk, node, values) == (0, "")
        uid = read_pool()["metadata"]["uid"]
        assert read_pool()["spec"]["redis"]["urlFrom"]["secretKeyRef"] == {"name": "rrq-redis", "key": "url"}
        # Helm takes the pool over, and would not change it while doing so.
        assert await install_with_job(plane, helm, desk, node, with_maximum(values, 3)) == (0, "")
        assert read_maximum(desk) == 3
        released = parse_objects(helm.run("get", "manifest", "rrq", "--namespace", namespace))
        assert find(released, "RRQWorkerPool", "emails")
        assert not desk.read_all("jobs")

        # From then on a pool is an object like all others, and no Job is needed.
        install(helm, namespace, **with_maximum(values, 4))
        assert read_maximum(desk) == 4
        install(helm, namespace, **values | {"pools": {}})
        helm.run("uninstall", "rrq", "--namespace", namespace)
        # A pool that was kept gets what the values say when it comes back.
        await install_with_job(plane, helm, desk, node, with_maximum(values, 5))
    assert read_maximum(desk) == 5
    assert read_pool()["metadata"]["uid"] == uid


async def test_a_rollback_gives_a_pool_what_it_had(plane: ControlPlane, helm: Helm, namespace: str) -> None:
    values = read_values(HERE / "values" / "evaluation.yaml")
    desk = PoolDesk(plane, namespace)

    def roll_back(revision: str) -> str:
        return helm.run("rollback", "rrq", revision, "--namespace", namespace, "--timeout=100s")

    async with FakeNode(plane.kubeconfig) as node:
        for replicas in (1, 2):
            await install_with_job(plane, helm, desk, node, with_maximum(values, replicas))
        install(helm, namespace, **with_maximum(values, 3))
        await run_with_job(plane, desk, node, lambda: roll_back("2"))
        assert read_maximum(desk) == 2
        # To before Helm itself knew the pool.
        await run_with_job(plane, desk, node, lambda: roll_back("1"))
        assert read_maximum(desk) == 1
        await install_with_job(plane, helm, desk, node, with_maximum(values, 4))
        assert read_maximum(desk) == 4


async def test_a_wrong_pool_fails_the_first_install_and_the_pod_says_why(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    values = read_values(HERE / "values" / "evaluation.yaml")
    values["pools"]["emails"]["scaling"] = {"minReplicas": 3, "maxReplicas": 2}
    desk = PoolDesk(plane, namespace)
    async with FakeNode(plane.kubeconfig) as node:
        with pytest.raises(HelmFailed, match="failed post-install"):
            await install_with_job(
                plane, helm, desk, node, values, refused="minReplicas must not exceed maxReplicas"
            )
    # The Job stays for its log; what it had rights by does not.
    assert desk.get("job", "rrq-pools")
    for kind in ("serviceaccount", "role", "rolebinding"):
        assert not desk.get(kind, "rrq-pools"), kind


async def test_rights_may_come_a_moment_after_the_pod_that_needs_them(
    plane: ControlPlane, helm: Helm, namespace: str, tmp_path: Path
) -> None:
    install_pool_definition(plane)
    desk = PoolDesk(plane, namespace)
    desk.kubectl("create", "serviceaccount", "late")
    program = (CHART / "files" / "apply_pools.py").read_text()
    pools = {
        "RRQ_POOLS": json.dumps([build_pool() | {"metadata": {"name": "emails", "namespace": namespace}}])
    }

    at_once = program.replace("RIGHTS_SECONDS = 15", "RIGHTS_SECONDS = 0")
    code, words = await run_program(plane, desk, "late", at_once, pools)
    assert code == 1
    assert "Pool emails was not created: " in words
    assert "forbidden" in words

    refusals, pause = tmp_path / "refusals", "time.sleep(0.2)"
    assert pause in program
    counting = program.replace(pause, f"open({str(refusals)!r}, 'a').write('x'); {pause}")
    running = asyncio.create_task(run_program(plane, desk, "late", counting, pools))
    await eventually(
        lambda: len(refusals.read_text()) >= 3 if refusals.exists() else False, 30, "no refusals"
    )
    desk.kubectl(
        "create", "rolebinding", "late", "--clusterrole=cluster-admin", f"--serviceaccount={namespace}:late"
    )
    assert await running == (0, "")
    assert desk.get("rrqpool", "emails")


def test_a_wrong_pool_of_the_values_is_refused_in_the_words_of_the_definition(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    install_pool_definition(plane)
    values = read_values(HERE / "values" / "evaluation.yaml")
    values["pools"]["emails"]["scaling"] = {"minReplicas": 3, "maxReplicas": 2}
    with pytest.raises(HelmFailed, match="minReplicas must not exceed maxReplicas"):
        install(helm, namespace, crds={"install": False}, **values)


def test_the_password_of_the_evaluation_redis_stays(plane: ControlPlane, helm: Helm, namespace: str) -> None:
    desk = PoolDesk(plane, namespace)

    def read_template() -> dict[str, Any]:
        template: dict[str, Any] = desk.get("statefulset", "rrq-redis")["spec"]["template"]
        return template

    install(helm, namespace, redis={"enabled": True})
    url, template = read_secret(desk, "url"), read_template()
    install(helm, namespace, redis={"enabled": True}, replicas=2)
    assert read_secret(desk, "url") == url
    assert read_template() == template
    password = read_secret(desk, "password")
    assert len(password) >= 32
    assert url == f"redis://:{password}@rrq-redis.{namespace}.svc:6379/0"
    for chosen in ("first", "second"):
        install(helm, namespace, redis={"enabled": True, "password": chosen})
        assert read_secret(desk, "url") == f"redis://:{chosen}@rrq-redis.{namespace}.svc:6379/0"
        assert read_template() != template, "the pod goes on with the old password"
        template = read_template()
        install(helm, namespace, redis={"enabled": True, "password": chosen})
        assert read_template() == template


def test_the_session_key_of_the_dashboard_stays_and_is_added_where_it_is_missing(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    desk = PoolDesk(plane, namespace)
    values: dict[str, Any] = {"dashboard": {"enabled": True, "redis": {"existingSecret": "shop-redis"}}}
    install(helm, namespace, **values)
    name = "rrq-dashboard"
    before = {key: read_secret(desk, key, name) for key in ("session-key", "view-token")}
    install(helm, namespace, **values)
    assert {key: read_secret(desk, key, name) for key in before} == before
    removal = json.dumps([{"op": "remove", "path": "/data/session-key"}])
    desk.kubectl("patch", "secret", name, "--type=json", "--patch", removal)
    install(helm, namespace, **values)
    assert read_secret(desk, "view-token", name) == before["view-token"]
    assert len(read_secret(desk, "session-key", name)) >= 32


def test_a_secret_of_tokens_without_a_session_key_is_refused_with_the_command_that_adds_it(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    desk = PoolDesk(plane, namespace)
    desk.kubectl("create", "secret", "generic", "tokens", "--from-literal=view-token=view-token-of-the-shop")
    dashboard = {"redis": {"existingSecret": "shop-redis"}, "auth": {"existingSecret": "tokens"}}
    values: dict[str, Any] = {"dashboard": {"enabled": True, **dashboard}}
    with pytest.raises(HelmFailed, match=r"Secret tokens of .* has no session-key") as refused:
        install(helm, namespace, **values)
    command = str(refused.value).partition("Add it: kubectl ")[2].strip()
    desk.kubectl(*shlex.split(command.replace("'$(openssl rand -hex 32)'", "0123456789abcdef" * 2)))
    install(helm, namespace, **values)
    assert len(read_secret(desk, "session-key", "tokens")) == 32


def test_the_notes_warn_of_an_ingress_behind_which_all_clients_have_one_address(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    dashboard: dict[str, Any] = {
        "enabled": True,
        "redis": {"existingSecret": "shop-redis"},
        "ingress": {"enabled": True, "host": "jobs.example.com"},
    }
    warning = "WARNING: dashboard.proxy.from is empty"
    assert warning in install(helm, namespace, "--dry-run=server", dashboard=dashboard)
    dashboard["proxy"] = {"from": ["10.0.0.0/8"]}
    assert warning not in install(helm, namespace, "--dry-run=server", dashboard=dashboard)


def test_a_definition_of_somebody_else_is_taken_over_only_when_asked_for(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    install_pool_definition(plane)
    with pytest.raises(HelmFailed, match="invalid ownership metadata"):
        install(helm, namespace)
    install(helm, namespace, "--take-ownership")
    owner = read_definition(PoolDesk(plane, namespace))["metadata"]["annotations"][
        "meta.helm.sh/release-namespace"
    ]
    assert owner == namespace


def test_everything_at_once_can_be_installed_upgraded_and_removed(
    plane: ControlPlane, helm: Helm, namespaces: Callable[[], str], monitoring_kinds: None
) -> None:
    namespace, shop = namespaces(), namespaces()
    install_pool_definition(plane)
    values = read_values(HERE / "values" / "everything.yaml") | {"watchNamespace": shop}
    install(helm, namespace, **values)
    desk = PoolDesk(plane, namespace)
    for kind in ("servicemonitor", "prometheusrule", "networkpolicy"):
        assert desk.get(kind, "queues-operator"), kind
    assert PoolDesk(plane, shop).get("rrqpool", "nightly")
    install(helm, namespace, **values | {"replicas": 1})
    helm.run("uninstall", "rrq", "--namespace", namespace)
    assert not desk.get("servicemonitor", "queues-operator")
    assert PoolDesk(plane, shop).get("rrqpool", "nightly")


async def test_helm_test_fails_for_a_release_whose_operator_does_not_answer(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    """That it is content with one that works is shown by the first story."""
    install(helm, namespace)
    wait_until_served(plane)
    desk = PoolDesk(plane, namespace)
    hooks = parse_objects(helm.run("get", "hooks", "rrq", "--namespace", namespace))
    pod = find(hooks, "Pod", "rrq-test")
    desk.apply(*(entry for entry in hooks if entry["kind"] != "Pod"))
    variables = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert variables["RRQ_OPERATOR_URL"] == f"http://rrq-operator.{namespace}.svc:8080"
    hurried = read_program(pod).replace("GIVE_UP_SECONDS = 60", "GIVE_UP_SECONDS = 1")

    unreachable = variables | {"RRQ_OPERATOR_URL": "http://127.0.0.1:1"}
    code, words = await run_program(plane, desk, "rrq-test", hurried, unreachable)
    assert code == 1
    assert "This release does not work" in words
    assert "Connection refused" in words


async def install_with_job(
    plane: ControlPlane, helm: Helm, desk: PoolDesk, node: FakeNode, values: dict[str, Any], refused: str = ""
) -> tuple[int, str]:
    """Install or upgrade while the Job's pod runs; returns its exit code and what it said."""
    return await run_with_job(plane, desk, node, lambda: install(helm, desk.namespace, **values), refused)


async def run_with_job(
    plane: ControlPlane, desk: PoolDesk, node: FakeNode, call_helm: Callable[[], str], refused: str = ""
) -> tuple[int, str]:
    """Call Helm while the Job's pod runs; returns its exit code and what it said.

    A fake node runs nothing, so the program of the pod is run here, with the token of its account.
    """
    calling = asyncio.create_task(asyncio.to_thread(call_helm))

    def find_pods() -> list[dict[str, Any]]:
        assert not calling.done(), calling.result()
        pods = desk.read_all("pods", "--selector=app.kubernetes.io/name=rrq-pools")
        # Not before it runs: the node would report that after its end.
        return [
            pod
            for pod in pods
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    pod, *_ = await eventually(find_pods, 60, "no pod for the pools")
    (variable,) = pod["spec"]["containers"][0]["env"]
    variables = {variable["name"]: variable["value"]}
    code, words = await run_program(plane, desk, "rrq-pools", read_program(pod), variables)
    assert refused in words
    await node.finish(desk.namespace, pod["metadata"]["name"], code)
    await calling
    wait_until_served(plane)
    return code, words


def with_maximum(values: dict[str, Any], replicas: int) -> dict[str, Any]:
    emails = values["pools"]["emails"] | {"scaling": {"maxReplicas": replicas}}
    return values | {"pools": {"emails": emails}}


def read_maximum(desk: PoolDesk) -> int:
    maximum: int = desk.get("rrqpool", "emails")["spec"]["scaling"]["maxReplicas"]
    return maximum


def read_definition(desk: PoolDesk) -> dict[str, Any]:
    return desk.get("crd", CRD_NAME)


def read_secret(desk: PoolDesk, key: str, name: str = "rrq-redis") -> str:
    return base64.b64decode(desk.get("secret", name)["data"][key]).decode()


def read_program(pod: dict[str, Any]) -> str:
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python3", "-c"]
    (program,) = container["args"]
    assert isinstance(program, str)
    return program


async def run_program(
    plane: ControlPlane, desk: PoolDesk, account: str, program: str, variables: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run the program of a pod as its container would, with the token of the account; returns exit code and words."""
    folder = plane.folder / f"{desk.namespace}-{account}"
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(desk.kubectl("create", "token", account))
    shutil.copy(plane.folder / "keys" / "authority.pem", folder / "ca.crt")
    assert TOKEN_FOLDER in program
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program.replace(TOKEN_FOLDER, str(folder))),
        env={
            **os.environ,
            **(variables or {}),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(plane.port),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    words, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, words.decode()
