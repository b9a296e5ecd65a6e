"""When a burst pool starts a run, and which finished runs expire. Pure.

One run at a time: a run is started only when none is unfinished, under a name with the next number, so that a
second operator that decides the same is refused by the API server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol
from zoneinfo import ZoneInfo

from rrq.broker.messages import Observation
from rrq.cron import CronSchedule
from rrq.runtime.time_zones import parse_time_zone
from rrq_operator.api.schedules import JobRuns
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.sizing import count_waiting

_FIRST_RETRY_SECONDS = 10.0
_LONGEST_RETRY_SECONDS = 300.0


class RunReason(StrEnum):
    """Why a pool starts a run or none, where no pool of replicas has the same reason."""

    ONCE = "Once"
    SCHEDULED = "Scheduled"
    WAITING = "Waiting"
    """For the next tick of the schedule."""
    RUNNING = "Running"
    FINISHED = "Finished"
    """The one run has been made."""
    STOPPING = "Stopping"
    """A pod of an earlier run has not ended."""
    BACKING_OFF = "BackingOff"


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
        """Whether it ran all but jobs whose functions it does not have; it deferred those."""
        ...


@dataclass(frozen=True)
class BurstWork:
    """What a run would find to do."""

    due: int | None
    """Jobs that may start now; None when the queues could not be read."""
    blocked: int = 0
    """Jobs that are due and may not start: no run is started for them."""
    is_paused: bool = False
    """Whether the pool is paused in Redis."""
    orphaned: int = 0
    """In hand of workers whose lease has ended: a run waits until they are due again, and does them."""


def measure_work(seen: Observation | None, queues: Sequence[str], *, is_paused: bool) -> BurstWork:
    """Add up the queues of a pool."""
    if seen is None or any(name not in seen.queues for name in queues):
        return BurstWork(None, is_paused=is_paused)
    waiting = count_waiting(seen, queues, is_paused=is_paused)
    return BurstWork(waiting.may_start, waiting.blocked, is_paused, waiting.orphaned)


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


@dataclass(frozen=True)
class BurstInput:
    """What is known about a burst pool at one moment."""

    runs: Sequence[Run]
    work: BurstWork
    created_at: float
    """When the pool was made: ticks before that are none of its own."""
    now: float
    is_pod_left: bool = False
    """Whether a pod runs although no run does, for instance because its Job was deleted by hand."""


def decide_run(spec: JobRuns, given: BurstInput, memory: RunMemory) -> RunDecision:
    """Return whether to start a run now."""
    expire = _find_expired(spec, given.runs)
    tick_at, next_at = _find_ticks(spec, memory, given.created_at, given.now)
    number = max([memory.runs, *(run.run for run in given.runs)]) + 1
    reason, words = _find_obstacle(spec, given, number)
    if reason:
        # A tick that falls on the end of a run waits for it. What a person has stopped is not made up for later.
        served_at = None if reason == RunReason.STOPPING else tick_at
        return RunDecision(None, reason, words, expire, served_at, next_at)
    if spec.start == "Once":
        return RunDecision(number, RunReason.ONCE, "the one run starts", expire)
    if spec.start == "OnSchedule":
        if tick_at is None:
            return RunDecision(None, RunReason.WAITING, _describe_next(next_at), expire, None, next_at)
        return RunDecision(
            number, RunReason.SCHEDULED, f"run {number} starts by schedule", expire, tick_at, next_at
        )
    return _decide_by_work(given, number, expire)


def _find_obstacle(spec: JobRuns, given: BurstInput, number: int) -> tuple[str, str]:
    """Return reason and words of what keeps the next run from starting, whatever is due; empty when nothing does."""
    running = next((run for run in given.runs if not run.is_finished), None)
    if running is not None and given.work.is_paused:
        # It does not end: with its jobs still due, the next run would be started as soon as it had.
        return (
            Reason.PAUSED,
            f"paused: run {running.run} is under way and starts nothing until the pool is resumed",
        )
    if running is not None:
        return RunReason.RUNNING, f"run {running.run} is under way"
    if spec.start == "Once" and number > 1:
        return RunReason.FINISHED, "the one run has been made"
    if given.is_pod_left:
        return RunReason.STOPPING, "a pod of an earlier run has not ended yet"
    if spec.paused:
        return Reason.FROZEN, "frozen: no further run is started"
    if given.work.is_paused:
        return (
            Reason.PAUSED,
            f"paused: no run is started until the pool is resumed, {given.work.blocked} due wait",
        )
    return "", ""


def _decide_by_work(given: BurstInput, number: int, expire: tuple[str, ...]) -> RunDecision:
    work = given.work
    if work.due is None:
        words = "the queues cannot be read, so nothing is started"
        return RunDecision(None, Reason.QUEUE_UNREADABLE, words, expire)
    has_work = work.due > 0 or work.orphaned > 0
    if not has_work and work.blocked:
        words = f"{work.blocked} due are blocked by a pause or a limit, so nothing is started"
        return RunDecision(None, Reason.BLOCKED, words, expire)
    if not has_work:
        return RunDecision(None, Reason.IDLE, "nothing is due", expire)
    found = f"{work.due} due and {work.orphaned} orphaned" if work.orphaned else f"{work.due} due"
    retry_at = _find_retry(given.runs)
    if retry_at > given.now:
        # A moment and not a wait: words that counted down would be written again and again.
        moment = f"{datetime.fromtimestamp(retry_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        words = f"{found}; the last run failed, the next starts at {moment}"
        return RunDecision(None, RunReason.BACKING_OFF, words, expire)
    return RunDecision(number, Reason.BACKLOG, f"{found}: run {number} starts", expire)


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
            # It ran all else, and other jobs need not wait ever longer. Deferred jobs come back later by themselves.
            break
    if not failures:
        return 0.0
    last = max(run.finished_at or 0.0 for run in runs)
    pause = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** (failures - 1))
    return last + pause
