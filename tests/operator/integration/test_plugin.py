"""`kubectl rrq` as users call it: real kubectl, real API server, real Redis."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from commandline import Terminal
from control_plane import Cluster, ControlPlane, KubectlFailed
from fleet import running_worker
from pool_definition import install_pool_definition
from pools import PoolDesk, build_pool
from rrq import JobRegistry
from rrq.client import JobRequest
from rrq.exc import FunctionDisabled
from rrq_operator.api.crd import CRD_NAME
from rrq_operator.plugin.cli import rrq
from rrq_operator.plugin.tables import TOP_COLUMNS
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq import RRQClient, RRQSettings
    from rrq.embedded import EmbeddedRedis
    from rrq.store import JobStore

# Nobody listens there, and no name has to be looked up.
NOWHERE = "redis://127.0.0.1:1/0"


@dataclass(frozen=True)
class Plugin:
    """Calls the commands in one namespace, in this process; that kubectl finds and hands them over is tested once."""

    cluster: Cluster
    namespace: str

    def run(self, *arguments: str) -> str:
        called = [*arguments, "--namespace", self.namespace]
        runner = CliRunner(env={"KUBECONFIG": str(self.cluster.kubeconfig)})
        # In a thread, because a command runs an event loop of its own.
        with ThreadPoolExecutor(1) as threads:
            result = threads.submit(runner.invoke, rrq, called).result()
        if result.exit_code:
            raise KubectlFailed(
                f"kubectl rrq {' '.join(called)} ended with {result.exit_code}:\n{result.stderr}"
            )
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        """Call a command that must fail; returns the one line that it says."""
        with pytest.raises(KubectlFailed) as caught:
            self.run(*arguments)
        head, _, said = str(caught.value).partition("\n")
        assert head.endswith("ended with 1:"), caught.value
        assert said.startswith("ERROR: "), said
        assert len(said.splitlines()) == 1, said
        return said


@pytest.fixture(autouse=True)
def plugin_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def plugin(desk: PoolDesk) -> Plugin:
    return Plugin(desk.cluster, desk.namespace)


@pytest.fixture
def emails(desk: PoolDesk, redis_dsn: str) -> None:
    """A pool of two queues whose Redis is named by a Secret."""
    desk.add_secret("rrq-redis", url=redis_dsn)
    desk.apply(build_pool("emails", queues=["mail", "bulk"], redis=from_secret()))


@pytest.fixture
def someone(control_plane: Cluster, desk: PoolDesk) -> Callable[..., Plugin]:
    """Makes a user who may do nothing but what is said, as (verbs, resources), in the namespace of the test."""
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("only for a control plane of our own")

    def make(*rights: tuple[str, str]) -> Plugin:
        user = f"jane-{desk.namespace}"
        for number, (verbs, resource) in enumerate(rights):
            name = f"jane-{number}-of-{len(rights)}"
            desk.kubectl("create", "role", name, f"--verb={verbs}", f"--resource={resource}")
            desk.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={user}")
        kubeconfig = control_plane.make_kubeconfig(user)
        return Plugin(Cluster(kubeconfig, control_plane.kubectl_program), desk.namespace)

    return make


def from_secret(name: str = "rrq-redis") -> dict[str, Any]:
    return {"urlFrom": {"secretKeyRef": {"name": name, "key": "url"}}}


async def enqueue(client: RRQClient, queue: str, count: int = 1, **options: Any) -> list[str]:
    jobs = await client.enqueue_many([JobRequest("send", queue_name=queue, **options)] * count)
    return [job.id for job in jobs]


async def bury(client: RRQClient, settings: RRQSettings, store: JobStore, *queues: str) -> list[str]:
    """Let one job of each queue fail for good."""

    async def fail(ctx: dict[str, Any]) -> None:
        raise ValueError("no such mailbox")

    registry = JobRegistry()
    registry.register("send", fail)
    ids = [(await enqueue(client, queue, max_retries=1))[0] for queue in queues]
    async with running_worker(settings, registry, queues=list(queues)):

        async def all_buried() -> bool:
            return await store.redis.llen(store.keys.dlq_key(settings.default_dlq_name)) == len(ids)

        await eventually(all_buried, 60)
    return ids


@pytest.mark.usefixtures("emails")
async def test_top_shows_what_redis_holds_now_and_what_the_operator_decided(
    plugin: Plugin, desk: PoolDesk, client: RRQClient
) -> None:
    decision = {"reason": "Backlog", "words": "3 due ask for 1 replica", "replicas": 1}
    status = {"due": 99, "readyReplicas": 1, "desiredReplicas": 2, "reason": "Backlog"}
    patch = json.dumps({"status": status | {"lastDecision": decision}})
    desk.kubectl("patch", "rrqpool", "emails", "--subresource=status", "--type=merge", "--patch", patch)
    await enqueue(client, "mail", 3)
    kubectl = plugin.cluster.kubectl
    title, columns, row = kubectl("rrq", "top", "--namespace", plugin.namespace).splitlines()
    assert title == "Pools"
    assert columns.split() == list(TOP_COLUMNS)
    assert row.split()[:4] == ["emails", "Deployment", "mail,bulk", "3"]
    assert row.split()[5:] == ["0", "1/2", "Backlog", "3", "due", "ask", "for", "1", "replica"]
    (line,) = plugin.json("top", "emails")
    assert (line["due"], line["source"], line["desired"]) == (3, "redis", 2)
    for name in ((), ("emails",)):
        assert f"{plugin.namespace}/emails" in kubectl("rrq", "top", *name, "-A")


def test_top_falls_back_to_the_status_and_says_why(desk: PoolDesk, plugin: Plugin) -> None:
    desk.apply(build_pool("emails", redis={"url": NOWHERE}))
    patch = json.dumps({"status": {"due": 7, "busy": 2, "oldestDueTime": "2020-01-01T00:00:00Z"}})
    desk.kubectl("patch", "rrqpool", "emails", "--subresource=status", "--type=merge", "--patch", patch)
    done = subprocess.run(
        [desk.cluster.kubectl_program, "rrq", "top", "-n", desk.namespace],
        env={**os.environ, "KUBECONFIG": str(desk.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=True,
    )
    row = done.stdout.splitlines()[2]
    assert "7*" in row
    assert "2*" in row
    (note,) = done.stderr.splitlines()
    assert note.startswith(
        "Note: figures marked by * come from the status of the pool: Redis at redis://127.0.0.1:1/0"
    )
    assert plugin.json("top")[0]["source"] == "status"


@pytest.mark.usefixtures("emails")
async def test_watching_shows_a_new_job_and_ends_with_ctrl_c(plugin: Plugin, client: RRQClient) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [plugin.cluster.kubectl_program, "rrq", "top", "--watch", "--refresh=0.5", "-n", plugin.namespace],
        env={
            **os.environ,
            "KUBECONFIG": str(plugin.cluster.kubeconfig),
            "TERM": "xterm-256color",
            "COLUMNS": "150",
            "LINES": "40",
        },
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = Terminal(process, master)
    try:
        await eventually(lambda: "emails" in shown.text, 60)
        shown.forget()
        await enqueue(client, "bulk", 4321)
        await eventually(lambda: "4321" in shown.text, 60)
        shown.signal(signal.SIGINT)
        assert shown.wait() == 0, shown.text
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


@pytest.mark.usefixtures("emails")
async def test_jobs_lists_those_of_the_pool_alone(plugin: Plugin, client: RRQClient) -> None:
    mail, bulk = (await enqueue(client, "mail"))[0], (await enqueue(client, "bulk"))[0]
    (other,) = await enqueue(client, "invoices")
    shown = plugin.run("jobs", "emails")
    assert mail in shown
    assert bulk in shown
    assert other not in shown
    assert "Showing 2 of 2 total jobs" in shown
    listed = plugin.json("jobs", "emails", "--queue=bulk", "--status=pending")
    assert [job["id"] for job in listed["jobs"]] == [bulk]
    assert plugin.json("jobs", "emails", "--status=active")["total"] == 0
    assert plugin.json("jobs", "emails", "--limit=1")["total"] == 2
    assert "does not serve queue invoices, but mail, bulk" in plugin.refused(
        "jobs", "emails", "--queue=invoices"
    )


@pytest.mark.usefixtures("emails")
async def test_dead_letters_of_a_pool_go_back_to_the_queues_they_came_from(
    plugin: Plugin, client: RRQClient, settings: RRQSettings, store: JobStore
) -> None:
    mail, bulk, other = await bury(client, settings, store, "mail", "bulk", "invoices")
    listed = plugin.json("dlq", "emails")
    assert {job["id"] for job in listed["jobs"]} == {mail, bulk}
    assert "ValueError: no such mailbox" in plugin.run("dlq", "emails", "list")
    assert "Traceback" in plugin.run("dlq", "emails", "inspect", mail)
    assert "Choose the jobs" in plugin.refused("dlq", "emails", "requeue")
    assert f"Job {other} came from queue invoices" in plugin.refused("dlq", "emails", "requeue", other)
    assert "Would requeue 1 jobs" in plugin.run("dlq", "emails", "requeue", mail, "--dry-run")
    assert plugin.json("dlq", "emails")["total"] == 2

    assert "to queue 'bulk'" in plugin.run("dlq", "emails", "requeue", bulk)
    assert "to queue 'mail'" in plugin.run("dlq", "emails", "requeue", "--all")
    queued = {queue["queue"]: queue["due"] for queue in plugin.json("queues", "emails")}
    assert queued == {"mail": 1, "bulk": 1}
    assert plugin.json("dlq", "emails")["total"] == 0
    audited = {(entry["actor"], entry["action"]) for entry in plugin.json("audit", "emails")}
    assert audited == {(user_of(plugin), "requeue")}
    # Dead letters of other queues stay on the list.
    assert await store.redis.llen(store.keys.dlq_key(settings.default_dlq_name)) == 1


@pytest.mark.usefixtures("emails")
def test_freeze_and_unfreeze_change_the_spec(plugin: Plugin, desk: PoolDesk) -> None:
    said = plugin.run("freeze", "emails")
    assert "is frozen: it keeps its size" in said
    assert f"`kubectl rrq unfreeze -n {desk.namespace} emails`" in said
    assert desk.get("rrqpool", "emails")["spec"]["scaling"]["paused"] is True
    assert "is frozen already" in plugin.run("freeze", "emails")
    assert plugin.json("top")[0]["frozen"] is True
    assert "follows its queues again" in plugin.run("unfreeze", "emails")
    shown = json.loads(desk.kubectl("get", "rrqpool", "emails", "--output=json", "--show-managed-fields"))
    assert shown["spec"]["scaling"]["paused"] is False
    assert "kubectl-rrq" in {entry["manager"] for entry in shown["metadata"]["managedFields"]}
    assert "was not frozen" in plugin.run("unfreeze", "emails")
    desk.apply(build_pool("nightly", type="Job"))
    assert "is frozen: it starts no further run" in plugin.run("freeze", "nightly")
    assert desk.get("rrqpool", "nightly")["spec"]["job"]["paused"] is True


def user_of(plugin: Plugin) -> str:
    return plugin.cluster.kubectl(
        "config", "view", "--minify", "--output=jsonpath={.contexts[0].context.user}"
    )


@pytest.mark.usefixtures("emails")
async def test_workers_queues_and_functions_are_paused_in_the_redis_of_the_pool(
    plugin: Plugin, desk: PoolDesk, store: JobStore
) -> None:
    targets = {
        ("--workers",): f"pool:{desk.namespace}/emails",
        ("--queue", "rrq:queue:mail"): "queue:mail",
        ("--function", "send"): "function:send",
    }
    for options, target in targets.items():
        said = plugin.run("pause", "emails", *options, "--reason", "the mail server is down")
        assert said.startswith(f"{target} is paused: ")
        assert f"`kubectl rrq resume -n {desk.namespace} emails {' '.join(options)}`." in said
    pauses = (await store.read_flow()).pauses
    assert set(pauses) == set(targets.values())
    assert {(pause.by, pause.reason) for pause in pauses.values()} == {
        (user_of(plugin), "the mail server is down")
    }
    assert desk.get("rrqpool", "emails")["spec"].get("scaling", {}).get("paused", False) is False
    shown = plugin.run("flow", "emails")
    assert all(target in shown for target in pauses)
    for options, target in targets.items():
        assert plugin.run("resume", "emails", *options) == f"{target} is resumed.\n"
        assert plugin.run("resume", "emails", *options) == f"{target} was not paused.\n"
    assert (await store.read_flow()).pauses == {}
    entries = plugin.json("audit", "emails", "--limit", "4")
    assert [entry["action"] for entry in entries] == ["resume", "resume", "resume", "pause"]
    assert {entry["actor"] for entry in entries} == {user_of(plugin)}


@pytest.mark.usefixtures("emails")
async def test_a_function_is_disabled_without_a_deployment(plugin: Plugin, client: RRQClient) -> None:
    said = plugin.run("disable", "emails", "--function", "send", "--reason", "sends twice")
    assert "function:send is disabled: " in said
    assert "kubectl rrq enable -n " in said
    with pytest.raises(FunctionDisabled):
        await client.enqueue("send")
    assert plugin.json("flow", "emails")["pauses"][0]["reason"] == "sends twice"
    assert plugin.run("enable", "emails", "--function", "send") == "function:send is resumed.\n"
    assert await client.enqueue("send") is not None


@pytest.mark.usefixtures("emails")
def test_limits_are_set_listed_and_taken_back(plugin: Plugin) -> None:
    assert plugin.run("limit", "emails") == "No limits\n"
    said = plugin.run("limit", "emails", "set", "--function", "send", "--concurrency", "5", "--rate", "2")
    assert said.startswith("function:send: 5 at once, 2 per 1 s. To undo it: `kubectl rrq limit -n ")
    plugin.run("limit", "emails", "set", "--queue", "mail", "--rate", "100", "--per", "60")
    assert [entry["target"] for entry in plugin.json("limit", "emails")] == ["function:send", "queue:mail"]
    assert "100 per 60 s" in plugin.run("limit", "emails", "list")
    assert plugin.run("limit", "emails", "remove", "--queue", "mail") == "queue:mail: no limit holds.\n"
    assert "keys belong to functions" in plugin.refused(
        "limit", "emails", "set", "--queue", "mail", "--per-key", "1"
    )
    actions = [(entry["actor"], entry["action"]) for entry in plugin.json("audit", "emails")]
    assert actions == [(user_of(plugin), "limit")] * 3


@pytest.mark.usefixtures("emails")
async def test_waiting_jobs_of_a_pool_are_cancelled_by_what_they_are_like(
    plugin: Plugin, client: RRQClient, store: JobStore
) -> None:
    await enqueue(client, "mail", 3)
    await enqueue(client, "bulk", 2)
    await enqueue(client, "mail", defer_by=60)
    chosen = ("cancel", "emails", "--queue", "mail", "--function", "send", "--due-for", "0")
    assert plugin.run(*chosen, "--dry-run").startswith("DRY RUN: Would cancel 3 waiting job(s) in queue mail")
    assert plugin.json(*chosen, "--yes")["cancelled"] == 3
    assert await store.batch_get_queue_sizes(["mail", "bulk"]) == {"mail": 1, "bulk": 2}
    (entry,) = plugin.json("audit", "emails")
    assert (entry["action"], entry["object"], entry["detail"]["jobs"]) == ("cancel", "queue:mail", 3)


@pytest.mark.usefixtures("emails")
def test_scale_sets_the_minimum_and_shows_what_the_api_server_refuses(plugin: Plugin, desk: PoolDesk) -> None:
    assert "at least 3, whatever its queues hold; 0 removes the minimum" in plugin.run(
        "scale", "emails", "--replicas=3"
    )
    assert desk.get("rrqpool", "emails")["spec"]["replicas"] == 3
    assert "replicas must not exceed scaling.maxReplicas" in plugin.refused(
        "scale", "emails", "--replicas=11"
    )
    assert "no minimum" in plugin.run("scale", "emails", "--replicas=0")
    assert desk.get("rrqpool", "emails")["spec"]["replicas"] == 0


@pytest.mark.usefixtures("emails")
def test_an_unknown_pool_is_answered_with_the_pools_of_the_namespace(plugin: Plugin) -> None:
    for command in (("top",), ("queues",), ("jobs",), ("dlq",), ("freeze",), ("scale", "--replicas=1")):
        said = plugin.refused(*command, "emial")
        assert f"no pool emial in namespace {plugin.namespace}; it has emails." in said


def test_a_namespace_without_pools_says_so(plugin: Plugin) -> None:
    assert plugin.run("top") == f"No pools in namespace {plugin.namespace}.\n"
    assert plugin.json("top") == []


@pytest.mark.usefixtures("emails")
def test_a_user_without_rights_learns_which_one_is_missing(someone: Callable[..., Plugin]) -> None:
    jane = someone()
    said = jane.refused("top")
    assert 'cannot list resource "rrqworkerpools"' in said
    assert "A Role and a RoleBinding grant it" in said


@pytest.mark.usefixtures("emails")
def test_a_user_who_may_not_read_the_secret_learns_that_and_still_sees_the_status(
    someone: Callable[..., Plugin], redis_dsn: str
) -> None:
    jane = someone(("get,list", "rrqworkerpools.rrq.dev"))
    said = jane.refused("queues", "emails")
    assert f"Secret {jane.namespace}/rrq-redis cannot be read" in said
    assert 'cannot get resource "secrets"' in said
    assert jane.json("top")[0]["source"] == "status"
    assert 'cannot patch resource "rrqworkerpools"' in jane.refused("freeze", "emails")
    assert 'cannot patch resource "rrqworkerpools/scale"' in jane.refused("scale", "emails", "--replicas=1")
    # With a URL of her own she needs no Secret.
    assert jane.json("top", f"--redis-url={redis_dsn}")[0]["source"] == "redis"
    jane = someone(("get,list,patch", "rrqworkerpools.rrq.dev"), ("get", "secrets"))
    assert jane.json("queues", "emails")[0]["due"] == 0
    assert "is frozen" in jane.run("freeze", "emails")


def test_a_redis_out_of_reach_is_answered_with_how_to_reach_it(desk: PoolDesk, plugin: Plugin) -> None:
    url = "redis://:hunter2@rrq-redis.data.svc.invalid:6380/3"
    desk.add_secret("rrq-redis", url=url)
    desk.apply(build_pool("emails", redis=from_secret()))
    for command in ("queues", "jobs", "dlq"):
        said = plugin.refused(command, "emails")
        assert "rrq-redis.data.svc.invalid:6380/3 cannot be reached from here" in said
        assert "kubectl port-forward --namespace data svc/rrq-redis 6380" in said
        assert "--redis-url redis://127.0.0.1:6380/3" in said
        assert "hunter2" not in said


def test_a_port_forward_needs_no_password_on_the_command_line(
    desk: PoolDesk, plugin: Plugin, own_redis: EmbeddedRedis
) -> None:
    with redis.Redis.from_url(own_redis.dsn) as connection:
        connection.config_set("requirepass", "hunter2")
    desk.add_secret("rrq-redis", url="redis://:hunter2@rrq-redis.data.svc.invalid:6379/0")
    desk.apply(build_pool("emails", redis=from_secret()))
    (queue,) = plugin.json("queues", "emails", f"--redis-url={own_redis.dsn}")
    assert queue["due"] == 0


@pytest.mark.usefixtures("emails")
def test_the_variable_of_a_shell_is_used_and_noted(
    plugin: Plugin, redis_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRQ_REDIS_DSN", NOWHERE)
    with pytest.raises(KubectlFailed) as caught:
        plugin.run("queues", "emails")
    assert f"Note: Redis is read at {NOWHERE}, from RRQ_REDIS_DSN" in str(caught.value)
    monkeypatch.setenv("RRQ_REDIS_DSN", redis_dsn)
    assert plugin.json("top")[0]["source"] == "redis"


@pytest.mark.usefixtures("emails")
def test_one_url_does_not_replace_several_redis(plugin: Plugin, desk: PoolDesk, redis_dsn: str) -> None:
    desk.apply(build_pool("letters", redis={"url": NOWHERE}))
    assert "name one pool" in plugin.refused("queues", f"--redis-url={redis_dsn}")
    assert {line["source"] for line in plugin.json("top", f"--redis-url={redis_dsn}")} == {"status"}
    assert plugin.json("queues", "letters", f"--redis-url={redis_dsn}")[0]["due"] == 0


def test_without_a_cluster_the_command_says_what_is_missing(plugin: Plugin, tmp_path: Path) -> None:
    nowhere = replace(plugin, cluster=Cluster(tmp_path / "missing", plugin.cluster.kubectl_program))
    assert f"there is no kubeconfig {tmp_path / 'missing'}" in nowhere.refused("top")
    (tmp_path / "broken").write_text("- no\n- kubeconfig")
    broken = replace(plugin, cluster=Cluster(tmp_path / "broken", plugin.cluster.kubectl_program))
    assert "is of no use" in broken.refused("top")
    assert "is of no use" in plugin.refused("top", "--context=elsewhere")
    config = json.loads(plugin.cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "gone").write_text(json.dumps(config))
    assert "The API server cannot be reached" in plugin.refused("top", f"--kubeconfig={tmp_path / 'gone'}")


def test_a_cluster_without_the_definition_says_so(control_plane: Cluster, plugin: Plugin) -> None:
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("only for a control plane of our own: all pools go with the definition")
    control_plane.kubectl("delete", "crd", CRD_NAME, "--timeout=30s")
    try:
        assert "This cluster has no definition of RRQWorkerPool" in plugin.refused("top")
        assert "This cluster has no definition of RRQWorkerPool" in plugin.refused("freeze", "emails")
    finally:
        install_pool_definition(control_plane)
