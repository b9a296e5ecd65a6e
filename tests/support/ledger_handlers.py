"""Handlers that write to a ledger what they do, for workers in processes of their own."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger import Ledger


def build_handlers(ledger: Ledger) -> list[Callable[..., Any]]:
    """Return those that behave and those that hold things up; each is registered under its own name."""

    async def note(ctx: dict[str, Any], seconds: float = 0.0) -> int:
        """Start, take some time, have an effect."""
        ledger.record(ctx["job_id"], "started", ctx["job_try"])
        await asyncio.sleep(seconds)
        ledger.record(ctx["job_id"], "effect", ctx["job_try"])
        return os.getpid()

    async def wait_for_file(ctx: dict[str, Any], path: str) -> int:
        """Stay in hand until a file exists, however long the test takes to get that far."""
        ledger.record(ctx["job_id"], "started", ctx["job_try"])
        while not os.path.exists(path):  # noqa: ASYNC110  a file rings no bell
            await asyncio.sleep(0.01)
        ledger.record(ctx["job_id"], "effect", ctx["job_try"])
        return os.getpid()

    async def hold_loop(ctx: dict[str, Any], seconds: float) -> int:
        """Stop the event loop, as careless code does, while other threads go on."""
        ledger.record(ctx["job_id"], "started", ctx["job_try"])
        time.sleep(seconds)  # noqa: ASYNC251  being careless is its purpose
        ledger.record(ctx["job_id"], "effect", ctx["job_try"])
        return os.getpid()

    def in_thread(ctx: dict[str, Any], seconds: float = 0.0) -> int:
        ledger.record(ctx["job_id"], "started", ctx["job_try"])
        time.sleep(seconds)
        ledger.record(ctx["job_id"], "effect", ctx["job_try"])
        return os.getpid()

    return [note, wait_for_file, hold_loop, in_thread]
