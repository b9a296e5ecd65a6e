"""The pools that share one Redis: observed in one call, woken by its channel, sized one after the other."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Admission, Observation
from rrq.client import RRQClient
from rrq.engine.cron_scheduler import CronTracker
from rrq.exc import RRQError
from rrq.runtime.masking import mask_secrets
from rrq.store import JobStore
from rrq_operator.decide.cron_entries import build_cron_jobs, split_tables
from rrq_operator.decide.publishing import Publisher
from rrq_operator.local.local_pool import LocalPool
from rrq_operator.redis.admission import SortedLook

#: Producers of RRQ 0.7 announce nothing.
_POLL_SECONDS = 1.0
#: A queue is announced at most every 50 ms: what came right after the announcement is seen in a second look.
_SECOND_LOOK_SECONDS = 0.06
_READ_TABLES_SECONDS = 5.0
_TROUBLE = (*REDIS_ERRORS, RRQError)


class _Queues:
    """The store, as jobs that may not start are put aside in it."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    async def observe(self, horizons_seconds: Mapping[str, float]) -> Observation:
        return await self._store.observe(list(horizons_seconds), horizons_seconds)

    async def admit(self, queues: Sequence[str]) -> Admission:
        return await self._store.admit_jobs(queues)


class RedisGroup:
    """Sizes the pools of one Redis until it is told to end."""

    def __init__(self, store: JobStore, pools: Sequence[LocalPool], tell: Callable[[str], None]) -> None:
        self._store = store
        self._pools = pools
        self._tell = tell
        self._look = SortedLook(_Queues(store), _TROUBLE, self._note_unsorted)
        self._client = RRQClient(store.settings, store)
        self._cron = CronTracker(self._client)
        self._manifest_entries = [entry for pool in pools for entry in build_cron_jobs(pool.spec)]
        self._next_tables_at = 0.0
        self._is_away = False
        self._unsorted = ""
        self._publisher = Publisher()
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Have the pools looked at now."""
        self._wake.set()

    async def run(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            wait_seconds = 0.0
            while True:
                was_woken = await self._was_woken(wait_seconds)
                seen = await self.run_once(monotonic())
                wait_seconds = _SECOND_LOOK_SECONDS if was_woken else self._seconds_to_next_look(seen)
        finally:
            await end_task(listening)
            await self._withdraw()

    async def run_once(self, now: float) -> Observation | None:
        """Look once, and bring all pools in step."""
        seen = await self._observe()
        for pool in self._pools:
            await pool.run_once(seen, now)
        if seen is not None:
            await self._sweep(seen)
            await self._publish(seen.now_ms, now)
            await self._fire_cron(seen, now)
        return seen

    async def _observe(self) -> Observation | None:
        try:
            seen = await self._look.look(self._horizons)
        except _TROUBLE as error:
            if not self._is_away:
                self._tell(f"Redis gives no answer, so sizes stay: {mask_secrets(str(error))}")
            self._is_away = True
            return None
        if self._is_away:
            self._tell("Redis answers again")
        self._is_away = False
        return seen

    def _note_unsorted(self, error: Exception) -> None:
        words = f"jobs that may not start could not be put aside: {mask_secrets(str(error))}"
        if self._unsorted != words:
            self._unsorted = words
            self._tell(words)

    async def _sweep(self, seen: Observation) -> None:
        """Give back the jobs of workers whose lease has ended: with all pools at zero, nobody else does."""
        if not seen.ended_leases:
            return
        # What cannot be given back now is tried again in the next round.
        with contextlib.suppress(*_TROUBLE):
            if returned := (await self._store.reap_workers()).returned:
                self._tell(f"{returned} jobs of lost workers are due again")
                self.wake()

    @property
    def _horizons(self) -> Mapping[str, float]:
        """How far ahead each queue is looked at: as far as the slowest of its pools needs."""
        horizons: dict[str, float] = {}
        for pool in self._pools:
            for name in pool.queues:
                horizons[name] = max(pool.horizon_seconds, horizons.get(name, 0.0))
        return horizons

    def _seconds_to_next_look(self, seen: Observation | None) -> float:
        wait_seconds = seconds_to_next_look(seen, self._horizons)
        tick_at = self._cron.find_next_look()
        if seen is None or tick_at is None:
            return wait_seconds
        return min(wait_seconds, max(_SECOND_LOOK_SECONDS, tick_at.timestamp() - seen.now_ms / 1000))

    # What dashboards are told

    async def _publish(self, now_ms: int, now: float) -> None:
        for pool in self._pools:
            self._publisher.note(pool.report(now_ms))
        if told := self._publisher.take(now):
            # What cannot be told now is tried again in the next round.
            with contextlib.suppress(*_TROUBLE):
                await self._store.publish_pools(told.reports, told.decided, told.gone)
                self._publisher.confirm(told, now)

    async def _withdraw(self) -> None:
        with contextlib.suppress(*_TROUBLE):
            await self._store.publish_pools(
                (), gone=[pool.context.pool.qualified_name for pool in self._pools]
            )

    # Wake-ups

    async def _was_woken(self, timeout_seconds: float) -> bool:
        # Not wait_for(): in Python 3.11 it swallows a cancellation that comes together with the wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._wake.wait()
        was_woken = self._wake.is_set()
        self._wake.clear()
        return was_woken

    async def _listen(self) -> None:
        # No name is the news of a pool that was paused or resumed.
        names = {*self._horizons, ""}
        while True:
            with contextlib.suppress(*_TROUBLE):
                async with self._store.listen() as hear:
                    while True:
                        if await hear(_POLL_SECONDS) in names:
                            self._wake.set()
            await asyncio.sleep(_POLL_SECONDS)

    # Cron

    async def _fire_cron(self, seen: Observation, now: float) -> None:
        try:
            if now >= self._next_tables_at:
                self._next_tables_at = now + _READ_TABLES_SECONDS
                short = self._store.keys.queue_name
                served = [[short(name) for name in worker.queues] for worker in seen.workers.values()]
                tables = await self._store.read_cron_tables()
                away, there = split_tables(tables, [pool.queues for pool in self._pools], served)
                self._cron.track([*self._manifest_entries, *away], there)
            fired = await self._cron.fire_due(datetime.fromtimestamp(seen.now_ms / 1000, UTC))
        except _TROUBLE:
            return  # what was due stays due
        for entry in fired:
            self._tell(f"cron: {entry.function_name} is enqueued to {entry.queue_name}")
            self.wake()


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, however often it takes: libraries have swallowed cancellations before."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_POLL_SECONDS)


def seconds_to_next_look(seen: Observation | None, horizons: Mapping[str, float]) -> float:
    """Return when to look again unasked: in a second, or when a job comes so near that its replica must start."""
    wait_seconds = _POLL_SECONDS
    for name, queue in seen.queues.items() if seen is not None else ():
        if queue.next_due_ms is None or queue.due_soon:
            continue
        assert seen is not None
        ahead_seconds = (queue.next_due_ms - seen.now_ms) / 1000 - horizons[name]
        wait_seconds = min(wait_seconds, max(0.01, ahead_seconds + 0.01))
    return wait_seconds
