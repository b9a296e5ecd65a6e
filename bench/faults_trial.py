"""One trial: a fresh Redis, fresh workers, 200 jobs, one fault in the middle of them, and then watching."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
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
IN_HAND_BEFORE_FAULT = 4
# Their age then: past an early effect, and not so old that they are over before the signal arrives.
IN_HAND_SECONDS = (0.03, 0.15)
REDIS_AWAY_SECONDS = 2.0
PAUSE_SECONDS = 30.0
START_SECONDS = 90.0
PROBE_SECONDS = 20.0
# More than one process fetches ahead in most libraries, so that the other gets its share.
PROBE_JOBS = 40
AGAIN_SECONDS = 30.0
POLL_SECONDS = 0.01
WATCH_POLL_SECONDS = 0.5
TRICKLE_JOBS = 20
TRICKLE_SECONDS = 15.0


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


class Interrupted(BenchError):
    """Somebody asked the bench to end."""


class Trial:
    """Runs until ``is_over`` is set by somebody who wants it to end.

    A long one ends as soon as every job has finished. Some libraries look for the jobs of the dead only when new
    ones come, so it sends some from time to time, as a service in use would.
    """

    def __init__(
        self,
        contender: FaultContender,
        fault: str,
        watch_seconds: float,
        is_over: threading.Event,
        *,
        is_long: bool = False,
    ) -> None:
        self._is_over = is_over
        self._contender = contender
        self._kind = fault
        self._watch_seconds = watch_seconds
        self._is_long = is_long
        # Set once the busy part is over, however it ended.
        self.is_quiet = threading.Event()

    def run(self) -> Outcome:
        try:
            return self._run_in_folder()
        finally:
            self.is_quiet.set()

    def _run_in_folder(self) -> Outcome:
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
        self.is_quiet.set()
        self._watch(deployment, fault)
        verdict = judge(_read_jobs(deployment), fault)
        processes_after = self._count_working_processes(deployment, "probe", PROBE_SECONDS)
        finished_by_new_workers = 0
        if verdict.unfinished and not processes_after:
            finished_by_new_workers = self._finish_with_new_workers(deployment, fault)
        return Outcome(
            self._contender.name, self._kind, asdict(verdict), processes_after, finished_by_new_workers
        )

    def _watch(self, deployment: Deployment, fault: Fault) -> None:
        next_trickle_at = fault.at + TRICKLE_SECONDS
        while time.monotonic() < fault.watched_until:
            self._sleep(WATCH_POLL_SECONDS)
            if not self._is_long:
                continue
            if not judge(_read_jobs(deployment), fault).unfinished:
                return
            if time.monotonic() > next_trickle_at:
                deployment.send(f"trickle-{next_trickle_at:.0f}", TRICKLE_JOBS)
                next_trickle_at += TRICKLE_SECONDS

    def _count_working_processes(self, deployment: Deployment, prefix: str, limit_seconds: float) -> int:
        """Return how many processes finish jobs sent now; stops at the number there should be."""
        deadline = time.monotonic() + limit_seconds
        pids: set[int] = set()
        wave = 0
        while len(pids) < PROCESSES and time.monotonic() < deadline:
            # In waves: one process alone may take all that wait when the other is not up yet.
            deployment.send(f"{prefix}-{wave}", PROBE_JOBS)
            wave += 1
            self._wait(lambda: not _count_open(deployment, prefix), 3.0)
            pids = {line.pid for line in select_jobs(_read(deployment), prefix) if line.event == FINISHED}
        # Nothing of these jobs may be running when the real ones come.
        self._wait(lambda: not _count_open(deployment, prefix), 5.0)
        return len(pids)

    def _strike(self, redis: DurableRedis, deployment: Deployment, producer: Future[None]) -> Fault:
        """Wait for the middle of the jobs, do it, and return when it was and whom it hit."""
        victim = None

        def is_the_moment() -> bool:
            nonlocal victim
            lines = _read_jobs(deployment)
            victim = choose_victim(lines, deployment.root_pids(), time.monotonic())
            return victim is not None or _count_finished(lines) == JOBS

        self._wait(is_the_moment, START_SECONDS)
        if victim is None:
            producer.result()
            raise BenchError(
                f"{self._contender.label}: the jobs were over before the fault, or never began:\n"
                f"{deployment.log_tail()}"
            )
        if self._kind in (REDIS_SHUTDOWN, REDIS_KILL):
            at = time.monotonic()
            redis.shut_down() if self._kind == REDIS_SHUTDOWN else redis.kill()
            self._sleep(REDIS_AWAY_SECONDS)
            redis.start()
            return self._build_fault(at, None)
        os.kill(victim, signal.SIGKILL if self._kind == KILL else signal.SIGSTOP)
        at = time.monotonic()
        if self._kind == PAUSE:
            self._sleep(PAUSE_SECONDS)
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

        self._wait(lambda: not left(), AGAIN_SECONDS)
        return unfinished - left()

    def _wait(self, is_met: Callable[[], bool], limit_seconds: float) -> bool:
        deadline = time.monotonic() + limit_seconds
        while not is_met():
            if time.monotonic() > deadline:
                return False
            self._sleep(POLL_SECONDS)
        return True

    def _sleep(self, seconds: float) -> None:
        if self._is_over.wait(seconds):
            raise Interrupted("asked to end")


def choose_victim(lines: list[Line], root_pids: set[int], now: float) -> int | None:
    """Return the process to hit, or None as long as this is not the middle of the jobs.

    It is the one with most jobs in hand, and one that somebody else started, where there is such a one: some
    libraries let the first process supervise and work at once, and the others are the fairer victim.
    """
    events = Counter(line.event for line in lines)
    if events[ACKNOWLEDGED] < JOBS or events[FINISHED] < FINISHED_BEFORE_FAULT:
        return None
    in_hand = find_attempts_in_hand(lines, now).values()
    youngest, oldest = IN_HAND_SECONDS
    counts = Counter(line.pid for line in in_hand if youngest < now - line.at < oldest)
    workers = {line.pid for line in lines if line.event == FINISHED}
    fair = (workers - root_pids) or workers
    victim = max(fair, key=lambda pid: counts[pid])
    return victim if counts[victim] >= IN_HAND_BEFORE_FAULT else None


def _count_finished(lines: list[Line]) -> int:
    return len({line.job for line in lines if line.event == FINISHED})


def _count_open(deployment: Deployment, prefix: str) -> int:
    lines = select_jobs(_read(deployment), prefix)
    sent = {line.job for line in lines if line.event == ACKNOWLEDGED}
    return len(sent - {line.job for line in lines if line.event == FINISHED})


def _read(deployment: Deployment) -> list[Line]:
    return parse_ledger(deployment.ledger.read_text())


def _read_jobs(deployment: Deployment) -> list[Line]:
    return select_jobs(_read(deployment), "job")
