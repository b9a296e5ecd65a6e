"""Short functions that the pages quote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rrq.exc import RetryJob

if TYPE_CHECKING:
    from rrq import RRQClient
    from rrq.job import Job

BANK_SECONDS = 5.0


async def call_the_bank(order: int) -> str:
    """Imitates a service that may never reply."""
    await asyncio.sleep(0.01 if order else 3600)
    return f"order {order} paid"


async def charge_card(ctx: dict[str, Any], order: int) -> str:
    try:
        async with asyncio.timeout(BANK_SECONDS):
            return await call_the_bank(order)
    except TimeoutError as error:
        raise RetryJob("the bank does not respond") from error


async def count_click(client: RRQClient, page: str) -> Job | None:
    return await client.enqueue("count_click", page, _result_ttl_seconds=60)
