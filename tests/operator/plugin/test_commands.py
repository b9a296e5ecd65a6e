"""The commands of `kubectl rrq` on a real Redis, with an API server that is only a dictionary."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

import pytest
from click.testing import CliRunner

from pools import build_pool
from queue_steps import dead_letters, ids, start_worker
from rrq.broker.messages import ClaimCode
from rrq.client import JobRequest
from rrq.exc import FunctionDisabled
from rrq.registry import JobRegistry
from rrq_operator.cluster.kube import Kube, KubeMissing, pools_path
from rrq_operator.plugin.cli import rrq
from running import run_burst

if TYPE_CHECKING:
    from rrq.client import RRQClient
    from rrq.settings import RRQSettings
    from rrq.store import JobStore


class FakeKube:
    """Stores pools by their path and merges changes into them."""

    user = "jane"
    namespace = "shop"

    def __init__(self, *pools: dict[str, Any]) -> None:
        self.pools = {f"{pools_path('shop')}/{pool['metadata']['name']}": pool for pool in pools}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self, path: str) -> dict[str, Any]:
        if path not in self.pools:
            raise KubeMissing("not found")
        return self.pools[path]

    async def list_all(self, path: str) -> tuple[list[dict[str, Any]], str]:
        return [*self.pools.values()], "1"

    async def merge(self, path: str, change: dict[str, Any], *, manager: str) -> None:
        for part, fields in change["spec"].items():
            spec = self.pools[path.removesuffix("/scale")]["spec"]
            spec[part] = {**spec.get(part, {}), **fields} if isinstance(fields, dict) else fields


class Plugin:
    def __init__(self, kube: FakeKube) -> None:
        self.kube = kube

    async def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Call a command in a thread of this process, because it runs an event loop of its own."""
        result = await asyncio.to_thread(CliRunner().invoke, rrq, arguments)
        assert result.exit_code == exit_code, result.output
        return result.stdout if exit_code == 0 else result.stderr

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.run(*arguments, "--json"))

    def spec(self, name: str = "emails") -> dict[str, Any]:
        spec: dict[str, Any] = self.kube.pools[f"{pools_path('shop')}/{name}"]["spec"]
        return spec


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, redis_dsn: str) -> Plugin:
    emails = build_pool("emails", queues=["mail", "bulk"], redis={"url": redis_dsn})
    nightly = build_pool("nightly", type="Job", redis={"url": redis_dsn})
    for pool in (emails, nightly):
        pool["metadata"]["namespace"] = "shop"
    kube = FakeKube(emails, nightly)

    async def connect(*_: object) -> FakeKube:
        return kube

    monkeypatch.setattr(Kube, "connect_as_user", connect)
    return Plugin(kube)


async def enqueue(client: RRQClient, *queues: str) -> list[str]:
    jobs = await client.enqueue_many(
        [JobRequest("send", queue_name=queue, max_retries=1) for queue in queues]
    )
    return [job.id for job in jobs]


async def bury(client: RRQClient, settings: RRQSettings, *queues: str) -> list[str]:
    """Let one job of each queue fail for good."""

    async def fail(ctx: dict[str, Any]) -> None:
        raise ValueError("no such mailbox")

    registry = JobRegistry()
    registry.register("send", fail)
    job_ids = await enqueue(client, *queues)
    await run_burst(settings, registry, queues=[*queues])
    return job_ids


async def test_freezing_keeps_the_size_and_leaves_the_work_alone(plugin: Plugin, store: JobStore) -> None:
    said = await plugin.run("freeze", "emails")
    assert said == (
        "Pool shop/emails is frozen: it keeps its size, whatever its queues hold; its workers go on working. "
        "To undo it: `kubectl rrq unfreeze -n shop emails`.\n"
    )
    assert plugin.spec()["scaling"]["paused"] is True
    assert "is frozen already" in await plugin.run("freeze", "emails")
    assert (await store.read_flow()).pauses == {}
    assert (await plugin.json("top", "emails"))[0]["frozen"] is True
    assert await plugin.run("unfreeze", "emails") == "Pool shop/emails follows its queues again.\n"
    assert plugin.spec()["scaling"]["paused"] is False
    assert await plugin.run("unfreeze", "emails") == "Pool shop/emails was not frozen.\n"
    assert "it starts no further run" in await plugin.run("freeze", "nightly")
    assert plugin.spec("nightly")["job"]["paused"] is True


async def test_pausing_without_a_target_says_what_to_type(plugin: Plugin, store: JobStore) -> None:
    for verb, size_verb in (("pause", "freeze"), ("resume", "unfreeze")):
        complaint = await plugin.run(verb, "emails", "-n", "shop", exit_code=2)
        assert "--workers, --queue NAME or --function NAME" in complaint
        assert f"type `kubectl rrq {size_verb} -n shop emails`." in complaint
    assert "scaling" not in plugin.spec()
    assert (await store.read_flow()).pauses == {}


async def test_pausing_stops_the_work_and_names_who_did_it(
    plugin: Plugin, client: RRQClient, store: JobStore
) -> None:
    worker = await start_worker(store, pool="shop/emails", queues=["mail"])
    (job_id,) = await enqueue(client, "mail")
    targets = {
        ("--workers",): "pool:shop/emails",
        ("--queue", "rrq:queue:mail"): "queue:mail",
        ("--function", "send"): "function:send",
    }
    for options, target in targets.items():
        said = await plugin.run("pause", "emails", *options, "--reason", "the mail server is down")
        assert said.startswith(f"{target} is paused: ")
        assert said.endswith(f"To undo it: `kubectl rrq resume -n shop emails {' '.join(options)}`.\n")
    pauses = (await store.read_flow()).pauses
    assert set(pauses) == set(targets.values())
    assert {(pause.by, pause.reason) for pause in pauses.values()} == {("jane", "the mail server is down")}
    assert "scaling" not in plugin.spec()
    assert (await worker.claim()).code is ClaimCode.PAUSED
    shown = await plugin.run("flow", "emails")
    assert all(target in shown for target in pauses)
    for options, target in targets.items():
        assert await plugin.run("resume", "emails", *options) == f"{target} is resumed.\n"
        assert await plugin.run("resume", "emails", *options) == f"{target} was not paused.\n"
    assert ids(await worker.take()) == [job_id]
    entries = await plugin.json("audit", "emails", "--limit", "4")
    assert [entry["action"] for entry in entries] == ["resume", "resume", "resume", "pause"]


async def test_a_disabled_function_refuses_producers(plugin: Plugin, client: RRQClient) -> None:
    said = await plugin.run("disable", "emails", "--function", "send", "--reason", "sends twice")
    assert said.endswith("To undo it: `kubectl rrq enable -n shop emails --function send`.\n")
    with pytest.raises(FunctionDisabled):
        await client.enqueue("send")
    assert await plugin.run("enable", "emails", "--function", "send") == "function:send is resumed.\n"


async def test_limits_are_set_listed_and_removed(plugin: Plugin) -> None:
    assert await plugin.run("limit", "emails") == "No limits\n"
    said = await plugin.run("limit", "emails", "set", "--function", "send", "--concurrency", "5")
    assert said == (
        "function:send: 5 at once. To undo it: `kubectl rrq limit -n shop emails remove --function send`.\n"
    )
    assert [entry["target"] for entry in await plugin.json("limit", "emails")] == ["function:send"]
    complaint = await plugin.run("limit", "emails", "set", "--queue", "mail", "--per-key", "1", exit_code=1)
    assert complaint.startswith("ERROR: ")
    assert "keys belong to functions" in complaint
    removed = await plugin.run("limit", "emails", "remove", "--function", "send")
    assert removed == "function:send: no limit holds.\n"


async def test_only_jobs_of_the_pool_are_listed_and_cancelled(plugin: Plugin, client: RRQClient) -> None:
    mail, bulk, _ = await enqueue(client, "mail", "bulk", "invoices")
    listed = await plugin.json("jobs", "emails")
    assert {job["id"] for job in listed["jobs"]} == {mail, bulk}
    listed = await plugin.json("jobs", "emails", "--queue", "bulk", "--status", "pending")
    assert [job["id"] for job in listed["jobs"]] == [bulk]
    assert "is none of pending" in await plugin.run("jobs", "emails", "--status", "odd", exit_code=2)
    complaint = await plugin.run("jobs", "emails", "--queue", "invoices", exit_code=1)
    assert complaint == "ERROR: Pool shop/emails does not serve queue invoices, but mail, bulk.\n"
    queued = {queue["queue"]: queue["due"] for queue in await plugin.json("queues", "emails")}
    assert queued == {"mail": 1, "bulk": 1}
    cancelled = await plugin.json("cancel", "emails", "--queue", "mail", "--yes")
    assert (cancelled["matching"], cancelled["cancelled"]) == (1, 1)
    (entry,) = await plugin.json("audit", "emails")
    assert (entry["actor"], entry["action"], entry["object"]) == ("jane", "cancel", "queue:mail")


async def test_dead_letters_of_the_pool_are_requeued_to_the_queues_they_came_from(
    plugin: Plugin, client: RRQClient, settings: RRQSettings, store: JobStore
) -> None:
    mail, bulk, other = await bury(client, settings, "mail", "bulk", "invoices")
    listed = await plugin.json("dlq", "emails")
    assert {job["id"] for job in listed["jobs"]} == {mail, bulk}
    assert "ValueError: no such mailbox" in await plugin.run("dlq", "emails")
    assert "Traceback" in await plugin.run("dlq", "emails", "inspect", mail)
    assert "Choose the jobs" in await plugin.run("dlq", "emails", "requeue", exit_code=1)
    complaint = await plugin.run("dlq", "emails", "requeue", other, exit_code=1)
    assert complaint == f"ERROR: Job {other} came from queue invoices, not from mail, bulk.\n"
    complaint = await plugin.run("dlq", "emails", "requeue", mail, "--target-queue", "invoices", exit_code=1)
    assert "does not serve queue invoices" in complaint
    assert "Would requeue 1 jobs" in await plugin.run("dlq", "emails", "requeue", mail, "--dry-run")
    assert len(await dead_letters(store)) == 3
    said = await plugin.run("dlq", "emails", "requeue", "--all")
    assert said.endswith("to queues 'bulk' (1), 'mail' (1)\n")
    assert await dead_letters(store) == [other]
    assert await store.batch_get_queue_sizes(["mail", "bulk"]) == {"mail": 1, "bulk": 1}
    (entry,) = await plugin.json("audit", "emails")
    assert (entry["actor"], entry["action"], entry["detail"]["jobs"]) == ("jane", "requeue", 2)


async def test_scaling_a_frozen_pool_says_that_it_is_frozen(plugin: Plugin) -> None:
    said = await plugin.run("scale", "emails", "--replicas", "3")
    assert said == "Pool shop/emails: at least 3, whatever its queues hold; 0 removes the minimum.\n"
    assert plugin.spec()["replicas"] == 3
    await plugin.run("freeze", "emails")
    result = await asyncio.to_thread(CliRunner().invoke, rrq, ["scale", "emails", "--replicas", "0"])
    assert result.stdout == "Pool shop/emails: no minimum, its size follows the queues.\n"
    assert "is frozen and keeps its size until `kubectl rrq unfreeze -n shop emails`" in result.stderr


async def test_an_unknown_pool_is_answered_with_the_pools_of_the_namespace(plugin: Plugin) -> None:
    for command in ("top", "queues", "jobs", "dlq", "flow", "audit", "freeze"):
        complaint = await plugin.run(command, "emial", exit_code=1)
        assert "no pool emial in namespace shop; it has emails, nightly." in complaint


async def test_a_redis_out_of_reach_is_answered_with_how_to_reach_it(plugin: Plugin) -> None:
    plugin.spec()["redis"] = {"url": "redis://rrq-redis.data.svc.invalid:6380/3"}
    for command in ("queues", "jobs", "dlq", "flow", "audit"):
        complaint = await plugin.run(command, "emails", exit_code=1)
        assert complaint.startswith(
            "ERROR: Redis at redis://rrq-redis.data.svc.invalid:6380/3 cannot be reached"
        )
        assert "kubectl port-forward --namespace data svc/rrq-redis 6380" in complaint
    assert (await plugin.json("top", "emails"))[0]["source"] == "status"
