"""An application whose jobs mypy checks: two functions, one middleware, a producer.

`rrq worker run --settings examples.typed_jobs.settings` runs its jobs, `python -m examples.typed_jobs` enqueues some.
RRQ_REDIS_DSN names the Redis. test_typed_jobs.py tests these jobs.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrq import App
from rrq.exc import RetryJob

if TYPE_CHECKING:
    from rrq.context import JobContext
    from rrq.middleware import CallNext

logger = logging.getLogger(__name__)

app = App()
settings = app.settings


@app.middleware
async def timing(ctx: JobContext, call_next: CallNext) -> Any:
    started_at = monotonic()
    try:
        return await call_next()
    finally:
        seconds = monotonic() - started_at
        logger.info("attempt ended", extra={"function": ctx.job.function_name, "seconds": seconds})


@app.job(queue="mail", result_ttl_seconds=3600)
def render_receipt(ctx: dict[str, Any], order: int, *, cents: int) -> str:
    """A plain function, which a worker runs in a thread."""
    return f"order {order}: {cents / 100:.2f} EUR"


@app.job(max_retries=5, timeout_seconds=30, unique_key=lambda order, **_: f"charge:{order}")
async def charge_card(ctx: dict[str, Any], order: int, *, cents: int) -> str:
    """Requests a retry at the first attempt of every tenth order, because the bank is busy."""
    if order % 10 == 0 and ctx["job_try"] == 1:
        raise RetryJob("the bank is busy", defer_seconds=60)
    receipt = await render_receipt.enqueue(order, cents=cents)
    return receipt.id


async def main() -> None:
    async with app:
        charged = await charge_card.enqueue(7, cents=1250)
        receipt = render_receipt.handle(await charged.result(timeout_seconds=20))
        print(await receipt.result(timeout_seconds=20))
        later = charge_card.with_options(defer_by=1.5, max_retries=1)
        await app.client.enqueue_many([later.request(order, cents=990) for order in (8, 9)])


if __name__ == "__main__":
    asyncio.run(main())
