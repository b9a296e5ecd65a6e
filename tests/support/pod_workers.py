"""Workers in the pods of a fake node, as Redis sees them: registered, renewed, busy or idle as the test says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from queue_steps import SteppedWorker, done, start_worker
from running import end

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from rrq.broker.messages import ClaimedJob
    from rrq.store import JobStore

RENEW_SECONDS = 1.0


class PodWorkers:
    """One worker per pod uid, for the length of an `async with` block, whose leases are renewed meanwhile."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._workers: dict[str, SteppedWorker] = {}
        self._in_hand: dict[str, list[ClaimedJob]] = {}

    async def start(self, pod_uids: Iterable[str]) -> None:
        for uid in pod_uids:
            self._workers[uid] = await start_worker(self._store, f"worker-{uid}", pod_uid=uid)

    async def take(self, pod_uid: str, most: int = 1) -> int:
        """Let the worker of a pod claim jobs; returns how many it got."""
        claim = await self._workers[pod_uid].claim(most)
        self._in_hand.setdefault(pod_uid, []).extend(claim.jobs)
        return len(claim.jobs)

    async def finish(self, pod_uid: str) -> None:
        """Let the worker of a pod end all it has in hand."""
        jobs = self._in_hand.pop(pod_uid)
        await self._workers[pod_uid].finish(*(done(job) for job in jobs))

    def stop(self, pod_uids: Iterable[str]) -> None:
        """Have the workers of pods that are gone renew no more."""
        for uid in pod_uids:
            self._workers.pop(uid, None)

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._renewing)

    async def _renew(self) -> None:
        while True:
            for worker in list(self._workers.values()):
                await worker.beat()
            await asyncio.sleep(RENEW_SECONDS)
