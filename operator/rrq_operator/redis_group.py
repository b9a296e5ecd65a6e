"""All pools of one Redis: one observation a round, however many there are.

A round comes when a producer announces a queue (then only for the pools of that queue), when a child of a pool has
changed, and every second for all of them, because producers of RRQ 0.7 announce nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from rrq.masking import clean_foreign_text, mask_secrets
from rrq.messages import Observation, WorkerObservation
from rrq_operator.admission import SortedLook
from rrq_operator.complaints import Complaint
from rrq_operator.cron_entries import build_cron_jobs, split_tables
from rrq_operator.deaths import find_deaths
from rrq_operator.publishing import Publisher
from rrq_operator.queues import QueueTrouble, RedisQueues
from rrq_operator.redis_sources import RedisIdentity, describe_source
from rrq_operator.seats import Membership
from rrq_operator.shell import Round, Shell
from rrq_operator.spec import Pool
from rrq_operator.status import Fault
from rrq_operator.views import PodView, PoolKey

if TYPE_CHECKING:
    from rrq.cron_table import CronTable

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
#: A queue is announced at most every 50 ms: what came right after an announcement is seen by looking once more.
_SECOND_LOOK_SECONDS = 0.06
_SHORTEST_GAP_SECONDS = 0.01
#: Rounds may take this share of the time at most; the rest of the operator wants to live too.
_MOST_SHARE = 0.25
#: What reading an observation takes of the processor, by the workers in it.
_READ_SECONDS_PER_WORKER = 20e-6
_CRON_TABLES_SECONDS = 20.0
#: How often pools are looked for in Redis that nobody looks after any more.
_STRANGERS_SECONDS = 600.0
#: Half of what the election gives the work of a leader to end.
_CLOSE_SECONDS = 0.5
#: Connections that are being closed after their group has ended; kept, or they would be collected on the way.
_closing: set[asyncio.Task[None]] = set()


class Member:
    """One pool in a group."""

    def __init__(self, membership: Membership, queues: RedisQueues) -> None:
        self.pool = pool = membership.pool
        self.seat = membership.seat
        self.secret_version = membership.secret_version
        self.queue_names = tuple(queues.short_name(name) for name in pool.spec.queues)
        self.cron_entries = build_cron_jobs(pool.spec)

    def is_as(self, membership: Membership) -> bool:
        """Whether nothing has changed. A pool is read anew with each change of its status, which is none here."""
        return (
            self.seat is membership.seat
            and self.secret_version == membership.secret_version
            and self.is_of(membership.pool)
        )

    def is_of(self, pool: Pool | None) -> bool:
        return pool is not None and (pool.uid, pool.generation) == (self.pool.uid, self.pool.generation)


class RedisGroup:
    """One Redis identity and the pools that use it. ``run`` is its loop."""

    def __init__(self, identity: RedisIdentity, shell: Shell) -> None:
        self.identity = identity
        self._shell = shell
        # Asked at each write: the term may be over by then.
        self._queues = RedisQueues(identity, may_write=lambda: shell.kube.may_write())
        self._look = SortedLook(self._queues, (QueueTrouble,), self._note_unsorted)
        self._unsorted, self._unpublished, self._unreadable = Complaint(), Complaint(), Complaint()
        self._unswept, self._unreported, self._failed = Complaint(), Complaint(), Complaint()
        self._publisher = Publisher()
        self._publishing: asyncio.Task[None] | None = None
        self._strangers_at = 0.0
        self._members: dict[PoolKey, Member] = {}
        self._by_queue: dict[str, set[PoolKey]] = {}
        self._wanted: dict[PoolKey, float] = {}
        self._second_looks: dict[PoolKey, float] = {}
        self._heard_at: dict[PoolKey, float] = {}
        self._not_before = 0.0
        self._next_at = 0.0
        self._next_full_at = 0.0
        self._wake = asyncio.Event()
        self._tables: tuple[CronTable, ...] = ()
        self._tables_at = 0.0
        self._hinted: dict[str, float] = {}
        self._counted_calls = 0
        #: Set when Redis refuses the credentials: the Secret may have a newer password.
        self.is_refused = False
        #: When a round ended last, for the watchdog.
        self.ticked_at = monotonic()

    @property
    def redis_calls(self) -> int:
        return self._queues.calls

    def set_members(self, members: Mapping[PoolKey, Membership]) -> None:
        """Take in which pools belong here; those that are new or changed get a round at once."""
        for key in self._members.keys() - members.keys():
            self._publisher.forget(self._members.pop(key).pool.qualified_name)
        for key, membership in members.items():
            known = self._members.get(key)
            if known is None or not known.is_as(membership):
                try:
                    self._members[key] = Member(membership, self._queues)
                except ValueError:
                    logger.exception("pool not taken in", extra={"namespace": key[0], "resource": key[1]})
                self.touch(key)
        self._by_queue = {}
        for key, member in self._members.items():
            for name in member.queue_names:
                self._by_queue.setdefault(name, set()).add(key)

    def touch(self, key: PoolKey, delay_seconds: float = 0.0) -> None:
        """Have a pool looked at soon."""
        if key in self._members:
            at = monotonic() + delay_seconds
            self._wanted[key] = min(at, self._wanted.get(key, at))
            self._plan_at(at)

    async def run(self) -> None:
        """Go round until cancelled."""
        listener = asyncio.create_task(self._queues.listen(self._hear), name="rrq-listener")
        try:
            while True:
                await self._wait()
                started_at = monotonic()
                try:
                    await self._tick()
                    self._failed.is_over()
                # A loop for many tenants must survive what one of them provokes.
                except Exception as error:
                    if self._failed.is_news(repr(error)):
                        logger.exception("round failed", extra={"redis": repr(self.identity)})
                self.ticked_at = monotonic()
                self._shell.metrics.tick_seconds.observe(self.ticked_at - started_at)
                self._count_calls()
                self._plan()
        finally:
            # What pools are doing goes on: an action belongs to the pool, not to the Redis it was decided by.
            self._count_calls()
            await self._close(listener)

    async def _close(self, listener: asyncio.Task[None]) -> None:
        """Close the connections, but wait for it a moment only: a dead Redis must not hold up the end of a term."""

        async def close() -> None:
            await _end(listener)
            if self._publishing is not None:
                await _end(self._publishing)
            # A group whose last pool was deleted has that left to say; one whose term is over may not write any more.
            if not self._members:
                await self._publish(0)
            await self._queues.aclose()

        closing = asyncio.create_task(close(), name="rrq-closing")
        _closing.add(closing)
        closing.add_done_callback(_note_closed)
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)

    def _count_calls(self) -> None:
        self._shell.metrics.redis_calls += self.redis_calls - self._counted_calls
        self._counted_calls = self.redis_calls

    # When

    def _hear(self, queue: str) -> None:
        # No name is the news of a pool that was paused or resumed; it is not said which.
        keys = self._by_queue.get(queue) if queue else set(self._members)
        if keys:
            now = monotonic()
            for key in keys:
                self._heard_at.setdefault(key, now)
                self._wanted[key] = now
                # Later than any before: each announcement also brings a look of its own.
                self._second_looks[key] = now + _SECOND_LOOK_SECONDS
            self._plan_at(now)

    def _plan_at(self, at: float) -> None:
        """Have a round then, or as soon after as others had their share of time."""
        at = max(at, self._not_before)
        if at < self._next_at:
            self._next_at = at
            self._wake.set()

    def _plan(self) -> None:
        """Set the time of the next round by all the looks that are wanted."""
        looks = (*self._wanted.values(), *self._second_looks.values())
        self._next_at = max(self._not_before, min(looks, default=self._next_full_at))
        self._plan_at(self._next_full_at)

    async def _wait(self) -> None:
        while (left := self._next_at - monotonic()) > 0:
            self._wake.clear()
            # Not wait_for, which in Python 3.11 forgets a cancellation that comes together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()

    def _take_due(self, now: float) -> set[PoolKey]:
        """Return the pools whose look is due, and forget that it was wanted."""
        due = set()
        for looks in (self._wanted, self._second_looks):
            for key in [key for key, at in looks.items() if at <= now]:
                del looks[key]
                due.add(key)
        return due & self._members.keys()

    # What

    async def _tick(self) -> None:
        now = monotonic()
        is_full = now >= self._next_full_at
        due = self._take_due(now)
        keys = set(self._members) if is_full else due
        heard_at, self._heard_at = self._heard_at, {}
        if is_full:
            self._next_full_at = now + _POLL_SECONDS
        if not keys:
            return
        seen, fault = await self._observe(keys)
        if is_full and seen is not None:
            await self._report_deaths(seen)
            await self._sweep(seen)
        started_at = monotonic()
        workers = self._sort_workers(seen)
        for key in keys:
            member = self._members.get(key)
            if member is not None:
                try:
                    self._step(key, member, seen, workers.get(key, {}), fault, heard_at.get(key))
                except Exception:
                    # What is wrong with one pool must not keep those behind it from their turn.
                    logger.exception("pool not decided", extra={"namespace": key[0], "resource": key[1]})
        # Only what was spent here counts: while Redis was awaited, others had the time.
        read_seconds = len(seen.workers) * _READ_SECONDS_PER_WORKER if seen is not None else 0.0
        self._leave_time_to_others(monotonic() - started_at + read_seconds)
        if fault is not None:
            # Nothing that it announces is worth another try before the next poll.
            self._not_before = max(self._not_before, self._next_full_at)
        if is_full and seen is not None:
            # Beside the rounds: nobody's size depends on what dashboards are told.
            if self._publishing is None or self._publishing.done():
                self._publishing = asyncio.create_task(self._publish(seen.now_ms), name="rrq-publishing")
            await self._tend_cron(seen)

    def _leave_time_to_others(self, spent_seconds: float) -> None:
        gap = max(_SHORTEST_GAP_SECONDS, spent_seconds * (1 / _MOST_SHARE - 1))
        self._not_before = monotonic() + gap

    async def _observe(self, keys: Iterable[PoolKey]) -> tuple[Observation | None, Fault | None]:
        horizons: dict[str, float] = {}
        for key in keys:
            member = self._members[key]
            for name in member.queue_names:
                horizons[name] = max(horizons.get(name, 0.0), member.seat.controller.horizon_seconds)
        try:
            seen = await self._look.look(horizons)
        except QueueTrouble as trouble:
            self._shell.metrics.redis_errors.labels(trouble.reason).inc()
            self.is_refused = trouble.reason == "AuthenticationFailed"
            return None, Fault(trouble.reason, str(trouble))
        except Exception as error:
            # Whatever a foreign hand has left in Redis: its pools are to say so, not to be passed over in silence.
            if self._unreadable.is_news(repr(error)):
                logger.exception("queues not understood", extra={"redis": repr(self.identity)})
            self._shell.metrics.redis_errors.labels("Unreadable").inc()
            said = clean_foreign_text(mask_secrets(f"{type(error).__name__}: {error}"))
            return None, Fault("Unreadable", f"What Redis holds was not understood: {said}")
        self.is_refused = False
        self._unreadable.is_over()
        return seen, None

    def _note_unsorted(self, trouble: Exception) -> None:
        """Jobs that may not start could not be put aside: sizing goes on, and may ask for more than is needed."""
        if isinstance(trouble, QueueTrouble):
            self._shell.metrics.redis_errors.labels(trouble.reason).inc()
        if self._unsorted.is_news(str(trouble)):
            logger.warning("held jobs not put aside", extra={"error": str(trouble)})

    def _sort_workers(self, seen: Observation | None) -> dict[PoolKey, dict[str, WorkerObservation]]:
        found: dict[PoolKey, dict[str, WorkerObservation]] = {}
        pool_of_pod = self._shell.world.pool_of_pod
        for worker in seen.workers.values() if seen is not None else ():
            key = pool_of_pod.get(worker.pod_uid)
            if key is not None:
                found.setdefault(key, {})[worker.worker_id] = worker
        return found

    def _step(
        self,
        key: PoolKey,
        member: Member,
        seen: Observation | None,
        workers: dict[str, WorkerObservation],
        fault: Fault | None,
        heard_at: float | None,
    ) -> None:
        """Decide for one pool, and act beside the others if there is something to do."""
        record = self._shell.world.pools.get(key)
        if record is None or not member.is_of(record.pool) or record.is_going:
            return
        # Still at it: an API server that is slow for one pool must not hold up the rest.
        if not member.seat.turn.is_free:
            if heard_at is not None:
                self._heard_at.setdefault(key, heard_at)
            member.seat.turn.call_when_free(lambda: self.touch(key))
            return
        own = (
            None
            if seen is None
            else Observation(
                seen.now_ms,
                {name: seen.queues[name] for name in member.queue_names if name in seen.queues},
                workers,
                seen.is_controlled,
                seen.paused,
            )
        )
        this_round = Round(
            record,
            member.queue_names,
            own,
            _describe_fault(fault, member.pool) or _find_unreadable(own, member),
            self._queues,
            member.secret_version,
            heard_at,
        )
        member.seat.step(this_round, member.pool, look_again=lambda: self.touch(key))
        if (card := member.seat.controller.card) is not None:
            self._publisher.note(card)

    async def _report_deaths(self, seen: Observation) -> None:
        world, now = self._shell.world, monotonic()
        pods: dict[str, PodView] = {}
        for worker in seen.workers.values():
            key = world.pool_of_pod.get(worker.pod_uid)
            if key is not None:
                pods[worker.pod_uid] = world.pods[key][worker.pod_uid]
        deaths = find_deaths(seen.workers.values(), pods, world.vanished)
        # At most once a minute: a worker that renews after a hint is alive and shall not be bothered all the time.
        self._hinted = {name: at for name, at in self._hinted.items() if now - at < 60.0}
        fresh = tuple(name for name in deaths.hints if name not in self._hinted)
        if deaths.certificates or fresh:
            try:
                returned = await self._queues.report(replace(deaths, hints=fresh))
            except QueueTrouble as trouble:
                self._shell.metrics.redis_errors.labels(trouble.reason).inc()
                if self._unreported.is_news(str(trouble)):
                    logger.warning("deaths not reported", extra={"error": str(trouble)})
            else:
                self._unreported.is_over()
                self._shell.metrics.returned_jobs.labels("container").inc(returned)
                self._hinted |= dict.fromkeys(fresh, now)

    async def _sweep(self, seen: Observation) -> None:
        """Give back the jobs of workers whose lease has ended: with its pools at zero, nobody else does."""
        if not seen.ended_leases:
            return
        try:
            returned = await self._queues.sweep()
        except QueueTrouble as trouble:
            self._shell.metrics.redis_errors.labels(trouble.reason).inc()
            if self._unswept.is_news(str(trouble)):
                logger.warning("jobs of lost workers not given back", extra={"error": str(trouble)})
            return
        self._unswept.is_over()
        self._shell.metrics.returned_jobs.labels("lease").inc(returned)
        if returned:
            logger.warning("jobs of lost workers are due again", extra={"jobs": returned})

    async def _publish(self, now_ms: int) -> None:
        """Tell dashboards what is new; what cannot be told now is tried again in the next round."""
        try:
            if now_ms and monotonic() >= self._strangers_at:
                self._strangers_at = monotonic() + _STRANGERS_SECONDS
                self._publisher.note_strangers(await self._queues.read_published(), now_ms)
            if told := self._publisher.take(monotonic()):
                await self._queues.publish(told)
                self._publisher.confirm(told, monotonic())
            self._unpublished.is_over()
        except QueueTrouble as trouble:
            if self._unpublished.is_news(str(trouble)):
                logger.warning("pools not published", extra={"error": str(trouble)})
        # Whatever a foreign hand has left there: dashboards are a courtesy.
        except Exception as error:
            if self._unpublished.is_news(repr(error)):
                logger.exception("pools not published", extra={"redis": repr(self.identity)})

    async def _tend_cron(self, seen: Observation) -> None:
        """Enqueue what is due by the schedules of the pools, and of applications that are not running."""
        try:
            if monotonic() >= self._tables_at:
                self._tables_at = monotonic() + _CRON_TABLES_SECONDS
                self._tables = await self._queues.read_cron_tables()
            declared = [entry for member in self._members.values() for entry in member.cron_entries]
            served = [
                [self._queues.short_name(name) for name in worker.queues] for worker in seen.workers.values()
            ]
            pools = [member.queue_names for member in self._members.values()]
            unattended, attended = split_tables(self._tables, pools, served)
            self._queues.track_cron([*declared, *unattended], attended)
            for entry in await self._queues.fire_cron(seen.now_ms):
                logger.info(
                    "cron entry fired",
                    extra={"function": entry.function_name, "queue": entry.queue_name},
                )
        except QueueTrouble as trouble:
            self._shell.metrics.redis_errors.labels(trouble.reason).inc()
        # The next tick is not left waiting for the next full round.
        look_at_ms = self._queues.next_cron_look_ms()
        if look_at_ms is not None and look_at_ms > seen.now_ms:
            ahead_seconds = (look_at_ms - seen.now_ms) / 1000
            self._next_full_at = min(self._next_full_at, monotonic() + ahead_seconds)


def _note_closed(task: asyncio.Task[None]) -> None:
    _closing.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("Redis connection not closed in good order", extra={"error": mask_secrets(str(error))})


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel until it has ended: what connects for us may forget a cancellation that comes at the wrong moment."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)


def _describe_fault(fault: Fault | None, pool: Pool) -> Fault | None:
    """Return what is wrong with Redis in words for one pool: where its credentials are is its own affair."""
    if fault is None or fault.reason != "AuthenticationFailed":
        return fault
    return replace(fault, message=f"{fault.message} They are those of {describe_source(pool)}.")


def _find_unreadable(own: Observation | None, member: Member) -> Fault | None:
    unread = [name for name in member.queue_names if own is not None and name not in own.queues]
    if not unread:
        return None
    return Fault(
        "WrongType",
        f"the Redis key of queue {', '.join(unread)} holds something else than a queue; delete it or use another name",
    )
