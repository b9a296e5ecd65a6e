"""A pool of type Deployment: replicas that come and go as ``decide/sizing.py`` decides."""

import asyncio
import contextlib
import uuid
from dataclasses import replace
from functools import partial

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import Observation
from rrq.exc import RRQError
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.sizing import SizingInput, SizingMemory, SizingStep, decide_size, workers_of
from rrq_operator.local.local_pool import LocalPool, PoolContext
from rrq_operator.local.pool_snapshot import EndedAttempts, History, LocalSnapshot, Sample, count_later
from rrq_operator.local.replica import HOPELESS_AFTER, Replica


class Fleet(LocalPool):
    """Reads, decides and acts for one pool."""

    def __init__(self, context: PoolContext) -> None:
        super().__init__(context)
        self.replicas: list[Replica] = []
        self.leaving: list[Replica] = []
        self.requested = 0
        self.memory = SizingMemory()
        self.step: SizingStep | None = None
        self._started = 0
        self._has_been_ready = False
        self._is_stopping = False
        self._later = 0
        self._slowest_start_seconds = 0.0
        self._draining = 0
        self._tally = EndedAttempts()
        self._history = History()

    @property
    def horizon_seconds(self) -> float:
        return self.memory.horizon_seconds

    @property
    def is_gone(self) -> bool:
        return not self.replicas and not self.leaving

    async def run_once(self, seen: Observation | None, now: float) -> None:
        scene = SizingInput(
            seen,
            [replica.state for replica in self.replicas],
            self.requested,
            is_on_hold=self._is_on_hold(seen),
        )
        step, memory = decide_size(self.spec, self.queues, scene, self.memory, now)
        self._note(step, seen, now)
        self.memory = replace(memory, flagged=await self._apply_flags(step))
        costs = step.plan.costs
        for replica in self.replicas:
            replica.deletion_cost = costs.get(replica.name, replica.deletion_cost)
        self._apply_replicas(step, now)

    def _note(self, step: SizingStep, seen: Observation | None, now: float) -> None:
        self.step = step
        if seen is not None:
            self._later = count_later(seen, self.queues)
            pods = {replica.uid for replica in (*self.replicas, *self.leaving)}
            self._tally.add([worker for group in workers_of(seen, pods).values() for worker in group])
        workload = step.workload
        depth = None if workload is None else workload.due + workload.held + workload.orphaned + workload.busy
        self._history.add(Sample(depth, len(self.replicas)), now)

    # Flags in Redis

    async def _apply_flags(self, step: SizingStep) -> frozenset[str]:
        """Set and take away flags; returns the replicas that are flagged for certain and freshly."""
        plan, store = step.plan, self.context.store
        self._tell_flags(step)
        flagged: set[str] = set()
        # What Redis gives no answer for is not taken for done, and the next round comes within a second.
        with contextlib.suppress(*REDIS_ERRORS, RRQError):
            for uid in plan.release:
                await store.clear_drain(uid)
            for uid in plan.drain:
                await store.set_drain(uid)
                flagged.add(uid)
        return frozenset(flagged)

    def _tell_flags(self, step: SizingStep) -> None:
        draining, released = len(step.plan.drain), len(step.plan.release)
        if draining > self._draining:
            self.context.tell(f"draining {draining} of {len(self.replicas)} replicas: {step.decision.words}")
        elif released:
            self.context.tell(f"{released} draining replicas stay: {step.decision.words}")
        self._draining = draining

    # Replicas

    def _apply_replicas(self, step: SizingStep, now: float) -> None:
        before, self.requested = self.requested, step.replicas
        if self.requested > before:
            self.context.tell(f"grows from {before} to {self.requested}: {step.decision.words}")
        elif self.requested < before:
            self.context.tell(f"shrinks from {before} to {self.requested}")
        while len(self.replicas) < self.requested:
            self.replicas.append(self._create(now))
        # Exactly those that the plan has marked; Kubernetes goes by the same cost.
        surplus = len(self.replicas) - self.requested
        for replica in sorted(self.replicas, key=lambda replica: replica.deletion_cost)[: max(0, surplus)]:
            self._dismiss(replica, now)

    def _create(self, now: float) -> Replica:
        self._started += 1
        uid, name = str(uuid.uuid4()), f"{self.name}-{self._started}"
        return Replica(
            uid, name, partial(self._start_process, uid), self.context.log_folder / f"{name}.log", now
        )

    def _dismiss(self, replica: Replica, now: float) -> None:
        self.replicas.remove(replica)
        self.leaving.append(replica)
        replica.terminate(self._kill_at(now))

    async def look_after(self, now: float) -> bool:
        ready_before = self._count_ready()
        news = await asyncio.gather(*(replica.look_after(now) for replica in (*self.replicas, *self.leaving)))
        for text in filter(None, news):
            self.context.tell(text)
        self.leaving = [replica for replica in self.leaving if not replica.is_gone]
        for replica in self.replicas:
            if replica.ready_at is not None and not replica.has_been_ready:
                replica.has_been_ready = self._has_been_ready = True
                self._slowest_start_seconds = max(
                    self._slowest_start_seconds, replica.ready_at - replica.created_at
                )
        if self.replicas and not self._has_been_ready:
            self._give_up_if_hopeless()
        return any(news) or self._count_ready() != ready_before

    def _give_up_if_hopeless(self) -> None:
        # A pool that worked before is not given up: somebody is editing its code, and the jobs can wait.
        if all(replica.failures >= HOPELESS_AFTER for replica in self.replicas):
            self.failure = (
                f"Pool {self.name} cannot run: each of {HOPELESS_AFTER} starts of every replica failed. "
                f"The worker said: {self.replicas[0].last_words}"
            )

    def stop(self, now: float) -> None:
        hurries, self._is_stopping = self._is_stopping, True
        for replica in self.leaving if hurries else ():
            replica.terminate(self._kill_at(now))
        for replica in [*self.replicas]:
            self._dismiss(replica, now)
        self.requested = 0

    # What is shown

    def _count_ready(self) -> int:
        return sum(replica.ready_at is not None for replica in self.replicas)

    def picture(self) -> LocalSnapshot:
        workload = self.step.workload if self.step else None
        return LocalSnapshot(
            name=self.name,
            replicas=len(self.replicas),
            ready=self._count_ready(),
            desired=self._desired,
            leaving=len(self.leaving),
            due=None if workload is None else workload.due + workload.held,
            later=self._later,
            busy=0 if workload is None else workload.busy,
            done=self._tally.total,
            words=self.step.decision.words if self.step else "looking at the queues",
            reason=self.step.decision.reason.value if self.step else "",
            held=0 if workload is None else workload.held,
            is_on_hold=workload is not None and workload.is_on_hold,
            slowest_start_seconds=self._slowest_start_seconds,
            history=self._history.samples,
        )

    @property
    def _desired(self) -> int:
        if self.step is None or self.step.decision.reason is Reason.QUEUE_UNREADABLE:
            return self.requested
        return self.step.decision.replicas
