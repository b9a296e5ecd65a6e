"""A pool of type Job: one run after the other as ``decide/bursts.py`` decides, never two at a time."""

import uuid
from dataclasses import replace
from functools import partial
from time import time

from rrq.broker.messages import Observation
from rrq_operator.decide.bursts import BurstWork, RunMemory, decide_run, measure_work
from rrq_operator.local.burst_run import BurstRun
from rrq_operator.local.local_pool import LocalPool, PoolContext
from rrq_operator.local.pool_snapshot import EndedAttempts, History, LocalSnapshot, Sample, count_later


class BurstPool(LocalPool):
    """Reads, decides and acts for one pool."""

    def __init__(self, context: PoolContext) -> None:
        super().__init__(context)
        self.runs: list[BurstRun] = []
        self._memory = RunMemory()
        self._created_at = time()
        self._words, self._reason = "looking at the queues", ""
        self._work = BurstWork(None)
        self._later = self._busy = 0
        self._tally = EndedAttempts()
        self._history = History()

    @property
    def horizon_seconds(self) -> float:
        return 0.0

    @property
    def is_gone(self) -> bool:
        return all(run.is_finished for run in self.runs)

    async def run_once(self, seen: Observation | None, now: float) -> None:
        self._note(seen, now)
        decision = decide_run(self.spec.runs, self.runs, self._work, self._memory, self._created_at, time())
        self._words, self._reason = decision.words, decision.reason
        self.runs = [run for run in self.runs if run.name not in decision.expire]
        if decision.schedule_at is not None:
            self._memory = replace(self._memory, last_schedule_at=decision.schedule_at)
        if decision.start is not None:
            self._memory = replace(self._memory, runs=decision.start)
            self.runs.append(self._start_run(decision.start, now))
            self.context.tell(decision.words)

    def _note(self, seen: Observation | None, now: float) -> None:
        self._work = measure_work(seen, self.queues, is_on_hold=self._is_on_hold(seen))
        if seen is not None:
            pods = {run.uid for run in self.runs}
            own = [worker for worker in seen.workers.values() if worker.pod_uid in pods]
            self._later, self._busy = count_later(seen, self.queues), sum(worker.busy for worker in own)
            self._tally.add(own)
        depth = None if self._due is None else self._due + self._busy
        self._history.add(Sample(depth, int(not self.is_gone)), now)

    @property
    def _due(self) -> int | None:
        return None if self._work.due is None else self._work.due + self._work.held

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
        for run in self.runs:
            if not run.is_finished:
                run.stop(self._kill_at(now))

    def picture(self) -> LocalSnapshot:
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
            done=self._tally.total,
            words=self._words,
            reason=self._reason,
            held=self._work.held,
            is_on_hold=self._work.is_on_hold,
            history=self._history.samples,
        )
