"""The store's public methods: what each one writes, returns and leaves alone."""

import asyncio
import json
import logging
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta, timezone

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from rrq.embedded import EmbeddedRedis
from rrq.job import Job, JobStatus
from rrq.settings import RRQSettings
from rrq.store import JobStore

QUEUE = "rrq:queue:default"
DLQ = "rrq:dlq:default"
A_WEEK_SECONDS = 604_800


def now_ms() -> float:
    return time.time() * 1000


async def add_job(store: JobStore, job_id: str, *, queue: str = "default", score: float = 1.0) -> Job:
    job = Job(id=job_id, function_name="send", queue_name=queue)
    await store.save_job_definition(job)
    await store.add_job_to_queue(queue, job_id, score)
    return job


async def read_hash(store: JobStore, job_id: str) -> dict[str, str]:
    fields = await store.get_job_data_dict(job_id)
    assert fields is not None, f"job {job_id} has no hash"
    return fields


# Construction


def test_a_store_is_built_without_an_event_loop_and_without_redis() -> None:
    settings = RRQSettings(redis_dsn="redis://127.0.0.1:1/0")

    store = JobStore(settings=settings)

    assert store.settings is settings
    options = store.redis.connection_pool.connection_kwargs
    assert options["socket_keepalive"]
    assert options["retry_on_timeout"]
    assert not options.get("decode_responses")


async def test_the_client_of_the_store_speaks_bytes(store: JobStore) -> None:
    await store.redis.set("word", "text")

    assert await store.redis.get("word") == b"text"


@pytest.mark.parametrize("name", ["emails", "rrq:queue:emails"])
async def test_a_queue_goes_by_its_bare_name_and_by_its_key(store: JobStore, name: str) -> None:
    assert store._format_queue_key(name) == "rrq:queue:emails"


@pytest.mark.parametrize("name", ["emails", "rrq:dlq:emails"])
async def test_a_dead_letter_list_goes_by_its_bare_name_and_by_its_key(store: JobStore, name: str) -> None:
    assert store._format_dlq_key(name) == "rrq:dlq:emails"


async def test_closing_twice_is_harmless(settings: RRQSettings) -> None:
    store = JobStore(settings)
    await store.redis.set("word", "text")

    await store.aclose()
    await store.aclose()


async def test_a_hundred_parallel_calls_wait_for_a_connection_instead_of_failing(store: JobStore) -> None:
    await asyncio.gather(*(store.add_job_to_queue("default", f"job-{n}", n) for n in range(100)))

    assert len(await store.get_queued_job_ids("default")) == 100


# Job records


async def test_a_job_comes_back_as_it_was_saved(store: JobStore) -> None:
    job = Job(
        function_name="send",
        job_args=[{"deep": [1, None, True]}],
        job_kwargs={"x": 1.5},
        status=JobStatus.COMPLETED,
        completion_time=datetime.now(UTC),
        result={"ok": True},
        job_timeout_seconds=0,
        result_ttl_seconds=5,
        job_unique_key="once",
        last_error="früher",
        queue_name="emails",
        dlq_name="dead",
        trace_context={"traceparent": "00-ab"},
    )

    await store.save_job_definition(job)

    assert await store.get_job_definition(job.id) == job


async def test_saving_merges_into_what_is_there(store: JobStore) -> None:
    await store.redis.hset("rrq:job:j1", mapping={"note": "mine", "last_error": "old"})
    await store.redis.expire("rrq:job:j1", 1000)

    await store.save_job_definition(Job(id="j1", function_name="send"))

    fields = await read_hash(store, "j1")
    assert fields["note"] == "mine"
    assert fields["last_error"] == "old"
    assert await store.redis.ttl("rrq:job:j1") > 0


async def test_arguments_that_json_cannot_express_are_a_type_error(store: JobStore) -> None:
    with pytest.raises(TypeError):
        await store.save_job_definition(Job(id="j1", function_name="send", job_args=[object()]))

    assert await store.redis.exists("rrq:job:j1") == 0


async def test_an_absent_job_is_none(store: JobStore) -> None:
    assert await store.get_job_definition("nobody") is None
    assert await store.get_job_data_dict("nobody") is None
    assert await store.get_job("nobody") is None


async def test_a_hash_that_is_no_job_is_logged_and_none(
    store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.redis.hset("rrq:job:j1", mapping={"function_name": "send", "max_retries": "many"})

    assert await store.get_job_definition("j1") is None
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_the_raw_hash_is_text_under_both_names(store: JobStore) -> None:
    await store.redis.hset("rrq:job:j1", mapping={"function_name": "grüßen", "x": "1"})

    assert await store.get_job("j1") == {"function_name": "grüßen", "x": "1"}
    assert await store.get_job_data_dict("j1") == await store.get_job("j1")


async def test_the_status_alone_is_updated(store: JobStore) -> None:
    await store.save_job_definition(Job(id="j1", function_name="send"))
    before = await read_hash(store, "j1")

    await store.update_job_status("j1", JobStatus.ACTIVE)

    assert await read_hash(store, "j1") == before | {"status": "ACTIVE"}


async def test_the_next_run_time_alone_is_updated(store: JobStore) -> None:
    await store.save_job_definition(Job(id="j1", function_name="send"))
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))

    await store.update_job_next_scheduled_run_time("j1", moment)

    assert (await read_hash(store, "j1"))["next_scheduled_run_time"] == "2030-01-02T02:04:05Z"


async def test_retries_are_counted_one_by_one(store: JobStore) -> None:
    await store.save_job_definition(Job(id="j1", function_name="send"))

    assert [await store.increment_job_retries("j1") for _ in range(3)] == [1, 2, 3]
    assert (await read_hash(store, "j1"))["current_retries"] == "3"


# Queues


async def test_adding_a_job_again_moves_it(store: JobStore) -> None:
    await store.add_job_to_queue("default", "j1", 5.0)
    await store.add_job_to_queue("rrq:queue:default", "j1", 7.5)

    assert await store.redis.zrange(QUEUE, 0, -1, withscores=True) == [(b"j1", 7.5)]


async def test_a_queued_job_loses_the_expiry_of_an_earlier_life(store: JobStore) -> None:
    await store.save_job_definition(Job(id="j1", function_name="send"))
    await store.redis.expire("rrq:job:j1", 1000)

    await store.add_job_to_queue("default", "j1", 1.0)

    assert await store.redis.ttl("rrq:job:j1") == -1


async def test_queued_ids_come_by_rank(store: JobStore) -> None:
    for name, score in (("late", 30.0), ("early", 10.0), ("middle", 20.0)):
        await store.add_job_to_queue("default", name, score)

    assert await store.get_queued_job_ids("default") == ["early", "middle", "late"]
    assert await store.get_queued_job_ids("default", 1, 1) == ["middle"]
    assert await store.get_queued_job_ids("empty") == []


async def test_only_due_ids_are_ready_and_at_most_as_many_as_asked(store: JobStore) -> None:
    now = now_ms()
    await store.add_job_to_queue("default", "second", now - 10)
    await store.add_job_to_queue("default", "first", now - 20)
    await store.add_job_to_queue("default", "later", now + 60_000)

    assert await store.get_ready_job_ids("default", 10) == ["first", "second"]
    assert await store.get_ready_job_ids("default", 1) == ["first"]


@pytest.mark.parametrize("count", [0, -1])
async def test_asking_for_no_ids_does_not_touch_redis(count: int) -> None:
    store = JobStore(RRQSettings(redis_dsn="redis://127.0.0.1:1/0"))

    assert await store.get_ready_job_ids("default", count) == []


async def test_removing_tells_whether_the_job_was_there(store: JobStore) -> None:
    await store.add_job_to_queue("default", "j1", 1.0)

    assert await store.remove_job_from_queue("default", "j1") == 1
    assert await store.remove_job_from_queue("default", "j1") == 0


@pytest.mark.parametrize(("queue_name", "key"), [("emails", "rrq:queue:emails"), (None, QUEUE)])
async def test_deferring_moves_the_queue_entry_and_nothing_else(
    store: JobStore, queue_name: str | None, key: str
) -> None:
    job = Job(id="j1", function_name="send", queue_name=queue_name)
    before = now_ms()

    await store.defer_job(job, timedelta(seconds=90.5))

    score = await store.redis.zscore(key, "j1")
    assert score is not None
    assert before + 90_499 <= score <= now_ms() + 90_501
    assert await store.redis.exists("rrq:job:j1") == 0


async def test_sizes_are_keyed_by_the_names_as_given(store: JobStore) -> None:
    await store.add_job_to_queue("emails", "j1", 1.0)
    await store.add_job_to_queue("emails", "j2", 1.0)

    sizes = await store.batch_get_queue_sizes(["emails", "rrq:queue:emails", "empty"])

    assert sizes == {"emails": 2, "rrq:queue:emails": 2, "empty": 0}
    assert await store.batch_get_queue_sizes([]) == {}


# Locks


async def test_a_processing_lock_is_had_once(store: JobStore) -> None:
    assert await store.acquire_job_lock("j1", "w1", 60_000) is True
    assert await store.acquire_job_lock("j1", "w2", 60_000) is False

    assert await store.get_job_lock_owner("j1") == "w1"
    assert 30_000 < await store.redis.pttl("rrq:lock:job:j1") <= 60_000


async def test_a_unique_lock_names_its_job_and_its_remaining_seconds(store: JobStore) -> None:
    assert await store.acquire_unique_job_lock("once", "j1", 60) is True
    assert await store.acquire_unique_job_lock("once", "j2", 60) is False

    assert await store.get_unique_lock_holder("once") == "j1"
    assert 30 <= await store.get_lock_ttl("once") <= 60
    assert await store.redis.get("rrq:lock:unique:once") == b"j1"


async def test_a_unique_lock_without_expiry_or_absent_has_no_seconds_left(store: JobStore) -> None:
    await store.redis.set("rrq:lock:unique:for-ever", "j1")

    assert await store.get_lock_ttl("for-ever") == 0
    assert await store.get_lock_ttl("nobody") == 0
    assert await store.get_unique_lock_holder("nobody") is None


async def test_a_unique_lock_is_released_by_anyone_or_by_its_owner_alone(store: JobStore) -> None:
    await store.acquire_unique_job_lock("once", "j1", 60)
    await store.release_unique_job_lock("once", "j2")
    assert await store.get_unique_lock_holder("once") == "j1"

    await store.release_unique_job_lock("once", "j1")
    assert await store.get_unique_lock_holder("once") is None

    await store.acquire_unique_job_lock("once", "j1", 60)
    await store.release_unique_job_lock("once")
    await store.release_unique_job_lock("once")
    assert await store.get_unique_lock_holder("once") is None


async def test_the_last_process_time_is_exact_to_the_microsecond(store: JobStore) -> None:
    moment = datetime(2025, 6, 7, 8, 9, 10, 999999, tzinfo=timezone(timedelta(hours=-3)))

    await store.set_last_process_time("once", moment)

    assert await store.get_last_process_time("once") == moment
    assert (await store.get_last_process_time("once") or moment).tzinfo is UTC
    assert 0 < await store.redis.ttl("last_process:once") <= 60
    assert await store.get_last_process_time("nobody") is None


async def test_the_last_process_time_lives_for_twice_the_expected_job_time(store: JobStore) -> None:
    store.settings.expected_job_ttl = 500

    await store.set_last_process_time("once", datetime.now(UTC))

    assert 900 <= await store.redis.ttl("last_process:once") <= 1000


# Results


@pytest.mark.parametrize(
    ("ttl_seconds", "expiry"), [(50, range(20, 51)), (0, range(-1, 0)), (-1, range(900, 1001))]
)
async def test_a_result_sets_removes_or_keeps_the_expiry(
    store: JobStore, ttl_seconds: int, expiry: range
) -> None:
    await add_job(store, "j1")
    await store.redis.expire("rrq:job:j1", 1000)

    await store.save_job_result("j1", {"answer": 42}, ttl_seconds)

    fields = await read_hash(store, "j1")
    assert json.loads(fields["result"]) == {"answer": 42}
    assert fields["status"] == "COMPLETED"
    assert fields["completion_time"].endswith("+00:00")
    assert abs(datetime.fromisoformat(fields["completion_time"]).timestamp() - time.time()) < 60
    assert await store.redis.ttl("rrq:job:j1") in expiry


async def test_a_result_that_redis_refuses_is_logged_and_raised(
    store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.redis.set("rrq:job:j1", "no hash")

    with pytest.raises(ResponseError):
        await store.save_job_result("j1", 1, -1)

    assert any(record.levelno == logging.ERROR for record in caplog.records)
    assert await store.redis.get("rrq:job:j1") == b"no hash"


async def test_outcomes_for_a_redis_that_is_away_are_raised(own_redis: EmbeddedRedis) -> None:
    async with aclosing(JobStore(RRQSettings(redis_dsn=own_redis.dsn))) as store:
        await add_job(store, "j1")
        own_redis.stop()

        with pytest.raises(RedisConnectionError):
            await store.save_job_result("j1", 1, 60)
        with pytest.raises(RedisConnectionError):
            await store.move_job_to_dlq("j1", "default", "error", datetime.now(UTC))


# Dead letters


async def test_a_dead_letter_says_why_and_stays_a_week(store: JobStore) -> None:
    await add_job(store, "older")
    await add_job(store, "newer")
    moment = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)

    await store.move_job_to_dlq("older", "default", "no such user", moment)
    await store.move_job_to_dlq("newer", "rrq:dlq:default", "no such user", moment)

    fields = await read_hash(store, "older")
    assert (fields["status"], fields["last_error"]) == ("FAILED", "no such user")
    assert fields["completion_time"] == "2024-01-02T03:04:05+00:00"
    assert A_WEEK_SECONDS - 60 <= await store.redis.ttl("rrq:job:older") <= A_WEEK_SECONDS
    assert await store.redis.lrange(DLQ, 0, -1) == [b"newer", b"older"]


async def test_an_error_text_with_half_a_surrogate_pair_can_be_stored(store: JobStore) -> None:
    await add_job(store, "j1")

    await store.move_job_to_dlq("j1", "default", "file \udcff is gone", datetime.now(UTC))

    assert "is gone" in (await read_hash(store, "j1"))["last_error"]


async def test_a_dead_letter_that_redis_refuses_changes_nothing(
    store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    await add_job(store, "j1")
    await store.redis.set(DLQ, "no list")

    with pytest.raises(ResponseError):
        await store.move_job_to_dlq("j1", "default", "error", datetime.now(UTC))

    assert any(record.levelno == logging.ERROR for record in caplog.records)
    fields = await read_hash(store, "j1")
    assert fields["status"] == "PENDING"
    assert "last_error" not in fields
    assert await store.redis.ttl("rrq:job:j1") == -1


# Workers and monitoring


async def test_a_health_record_comes_back_with_its_time_to_live(store: JobStore) -> None:
    await store.set_worker_health("w1", {"status": "polling", "since": datetime(2024, 1, 1, tzinfo=UTC)}, 70)

    record, ttl_seconds = await store.get_worker_health("w1")

    assert record == {"status": "polling", "since": "2024-01-01 00:00:00+00:00"}
    assert ttl_seconds is not None
    assert 40 <= ttl_seconds <= 70


async def test_a_health_record_may_be_absent_broken_or_without_expiry(store: JobStore) -> None:
    await store.redis.set("rrq:health:worker:broken", "{", ex=30)
    await store.redis.set("rrq:health:worker:eternal", "{}")

    assert await store.get_worker_health("nobody") == (None, None)
    record, ttl_seconds = await store.get_worker_health("broken")
    assert record is None
    assert ttl_seconds is not None
    assert await store.get_worker_health("eternal") == ({}, None)


async def test_a_health_record_that_cannot_be_written_is_only_logged(
    own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(JobStore(RRQSettings(redis_dsn=own_redis.dsn))) as store:
        own_redis.stop()

        await store.set_worker_health("w1", {"status": "polling"}, 70)

        assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_active_queues_and_workers_are_listed_oldest_first_and_trimmed(store: JobStore) -> None:
    await store.redis.zadd("rrq:active:queues", {"ancient": time.time() - 400, "older": time.time() - 100})
    await store.redis.zadd(
        "rrq:active:workers", {"w-ancient": time.time() - 100, "w-older": time.time() - 30}
    )

    await store.register_active_queue("emails")
    await store.register_active_worker("w1")

    assert await store.get_active_queues() == ["older", "emails"]
    assert await store.get_active_workers() == ["w-older", "w1"]
    assert await store.redis.zscore("rrq:active:queues", "ancient") is None
    assert await store.get_active_queues(max_age_seconds=50) == ["emails"]
    assert await store.get_active_workers(max_age_seconds=10) == ["w1"]
    score = await store.redis.zscore("rrq:active:workers", "w1")
    assert score == pytest.approx(time.time(), abs=60)


async def test_a_monitor_event_can_be_consumed(store: JobStore) -> None:
    await store.publish_monitor_event("queue_activity", {"queue_name": "emails"})

    ((stream, ((event_id, fields),)),) = await store.consume_monitor_events()

    assert stream == b"rrq:monitor:events"
    assert fields[b"event_type"] == b"queue_activity"
    assert fields[b"queue_name"] == b"emails"
    assert float(fields[b"timestamp"]) == pytest.approx(time.time(), abs=60)
    assert await store.consume_monitor_events(last_id=event_id.decode(), block=10) == []


async def test_the_event_stream_keeps_about_a_thousand_entries(store: JobStore) -> None:
    for _ in range(3):
        await asyncio.gather(*(store.publish_monitor_event("x", {"n": n}) for n in range(500)))

    assert 1000 <= await store.redis.xlen("rrq:monitor:events") < 1200
    events = await store.consume_monitor_events(count=5)
    assert len(events[0][1]) == 5


async def test_events_that_cannot_be_read_are_no_events(store: JobStore) -> None:
    await store.redis.set("rrq:monitor:events", "no stream")

    assert await store.consume_monitor_events(block=10) == []
