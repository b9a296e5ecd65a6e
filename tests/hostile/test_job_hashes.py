"""Job hashes that no RRQ has written: run, or dead-lettered with a reason, and never in anybody's way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fleet import all_done, assert_nothing_in_hand, running_worker
from queue_steps import ask, dead_letters, end_lease, is_queued, job_fields, let_the_fleet_beat, start_worker
from rrq.broker.messages import DeathCertificate
from rrq.client import JobRequest, RRQClient
from rrq.job import Job
from rrq.settings import RRQSettings
from waiting import eventually

if TYPE_CHECKING:
    from rrq.registry import JobRegistry
    from rrq.store import JobStore

QUEUE = "rrq:queue:default"
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
# Fields that only workers and scripts should write, and another program might.
BOOKS = (
    "attempt_token", "claimed_queue", "claimed_score", "suspect", "crashes", "crash_history", "cancel_requested",
    "reserved_until_ms", "reserved_since_ms", "reserved_by", "waited_for", "worker_id", "start_time", "traceback", "job_params",
)  # fmt: skip
FIELDS = tuple({*Job.model_fields, *BOOKS} - {"id", "function_name"})
DEEP = b"[" * 100_000 + b"]" * 100_000

#: Hand-made worst cases: the field, and what it holds.
WORST: dict[str, dict[str, bytes]] = {
    "no function": {"function_name": b""},
    "function of odd bytes": {"function_name": b"\xff\xfe"},
    "function of a megabyte": {"function_name": b"f" * 1_000_000},
    "retries are a word": {"current_retries": b"abc"},
    "retries are negative": {"current_retries": b"-9223372036854775808", "function_name": b"fail", "max_retries": b"1"},
    "retries are infinite": {"current_retries": b"1e999"},
    "retries are NaN": {"current_retries": b"nan"},
    "retries are the largest number": {"current_retries": b"9223372036854775807", "function_name": b"fail"},
    "retries beyond all bits": {"max_retries": b"9" * 5000},
    "timeout is inf": {"job_timeout_seconds": b"inf"},
    "timeout is nan": {"job_timeout_seconds": b"nan"},
    "timeout is zero": {"job_timeout_seconds": b"0"},
    "timeout is negative": {"job_timeout_seconds": b"-5"},
    "timeout of ages": {"job_timeout_seconds": b"9223372036854775807"},
    "result TTL of ages": {"result_ttl_seconds": b"9223372036854775807"},
    "result TTL is negative": {"result_ttl_seconds": b"-9223372036854775808"},
    "queue name of two lines": {"queue_name": b"a\nb", "function_name": b"fail", "max_retries": b"1"},
    "queue name with NUL": {"queue_name": b"a\0b", "function_name": b"fail", "max_retries": b"1"},
    "queue name of odd bytes": {"queue_name": b"\xff"},
    "queue name is a key of the books": {"queue_name": b"rrq:workers:lease"},
    "time far away": {"enqueue_time": b"9999999-01-01T00:00:00Z"},
    "time at the edge": {"enqueue_time": b"9999-12-31T23:59:59-23:59"},
    "due at the edge": {"next_scheduled_run_time": b"0001-01-01T00:00:00+23:59"},
    "arguments are no JSON": {"job_args": b"{"},
    "arguments are an object": {"job_args": b"{}"},
    "named arguments are a list": {"job_kwargs": b"[1]"},
    "arguments nested deeply": {"job_args": DEEP},
    "named arguments nested deeply": {"job_kwargs": b'{"a":' * 100_000 + b"1" + b"}" * 100_000},
    "a number of many digits": {"job_args": b"[" + b"9" * 100_000 + b"]"},
    "arguments of odd bytes": {"job_args": b'["\xff"]'},
    "half a surrogate pair": {"job_args": b'["\\ud800"]', "function_name": b"fail", "max_retries": b"1"},
    "arguments are NaN": {"job_args": b"[NaN, Infinity, -Infinity, 1e999]"},
    "named argument is the context": {"job_kwargs": b'{"ctx": 1}', "max_retries": b"1"},
    "named argument is no name": {"job_kwargs": b'{"": 1, "a b": 2}'},
    "trace is no JSON": {"trace_context": b"traceparent"},
    "trace is nested deeply": {"trace_context": DEEP},
    "trace is a list": {"trace_context": b"[1, 2]"},
    "trace of odd values": {"trace_context": b'{"traceparent": 1, "tracestate": null, "baggage": "\xff"}'},
    "unique key of odd bytes": {"job_unique_key": b"\xff"},
    "unique key with NUL": {"job_unique_key": b"\0\n"},
    "result is no JSON": {"result": b"{", "last_error": b"\xff"},
    "status is unknown": {"status": b"\xff\0"},
    "ended already": {"status": b"COMPLETED", "completion_time": b"soon"},
    "suspect reserved for ever": {"suspect": b"1", "reserved_until_ms": b"1e300", "reserved_by": b"nobody"},
    "suspect reserved by a word": {"suspect": b"1", "reserved_until_ms": b"abc"},
    "suspect reserved since ever": {"suspect": b"1", "reserved_since_ms": b"-1e300", "reserved_by": b"nobody"},
    "suspect reserved since no time": {"suspect": b"1", "reserved_since_ms": b"nan", "reserved_by": b"nobody"},
    "token of a megabyte": {"attempt_token": b"t" * 1_000_000},
    "cancelled before it starts": {"cancel_requested": b"1"},
    "waited for": {"waited_for": b"\xff"},
}  # fmt: skip


async def plant(store: JobStore, job_id: str, fields: dict[str, Any], score: float | str = 1) -> None:
    """Put a job into Redis as any program may."""
    whole = {"function_name": b"nothing", **fields}
    pairs = [part for pair in whole.items() for part in pair]
    await ask(store, "DEL", f"rrq:job:{job_id}")
    await ask(store, "HSET", f"rrq:job:{job_id}", *pairs)
    await ask(store, "ZADD", QUEUE, score, job_id)


async def has_ended(store: JobStore, job_id: str) -> bool:
    fields = await job_fields(store, job_id)
    return fields["status"] in ENDED and not await is_queued(store, job_id)


async def read_through(client: RRQClient, job_id: str) -> None:
    """Whatever producers may ask about a job has an answer."""
    await client.get_job_status(job_id)
    await client.job_store.get_job_definition(job_id)
    await client.cancel(job_id)
    await client.wait_for_completion(job_id, timeout_seconds=0.01, block_interval_seconds=0.01)


async def test_worst_cases_end_and_their_neighbours_run(
    client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    settings.base_retry_delay_seconds = settings.max_retry_delay_seconds = 0.01
    settings.worker_idle_poll_max_seconds = 0.1
    # Long enough to be put off once.
    settings.unknown_function_patience_seconds = 0.5
    store = client.job_store
    for name, fields in WORST.items():
        await plant(store, name, fields)
    neighbours = await client.enqueue_many([JobRequest("nothing")] * 5)
    async with running_worker(settings, registry, queues=[QUEUE, "a\nb", "a\0b", "rrq:workers:lease"]):
        await all_done(store, neighbours)
        for name in WORST:
            await eventually(lambda name=name: has_ended(store, name), message=f"{name}: the job never ended")  # type: ignore[misc]  # a default binds the name
    buried = []
    for name in WORST:
        stored = await job_fields(store, name)
        if stored["status"] == "FAILED":
            buried.append(name)
            assert stored["last_error"], name
            assert len(stored["last_error"]) < 2_000_000, name
        await read_through(client, name)
    assert sorted(await dead_letters(store)) == sorted(buried)
    await assert_nothing_in_hand(store)
    assert await ask(store, "ZCARD", store.keys.leases) == 0


NUMBERS = [
    *("abc", "", "-1", "0", "1e999", "nan", "inf", "-inf", "0x10", "1e300", " 1 ", "9" * 30, "-" + "9" * 30),
]
ANY_VALUE = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(NUMBERS).map(str.encode),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
)
ANY_HASH = st.dictionaries(st.sampled_from(FIELDS), ANY_VALUE, max_size=8)
ANY_ID = st.one_of(
    st.just(b"odd"),
    st.binary(max_size=20),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")),
)
ANY_SCORE = st.one_of(
    st.sampled_from(["-inf", "-1e300", "-1", "0", "1", "1e-300"]), st.integers(-(10**15), 10**12).map(str)
)


# Not shrunk: each failing example would wait for its deadline again and again.
@settings(max_examples=8, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(
    batch=st.lists(
        st.tuples(ANY_ID, ANY_HASH, ANY_SCORE), min_size=10, max_size=40, unique_by=lambda job: job[0]
    )
)
async def test_any_batch_of_hashes_ends_and_the_neighbours_run(
    batch: list[tuple[bytes, dict[str, bytes], str]], redis_server: str, registry: JobRegistry
) -> None:
    options = RRQSettings(redis_dsn=redis_server, worker_idle_poll_max_seconds=0.05)
    options.base_retry_delay_seconds = options.max_retry_delay_seconds = 0.01
    client = RRQClient(options)
    store = client.job_store
    try:
        await ask(store, "FLUSHDB")
        for job_id, fields, score in batch:
            key = b"rrq:job:" + job_id
            await ask(
                store,
                "HSET",
                key,
                *(part for pair in ({"function_name": b"nothing"} | fields).items() for part in pair),
            )
            await ask(store, "ZADD", QUEUE, score, job_id)
        neighbours = await client.enqueue_many([JobRequest("nothing")] * 3)
        async with running_worker(options, registry):
            await all_done(store, neighbours)

            async def everything_has_ended() -> bool:
                assert await ask(store, "ZCARD", QUEUE) == 0
                assert await ask(store, "KEYS", "rrq:active:jobs:*") == []
                for job_id, _, _ in batch:
                    status = await ask(store, "HGET", b"rrq:job:" + job_id, "status")
                    # A result TTL of its own may have taken it.
                    assert status is None or status.decode("utf-8", "replace") in ENDED, (job_id, status)
                return True

            await eventually(everything_has_ended, message="a planted job never ended")
    finally:
        await client.close()


BAD_BOOKS: dict[str, dict[str, Any]] = {
    "score is a word": {"claimed_score": "abc"},
    "score is NaN": {"claimed_score": "nan"},
    "score is far away": {"claimed_score": "-1e300"},
    "queue is a key of the books": {"claimed_queue": "rrq:workers:lease"},
    "queue is foreign": {"claimed_queue": "somebody:else"},
    "history beyond all numbers": {"crash_history": "[1e999]"},
    "history is NaN": {"crash_history": "[nan]"},
    "history is a word": {"crash_history": "abc"},
    "history nested deeply": {"crash_history": "[" * 900 + "]" * 900},
    "history without end": {"crash_history": json.dumps(list(range(200_000)))},
    "history is sparse": {"crash_history": '{"5": 1, "a": 2}'},
    "crashes are a word": {"crashes": "abc"},
    "crashes are infinite": {"crashes": "9223372036854775807"},
    "token of odd bytes": {"attempt_token": b"\xff\0"},
    "time to live is a word": {"result_ttl_seconds": "abc", "cancel_requested": "1"},
    "time to live is infinite": {"result_ttl_seconds": "inf", "cancel_requested": "1"},
    "time to live is NaN": {"result_ttl_seconds": "nan", "cancel_requested": "1"},
}  # fmt: skip


@pytest.mark.parametrize("has_crashed", [True, False], ids=["crash", "lease end"])
@pytest.mark.parametrize("changes", BAD_BOOKS.values(), ids=BAD_BOOKS)
async def test_a_job_whose_books_were_spoilt_is_given_back_all_the_same(
    changes: dict[str, Any], has_crashed: bool, store: JobStore
) -> None:
    await plant(store, "spoilt", {})
    await plant(store, "fine", {}, score=2)
    dead = await start_worker(store, "dead")
    await let_the_fleet_beat(store)
    assert len(await dead.take(2)) == 2
    await ask(store, "HSET", "rrq:job:spoilt", *(part for pair in changes.items() for part in pair))
    if has_crashed:
        await store.reap_workers(DeathCertificate(dead.identity, {"signal": "SIGKILL"}))
    else:
        await end_lease(store, "dead")
        await store.reap_workers()
    assert await is_queued(store, "fine")
    fields = await job_fields(store, "spoilt")
    assert await is_queued(store, "spoilt") or fields["status"] == "CANCELLED"
    assert await ask(store, "EXISTS", "somebody:else") == 0
    assert await ask(store, "ZSCORE", store.keys.leases, "spoilt") is None
    if has_crashed:
        assert len(fields.get("crash_history", "")) < 70_000
    await store.cancel_job("spoilt")


async def test_a_field_of_ten_megabytes_is_a_job_like_any_other(
    client: RRQClient, settings: RRQSettings, registry: JobRegistry
) -> None:
    # Both go to the worker in one answer, which a busy machine takes long to hand over.
    settings.redis_socket_timeout_seconds = 60
    settings.worker_lease_seconds = 600
    store = client.job_store
    await plant(store, "huge", {"job_args": b'["' + b"x" * 10_000_000 + b'"]'})
    await plant(store, "huge and broken", {"job_args": b'["' + b"x" * 10_000_000})
    neighbours = await client.enqueue_many([JobRequest("nothing")] * 5)
    async with running_worker(settings, registry):
        await all_done(store, neighbours)
        for job_id in ("huge", "huge and broken"):
            await eventually(lambda job_id=job_id: has_ended(store, job_id), message=f"{job_id} never ended")  # type: ignore[misc]  # a default binds the name
    assert await ask(store, "HGET", "rrq:job:huge", "status") == b"COMPLETED"
    error = await ask(store, "HGET", "rrq:job:huge and broken", "last_error")
    assert b"job_args is not JSON" in error
    assert len(error) < 1000
