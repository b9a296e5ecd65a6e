"""What a handler gets as its first argument: a dict, as in RRQ 0.7, that also stores progress and a cursor."""

import asyncio
import json
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

from rrq.exc import LeaseLost
from rrq.job import Job
from rrq.store import JobStore

__all__ = ["JobContext"]

T = TypeVar("T")


class JobContext(dict[str, Any]):
    """The facts of one attempt by name, progress for people to see, and a cursor where the next attempt goes on.

    The job is an attribute and no key: handlers written for RRQ 0.7 find the keys they know. Changing it or its
    arguments has no effect, because the handler is called with what the producer sent.
    """

    __slots__ = ("backend", "job")

    # The executor sets both: an __init__ would be one more call for every job.
    job: Job
    backend: tuple[JobStore, str, asyncio.AbstractEventLoop]
    """What the methods use: the store, the token of the attempt, the event loop of the worker. Not for handlers."""

    async def set_progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Store how far this attempt has come; ``rrq job show`` and the dashboard show it.

        Does nothing when the job was given to another worker.
        """
        progress = {"done": done, "total": total, "note": note, "at": datetime.now(UTC).isoformat()}
        store, token, _ = self.backend
        await store.note_progress(self["job_id"], token, "progress", json.dumps(progress))

    async def save_cursor(self, value: Any) -> None:
        """Store where to go on, as JSON, for the attempt after a crash, a retry or a drain.

        Raises LeaseLost when the job was given to another worker: a handler that goes on now does its work twice.
        """
        store, token, _ = self.backend
        if not await store.note_progress(self["job_id"], token, "cursor", json.dumps(value)):
            raise LeaseLost(
                f"Job {self['job_id']} was given to another attempt, so its cursor was not kept. Stop here; "
                "the other attempt goes on from the cursor before."
            )

    async def load_cursor(self) -> Any | None:
        """Return what an earlier attempt saved last; None when there was none."""
        store, _, _ = self.backend
        text = await store.read_cursor(self["job_id"])
        return None if text is None else json.loads(text)

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one of the above from a plain handler, which is in a thread: ``ctx.wait(ctx.save_cursor(7))``."""
        return asyncio.run_coroutine_threadsafe(call, self.backend[2]).result()
