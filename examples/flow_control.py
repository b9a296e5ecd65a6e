"""Rate limits, concurrency limits, weights, pauses, options of a producer, progress and a cursor, in one file.

docs/flow-control.md quotes it. `python -m examples.flow_control` runs it on a Redis of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rrq import JobRegistry, RRQClient, RRQSettings, RRQWorker
from rrq.client import JobRequest
from rrq.embedded import EmbeddedRedis
from rrq.flow import JobFilter, Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rrq.client import Batch
    from rrq.context import JobContext
    from rrq.job import Job
    from rrq.store import JobStore


# Handlers


async def send_mail(ctx: JobContext, address: str, *, tenant: str) -> str:
    await asyncio.sleep(0.01)
    return f"{address} of {tenant}"


async def import_rows(ctx: JobContext, count: int) -> int:
    first = await ctx.load_cursor() or 0
    for row in range(first, count):
        await asyncio.sleep(0)  # here the row is imported
        await ctx.save_cursor(row + 1)
        await ctx.set_progress(row + 1, count, "rows imported")
    return count - first


async def fetch(ctx: JobContext, url: str) -> dict[str, Any]:
    return {"url": url, "size": 42}


async def publish(ctx: JobContext, page: dict[str, Any], *, channel: str) -> str:
    return f"{page['url']} on {channel}"


async def say_done(ctx: JobContext, *, batch_id: str) -> str:
    return f"all of batch {batch_id} have ended"


registry = JobRegistry()
for handler in (send_mail, import_rows, fetch, publish, say_done):
    registry.register(handler.__name__, handler)


# What the application declares

settings = RRQSettings(
    job_registry=registry,
    limits={
        "function:send_mail": Limit(concurrency=50, key="tenant", per_key=2),
        "function:fetch": Limit(rate=10, per_seconds=1, burst=20),
        "queue:low": Limit(concurrency=4),
    },
    worker_queue_weights={"high": 6, "default": 3, "low": 1},
)


# Producer options


async def order_receipt(client: RRQClient, order: int) -> Job | None:
    return await client.enqueue(
        "send_mail",
        f"buyer-of-{order}@example.org",
        tenant="shop",
        _idempotency_key=f"receipt-{order}",
        _idempotency_seconds=3600,
    )


async def page_changed(client: RRQClient, url: str) -> Job | None:
    return await client.enqueue("fetch", url, _debounce_key=url, _defer_by=2, _debounce_max_seconds=30)


async def plan_import(client: RRQClient, count: int) -> Job | None:
    return await client.enqueue("import_rows", count, _job_id="nightly-import", _replace_if_pending=True)


async def send_password(client: RRQClient, address: str) -> Job | None:
    return await client.enqueue("send_mail", address, tenant="shop", _priority=9)


async def fetch_and_publish(client: RRQClient, url: str) -> Job | None:
    announce = JobRequest("publish", kwargs={"channel": "news"}, takes_result=True)
    return await client.enqueue("fetch", url, _then=[announce, JobRequest("import_rows", [3])])


async def send_newsletter(client: RRQClient, addresses: Sequence[str]) -> Batch:
    mails = [JobRequest("send_mail", [address], {"tenant": "news"}) for address in addresses]
    return await client.enqueue_batch(mails, on_complete=JobRequest("say_done"))


# At run time, by a person or a program


async def pause_the_mails(store: JobStore) -> int:
    await store.set_pause("function:send_mail", "paused", actor="ada", reason="the server is down")
    await store.set_limit("queue:low", Limit(concurrency=1), actor="ada")
    return await store.cancel_where(JobFilter("low", function="fetch"), actor="ada")


async def resume_the_mails(store: JobStore) -> None:
    await store.set_pause("function:send_mail", None, actor="ada")
    await store.set_limit("queue:low", None, actor="ada")


async def show(redis_dsn: str) -> None:
    """Enqueue a job of each kind, and run all due jobs."""
    here = settings.model_copy(update={"redis_dsn": redis_dsn})
    client = RRQClient(here)
    try:
        first, again = await order_receipt(client, 7), await order_receipt(client, 7)
        print(f"asked twice, queued once: {first is not None and again is not None and first.id == again.id}")
        await plan_import(client, 1000)
        await send_password(client, "ada@example.org")
        await fetch_and_publish(client, "https://example.org")
        batch = await send_newsletter(client, [f"reader-{number}@example.org" for number in range(20)])
        await RRQWorker(here, registry, ["high", "default", "low"], burst=True).run()
        seen = await client.job_store.read_batch(batch.batch_id) or {}
        print(
            f"mails of the newsletter: {seen['total']}, of which {seen['failed']} failed and {seen['pending']} wait"
        )
        print(f"rows imported: {await client.get_job_status('nightly-import')}")
    finally:
        await client.close()


if __name__ == "__main__":
    with EmbeddedRedis() as server:
        asyncio.run(show(server.dsn))
