"""One trial: a fresh Redis, fresh workers, 200 jobs, one fault in the middle of them, and then watching."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults_deployment import Deployment, FaultContender
from faults_judge import (
    ACKNOWLEDGED,
    FINISHED,
    Fault,
    Line,
    find_attempts_in_hand,
    judge,
    parse_ledger,
    select_jobs,
)
from faults_redis import DurableRedis
from harness import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

KILL = "kill"
REDIS_SHUTDOWN = "redis_shutdown"
REDIS_KILL = "redis_kill"
PAUSE = "pause"
FAULTS = (KILL, REDIS_SHUTDOWN, REDIS_KILL, PAUSE)

JOBS = 200
PROCESSES = 2
# A fifth of the jobs are done by then, and most of the rest still wait.
FINISHED_BEFORE_FAULT = 40
IN_HAND_BEFORE_FAULT = 5
REDIS_AWAY_SECONDS = 2.0
PAUSE_SECONDS = 30.0
START_SECONDS = 90.0
PROBE_SECONDS = 20.0
AGAIN_SECONDS = 30.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Outcome:
    """A verdict and what the trial saw besides."""

    contender: str
    fault: str
    # Fields of faults_judge.Verdict.
    verdict: dict[str, Any]
    # Worker processes that ran a job after the watch, of the two there were before the fault.
    processes_after: int
    # Where no process was left: jobs that finished once the same command was started again.
    finished_by_new_workers: int


class Trial:
    def __init__(self, contender: FaultContender, fault: str, watch_seconds: float) -> None:
        self._contender = contender
        self._kind = fault
        self._watch_seconds = watch_seconds

    def run(self) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="rrq-faults-") as name:
            folder = Path(name)
            redis = DurableRedis(folder)
            redis.start()
            try:
                with Deployment(self._contender, redis.dsn, folder) as deployment:
                    return self._run(redis, deployment)
            finally:
                redis.kill()

    def _run(self, redis: DurableRedis, deployment: Deployment) -> Outcome:
        deployment.start_workers()
        if self._count_working_processes(deployment, "warm", START_SECONDS) < PROCESSES:
            raise BenchError(
                f"{self._contender.label}: {PROCESSES} worker processes did not come to work within "
                f"{START_SECONDS:.0f} s:\n{deployment.log_tail()}"
            )
        with ThreadPoolExecutor(1) as beside:
            producer = beside.submit(deployment.send, "job", JOBS)
            # The acknowledgements count; a producer that says goodbye to a Redis just taken away may fail.
            fault = self._strike(redis, deployment, producer)
        _wait(lambda: time.monotonic() > fault.watched_until, self._watch_seconds + PAUSE_SECONDS)
        verdict = judge(_read_jobs(deployment), fault)
        processes_after = self._count_working_processes(deployment, "probe", PROBE_SECONDS)
        finished_by_new_workers = 0
        if verdict.unfinished and not processes_after:
            finished_by_new_workers = self._finish_with_new_workers(deployment, fault)
        return Outcome(
            self._contender.name, self._kind, asdict(verdict), processes_after, finished_by_new_workers
        )

    def _count_working_processes(self, deployment: Deployment, prefix: str, limit_seconds: float) -> int:
        """Return how many processes finish jobs sent now; stops at the number there should be."""
        deadline = time.monotonic() + limit_seconds
        pids: set[int] = set()
        wave = 0
        while len(pids) < PROCESSES and time.monotonic() < deadline:
            # In waves: one process alone may take all that wait when the other is not up yet.
            deployment.send(f"{prefix}-{wave}", 20)
            wave += 1
            _wait(lambda: not _count_open(deployment, prefix), 3.0)
            pids = {
                line.pid
                for line in select_jobs(_read(deployment), prefix)
                if line.event == FINISHED
            }
        # Nothing of these jobs may be running when the real ones come.
        _wait(lambda: not _count_open(deployment, prefix), 5.0)
        return len(pids)

    def _strike(self, redis: DurableRedis, deployment: Deployment, producer: Future[None]) -> Fault:
        """Wait for the middle of the jobs, do it, and return when it was and whom it hit."""
        if not _wait(lambda: _is_the_moment(_read_jobs(deployment)), START_SECONDS):
            producer.result()
            raise BenchError(
                f"{self._contender.label}: the jobs were over before the fault, or never began:\n"
                f"{deployment.log_tail()}"
            )
        if self._kind in (REDIS_SHUTDOWN, REDIS_KILL):
            at = time.monotonic()
            redis.shut_down() if self._kind == REDIS_SHUTDOWN else redis.kill()
            time.sleep(REDIS_AWAY_SECONDS)
            redis.start()
            return self._build_fault(at, None)
        victim = choose_victim(_read_jobs(deployment), deployment.root_pids())
        os.kill(victim, signal.SIGKILL if self._kind == KILL else signal.SIGSTOP)
        at = time.monotonic()
        if self._kind == PAUSE:
            time.sleep(PAUSE_SECONDS)
            # A supervisor may have ended it in the meantime.
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
        return self._build_fault(at, victim)

    def _build_fault(self, at: float, victim_pid: int | None) -> Fault:
        return Fault(at, victim_pid, watched_until=at + self._watch_seconds)

    def _finish_with_new_workers(self, deployment: Deployment, fault: Fault) -> int:
        """Return how many of the unfinished jobs end once somebody starts the workers again."""
        unfinished = judge(_read_jobs(deployment), fault).unfinished
        deployment.stop_workers()
        deployment.start_workers()

        def left() -> int:
            return judge(_read_jobs(deployment), replace(fault, watched_until=time.monotonic())).unfinished

        _wait(lambda: not left(), AGAIN_SECONDS)
        return unfinished - left()


def choose_victim(lines: list[Line], root_pids: set[int]) -> int:
    """Return the process with most jobs in hand; one that somebody else started, where there is such a one.

    Some libraries let the first process supervise and work at once; the others are the fairer victim.
    """
    in_hand = Counter(line.pid for line in find_attempts_in_hand(lines, time.monotonic()).values())
    return max(in_hand, key=lambda pid: (pid not in root_pids, in_hand[pid]))


def _is_the_moment(lines: list[Line]) -> bool:
    events = Counter(line.event for line in lines)
    if events[ACKNOWLEDGED] < JOBS or events[FINISHED] < FINISHED_BEFORE_FAULT:
        return False
    in_hand = Counter(line.pid for line in find_attempts_in_hand(lines, time.monotonic()).values())
    return len(in_hand) == PROCESSES and min(in_hand.values()) >= IN_HAND_BEFORE_FAULT


def _count_open(deployment: Deployment, prefix: str) -> int:
    lines = select_jobs(_read(deployment), prefix)
    sent = {line.job for line in lines if line.event == ACKNOWLEDGED}
    return len(sent - {line.job for line in lines if line.event == FINISHED})


def _read(deployment: Deployment) -> list[Line]:
    return parse_ledger(deployment.ledger.read_text())


def _read_jobs(deployment: Deployment) -> list[Line]:
    return select_jobs(_read(deployment), "job")


def _wait(is_met: Callable[[], bool], limit_seconds: float) -> bool:
    deadline = time.monotonic() + limit_seconds
    while not is_met():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
