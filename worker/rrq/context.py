"""What a handler gets as its first argument: a dict, as in RRQ 0.7, that can also say how far it has come."""

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
    """The facts of one attempt by name, progress for people to see, and a cursor for the next attempt to go on from.

    The job is an attribute and no key: handlers written for RRQ 0.7 find the keys they know. It is for reading, its
    arguments too: the handler is called with what the producer sent.
    """

    __slots__ = ("job", "way_back")

    # Set by the worker once it is made: an __init__ would be one more call for every job.
    job: Job
    way_back: tuple[JobStore, str, asyncio.AbstractEventLoop]
    """Where the methods report to: the store, the token of the attempt, the loop of the worker. Not for handlers."""

    async def set_progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far this attempt has come; ``rrq job show`` and the dashboard tell it on.

        Does nothing for an attempt that was given to another worker.
        """
        progress = {"done": done, "total": total, "note": note, "at": datetime.now(UTC).isoformat()}
        store, token, _ = self.way_back
        await store.note_progress(self["job_id"], token, "progress", json.dumps(progress))

    async def save_cursor(self, value: Any) -> None:
        """Keep where to go on from, as JSON, for the attempt after a crash, a retry or a drain.

        Raises LeaseLost when the job was given to another worker: whoever goes on now does its work twice.
        """
        store, token, _ = self.way_back
        if not await store.note_progress(self["job_id"], token, "cursor", json.dumps(value)):
            raise LeaseLost(
                f"Job {self['job_id']} was given to another attempt, so its cursor was not kept. Stop here; "
                "the other attempt goes on from the cursor before."
            )

    async def load_cursor(self) -> Any | None:
        """Return what an earlier attempt saved last; None when there was none."""
        store, _, _ = self.way_back
        text = await store.read_cursor(self["job_id"])
        return None if text is None else json.loads(text)

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one of the above from a plain handler, which is in a thread: ``ctx.wait(ctx.save_cursor(7))``."""
        return asyncio.run_coroutine_threadsafe(call, self.way_back[2]).result()
