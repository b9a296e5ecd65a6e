"""The pools of one Redis: one observation a round, however many they are. The operator and local mode share this loop.

A round comes when a producer announces a queue (then only for the pools of that queue), when something about a pool has
changed, and every second for all pools, because producers of RRQ 0.7 announce nothing. What is done for a Redis beside
the size of its pools is in ``housekeeping.py``.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from rrq.broker.messages import Observation, WorkerObservation
from rrq.flow import PoolReport
from rrq_operator.api.spec import Pool
from rrq_operator.control.housekeeping import GroupListener, Housekeeping
from rrq_operator.decide.objects import PoolKey
from rrq_operator.decide.status import Fault
from rrq_operator.redis.admission import JobAdmission
from rrq_operator.redis.complaints import Complaint
from rrq_operator.redis.queues import REFUSED_LOGIN_REASON, QueueTrouble, RedisQueues

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
#: A queue is announced at most every 50 ms: what came right after an announcement is seen by looking once more.
_SECOND_LOOK_SECONDS = 0.06
_SHORTEST_GAP_SECONDS = 0.01
#: Rounds may take this share of the time at most; the rest of the process needs time, too.
_MOST_SHARE = 0.25
#: What reading an observation takes of the processor, by the workers in it.
_READ_SECONDS_PER_WORKER = 20e-6


@dataclass(frozen=True)
class Round:
    """What one round of one pool starts from."""

    pool: Pool
    seen: Observation | None = None
    """Its queues and the workers of its pods; None when Redis could not be read."""
    queue_fault: Fault | None = None
    queues: RedisQueues | None = None
    """None while it is not known which Redis the pool uses."""
    heard_at: float | None = None
    """When the news came that led to this round, by the monotonic clock."""

    @property
    def is_paused(self) -> bool:
        """Whether the pool is paused in Redis, as far as is known."""
        return self.seen is not None and self.pool.pause_target in self.seen.paused


class GroupPool(ABC):
    """A pool in a group: it decides in each round without waiting, and acts beside the rounds, one action at a time.

    A pool moves from one group to another when its Secret changes. Its action goes on meanwhile, and the next group waits
    for it.
    """

    def __init__(self, actions: asyncio.Semaphore) -> None:
        self._actions = actions
        #: The pool as its group read it last.
        self.pool: Pool | None = None
        #: The short names of its queues.
        self.queue_names: tuple[str, ...] = ()
        #: The action that is under way, or was last.
        self.action: asyncio.Task[None] | None = None
        #: Whether the next round should come soon after an action.
        self.wants_another_look = False
        #: Called once when the action is over.
        self.when_free: Callable[[], None] | None = None

    @abstractmethod
    def find_pool(self) -> Pool | None:
        """Return the pool as it is now; None while its group must leave it alone."""

    @property
    @abstractmethod
    def pod_uids(self) -> Collection[str]:
        """Its pods, whose workers a round shows."""

    @property
    @abstractmethod
    def horizon_seconds(self) -> float:
        """How far ahead work is of interest."""

    @abstractmethod
    def decide(self, this_round: Round) -> bool:
        """Take one decision; returns whether there is anything to do about it."""

    @abstractmethod
    async def act(self, this_round: Round) -> None:
        """Do what was decided."""

    @abstractmethod
    def build_report(self, now_ms: int) -> PoolReport | None:
        """Return what dashboards show of the pool; None while that is not known."""

    def start_writing(self) -> None:  # noqa: B027  local mode writes nothing
        """Write what there is to say of the pool, beside everything else."""

    @property
    def is_busy(self) -> bool:
        return self.action is not None and not self.action.done()

    def read_pool(self, queues: RedisQueues) -> bool:
        """Take in the spec if it has changed; returns whether it has."""
        pool = self.find_pool()
        if pool is None or pool is self.pool:
            return False
        self.pool, self.queue_names = pool, tuple(map(queues.short_name, pool.spec.queues))
        return True

    def step(self, this_round: Round, look_again: Callable[[], None] = lambda: None) -> None:
        """Decide, and act if there is something to do. The pool must not be busy."""
        assert not self.is_busy, "one action at a time"
        if self.decide(this_round):
            self.action = asyncio.create_task(self._act(this_round, look_again), name="rrq-action")
        self.start_writing()

    async def _act(self, this_round: Round, look_again: Callable[[], None]) -> None:
        pool = this_round.pool
        try:
            async with self._actions:
                await self.act(this_round)
            self.start_writing()
            if self.wants_another_look:
                look_again()
        # The next round retries; an action that raised would only end its task unread.
        except Exception:
            logger.exception("pool update failed", extra={"namespace": pool.namespace, "resource": pool.name})
        finally:
            call, self.when_free = self.when_free, None
            if call is not None:
                call()


class LookPlan:
    """When which pools are looked at next. Times are monotonic."""

    def __init__(self) -> None:
        self._wanted: dict[PoolKey, float] = {}
        self._second_looks: dict[PoolKey, float] = {}
        self._heard_at: dict[PoolKey, float] = {}
        self._not_before = 0.0
        self._next_at = 0.0
        #: When all pools are looked at next.
        self.next_full_at = 0.0
        self._wake = asyncio.Event()

    def want(self, key: PoolKey, delay_seconds: float = 0.0) -> None:
        """Have a pool looked at soon."""
        at = monotonic() + delay_seconds
        self._wanted[key] = min(at, self._wanted.get(key, at))
        self._move_to(at)

    def note_announcement(self, keys: Iterable[PoolKey]) -> None:
        """Have pools looked at now, and once more."""
        now = monotonic()
        for key in keys:
            self._heard_at.setdefault(key, now)
            self._wanted[key] = now
            # Later than any before: each announcement also brings a look of its own.
            self._second_looks[key] = now + _SECOND_LOOK_SECONDS
        self._move_to(now)

    def keep_news(self, key: PoolKey, heard_at: float | None) -> None:
        """Keep when the news came about a pool that could not be looked at."""
        if heard_at is not None:
            self._heard_at.setdefault(key, heard_at)

    def take(self, now: float) -> tuple[set[PoolKey] | None, dict[PoolKey, float]]:
        """Return the pools to look at (None for all of them) and when the news of each came, and forget both."""
        due: set[PoolKey] = set()
        for looks in (self._wanted, self._second_looks):
            for key in [key for key, at in looks.items() if at <= now]:
                del looks[key]
                due.add(key)
        heard_at, self._heard_at = self._heard_at, {}
        if now < self.next_full_at:
            return due, heard_at
        self.next_full_at = now + _POLL_SECONDS
        return None, heard_at

    def rest(self, spent_seconds: float, *, until_next_full: bool = False) -> None:
        """Leave the rest of the process its share of time after a round that took so long."""
        gap = max(_SHORTEST_GAP_SECONDS, spent_seconds * (1 / _MOST_SHARE - 1))
        self._not_before = max(monotonic() + gap, self.next_full_at if until_next_full else 0.0)

    def plan(self) -> None:
        """Set the time of the next round by all the looks that are wanted."""
        looks = (*self._wanted.values(), *self._second_looks.values())
        self._next_at = max(self._not_before, min(looks, default=self.next_full_at))
        self._move_to(self.next_full_at)

    async def wait(self) -> None:
        """Return when the next round is due."""
        while (left := self._next_at - monotonic()) > 0:
            self._wake.clear()
            # Not wait_for, which in Python 3.11 forgets a cancellation that comes together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()

    def _move_to(self, at: float) -> None:
        at = max(at, self._not_before)
        if at < self._next_at:
            self._next_at = at
            self._wake.set()


class PoolGroup:
    """One Redis identity and the pools that use it. ``run`` is its loop."""

    def __init__(
        self,
        queues: RedisQueues,
        listener: GroupListener,
        observe_round: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """``observe_round`` is called with the length of each round."""
        self.plan = LookPlan()
        self.housekeeping = Housekeeping(queues, listener)
        self._queues = queues
        self._listener = listener
        self._observe_round = observe_round
        self._admission = JobAdmission(queues, listener.jobs_not_set_aside)
        self._pools: dict[PoolKey, GroupPool] = {}
        self._keys_by_queue: dict[str, set[PoolKey]] = {}
        #: Why Redis could not be read in the last round.
        self._fault: Fault | None = None
        self._failed = Complaint()
        #: When a round ended last, for the watchdog.
        self.ticked_at = monotonic()

    @property
    def is_refused(self) -> bool:
        """Whether Redis refuses the credentials: the Secret may have a newer password."""
        return self._fault is not None and self._fault.reason == REFUSED_LOGIN_REASON

    def set_pools(self, pools: Mapping[PoolKey, GroupPool]) -> None:
        """Take in which pools belong here; new ones get a round at once."""
        for key in self._pools.keys() - pools.keys():
            self.housekeeping.forget(key)
        for key, pool in pools.items():
            if self._pools.get(key) is not pool:
                pool.pool = None  # in this Redis its queues may have other names
                self.plan.want(key)
        self._pools = dict(pools)
        self._read_pools(pools)
        self._index_queues()

    def touch(self, key: PoolKey, delay_seconds: float = 0.0) -> None:
        """Have a pool looked at soon."""
        if key in self._pools:
            self.plan.want(key, delay_seconds)

    async def run(self) -> None:
        """Go round until cancelled."""
        listening = asyncio.create_task(self._queues.listen(self._hear), name="rrq-listener")
        try:
            while True:
                await self.plan.wait()
                started_at = monotonic()
                try:
                    await self.run_once()
                    self._failed.said = ""
                # The loop of a Redis must survive: it serves all its pools.
                except Exception as error:
                    if self._failed.is_news(repr(error)):
                        logger.exception("round failed", extra={"redis": repr(self._queues.identity)})
                    self.plan.rest(monotonic() - started_at)
                self.ticked_at = monotonic()
                self._observe_round(self.ticked_at - started_at)
                self.plan.plan()
        finally:
            # The actions of pools go on: an action belongs to the pool, not to the Redis it was decided by.
            # A group whose last pool was deleted says so; one whose term is over may not write any more.
            await self.housekeeping.close(listening, is_last=not self._pools)

    def _hear(self, queue: str) -> None:
        # No name is the news of a pool that was paused or resumed; it is not said which.
        if keys := self._keys_by_queue.get(queue) if queue else set(self._pools):
            self.plan.note_announcement(keys)

    async def run_once(self) -> None:
        """Observe, and decide for the pools whose look is due."""
        due, heard_at = self.plan.take(monotonic())
        is_full = due is None
        keys = set(self._pools) if due is None else due & self._pools.keys()
        if not keys:
            return
        self._read_pools(keys)
        seen = await self._observe(keys)
        if is_full and seen is not None:
            await self.housekeeping.reap(seen)
        started_at = monotonic()
        workers = self._sort_workers(seen, keys)
        for key in keys:
            # The group may have lost it meanwhile.
            if (pool := self._pools.get(key)) is not None:
                self._step(key, pool, seen, workers.get(key, {}), heard_at.get(key))
        # Only what was spent here counts: while Redis was awaited, others had the time.
        read_seconds = len(seen.workers) * _READ_SECONDS_PER_WORKER if seen is not None else 0.0
        # Nothing that a Redis announces which cannot be read is worth another try before the next poll.
        self.plan.rest(monotonic() - started_at + read_seconds, until_next_full=self._fault is not None)
        if is_full and seen is not None:
            look_at = await self.housekeeping.publish_and_fire(seen, self._pools)
            # The next tick of a cron entry is not left waiting for the next full round.
            self.plan.next_full_at = min(self.plan.next_full_at, look_at)

    def _read_pools(self, keys: Iterable[PoolKey]) -> None:
        """Take in what the specs of these pools say now."""
        for key in keys:
            try:
                if self._pools[key].read_pool(self._queues):
                    self._index_queues()
            except ValueError:
                logger.exception("pool ignored", extra={"namespace": key[0], "resource": key[1]})

    def _index_queues(self) -> None:
        self._keys_by_queue = {}
        for key, pool in self._pools.items():
            for name in pool.queue_names:
                self._keys_by_queue.setdefault(name, set()).add(key)

    async def _observe(self, keys: Iterable[PoolKey]) -> Observation | None:
        horizons: dict[str, float] = {}
        for key in keys:
            for name in self._pools[key].queue_names:
                horizons[name] = max(horizons.get(name, 0.0), self._pools[key].horizon_seconds)
        try:
            seen = await self._queues.observe(horizons)
            if seen.is_controlled:
                seen = await self._admission.set_aside(seen, horizons)
        except QueueTrouble as trouble:
            fault = Fault(trouble.reason, str(trouble))
            self._listener.redis_failed(fault, is_new=self._fault is None)
            self._fault = fault
            return None
        if self._fault is not None:
            self._fault = None
            self._listener.redis_answered()
        return seen

    def _sort_workers(
        self, seen: Observation | None, keys: Iterable[PoolKey]
    ) -> dict[PoolKey, dict[str, WorkerObservation]]:
        found: dict[PoolKey, dict[str, WorkerObservation]] = {}
        if seen is None or not seen.workers:
            return found
        known = ((key, self._pools[key]) for key in keys if key in self._pools)
        owners = {uid: key for key, pool in known for uid in pool.pod_uids}
        for worker in seen.workers.values():
            if (key := owners.get(worker.pod_uid)) is not None:
                found.setdefault(key, {})[worker.worker_id] = worker
        return found

    def _step(
        self,
        key: PoolKey,
        controller: GroupPool,
        seen: Observation | None,
        workers: dict[str, WorkerObservation],
        heard_at: float | None,
    ) -> None:
        """Decide for one pool, and act beside the others if there is something to do."""
        pool = controller.find_pool()
        if pool is None or pool is not controller.pool:
            return  # gone, or changed while Redis was asked: the next round knows
        # An API server that is slow for one pool must not hold up the rest.
        if controller.is_busy:
            self.plan.keep_news(key, heard_at)
            controller.when_free = lambda: self.touch(key)
            return
        own = None
        if seen is not None:
            queues = {name: seen.queues[name] for name in controller.queue_names if name in seen.queues}
            own = replace(seen, queues=queues, workers=workers)
        unread = [name for name in controller.queue_names if own is not None and name not in own.queues]
        this_round = Round(pool, own, self._describe_fault(pool, unread), self._queues, heard_at)
        try:
            controller.step(this_round, look_again=lambda: self.touch(key))
        # One pool's trouble must not keep the others from their turn.
        except Exception:
            logger.exception("pool not decided", extra={"namespace": key[0], "resource": key[1]})

    def _describe_fault(self, pool: Pool, unread: Sequence[str]) -> Fault | None:
        """Return why the queues of one pool cannot be read."""
        if self._fault is None and unread:
            words = f"the Redis key of queue {', '.join(unread)} holds something else than a queue"
            return Fault("WrongType", f"{words}; delete it or use another name")
        if self._fault is None or self._fault.reason != REFUSED_LOGIN_REASON:
            return self._fault
        # Where its credentials are is the affair of each pool.
        return replace(self._fault, message=f"{self._fault.message} They are those of {pool.redis_origin}.")
