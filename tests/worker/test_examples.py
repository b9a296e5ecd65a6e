"""The examples that people copy run. That the pages quote them as they are is shown by tests/docs/test_pages.py."""

from __future__ import annotations

import importlib
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from commandline import ROOT, CommandLine
from doc_pages import find_blocks
from queue_steps import job_fields
from rrq import JobRegistry
from rrq.exc import RetryJob
from rrq.job import JobStatus
from rrq.worker import RRQWorker
from running import run_burst

if TYPE_CHECKING:
    from types import ModuleType

    from rrq import RRQClient, RRQSettings
    from rrq.store import JobStore

FLOW_PAGE = "docs/flow-control.md"


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("examples.flow_control")


@pytest.fixture
def shop(flow: ModuleType, settings: RRQSettings) -> RRQSettings:
    """The settings of the example, for the Redis of this test."""
    declared = {name: getattr(flow.settings, name) for name in ("limits", "worker_queue_weights")}
    return settings.model_copy(update=declared)


async def test_the_commands_of_the_page_on_flow_control_work(redis_dsn: str, store: JobStore) -> None:
    cli = CommandLine(redis_dsn)
    lines = [
        line for block in find_blocks(FLOW_PAGE) if block.language == "sh" for line in block.text.splitlines()
    ]
    assert len(lines) == 13
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "rrq"
        await cli.ok(*words)
    state = await store.read_flow()
    assert set(state.pauses) == {"queue:mail", "pool:shop/emails"}
    assert set(state.limits) == {"queue:low"}


async def test_the_example_runs_from_end_to_end(
    flow: ModuleType, redis_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await flow.show(redis_dsn)
    said = capsys.readouterr().out
    assert "asked twice, queued once: True" in said
    assert "mails of the newsletter: 20, of which 0 failed and 0 wait" in said
    assert "rows imported: JobResult(status=<JobStatus.COMPLETED: 'COMPLETED'>, result=1000" in said


async def test_producers_of_the_example_get_what_they_ask_for(
    flow: ModuleType, shop: RRQSettings, client: RRQClient, store: JobStore
) -> None:
    changes = [await flow.page_changed(client, "https://example.org") for _ in range(3)]
    assert len({change.id for change in changes}) == 1
    await flow.plan_import(client, 10)
    await flow.plan_import(client, 20)
    receipt = await flow.order_receipt(client, 7)
    password = await flow.send_password(client, "ada@example.org")
    waiting = await store.get_queued_job_ids("default")
    assert waiting.index(password.id) < waiting.index(receipt.id)
    page = await flow.fetch_and_publish(client, "https://example.org/a")
    batch = await flow.send_newsletter(client, ["a@example.org", "b@example.org"])
    await run_burst(shop, flow.registry, queues=["high", "default", "low"])
    imported = await client.get_job_status("nightly-import")
    assert imported is not None
    assert imported.result == 20
    assert {await _status(client, job.id) for job in (receipt, password, page, *batch.jobs)} == {
        JobStatus.COMPLETED
    }
    results = {
        fields.get("result")
        for fields in [await job_fields(store, name) for name in await store.read_recent()]
    }
    assert '"https://example.org/a on news"' in results
    assert f'"all of batch {batch.batch_id} have ended"' in results


async def test_the_import_of_the_example_goes_on_where_it_was_interrupted(
    flow: ModuleType, shop: RRQSettings, client: RRQClient
) -> None:
    async def import_badly(ctx: Any, count: int) -> int:
        if ctx["job_try"] == 1:
            await flow.import_rows(ctx, 6)
            raise RetryJob("the connection broke", defer_seconds=0.01)
        imported: int = await flow.import_rows(ctx, count)
        worker._request_shutdown()
        return imported

    registry = JobRegistry()
    registry.register("import_rows", import_badly)
    await flow.plan_import(client, 10)
    shop.worker_burst_linger_seconds = 60
    worker = RRQWorker(shop, registry, burst=True)
    await worker.run()
    result = await client.get_job_status("nightly-import")
    assert result is not None
    assert result.result == 4


async def test_what_the_example_stops_goes_on_afterwards(
    flow: ModuleType, shop: RRQSettings, client: RRQClient, store: JobStore
) -> None:
    await client.enqueue("fetch", "https://example.org", _queue_name="low")
    assert await flow.stop_the_mails(store) == 1
    mail = await flow.order_receipt(client, 7)
    await run_burst(shop, flow.registry)
    assert await _status(client, mail.id) is JobStatus.PENDING
    assert (await store.read_flow()).limits["queue:low"].concurrency == 1
    await flow.let_the_mails_go(store)
    await run_burst(shop, flow.registry)
    assert await _status(client, mail.id) is JobStatus.COMPLETED
    assert {entry.actor for entry in await store.read_audit()} == {"ada"}


@pytest.fixture
def recipes(flow: ModuleType) -> ModuleType:
    return importlib.import_module("examples.recipes")


async def test_a_bank_that_does_not_answer_is_asked_again(
    recipes: ModuleType, settings: RRQSettings, client: RRQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = JobRegistry()
    registry.register("charge_card", recipes.charge_card)
    for order, patience_seconds, status in ((7, 60.0, JobStatus.COMPLETED), (0, 0.2, JobStatus.RETRYING)):
        monkeypatch.setattr(recipes, "BANK_SECONDS", patience_seconds)
        job = await client.enqueue("charge_card", order)
        assert job is not None
        settings.base_retry_delay_seconds = 60
        await run_burst(settings, registry)
        assert await _status(client, job.id) is status


async def test_a_click_is_forgotten_after_a_minute(
    recipes: ModuleType, settings: RRQSettings, client: RRQClient, store: JobStore
) -> None:
    async def count_click(ctx: Any, page: str) -> None: ...

    registry = JobRegistry()
    registry.register("count_click", count_click)
    click = await recipes.count_click(client, "/index.html")
    await run_burst(settings, registry)
    assert await _status(client, click.id) is JobStatus.COMPLETED
    assert 0 < await store.redis.ttl(store.keys.job_key(click.id)) <= 60


async def _status(client: RRQClient, job_id: str) -> JobStatus | None:
    seen = await client.get_job_status(job_id)
    return seen.status if seen else None
