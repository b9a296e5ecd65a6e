"""When a burst pool starts a run, and which finished runs are let go. Pure.

One run at a time: a run is started only when none is unfinished, under a name with the next number, so that a
second operator that decides the same is refused by the API server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from rrq.cron import CronSchedule
from rrq.messages import Observation
from rrq.time_zones import parse_time_zone
from rrq_operator.sizing import count_waiting
from rrq_operator.spec import JobRuns

_FIRST_RETRY_SECONDS = 10.0
_LONGEST_RETRY_SECONDS = 300.0


class Run(Protocol):
    """What has to be known of a run, in a cluster or on this machine."""

    @property
    def name(self) -> str: ...
    @property
    def run(self) -> int: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def has_succeeded(self) -> bool: ...
    @property
    def finished_at(self) -> float | None: ...
    @property
    def has_ttl(self) -> bool: ...
    @property
    def lacks_functions(self) -> bool:
        """Whether it ran everything but jobs whose functions it does not have; they were put off."""
        ...


@dataclass(frozen=True)
class BurstWork:
    """What a run would find to do."""

    due: int | None
    """Those that may start now; None when the queues could not be read."""
    held: int = 0
    """Those that are due and may not start: no run is started for them."""
    is_on_hold: bool = False
    """Whether the pool is paused in Redis."""
    orphaned: int = 0
    """In hand of workers whose lease has ended: a run waits until they are due again, and does them."""


def measure_work(seen: Observation | None, queues: Sequence[str], *, is_on_hold: bool) -> BurstWork:
    """Add up the queues of a pool."""
    if seen is None or any(name not in seen.queues for name in queues):
        return BurstWork(None, is_on_hold=is_on_hold)
    waiting = count_waiting(seen, queues, is_on_hold=is_on_hold)
    return BurstWork(waiting.may_start, waiting.held, is_on_hold, waiting.orphaned)


@dataclass(frozen=True)
class RunMemory:
    """What outlives the Jobs themselves: kept in the status of the pool."""

    runs: int = 0
    """The number of the last run that was started."""
    last_schedule_at: float | None = None
    """Ticks of the schedule up to this moment have been served or skipped."""


@dataclass(frozen=True)
class RunDecision:
    """What to do with the runs of a pool."""

    start: int | None
    """The number of the run to start now."""
    reason: str
    words: str
    expire: tuple[str, ...] = ()
    """Finished runs beyond those kept for reading: they get a time to live."""
    schedule_at: float | None = None
    """Ticks up to this moment are served by the run that starts, or skipped if none does."""
    next_schedule_at: float | None = None


def decide_run(
    spec: JobRuns,
    runs: Sequence[Run],
    work: BurstWork,
    memory: RunMemory,
    created_at: float,
    now: float,
    *,
    is_pod_left: bool = False,
) -> RunDecision:
    """Return whether to start a run now.

    ``is_pod_left``: a pod runs although no run does, for instance because its Job was deleted by hand.
    """
    expire = _find_expired(spec, runs)
    tick_at, next_at = _find_ticks(spec, memory, created_at, now)
    number = max([memory.runs, *(run.run for run in runs)]) + 1
    running = next((run for run in runs if not run.is_finished), None)
    if running is not None and work.is_on_hold:
        # It does not end: with its jobs still due, the next run would be started as soon as it had.
        words = f"on hold: run {running.run} is under way and starts nothing until the pool is resumed"
        return RunDecision(None, "OnHold", words, expire, tick_at, next_at)
    if running is not None:
        return RunDecision(None, "Running", f"run {running.run} is under way", expire, tick_at, next_at)
    if spec.start == "Once" and number > 1:
        return RunDecision(None, "Finished", "the one run has been made", expire)
    if is_pod_left:
        words = "a pod of an earlier run has not ended yet"
        return RunDecision(None, "Stopping", words, expire, None, next_at)
    if spec.paused:
        # What a person has stopped is not made up for when they let it go on.
        return RunDecision(None, "Paused", "paused: no further run is started", expire, tick_at, next_at)
    if work.is_on_hold:
        words = f"on hold: no run is started until the pool is resumed, {work.held} due wait"
        return RunDecision(None, "OnHold", words, expire, tick_at, next_at)
    if spec.start == "Once":
        return RunDecision(number, "Once", "the one run starts", expire)
    if spec.start == "OnSchedule":
        if tick_at is None:
            return RunDecision(None, "Waiting", _describe_next(next_at), expire, None, next_at)
        return RunDecision(number, "Scheduled", f"run {number} starts by schedule", expire, tick_at, next_at)
    due = work.due
    if due is None:
        return RunDecision(
            None, "QueueUnreadable", "the queues cannot be read, so nothing is started", expire
        )
    has_work = due > 0 or work.orphaned > 0
    if not has_work and work.held:
        words = f"{work.held} due are held back by a pause or a limit, so nothing is started"
        return RunDecision(None, "HeldBack", words, expire)
    if not has_work:
        return RunDecision(None, "Idle", "nothing is due", expire)
    found = f"{due} due and {work.orphaned} orphaned" if work.orphaned else f"{due} due"
    retry_at = _find_retry(runs)
    if retry_at > now:
        # A moment and not a wait: words that counted down would be written again and again.
        moment = f"{datetime.fromtimestamp(retry_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        words = f"{found}; the last run failed, the next starts at {moment}"
        return RunDecision(None, "BackingOff", words, expire)
    return RunDecision(number, "Backlog", f"{found}: run {number} starts", expire)


def _find_expired(spec: JobRuns, runs: Sequence[Run]) -> tuple[str, ...]:
    finished = sorted((run for run in runs if run.is_finished), key=lambda run: run.run)
    return tuple(run.name for run in finished[: -spec.keep_finished] if not run.has_ttl)


def _find_ticks(
    spec: JobRuns, memory: RunMemory, created_at: float, now: float
) -> tuple[float | None, float | None]:
    """Return up to when ticks are to be served, if there was one, and the one to come."""
    if spec.schedule is None:
        return None, None
    schedule, zone = CronSchedule(spec.schedule), parse_time_zone(spec.time_zone)
    after = created_at if memory.last_schedule_at is None else memory.last_schedule_at
    next_at = _next_after(schedule, zone, after)
    if next_at is None or next_at > now:
        return None, next_at
    # Several ticks missed, while no operator ran for instance, are made up for by one run.
    return now, _next_after(schedule, zone, now)


def _next_after(schedule: CronSchedule, zone: ZoneInfo | None, at: float) -> float | None:
    try:
        return schedule.next_moment(datetime.fromtimestamp(at, UTC), zone).timestamp()
    except ValueError:
        return None  # a date that never comes, such as 30 February


def _describe_next(next_at: float | None) -> str:
    if next_at is None:
        return "no run is planned"
    return f"the next run is planned for {datetime.fromtimestamp(next_at, UTC):%Y-%m-%d %H:%M} UTC"


def _find_retry(runs: Sequence[Run]) -> float:
    """Return from when on a pool whose last runs failed may try again; 0 where the last did not fail."""
    failures = 0
    for run in sorted(runs, key=lambda run: run.run, reverse=True):
        if run.has_succeeded or not run.is_finished:
            break
        failures += 1
        if run.lacks_functions:
            # All else was run, and others need not wait ever longer. Jobs that were put off come back later by themselves.
            break
    if not failures:
        return 0.0
    last = max(run.finished_at or 0.0 for run in runs)
    pause = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** (failures - 1))
    return last + pause
