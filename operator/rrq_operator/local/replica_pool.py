"""A pool of type Deployment: replicas that come and go as ``decide/sizing.py`` decides."""

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from time import monotonic

from rrq.broker.messages import Observation
from rrq_operator.control.pool_group import Round
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.sizing import SizingInput, SizingMemory, SizingStep, decide_size
from rrq_operator.local.local_pool import LocalPool, PoolContext
from rrq_operator.local.replica import HOPELESS_AFTER, Replica
from rrq_operator.local.snapshot import EndedAttempts, History, LocalSnapshot, Sample, count_later
from rrq_operator.redis.queues import QueueTrouble


class LocalReplicaPool(LocalPool):
    """Reads, decides and acts for one pool."""

    def __init__(self, context: PoolContext) -> None:
        super().__init__(context)
        self.replicas: list[Replica] = []
        self.leaving: list[Replica] = []
        self.requested = 0
        self.memory = SizingMemory()
        self.step_taken: SizingStep | None = None
        self._started = 0
        self._has_been_ready = False
        self._is_stopping = False
        self._later: int | None = None
        self._slowest_start_seconds = 0.0
        self._draining = 0
        self._ended = EndedAttempts()
        self._history = History()

    @property
    def pod_uids(self) -> Collection[str]:
        return {replica.uid for replica in (*self.replicas, *self.leaving)}

    @property
    def horizon_seconds(self) -> float:
        return self.memory.horizon_seconds

    @property
    def is_gone(self) -> bool:
        return not self.replicas and not self.leaving

    def decide(self, this_round: Round) -> bool:
        now = monotonic()
        given = SizingInput(
            self.queue_names,
            this_round.seen,
            [replica.pod for replica in self.replicas],
            self.requested,
            now,
            is_paused=this_round.is_paused,
        )
        self.step_taken, self.memory = decide_size(self.spec, given, self.memory)
        self._note(self.step_taken, this_round.seen, now)
        return not self._is_stopping

    async def act(self, this_round: Round) -> None:
        """Set and take away flags, then start and end replicas."""
        step = self.step_taken
        assert step is not None, "decide comes first"
        self.memory = replace(self.memory, flagged=await self._apply_flags(this_round, step))
        costs = step.plan.costs
        for replica in self.replicas:
            replica.deletion_cost = costs.get(replica.name, replica.deletion_cost)
        if not self._is_stopping:
            self._apply_replicas(step, monotonic())

    def _note(self, step: SizingStep, seen: Observation | None, now: float) -> None:
        self._later = count_later(seen, self.queue_names)
        if seen is not None:
            self._ended.add(seen.workers.values())
        workload = step.workload
        depth = (
            None if workload is None else workload.due + workload.blocked + workload.orphaned + workload.busy
        )
        self._history.add(Sample(depth, len(self.replicas)), now)

    async def _apply_flags(self, this_round: Round, step: SizingStep) -> frozenset[str]:
        """Set and take away flags; returns the replicas that are flagged for certain and freshly."""
        plan, queues = step.plan, this_round.queues
        self._tell_flags(step)
        if queues is None:
            return frozenset()
        try:
            if plan.release:
                await queues.release(plan.release)
            if plan.drain:
                await queues.drain(plan.drain)
        except QueueTrouble:
            # What Redis does not confirm is not taken for done, and the next round comes within a second.
            return frozenset()
        return frozenset(plan.drain)

    def _tell_flags(self, step: SizingStep) -> None:
        draining, released = len(step.plan.drain), len(step.plan.release)
        if draining > self._draining:
            self.context.tell(f"draining {draining} of {len(self.replicas)} replicas: {step.decision.words}")
        elif released:
            self.context.tell(f"{released} draining replicas stay: {step.decision.words}")
        self._draining = draining

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
        # A pool that worked before is not given up: a person is editing its code, and the jobs can wait.
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

    def _count_ready(self) -> int:
        return sum(replica.ready_at is not None for replica in self.replicas)

    def snapshot(self) -> LocalSnapshot:
        step = self.step_taken
        workload = step.workload if step else None
        return LocalSnapshot(
            name=self.name,
            replicas=len(self.replicas),
            ready=self._count_ready(),
            desired=self._desired,
            leaving=len(self.leaving),
            due=None if workload is None else workload.due + workload.blocked,
            later=self._later,
            busy=None if workload is None else workload.busy,
            done=self._ended.total,
            words=step.decision.words if step else "looking at the queues",
            reason=step.decision.reason.value if step else "",
            blocked=None if workload is None else workload.blocked,
            is_paused=workload is not None and workload.is_paused,
            slowest_start_seconds=self._slowest_start_seconds,
            history=self._history.samples,
        )

    @property
    def _desired(self) -> int:
        if self.step_taken is None or self.step_taken.decision.reason is Reason.QUEUE_UNREADABLE:
            return self.requested
        return self.step_taken.decision.replicas
