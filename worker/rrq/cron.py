"""When a periodic job is due next: cron expressions and the entries that carry them.

Time comes in as an argument wherever a result depends on it. Enqueueing, and agreeing with the
rest of the fleet on who enqueues a tick, is the worker's and the store's part. ``broker/cron_table.py`` knows how a table
of entries looks in Redis, ``runtime/time_zones.py`` what clocks do when they change.
"""

import calendar
import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from rrq.runtime.suggestions import suggest
from rrq.runtime.time_zones import find_gap_end, find_moments, parse_time_zone, read_clock

__all__ = [
    "MONTH_NAMES",
    "WEEKDAY_NAMES",
    "CronJob",
    "CronSchedule",
    "DueTick",
    "cron_digest",
    "decide_tick",
]

MONTH_NAMES: Final[dict[str, int]] = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
WEEKDAY_NAMES: Final[dict[str, int]] = {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}

# 29 February is missing from eight years in a row around a century that is no leap year; a date
# not found in nine years does not exist.
_YEARS_TO_SEARCH: Final = 9
_MINUTE: Final = timedelta(minutes=1)
_HOURS_OF_A_DAY: Final = 24


class CronSchedule:
    """A five-field cron expression: minute, hour, day of month, month, day of week (0 = Sunday).

    Each field is a comma list of ``*``, a value or a range ``a-b``, with an optional ``/step``.
    Months and weekdays also go by their three-letter English names, and 7 is Sunday as well. It
    stands for 0 before ranges are looked at, so ``5-7`` is refused as running backwards.
    Raises ValueError for anything else.
    """

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        if len(fields) != 5:
            raise ValueError(
                f"Cron expression {expression!r} must have 5 fields "
                f"(minute hour day month weekday), not {len(fields)}."
            )
        minute, hour, day, month, weekday = fields
        self.minutes = _parse_field(minute, 0, 59)
        self.hours = _parse_field(hour, 0, 23)
        self.dom = _parse_field(day, 1, 31)
        self.months = _parse_field(month, 1, 12, MONTH_NAMES)
        self.dow = _parse_field(weekday, 0, 6, WEEKDAY_NAMES)
        self.dom_all = day == "*"
        self.dow_all = weekday == "*"
        self._expression = expression

    def next_after(self, dt: datetime) -> datetime:
        """Return the first matching minute after the minute of ``dt``, in the same time zone.

        Raises ValueError when the schedule names a date that does not exist, such as 30 February,
        or when the calendar ends first.
        """
        for year, month in self._months_from(dt.year, dt.month):
            first_day = dt.day if (year, month) == (dt.year, dt.month) else 1
            for day in self._matching_days(year, month, first_day):
                is_today = (year, month, day) == (dt.year, dt.month, dt.day)
                time = self._time_after(dt.hour, dt.minute) if is_today else self._first_time()
                if time is not None:
                    return datetime(year, month, day, *time, tzinfo=dt.tzinfo)
        raise ValueError(
            f"Cron expression {self._expression!r} never comes due after {dt:%Y-%m-%d}: "
            "its day does not exist in its months. Correct the day or the month."
        )

    def next_moment(self, after: datetime, zone: ZoneInfo | None) -> datetime:
        """Return the first moment (in UTC) after ``after`` (aware) at which the clocks of ``zone`` match.

        A schedule that names hours comes once for each: at the moment when clocks skip its time, and the first time
        when they show it twice. A schedule of every hour follows elapsed time: it ignores skipped times, and comes
        both times. No zone is UTC. Raises ValueError as ``next_after`` does.
        """
        if zone is None:
            return self.next_after(after.astimezone(UTC))
        wall, repeated = read_clock(after, zone)
        # Times of a repeated hour that the clocks have shown already may come once more.
        wall -= repeated
        found: datetime | None = None
        while True:
            wall = self.next_after(wall)
            moments = find_moments(wall, zone)
            if len(self.hours) < _HOURS_OF_A_DAY:
                moments = moments[:1] or (find_gap_end(wall, zone),)
            if found is not None and moments and moments[0] >= found:
                return found
            for moment in moments:
                if moment > after and (found is None or moment < found):
                    found = moment

    def _months_from(self, year: int, month: int) -> Iterator[tuple[int, int]]:
        last_year = min(year + _YEARS_TO_SEARCH, MAXYEAR)
        for number in self.months[bisect_left(self.months, month) :]:
            yield year, number
        for later in range(year + 1, last_year + 1):
            for number in self.months:
                yield later, number

    def _matching_days(self, year: int, month: int, first_day: int) -> Iterator[int]:
        first_weekday, length = calendar.monthrange(year, month)
        for day in range(first_day, length + 1):
            # monthrange counts weekdays from Monday = 0, cron from Sunday = 0.
            if self._matches_day(day, (first_weekday + day) % 7):
                yield day

    def _matches_day(self, day: int, weekday: int) -> bool:
        if self.dom_all:
            return self.dow_all or weekday in self.dow
        if self.dow_all:
            return day in self.dom
        # Both restricted: either suffices. Odd, but what every cron has done since the first.
        return day in self.dom or weekday in self.dow

    def _first_time(self) -> tuple[int, int]:
        return self.hours[0], self.minutes[0]

    def _time_after(self, hour: int, minute: int) -> tuple[int, int] | None:
        """Return the first (hour, minute) of the day after the given one; None if there is none."""
        next_hour = bisect_left(self.hours, hour)
        if next_hour < len(self.hours) and self.hours[next_hour] == hour:
            next_minute = bisect_right(self.minutes, minute)
            if next_minute < len(self.minutes):
                return hour, self.minutes[next_minute]
            next_hour += 1
        if next_hour < len(self.hours):
            return self.hours[next_hour], self.minutes[0]
        return None


def _parse_field(field: str, low: int, high: int, names: Mapping[str, int] | None = None) -> list[int]:
    values: set[int] = set()
    for part in field.split(","):
        base, slash, step_text = part.partition("/")
        step = _parse_number(step_text, part) if slash else 1
        if step == 0:
            raise ValueError(f"Cron step in {part!r} must be at least 1.")
        if base == "*":
            start, end = low, high
        else:
            first, dash, last = base.partition("-")
            start = _parse_value(first, low, high, names or {}, part)
            # A step on a single value therefore yields just that value, as in RRQ 0.7.
            end = _parse_value(last, low, high, names or {}, part) if dash else start
        if start > end:
            raise ValueError(f"Cron range {part!r} runs backwards; write it as two ranges.")
        values.update(range(start, end + 1, step))
    return sorted(values)


def _parse_value(text: str, low: int, high: int, names: Mapping[str, int], part: str) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    number = _parse_number(text, part)
    if names is WEEKDAY_NAMES and number == 7:
        return 0
    if not low <= number <= high:
        raise ValueError(f"Cron value {number} in {part!r} is out of range {low}-{high}.")
    return number


def _parse_number(text: str, part: str) -> int:
    # int() alone would also take "+5", "1_0" and digits of other scripts.
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"Cron field {part!r} is not understood: {text!r} is not a number.")
    return int(text)


class CronJob(BaseModel):
    """A job to be enqueued whenever its schedule comes due.

    A bad schedule, an unknown time zone and an unknown field are a ValueError at construction, not at the first tick. One
    that is assigned later counts from then on.
    """

    model_config = ConfigDict(extra="forbid")

    function_name: str
    schedule: str = Field(description="minute hour day month weekday; one minute is the finest.")
    timezone: str = Field(
        default="UTC", description="IANA name of the time zone of the schedule, such as 'Europe/Berlin'."
    )
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue_name: str | None = None
    unique: bool = Field(
        default=False, description="Skip a tick while the job of an earlier one is unfinished."
    )
    max_retries: int | None = Field(default=None, ge=0, description="None takes the setting.")
    job_timeout_seconds: int | None = Field(default=None, ge=0, description="None takes the setting.")
    result_ttl_seconds: int | None = Field(default=None, ge=0, description="None takes the setting.")
    unique_lock_ttl_seconds: int | None = Field(
        default=None,
        ge=0,
        description="How long an unfinished job may hold up a unique entry; None takes the setting.",
    )
    misfire_grace_seconds: float | None = Field(
        default=None, ge=1, description="How late a tick may still fire; None takes the setting."
    )
    next_run_time: datetime | None = Field(default=None, exclude=True)

    #: The texts of schedule and time zone, and what was made of them.
    _parsed: tuple[tuple[str, str], tuple[CronSchedule, ZoneInfo | None]] | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(f"a CronJob has no field {name!r}.{suggest(str(name), cls.model_fields)}")
        return given

    def model_post_init(self, context: Any, /) -> None:
        self._parse()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "schedule":
            CronSchedule(value)
        elif name == "timezone":
            parse_time_zone(value)
        super().__setattr__(name, value)
        if name in ("schedule", "timezone"):
            # It was worked out by the clock before.
            self.next_run_time = None

    @property
    def _cron(self) -> CronSchedule:
        """As RRQ 0.7 named it."""
        return self._parse()[0]

    def _parse(self) -> tuple[CronSchedule, ZoneInfo | None]:
        """Return schedule and time zone, parsed anew where they have changed: a copy may have other ones."""
        texts = self.schedule, self.timezone
        if self._parsed is None or self._parsed[0] != texts:
            self._parsed = texts, (CronSchedule(self.schedule), parse_time_zone(self.timezone))
        return self._parsed[1]

    def _next_moment(self, after: datetime) -> datetime:
        schedule, zone = self._parse()
        return schedule.next_moment(after, zone)

    def schedule_next(self, now: datetime | None = None) -> None:
        """Set ``next_run_time`` to the first match after ``now``.

        Raises ValueError when the schedule never comes due.
        """
        moment = datetime.now(UTC) if now is None else now
        if moment.tzinfo is not None:
            self.next_run_time = self._next_moment(moment)
        else:
            # Naive times are in UTC, the answer too.
            next_run = self._next_moment(moment.replace(tzinfo=UTC))
            self.next_run_time = next_run.replace(tzinfo=None)

    def next_after(self, now: datetime) -> datetime | None:
        """Return the first match after ``now`` (aware) in UTC; None when the schedule never comes due.

        Nor does that of a copy which was made with a schedule or a time zone that cannot be read.
        """
        try:
            return self._next_moment(now)
        except ValueError:
            return None

    def due(self, now: datetime | None = None) -> bool:
        """Tell whether the next run has come; an entry never scheduled is scheduled first."""
        moment = datetime.now(UTC) if now is None else now
        if self.next_run_time is None:
            self.schedule_next(moment)
        return self.next_run_time is not None and moment >= self.next_run_time


@dataclass(frozen=True)
class DueTick:
    """The tick of an entry that is to be settled now: fired, or skipped because it came too long ago."""

    at: datetime
    is_too_late: bool


def decide_tick(
    cron_job: CronJob, now: datetime, default_grace_seconds: float, head_start: timedelta = timedelta(0)
) -> DueTick | None:
    """Return the tick to settle at ``now``, or None while no tick is due.

    Every tick before ``next_run_time`` is settled. Of several that were missed since, the last one stands for all.
    ``head_start`` is how long others have the tick to themselves.
    """
    first, until = cron_job.next_run_time, now - head_start
    if first is None or first > until:
        return None
    grace_seconds = cron_job.misfire_grace_seconds
    if grace_seconds is None:
        grace_seconds = default_grace_seconds
    tick = _find_last_tick(cron_job, first, until)
    return DueTick(tick, is_too_late=now - tick > timedelta(seconds=grace_seconds))


def _find_last_tick(cron_job: CronJob, first: datetime, until: datetime) -> datetime:
    """Return the last tick up to ``until``. The first may be of last year: bisect rather than count."""
    minutes = range(int((until - first) / _MINUTE) + 1)

    def next_tick(minute: int) -> datetime | None:
        tick = cron_job.next_after(first + minute * _MINUTE)
        return tick if tick is not None and tick <= until else None

    behind = bisect_left(minutes, True, key=lambda minute: next_tick(minute) is None)
    return (next_tick(behind - 1) if behind else None) or first


def cron_digest(cron_job: CronJob, queue_name: str | None = None) -> str:
    """Return a name for this entry that all processes of a fleet agree on.

    Made of what the entry enqueues and when, so that a changed entry counts as a new one, while
    spacing of the schedule and the order of keyword arguments do not matter. ``queue_name`` is the
    short name of the queue, for an entry that names none or spells it in full.
    """
    # default=repr: whether arguments can be sent is for enqueue to say, not for a name.
    # There and back first: an entry that was read from Redis has only text for keys, which sort otherwise.
    arguments = json.loads(json.dumps([cron_job.args, cron_job.kwargs], default=repr))
    identity = [
        cron_job.function_name,
        " ".join(cron_job.schedule.lower().split()),
        *arguments,
        queue_name or cron_job.queue_name,
    ]
    if cron_job.timezone != "UTC":
        # Left out for UTC: entries from before there were time zones keep their names, and so their last ticks.
        identity.append(cron_job.timezone)
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
