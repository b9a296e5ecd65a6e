"""A pool of type Job: one run after the other as ``decide/bursts.py`` decides, never two at a time."""

import uuid
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from time import monotonic, time

from rrq.broker.messages import Observation
from rrq_operator.control.pool_group import Round
from rrq_operator.decide.bursts import (
    BurstInput,
    BurstWork,
    RunDecision,
    RunMemory,
    decide_run,
    measure_work,
)
from rrq_operator.local.burst_run import BurstRun
from rrq_operator.local.local_pool import LocalPool, PoolContext
from rrq_operator.local.snapshot import EndedAttempts, History, LocalSnapshot, Sample, count_later


class LocalBurstPool(LocalPool):
    """Reads, decides and acts for one pool."""

    horizon_seconds = 0.0

    def __init__(self, context: PoolContext) -> None:
        super().__init__(context)
        self.runs: list[BurstRun] = []
        self._memory = RunMemory()
        self._created_at = time()
        self._decision = RunDecision(None, "", "looking at the queues")
        self._work = BurstWork(None)
        self._is_stopping = False
        self._later: int | None = None
        self._busy: int | None = None
        self._ended = EndedAttempts()
        self._history = History()

    @property
    def pod_uids(self) -> Collection[str]:
        return {run.uid for run in self.runs}

    @property
    def is_gone(self) -> bool:
        return all(run.is_finished for run in self.runs)

    def decide(self, this_round: Round) -> bool:
        self._note(this_round.seen, is_paused=this_round.is_paused)
        given = BurstInput(self.runs, self._work, self._created_at, time())
        decision = self._decision = decide_run(self.spec.runs, given, self._memory)
        self.runs = [run for run in self.runs if run.name not in decision.expire]
        if decision.schedule_at is not None:
            self._memory = replace(self._memory, last_schedule_at=decision.schedule_at)
        return decision.start is not None and not self._is_stopping

    async def act(self, this_round: Round) -> None:
        """Start the run that was decided."""
        number = self._decision.start
        assert number is not None, "decide comes first"
        self._memory = replace(self._memory, runs=number)
        self.runs.append(self._start_run(number, monotonic()))
        self.context.tell(self._decision.words)

    def _note(self, seen: Observation | None, *, is_paused: bool) -> None:
        self._work = measure_work(seen, self.queue_names, is_paused=is_paused)
        self._later = count_later(seen, self.queue_names)
        self._busy = None
        if seen is not None:
            workers = seen.workers.values()
            self._busy = sum(worker.busy for worker in workers)
            self._ended.add(workers)
        depth = None if self._due is None or self._busy is None else self._due + self._busy
        self._history.add(Sample(depth, int(not self.is_gone)), monotonic())

    @property
    def _due(self) -> int | None:
        return None if self._work.due is None else self._work.due + self._work.blocked

    def _start_run(self, number: int, now: float) -> BurstRun:
        uid, name = str(uuid.uuid4()), f"{self.name}-{number}"
        log_path = self.context.log_folder / f"{name}.log"
        return BurstRun(number, name, uid, partial(self._start_process, uid), log_path, self.spec.runs, now)

    async def look_after(self, now: float) -> bool:
        news = [run.look_after(now, self._kill_at(now)) for run in self.runs]
        for text in filter(None, news):
            self.context.tell(text)
        return any(news)

    def stop(self, now: float) -> None:
        self._is_stopping = True
        for run in self.runs:
            if not run.is_finished:
                run.stop(self._kill_at(now))

    def snapshot(self) -> LocalSnapshot:
        running = int(not self.is_gone)
        return LocalSnapshot(
            name=self.name,
            replicas=running,
            ready=running,
            desired=running,
            leaving=0,
            due=self._due,
            later=self._later,
            busy=self._busy,
            done=self._ended.total,
            words=self._decision.words,
            reason=self._decision.reason,
            blocked=None if self._work.due is None else self._work.blocked,
            is_paused=self._work.is_paused,
            history=self._history.samples,
        )
