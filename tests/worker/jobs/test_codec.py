"""The job hash: what is written, what is understood, and what is refused with a reason."""

import contextlib
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from rrq.exc import InvalidJob, UnreadableJob, UnserializableArguments
from rrq.job import Job, JobStatus
from rrq.jobs.codec import CLAIMED_FIELDS, encode_result, parse_claimed_job
from rrq.jobs.job_hash import build_job_hash, parse_job_hash, parse_job_hash_leniently
from rrq.jobs.request import encode_arguments

NOON = datetime(2024, 5, 6, 12, 0, 0, 123456, tzinfo=UTC)
MINIMAL = {
    b"function_name": b"send",
    b"job_args": b"[]",
    b"job_kwargs": b"{}",
    b"enqueue_time": b"2024-05-06T12:00:00.123456Z",
    b"current_retries": b"0",
    b"max_retries": b"5",
}


def claim(fields: dict[bytes, bytes], job_id: bytes = b"j1") -> Job:
    return parse_claimed_job(job_id, [fields.get(name.encode()) for name in CLAIMED_FIELDS])


def parse(fields: dict[bytes, bytes]) -> Job:
    return parse_job_hash("j1", fields)


both_readers = pytest.mark.parametrize("read", [claim, parse])
Reader = Callable[[dict[bytes, bytes]], Job]


# Writing


def test_a_full_job_is_written_as_rrq_0_7_writes_it() -> None:
    empty = build_job_hash(Job(id="j1", function_name="send", enqueue_time=NOON))
    names = "id function_name enqueue_time status current_retries max_retries job_args job_kwargs result"
    assert list(empty) == names.split()
    job = Job(
        id="j1",
        function_name="send",
        job_args=[1, "é", None],
        job_kwargs={"to": "☃"},
        enqueue_time=NOON,
        status=JobStatus.COMPLETED,
        current_retries=1,
        next_scheduled_run_time=NOON.replace(microsecond=0),
        max_retries=5,
        job_timeout_seconds=0,
        result_ttl_seconds=86400,
        job_unique_key="ключ",
        completion_time=NOON,
        result={"ok": True},
        last_error="boom",
        error_type="shop.Boom",
        queue_name="default",
        dlq_name="dead",
    )

    # The values that release 0.7.1 stores for the same job, in its order.
    assert list(build_job_hash(job).items()) == [
        ("id", "j1"),
        ("function_name", "send"),
        ("enqueue_time", "2024-05-06T12:00:00.123456Z"),
        ("status", "COMPLETED"),
        ("current_retries", "1"),
        ("next_scheduled_run_time", "2024-05-06T12:00:00Z"),
        ("max_retries", "5"),
        ("job_timeout_seconds", "0"),
        ("result_ttl_seconds", "86400"),
        ("job_unique_key", "ключ"),
        ("completion_time", "2024-05-06T12:00:00.123456Z"),
        ("last_error", "boom"),
        ("error_type", "shop.Boom"),
        ("queue_name", "default"),
        ("dlq_name", "dead"),
        ("job_args", '[1, "\\u00e9", null]'),
        ("job_kwargs", '{"to": "\\u2603"}'),
        ("result", '{"ok": true}'),
    ]


whole_minute_offsets = st.integers(-23 * 60, 23 * 60).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)


@given(moment=st.datetimes(timezones=st.one_of(st.none(), st.just(UTC), whole_minute_offsets)))
def test_times_are_written_as_pydantic_prints_them(moment: datetime) -> None:
    printed = TypeAdapter(datetime).dump_python(moment, mode="json")

    assert build_job_hash(Job(function_name="f", enqueue_time=moment))["enqueue_time"] == printed


def test_what_applications_assign_to_a_living_job_is_written() -> None:
    job = Job(function_name="send", trace_context={"traceparent": "00-1"})
    job.job_args = job.job_kwargs = None  # type: ignore[assignment]  # assignment is not validated
    job.status = "FAILED"  # type: ignore[assignment]  # neither is this
    fields = build_job_hash(job)
    assert (fields["job_args"], fields["job_kwargs"], fields["status"]) == ("null", "null", "FAILED")
    assert fields["trace_context"] == '{"traceparent": "00-1"}'

    job.status = JobStatus.UNKNOWN
    with pytest.raises(InvalidJob, match="status UNKNOWN"):
        build_job_hash(job)


def test_text_that_utf_8_cannot_store_is_refused_by_field_and_spelled_out_in_an_error() -> None:
    for field in ("id", "function_name", "job_unique_key", "queue_name", "dlq_name"):
        job = Job(function_name="send")
        setattr(job, field, "bad \ud800")
        with pytest.raises(InvalidJob, match=f"Field {field} ") as caught:
            build_job_hash(job)
        str(caught.value).encode()
    job = Job(function_name="send", last_error="no such file: caf\udce9 ☃")
    assert build_job_hash(job)["last_error"] == "no such file: caf\\udce9 ☃"


# Arguments


class Order:
    pass


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def nest(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("args", "kwargs", "culprit"),
    [
        ([Order()], {}, r"args\[0\] has type Order"),
        ([1, {"a": [NOON]}], {}, r"args\[1\]\['a'\]\[0\] has type datetime"),
        ([], {"blob": b"x"}, r"kwargs\['blob'\] has type bytes"),
        ([], {"numbers": {1, 2}}, r"kwargs\['numbers'\] has type set"),
        ([{(1, 2): 3}], {}, r"args\[0\] has a key of type tuple"),
        ([10**5000], {}, r"args\[0\] of type int"),
        ([circle()], {}, "contains itself"),
        ([nest(100_000)], {}, "nested more than 100 levels"),
    ],
)
def test_arguments_that_json_cannot_express_are_refused_by_place_and_type(
    args: list[Any], kwargs: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(UnserializableArguments, match=culprit) as caught:
        encode_arguments(args, kwargs, "shop.send")
    assert "'shop.send'" in str(caught.value)


def test_what_python_writes_and_reads_beyond_json_passes_as_in_rrq_0_7() -> None:
    args, kwargs = encode_arguments([float("inf"), "\ud800", (1, (2,))], {"\udfff": 1})

    assert (args, kwargs) == ('[Infinity, "\\ud800", [1, [2]]]', '{"\\udfff": 1}')
    assert json.loads(args) == [float("inf"), "\ud800", [1, [2]]]
    assert encode_arguments([float("nan")], {})[0] == "[NaN]"
    shared = [1]
    assert encode_arguments([shared, shared], {})[0] == "[[1], [1]]", "no circle"


# Results


class Receipt(BaseModel):
    total: float
    note: str = "☃"


class Broken:
    def __str__(self) -> str:
        raise OSError("no text for you")


class BrokenModel:
    def model_dump_json(self) -> str:
        raise KeyError("total")


class SilentModel:
    def model_dump_json(self) -> None:
        return None


class SurrogateModel:
    def model_dump_json(self) -> str:
        return '"\ud800"'


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "null"),
        (0, "0"),
        ("é", '"\\u00e9"'),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (Receipt(total=1.5), '{"total":1.5,"note":"☃"}'),
        (datetime(2024, 1, 1, tzinfo=UTC), '"2024-01-01 00:00:00+00:00"'),
        ({"when": datetime(2024, 1, 1, tzinfo=UTC)}, '{"when": "2024-01-01 00:00:00+00:00"}'),
    ],
)
def test_a_result_is_stored_as_json(result: object, text: str) -> None:
    assert encode_result(result) == text


@pytest.mark.parametrize(
    ("result", "type_name"),
    [
        ({(1, 2): 3}, "dict"),
        (circle(), "list"),
        (nest(100_000), "list"),
        pytest.param(10**5000, "int", id="huge int"),  # pytest could not print it either
        (Broken(), "Broken"),
        (BrokenModel(), "BrokenModel"),
        (SilentModel(), "SilentModel"),
        (SurrogateModel(), "SurrogateModel"),
        (Receipt, "ModelMetaclass"),
    ],
)
def test_a_result_that_cannot_be_stored_leaves_a_placeholder(result: object, type_name: str) -> None:
    assert encode_result(result) == f'"<Unserializable Result: {type_name}>"'


# Reading


@both_readers
def test_a_hash_with_nothing_but_a_function_takes_the_defaults(read: Reader) -> None:
    before = datetime.now(UTC)
    job = read({b"function_name": b"send"})

    assert before <= job.enqueue_time <= datetime.now(UTC)
    defaults = Job(id="j1", function_name="send", enqueue_time=job.enqueue_time, status=job.status)
    assert job == defaults
    assert job.status is (JobStatus.ACTIVE if read is claim else JobStatus.PENDING)
    assert read(MINIMAL).max_retries == 5


def test_a_read_job_behaves_like_a_validated_one_and_shares_nothing() -> None:
    read, other, made = claim(MINIMAL), claim(MINIMAL), Job(**parse(MINIMAL).model_dump())
    made.status = JobStatus.ACTIVE

    assert read == made
    assert read.model_dump_json() == made.model_dump_json()
    assert list(read.model_dump()) == list(made.model_dump())
    read.last_error = "boom"
    assert read.model_copy(deep=True) == read
    assert repr(read).startswith("Job(id='j1'")
    assert Job.model_validate(read) is read

    read.job_args.append(1)
    read.job_kwargs["k"] = 1
    assert (other.job_args, other.job_kwargs, other.last_error) == ([], {}, None)
    assert other.model_fields_set == set(Job.model_fields)


def test_the_id_is_that_of_the_key() -> None:
    assert parse_job_hash("right", {**MINIMAL, b"id": b"wrong"}).id == "right"
    assert claim(MINIMAL, job_id="ключ".encode()).id == "ключ"


@both_readers
@pytest.mark.parametrize(
    "text",
    [b"2024-05-06T12:00:00.123456Z", b"2024-05-06T12:00:00.123456+00:00", b"2024-05-06T12:00:00.123456"],
)
def test_both_time_suffixes_and_none_mean_utc(read: Reader, text: bytes) -> None:
    job = read({**MINIMAL, b"enqueue_time": text, b"next_scheduled_run_time": text})

    assert job.enqueue_time == job.next_scheduled_run_time == NOON


@both_readers
@pytest.mark.parametrize("empty", [b"null", b"NULL", b"", None])
def test_missing_empty_and_null_arguments_are_no_arguments(read: Reader, empty: bytes | None) -> None:
    fields = {name: value for name, value in MINIMAL.items() if not name.startswith(b"job_")}
    if empty is not None:
        fields |= {b"job_args": empty, b"job_kwargs": empty}

    job = read(fields)

    assert (job.job_args, job.job_kwargs) == ([], {})


@both_readers
def test_job_params_are_keywords_when_there_is_nothing_else(read: Reader) -> None:
    fields = {b"function_name": b"send", b"job_params": b' {"to": "me"}\n'}
    assert read(fields).job_kwargs == {"to": "me"}

    job = read(fields | {b"job_args": b"[1]"})
    assert (job.job_args, job.job_kwargs) == ([1], {})


@both_readers
def test_a_broken_trace_context_does_not_keep_the_job_from_running(read: Reader) -> None:
    assert read({**MINIMAL, b"trace_context": b'{"a": "00-1"}'}).trace_context == {"a": "00-1"}
    for broken in (b"{", b"[]", b"\xff", b'{"depth": 1}', b"null"):
        assert not read({**MINIMAL, b"trace_context": broken}).trace_context


def test_unknown_fields_are_ignored_even_when_they_are_not_utf_8() -> None:
    fields = {**MINIMAL, b"correlation_context": b"\xff", b"\xff": b"\xff", b"attempt_token": b"7"}

    assert parse(fields).function_name == "send"


def test_a_status_is_read_in_any_case_and_one_from_the_future_is_unknown() -> None:
    for status in JobStatus:
        for written in (status.value, status.value.lower(), status.value.title()):
            assert parse({**MINIMAL, b"status": written.encode()}).status is status
    assert parse({**MINIMAL, b"status": b"HIBERNATING"}).status is JobStatus.UNKNOWN


@both_readers
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({b"function_name": b"\xff"}, "function_name is not UTF-8"),
        ({b"queue_name": b"\xff"}, "queue_name is not UTF-8"),
        ({b"job_args": b"[1] x"}, "job_args is not JSON"),
        ({b"job_args": b'["\xff"]'}, "job_args is not UTF-8"),
        ({b"job_args": b'{"a": 1}'}, "job_args is a dict, not a list"),
        ({b"job_args": b"[" * 100_000}, "job_args is not JSON"),
        ({b"job_kwargs": b"[1]"}, "job_kwargs is a list, not an object"),
        ({b"current_retries": b"two"}, "current_retries is not an integer"),
        ({b"function_name": None}, "function_name is missing"),
        (
            {b"job_args": None, b"job_kwargs": None, b"job_params": b"[1]"},
            "job_params is a list, not an object",
        ),
        ({b"max_retries": b"2.5"}, "max_retries is not an integer"),
        ({b"max_retries": b"9" * 19}, "max_retries is beyond the 64 bits"),
        ({b"max_retries": b"9" * 5000}, "max_retries is not an integer"),
        ({b"job_timeout_seconds": b"None"}, "job_timeout_seconds is not an integer"),
        ({b"result_ttl_seconds": b"\xff"}, "result_ttl_seconds is not UTF-8"),
        ({b"enqueue_time": b"yesterday"}, "enqueue_time is not an ISO 8601 time"),
        ({b"next_scheduled_run_time": b"2024-13-01T00:00:00Z"}, "next_scheduled_run_time is not an ISO"),
    ],
)
def test_a_broken_field_is_named(read: Reader, changes: dict[bytes, bytes | None], reason: str) -> None:
    fields = {name: value for name, value in {**MINIMAL, **changes}.items() if value is not None}
    with pytest.raises(UnreadableJob, match=reason) as caught:
        read(fields)
    assert caught.value.job_id == "j1"


def test_a_broken_outcome_is_named_when_the_whole_hash_is_read() -> None:
    with pytest.raises(UnreadableJob, match="result is not JSON"):
        parse({**MINIMAL, b"result": b"{"})
    with pytest.raises(UnreadableJob, match="completion_time is not an ISO 8601 time"):
        parse({**MINIMAL, b"completion_time": b"soon"})
    with pytest.raises(UnreadableJob, match="last_error is not UTF-8"):
        parse({**MINIMAL, b"last_error": b"\xff"})


def test_a_job_id_that_is_not_utf_8_is_shown_escaped() -> None:
    with pytest.raises(UnreadableJob, match="id is not UTF-8") as caught:
        claim(MINIMAL, job_id=b"j\xff")
    assert caught.value.job_id == "j\\xff"


# Lenient reading


@pytest.mark.parametrize("field", ["job_args", "job_kwargs", "result"])
def test_lenient_reading_logs_broken_json_and_reads_it_as_empty(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="rrq.jobs.codec"):
        job = parse_job_hash_leniently("j1", {**MINIMAL, field.encode(): b"{broken"})

    assert not getattr(job, field)
    assert [(record.job_id, record.field) for record in caplog.records] == [("j1", field)]  # type: ignore[attr-defined]
    assert "broken" not in caplog.text


# Round trips

texts = st.text(max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
times = st.datetimes(timezones=st.just(UTC))
counts = st.integers(-(2**63) + 1, 2**63 - 1)
jobs = st.builds(
    Job,
    id=texts,
    function_name=texts,
    job_args=st.lists(json_values, max_size=3),
    job_kwargs=st.dictionaries(texts, json_values, max_size=3),
    enqueue_time=times,
    status=st.sampled_from([status for status in JobStatus if status is not JobStatus.UNKNOWN]),
    current_retries=counts,
    next_scheduled_run_time=st.none() | times,
    max_retries=counts,
    job_timeout_seconds=st.none() | counts,
    result_ttl_seconds=st.none() | counts,
    job_unique_key=st.none() | texts,
    completion_time=st.none() | times,
    result=json_values,
    last_error=st.none() | texts,
    error_type=st.none() | texts,
    queue_name=st.none() | texts,
    dlq_name=st.none() | texts,
    trace_context=st.none() | st.dictionaries(texts, texts, max_size=2),
)


@given(jobs)
def test_a_job_survives_being_stored(job: Job) -> None:
    stored = {name.encode(): value.encode() for name, value in build_job_hash(job).items()}

    assert parse_job_hash(job.id, stored) == job
    assert parse_job_hash_leniently(job.id, stored) == job


@given(jobs)
def test_a_claimed_job_is_the_stored_one_without_its_outcome(job: Job) -> None:
    stored = {name.encode(): value.encode() for name, value in build_job_hash(job).items()}
    job.status, job.result, job.completion_time = JobStatus.ACTIVE, None, None
    job.last_error = job.error_type = job.dlq_name = None

    assert claim(stored, job.id.encode()) == job


@given(st.dictionaries(st.sampled_from([name.encode() for name in Job.model_fields]), st.binary(max_size=12)))
def test_any_hash_is_either_a_job_or_unreadable(fields: dict[bytes, bytes]) -> None:
    for read in (claim, parse):
        # Any other exception would fail this test, and in a worker the whole batch.
        with contextlib.suppress(UnreadableJob):
            assert read(fields).id == "j1"


@given(
    st.lists(st.binary(max_size=8) | st.none(), min_size=len(CLAIMED_FIELDS), max_size=len(CLAIMED_FIELDS))
)
def test_the_fast_reader_agrees_with_the_tolerant_one(values: list[bytes | None]) -> None:
    fields = {
        name.encode(): MINIMAL.get(name.encode(), value) if value is not None else None
        for name, value in zip(CLAIMED_FIELDS, values, strict=True)
    }
    present = {name: value for name, value in fields.items() if value is not None}

    def outcome(read: Reader) -> object:
        try:
            return read(present).model_dump(exclude={"status", "enqueue_time"})
        except UnreadableJob as error:
            return error.reason

    assert outcome(claim) == outcome(parse)
