"""Cron expressions against a slow but obvious oracle, and the entries that carry them."""

import time
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrq.cron import (
    MONTH_NAMES,
    WEEKDAY_NAMES,
    CronJob,
    CronSchedule,
    DueTick,
    cron_digest,
    decide_tick,
)
from rrq.runtime import time_zones


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_star_is_every_value() -> None:
    schedule = CronSchedule("* * * * *")

    assert schedule.minutes == list(range(60))
    assert schedule.hours == list(range(24))
    assert schedule.dom == list(range(1, 32))
    assert schedule.months == list(range(1, 13))
    assert schedule.dow == list(range(7))
    assert schedule.dom_all
    assert schedule.dow_all


@pytest.mark.parametrize(
    ("field", "minutes"),
    [
        ("5", [5]),
        ("1,3,2", [1, 2, 3]),
        ("10-13", [10, 11, 12, 13]),
        ("*/20", [0, 20, 40]),
        ("10-20/5", [10, 15, 20]),
        ("7/10", [7]),
        ("0-5/2,4,58-59", [0, 2, 4, 58, 59]),
        ("*/100", [0]),
        ("05", [5]),
    ],
)
def test_a_field_lists_its_values(field: str, minutes: list[int]) -> None:
    assert CronSchedule(f"{field} * * * *").minutes == minutes


def test_names_stand_for_numbers_in_any_case() -> None:
    schedule = CronSchedule("0 0 * JAN-mar,Dec Mon-FRI")

    assert schedule.months == [1, 2, 3, 12]
    assert schedule.dow == [1, 2, 3, 4, 5]
    assert (len(MONTH_NAMES), MONTH_NAMES["dec"]) == (12, 12)
    assert (len(WEEKDAY_NAMES), WEEKDAY_NAMES["sun"]) == (7, 0)


def test_seven_is_sunday_too() -> None:
    assert CronSchedule("0 0 * * 7").dow == [0]
    assert CronSchedule("0 0 * * 6,7").dow == [0, 6]


@pytest.mark.parametrize("expression", ["", "* * * *", "* * * * * *", "@daily"])
def test_a_wrong_number_of_fields_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="must have 5 fields"):
        CronSchedule(expression)


@pytest.mark.parametrize(
    "expression",
    ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *", "* * * * 8"],
)
def test_a_number_outside_its_limits_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        CronSchedule(expression)


@pytest.mark.parametrize(
    "field",
    ["x", "", "1,", ",1", "1-", "-1", "1--2", "*/0", "*/x", "*/", "5-1", "+5", "1_0", "٣", "*-5", "1/2/3"],
)
def test_a_field_that_makes_no_sense_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        CronSchedule(f"{field} * * * *")


@pytest.mark.parametrize("weekdays", ["5-7", "sat-sun", "fri-mon"])
def test_a_weekday_range_across_the_end_of_the_week_is_refused(weekdays: str) -> None:
    with pytest.raises(ValueError, match="runs backwards"):
        CronSchedule(f"0 0 * * {weekdays}")


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2024-01-01T00:00:00", "2024-01-01T00:01"),
        ("* * * * *", "2024-01-01T00:00:59.999999", "2024-01-01T00:01"),
        ("0 0 * * *", "2024-01-01T00:00", "2024-01-02T00:00"),
        ("59 23 31 12 *", "2024-12-31T23:59", "2025-12-31T23:59"),
        ("0 0 31 * *", "2024-01-31T00:00", "2024-03-31T00:00"),
        ("0 12 29 2 *", "2024-02-29T12:00", "2028-02-29T12:00"),
        ("0 0 29 2 *", "2096-03-01T00:00", "2104-02-29T00:00"),
        ("0 9 * * mon", "2024-01-01T09:00", "2024-01-08T09:00"),
        ("0 9 * * 0", "2024-01-01T09:00", "2024-01-07T09:00"),
        ("0 0 13 * fri", "2024-01-01T00:00", "2024-01-05T00:00"),
        ("0 0 13 * fri", "2024-01-12T00:00", "2024-01-13T00:00"),
        ("0 0 30 2 mon", "2024-02-01T00:00", "2024-02-05T00:00"),
        ("*/15 8-9 * * *", "2024-01-01T08:45", "2024-01-01T09:00"),
        ("*/15 8-9 * * *", "2024-01-01T09:45", "2024-01-02T08:00"),
        ("30 6 1 1,7 *", "2024-01-01T06:30", "2024-07-01T06:30"),
    ],
)
def test_the_next_run_is_found(expression: str, after: str, expected: str) -> None:
    assert CronSchedule(expression).next_after(at(after)) == at(expected)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *"])
def test_a_date_that_does_not_exist_is_an_error_and_not_an_endless_loop(expression: str) -> None:
    schedule = CronSchedule(expression)

    with pytest.raises(ValueError, match="never comes due"):
        schedule.next_after(at("2024-01-01T00:00"))


def test_the_end_of_the_calendar_is_an_error() -> None:
    with pytest.raises(ValueError, match="never comes due"):
        CronSchedule("* * * * *").next_after(at("9999-12-31T23:59"))


@pytest.mark.parametrize(
    "zone", [None, UTC, timezone(timedelta(hours=5, minutes=45)), ZoneInfo("Europe/Berlin")]
)
def test_the_time_zone_is_preserved(zone: timezone | ZoneInfo | None) -> None:
    found = CronSchedule("30 4 * * *").next_after(datetime(2024, 1, 1, 5, 0, 7, tzinfo=zone))

    assert found == datetime(2024, 1, 2, 4, 30, tzinfo=zone)
    assert found.tzinfo is zone


def test_a_rare_date_is_found_at_once() -> None:
    schedule = CronSchedule("0 0 29 2 *")
    started = time.process_time()  # of this process alone, however busy the machine is
    for _ in range(100):
        schedule.next_after(at("2096-03-01T00:00"))

    # Eight years of minutes are four million; jumping takes some microseconds.
    assert time.process_time() - started < 1.0


# The oracle knows nothing of jumps: it asks each minute in turn whether it matches.


def matches_field(field: str, value: int, low: int, high: int) -> bool:
    def matches_part(part: str) -> bool:
        base, _, step = part.partition("/")
        ends = (low, high) if base == "*" else tuple(int(end) for end in base.split("-"))
        first, last = ends[0], ends[-1]
        return first <= value <= last and (value - first) % int(step or 1) == 0

    return any(matches_part(part) for part in field.split(","))


def matches(expression: str, moment: datetime) -> bool:
    minute, hour, dom, month, dow = expression.split()
    day_matches = matches_field(dom, moment.day, 1, 31)
    weekday_matches = matches_field(dow, moment.isoweekday() % 7, 0, 6)
    both_restricted = dom != "*" and dow != "*"
    return (
        matches_field(minute, moment.minute, 0, 59)
        and matches_field(hour, moment.hour, 0, 23)
        and matches_field(month, moment.month, 1, 12)
        and (day_matches or weekday_matches if both_restricted else day_matches and weekday_matches)
    )


def find_by_trying(expression: str, after: datetime, step: timedelta) -> datetime:
    moment = after.replace(second=0, microsecond=0) + step
    while not matches(expression, moment):
        moment += step
    return moment


@st.composite
def parts(draw: st.DrawFn, low: int, high: int) -> str:
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, high))
    return draw(
        st.sampled_from(
            [str(first), f"{first}-{last}", f"{first}-{last}/{step}", f"*/{step}", f"{first}/{step}"]
        )
    )


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), st.lists(parts(low, high), min_size=1, max_size=3).map(",".join))


def moments() -> st.SearchStrategy[datetime]:
    seconds = (at("1970-01-01T00:00").timestamp(), at("2110-01-01T00:00").timestamp())
    return st.floats(*seconds).map(lambda second: datetime.fromtimestamp(second, UTC))


@settings(max_examples=50, deadline=None)
@given(minute=fields(0, 59), hour=fields(0, 23), dow=fields(0, 6), after=moments())
def test_next_run_agrees_with_trying_every_minute(minute: str, hour: str, dow: str, after: datetime) -> None:
    expression = f"{minute} {hour} * * {dow}"

    expected = find_by_trying(expression, after, timedelta(minutes=1))

    assert CronSchedule(expression).next_after(after) == expected


@settings(max_examples=100, deadline=None)
@given(dom=fields(1, 28), month=fields(1, 12), dow=fields(0, 6), after=moments())
def test_next_day_agrees_with_trying_every_day(dom: str, month: str, dow: str, after: datetime) -> None:
    expression = f"0 0 {dom} {month} {dow}"
    midnight = after.replace(hour=0, minute=0)

    expected = find_by_trying(expression, midnight, timedelta(days=1))

    assert CronSchedule(expression).next_after(after) == expected


@given(dom=st.integers(29, 31), after=moments())
def test_the_end_of_a_month_agrees_with_trying_every_day(dom: int, after: datetime) -> None:
    expression = f"0 0 {dom} * *"
    midnight = after.replace(hour=0, minute=0)

    assert CronSchedule(expression).next_after(after) == find_by_trying(
        expression, midnight, timedelta(days=1)
    )


# Entries


def test_an_entry_has_modest_defaults() -> None:
    entry = CronJob(function_name="report", schedule="0 3 * * *")

    assert (entry.args, entry.kwargs, entry.queue_name, entry.unique) == ([], {}, None, False)
    assert entry.next_run_time is None
    assert isinstance(entry._cron, CronSchedule)


def test_a_bad_schedule_is_refused_when_the_entry_is_made() -> None:
    with pytest.raises(ValueError, match="must have 5 fields"):
        CronJob(function_name="report", schedule="daily")


def test_the_next_run_is_left_out_of_dumps() -> None:
    entry = CronJob(function_name="report", schedule="* * * * *")
    entry.schedule_next()

    assert "next_run_time" not in entry.model_dump()


def test_scheduling_without_a_time_uses_the_clock_in_utc() -> None:
    entry = CronJob(function_name="report", schedule="* * * * *")
    before = datetime.now(UTC)
    entry.schedule_next()

    assert entry.next_run_time is not None
    assert before < entry.next_run_time <= datetime.now(UTC) + timedelta(minutes=1)
    assert entry.next_run_time.utcoffset() == timedelta(0)


def test_schedules_are_read_in_utc_wherever_now_comes_from() -> None:
    entry = CronJob(function_name="report", schedule="0 3 * * *")
    entry.schedule_next(datetime(2024, 7, 1, 4, 30, tzinfo=ZoneInfo("Europe/Berlin")))

    assert entry.next_run_time == at("2024-07-01T03:00")


def test_an_entry_never_scheduled_is_scheduled_and_not_yet_due() -> None:
    entry = CronJob(function_name="report", schedule="* * * * *")

    assert not entry.due(at("2024-01-01T00:00:30"))
    assert entry.next_run_time == at("2024-01-01T00:01")


def test_an_entry_is_due_from_its_run_time_on() -> None:
    entry = CronJob(function_name="report", schedule="* * * * *", next_run_time=at("2024-01-01T00:01"))

    assert not entry.due(at("2024-01-01T00:00:59.999999"))
    assert entry.due(at("2024-01-01T00:01"))
    assert entry.due(at("2025-01-01T00:01"))


def entry_with(**changes: object) -> CronJob:
    values: dict[str, object] = {
        "function_name": "report",
        "schedule": "0 3 * * mon",
        "args": [1],
        "kwargs": {"a": 1, "b": 2},
        "queue_name": "slow",
    }
    return CronJob.model_validate(values | changes)


def test_the_digest_is_the_same_in_every_process() -> None:
    assert cron_digest(entry_with()) == "a066468653832cda6a83e1cd88d6cc0f"


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": " 0  3 * * MON"},
        {"kwargs": {"b": 2, "a": 1}},
        {"next_run_time": at("2024-01-01T00:00")},
    ],
)
def test_the_digest_ignores_what_does_not_change_the_job(changes: dict[str, object]) -> None:
    assert cron_digest(entry_with(**changes)) == cron_digest(entry_with())


@pytest.mark.parametrize(
    "changes",
    [
        {"function_name": "other"},
        {"schedule": "1 3 * * mon"},
        {"args": []},
        {"kwargs": {"a": 1}},
        {"queue_name": None},
    ],
)
def test_the_digest_tells_different_entries_apart(changes: dict[str, object]) -> None:
    assert cron_digest(entry_with(**changes)) != cron_digest(entry_with())


def test_the_digest_of_an_entry_read_from_json_is_the_same() -> None:
    stages = {2: "two", 10: ["ten"], "last": None}

    entry = entry_with(args=[stages])

    assert cron_digest(CronJob.model_validate_json(entry.model_dump_json())) == cron_digest(entry)


def test_the_digest_takes_the_queue_from_the_settings_when_the_entry_names_none() -> None:
    assert cron_digest(entry_with(queue_name=None), "slow") == cron_digest(entry_with())
    assert cron_digest(entry_with(queue_name="rrq:queue:slow"), "slow") == cron_digest(entry_with())
    assert cron_digest(entry_with(queue_name=None), "other") != cron_digest(entry_with())


def test_the_next_run_of_an_entry_can_be_asked_without_moving_it() -> None:
    entry = entry_with()

    assert entry.next_after(at("2024-01-01T04:00")) == at("2024-01-08T03:00")
    assert entry.next_run_time is None
    assert entry_with(schedule="0 0 30 2 *").next_after(at("2024-01-01T04:00")) is None


# Fields


@pytest.mark.parametrize("name", ["time_zone", "timezones"])
def test_an_unknown_field_is_refused_with_the_name_that_was_meant(name: str) -> None:
    with pytest.raises(ValueError, match=f"no field '{name}'. Did you mean 'timezone'?"):
        entry_with(**{name: "UTC"})


@pytest.mark.parametrize(
    "name", ["Europe/Berln", "europe/berlin", "Europe", "../etc/passwd", "", "localtime"]
)
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="There is no time zone"):
        entry_with(timezone=name)
    entry = entry_with()
    with pytest.raises(ValueError, match="There is no time zone"):
        entry.timezone = name
    assert entry.timezone == "UTC"


def test_a_schedule_that_makes_no_sense_cannot_be_assigned() -> None:
    entry = entry_with(schedule="0 3 * * *")
    with pytest.raises(ValueError, match="must have 5 fields"):
        entry.schedule = "soon"
    assert entry.next_after(at("2026-01-01T04:00")) == at("2026-01-02T03:00")


def test_a_changed_schedule_or_time_zone_counts_from_then_on() -> None:
    entry = entry_with(schedule="0 3 * * *")
    entry.schedule_next(at("2026-01-01T04:00"))
    entry.timezone = "Europe/Berlin"
    assert entry.next_run_time is None, "it was that of the clock before"
    assert entry.next_after(at("2026-01-01T04:00")) == at("2026-01-02T02:00")
    entry.schedule = "30 5 * * *"
    entry.schedule_next(at("2026-01-01T04:00"))
    assert entry.next_run_time == at("2026-01-01T04:30")


def test_a_copy_with_another_schedule_or_time_zone_goes_by_them() -> None:
    entry = entry_with(schedule="0 3 * * *")
    copy = entry.model_copy(update={"schedule": "0 5 * * *", "timezone": "Europe/Berlin"})
    assert copy.next_after(at("2026-01-01T01:00")) == at("2026-01-01T04:00")
    assert entry.next_after(at("2026-01-01T01:00")) == at("2026-01-01T03:00")
    # A copy is not validated, so nothing else of the fleet may stumble over it.
    wrong = entry.model_copy(update={"timezone": "Europe/Berln"})
    assert wrong.next_after(at("2026-01-01T01:00")) is None
    with pytest.raises(ValueError, match="Did you mean 'Europe/Berlin'"):
        wrong.schedule_next(at("2026-01-01T01:00"))


def test_a_machine_without_time_zones_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(time_zones, "ZoneInfo", find_nothing)
    monkeypatch.setattr(time_zones, "available_timezones", set)

    assert entry_with().timezone == "UTC"
    with pytest.raises(ValueError, match=r"'Europe/Berlin' cannot be read.* Install the package tzdata"):
        entry_with(timezone="Europe/Berlin")


def test_only_another_time_zone_than_utc_changes_the_digest() -> None:
    assert cron_digest(entry_with(timezone="UTC")) == "a066468653832cda6a83e1cd88d6cc0f"
    assert cron_digest(entry_with(misfire_grace_seconds=5)) == cron_digest(entry_with())
    digests = {cron_digest(entry_with(timezone=name)) for name in ("UTC", "Europe/Berlin", "Asia/Tokyo")}
    assert len(digests) == 3


# Time zones. In 2026 clocks in Berlin skip 02:00-03:00 on 29 March (01:00 UTC) and repeat it on 25 October.


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # A named hour, on days without and with a change, in both directions.
        ("30 8 * * *", "Europe/Berlin", "2026-03-27T12:00", ["03-28T07:30", "03-29T06:30", "03-30T06:30"]),
        ("30 8 * * *", "Europe/Berlin", "2026-10-23T12:00", ["10-24T06:30", "10-25T07:30", "10-26T07:30"]),
        # A time that clocks skip: at the moment when they do.
        ("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00", ["03-28T01:30", "03-29T01:00", "03-30T00:30"]),
        ("30 2 29 3 *", "Europe/Berlin", "2026-01-01T00:00", ["03-29T01:00"]),
        (
            "*/20 2,3 * * *",
            "Europe/Berlin",
            "2026-03-28T23:00",
            ["03-29T01:00", "03-29T01:20", "03-29T01:40"],
        ),
        ("0 */2 * * *", "Europe/Berlin", "2026-03-28T22:00", ["03-28T23:00", "03-29T01:00", "03-29T02:00"]),
        # A time that clocks show twice: the first time only.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25T00:30", "10-26T01:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10", ["10-26T01:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25T00:00", "10-25T00:30", "10-26T01:00"]),
        # Every hour: as time passes.
        ("30 * * * *", "Europe/Berlin", "2026-03-28T23:40", ["03-29T00:30", "03-29T01:30", "03-29T02:30"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-24T23:40", ["10-25T00:30", "10-25T01:30", "10-25T02:30"]),
        (
            "*/30 * 25 10 *",
            "Europe/Berlin",
            "2026-10-25T00:30",
            ["10-25T01:00", "10-25T01:30", "10-25T02:00"],
        ),
        # The clocks of Lord Howe change by half an hour, those of Kathmandu never do.
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["04-04T14:45", "04-05T15:15"]),
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-02T12:00",
            ["10-02T15:45", "10-03T15:30", "10-04T15:15"],
        ),
        ("0 0 * * *", "Asia/Kathmandu", "2026-03-28T00:00", ["03-28T18:15", "03-29T18:15"]),
        # Santiago skips the first hour of a day, Apia once a whole day.
        ("30 0 * * *", "America/Santiago", "2026-09-05T05:00", ["09-06T04:00", "09-07T03:30"]),
        ("30 23 30 12 *", "Pacific/Apia", "2011-12-01T00:00", ["12-30T10:00"]),
    ],
)
def test_the_next_run_follows_the_clocks_of_its_time_zone(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    entry = CronJob(function_name="report", schedule=expression, timezone=zone)
    moment = at(after)
    for tick in expected:
        found = entry.next_after(moment)
        assert found == at(f"{after[:4]}-{tick}")
        assert found is not None
        moment = found + timedelta(seconds=20)


@given(
    fields(0, 59),
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca"]),
    st.integers(0, 365 * 1440),
)
def test_every_hour_in_a_zone_agrees_with_trying_every_minute(
    minute: str, zone: str, minute_of_year: int
) -> None:
    schedule = CronSchedule(f"{minute} * * * *")
    moment = at("2026-01-01T00:00") + timedelta(minutes=minute_of_year)
    tried = moment + timedelta(minutes=1)
    while tried.astimezone(ZoneInfo(zone)).minute not in schedule.minutes:
        tried += timedelta(minutes=1)

    assert schedule.next_moment(moment, ZoneInfo(zone)) == tried


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 59),
    st.integers(0, 23),
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "America/St_Johns"]),
    st.integers(2020, 2030),
)
def test_a_daily_job_runs_once_on_every_day_of_its_zone(minute: int, hour: int, zone: str, year: int) -> None:
    clocks, schedule = ZoneInfo(zone), CronSchedule(f"{minute} {hour} * * *")
    moment = datetime(year, 1, 1, tzinfo=clocks).astimezone(UTC) - timedelta(minutes=1)
    days = []
    for _ in range(365):
        moment = schedule.next_moment(moment, clocks)
        days.append(moment.astimezone(clocks).date())

    assert days == [date(year, 1, 1) + timedelta(days=number) for number in range(365)]


# What is due


@pytest.mark.parametrize(
    ("next_run", "now", "tick", "is_too_late"),
    [
        (None, "12:00:00", None, False),
        ("12:05", "12:04:59", None, False),
        ("12:05", "12:05:00", "12:05", False),
        ("12:05", "12:09:59", "12:05", False),
        # Of several, the last.
        ("10:00", "12:09:59", "12:05", False),
        # Not by the schedule, but by somebody who set it.
        ("12:03", "12:04:00", "12:03", False),
    ],
)
def test_the_last_tick_that_has_come_is_due(
    next_run: str | None, now: str, tick: str | None, is_too_late: bool
) -> None:
    entry = CronJob(function_name="report", schedule="*/5 * * * *")
    entry.next_run_time = None if next_run is None else at(f"2026-05-06T{next_run}")

    due = decide_tick(entry, at(f"2026-05-06T{now}"), 300.0)

    assert due == (None if tick is None else DueTick(at(f"2026-05-06T{tick}"), is_too_late))


@pytest.mark.parametrize(
    ("own_grace", "now", "is_too_late"),
    [
        (None, "03:05:00", False),
        (None, "03:05:01", True),
        (60.0, "03:01:00", False),
        (60.0, "03:01:01", True),
        (7200.0, "05:00:00", False),
    ],
)
def test_a_tick_older_than_its_grace_comes_too_late(
    own_grace: float | None, now: str, is_too_late: bool
) -> None:
    entry = CronJob(function_name="report", schedule="0 3 * * *", misfire_grace_seconds=own_grace)
    # As long ago as a fleet that stood still for a year would find it.
    entry.next_run_time = at("2025-05-06T03:00")

    due = decide_tick(entry, at(f"2026-05-06T{now}"), 300.0)

    assert due == DueTick(at("2026-05-06T03:00"), is_too_late)


def test_a_head_start_leaves_the_tick_to_others_and_does_not_shorten_its_grace() -> None:
    entry = CronJob(function_name="report", schedule="0 3 * * *", next_run_time=at("2026-05-06T03:00"))
    head_start = timedelta(seconds=10)

    assert decide_tick(entry, at("2026-05-06T03:00:09"), 300.0, head_start) is None
    due = decide_tick(entry, at("2026-05-06T03:00:10"), 300.0, head_start)
    assert due == DueTick(at("2026-05-06T03:00"), is_too_late=False)
