"""A small shop whose jobs the stories of the dashboard watch: some take a while, some fail."""

from __future__ import annotations

import asyncio
from typing import Any

from rrq import JobRegistry, RRQSettings

registry = JobRegistry()


async def send_receipt(ctx: dict[str, Any], order: int, seconds: float = 0.02) -> str:
    await asyncio.sleep(seconds)
    return f"receipt of order {order}"


async def charge_card(ctx: dict[str, Any], order: int, card: str = "expired") -> str:
    if card == "expired":
        raise ValueError(f"the card of order {order} has expired")
    return f"order {order} is paid"


registry.register("send_receipt", send_receipt)
registry.register("charge_card", charge_card)

settings = RRQSettings(
    job_registry=registry,
    default_max_retries=2,
    base_retry_delay_seconds=0.05,
    max_retry_delay_seconds=0.1,
)
