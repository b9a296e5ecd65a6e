"""Every step that anybody can take on the queue, taken twice: on a real Redis and on the model.

The answers are compared at once; `check` compares everything that is stored with the model, and looks at
the promises once more without it. In which order steps are taken is left to `queue_machine`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import queue_steps
from fleet_model import ModelFleet
from queue_model import ENDED, ModelBatch, Rules
from queue_reading import find_differences, find_violations, read_rows
from rrq.broker.cron_table import NewCronTable
from rrq.broker.messages import CronVerdict
from rrq.jobs.options import JobOptions
from rrq.jobs.request import encode_options, keep_job
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clocked_redis import ClockedRedis, Row
    from queue_steps import NewJob
    from rrq.flow import JobFilter, Limit, PauseState

START_MS = 1_800_000_000_000
QUEUES = ("rrq:queue:x", "rrq:queue:y")
PODS = {"a": "pod-1", "b": "pod-1", "c": "pod-2"}
LEASE_SECONDS, RENEWAL_SECONDS = 60, 20
JOB_TIMEOUT_SECONDS, RESULT_SECONDS, UNIQUE_SECONDS, DEAD_LETTER_SECONDS = 240, 3600, 60, 7200
CRASH_LIMIT, LOST_LIMIT = 2, 1
_MONTH_SECONDS = 30 * 86_400
RULES = Rules(
    lease_ms=LEASE_SECONDS * 1000,
    renewal_ms=RENEWAL_SECONDS * 1000,
    lock_ms=(JOB_TIMEOUT_SECONDS + 60) * 1000,
    health_ms=70_000,
    unique_seconds=UNIQUE_SECONDS,
    dead_letter_seconds=DEAD_LETTER_SECONDS,
    crash_limit=CRASH_LIMIT,
    lost_limit=LOST_LIMIT,
)


def build_settings(dsn: str) -> RRQSettings:
    return RRQSettings(
        redis_dsn=dsn,
        job_registry=JobRegistry(),
        worker_lease_seconds=LEASE_SECONDS,
        worker_lease_renewal_seconds=RENEWAL_SECONDS,
        default_unique_job_lock_ttl_seconds=UNIQUE_SECONDS,
        default_dlq_result_ttl_seconds=DEAD_LETTER_SECONDS,
        worker_crash_limit=CRASH_LIMIT,
        worker_lost_limit=LOST_LIMIT,
    )


@dataclass(frozen=True)
class Wish:
    """A job as somebody asks for it; `then` are the numbers of those that follow it."""

    number: int
    queue: str
    due: str = ""
    unique_key: str = ""
    function: str = "greet"
    then: tuple[int, ...] = ()


class PairedQueue:
    """Producers and onlookers on a Redis of their own, and the model of it."""

    def __init__(self, redis: ClockedRedis) -> None:
        self.redis, self.store = redis, redis.store
        self.model = ModelFleet(rules=RULES, now_ms=START_MS)
        self.calls = 0
        self.rows: dict[str, Row] = {}
        redis.empty(START_MS)

    # After every step

    def check(self) -> None:
        self.rows = self.redis.look()
        problems = list(self.find_problems())
        assert not problems, "\n".join(problems)

    def find_problems(self) -> Iterator[str]:
        """Say what does not hold of `rows` and the model, a line each."""
        stored = read_rows(self.rows)
        yield from find_differences(self.model, stored)
        yield from find_violations(stored)
        yield from self._unaccounted()

    def _unaccounted(self) -> Iterator[str]:
        model = self.model
        going_on = sum(job.status not in ENDED for job in model.jobs.values())
        if model.lives != going_on + model.ended.total():
            yield f"of {model.lives} lives {going_on} go on and {dict(model.ended)} ended"
        for counter, status in ("done", "COMPLETED"), ("dead", "FAILED"):
            if model.counters[counter] != model.ended[status]:
                yield f"{model.counters[counter]} counted as {counter}, {model.ended[status]} became {status}"

    # Producers

    def enqueue(self, jobs: list[Wish], batch_id: str | None = None) -> None:
        new = [
            self._new_job(
                f"j{wish.number}",
                wish.queue,
                due=wish.due,
                unique_key=wish.unique_key,
                function_name=wish.function,
                is_chosen_id=1,
                options=encode_options(JobOptions(batch_id=batch_id), list(map(self._keep, wish.then))),
            )
            for wish in jobs
        ]
        token = self._token("e")
        replies = self.redis.do(self.store.enqueue_jobs(new, token)).due_ms
        assert replies == [self.model.produce(job, token) for job in new]

    def _keep(self, number: int) -> list[str]:
        follower = self._new_job(f"j{number}", QUEUES[number % 2], is_chosen_id=1)
        return keep_job(follower, UNIQUE_SECONDS)

    def enqueue_batch(self, jobs: list[Wish], queue: str) -> None:
        batch_id = self._token("batch")
        callback = self._new_job(f"after {batch_id}", queue)
        kept = json.dumps(keep_job(callback, UNIQUE_SECONDS))
        self.redis.do(self.store.open_batch(batch_id, len(jobs), kept, _MONTH_SECONDS))
        self.model.batches[batch_id] = ModelBatch(callback, f"b.rrq:batch:{batch_id}")
        self.enqueue(jobs, batch_id)
        assert self.redis.do(self.store.close_batch(batch_id)) == self.model.close_batch(batch_id)

    def fire_cron(self, tick: int, queue: str, unique_key: str) -> None:
        token = self._token("cron")
        job = self._new_job(token, queue, unique_key=unique_key)
        tick_ms = START_MS + tick * 60_000
        verdict = self.redis.do(self.store.fire_cron("entry", tick_ms, job, token))
        assert verdict is self.model.fire_cron("entry", tick_ms, job, token)
        if verdict is CronVerdict.FIRED:
            assert self.model.jobs[token].due_ms == self.model.now_ms

    def note_cron_entry(self) -> None:
        now = datetime.fromtimestamp(self.model.now_ms / 1000, UTC)
        (settled_at,) = self.redis.do(self.store.note_cron_entries(["entry"], now))
        assert round(settled_at.timestamp() * 1000) == self.model.note_cron_entry("entry")

    def cancel(self, job_id: str) -> None:
        code, _ = self.redis.do(self.store.cancel_job(job_id))
        assert code is self.model.cancel(job_id)

    def cancel_where(self, chosen: JobFilter) -> None:
        count = self.redis.do(self.store.cancel_where(chosen, only_count=True))
        self._expect_no_change()
        assert self.redis.do(self.store.cancel_where(chosen)) == count == self.model.cancel_where(chosen)

    def see_to_a_dead_letter(self, job_id: str, *, is_deleted: bool) -> None:
        if is_deleted:
            deleted = self.redis.do(self.store.delete_dead_letters("default", [job_id]))
            assert deleted == self.model.delete_dead_letter(job_id)
        else:
            kwargs = json.dumps({"tenant": "edited"})
            edited = self.redis.do(self.store.edit_dead_letter("default", job_id, "[]", kwargs))
            assert edited == self.model.edit_dead_letter(job_id, "edited")

    # Flow control

    def set_pause(self, target: str, state: PauseState | None) -> None:
        assert self.redis.do(self.store.set_pause(target, state)) == self.model.set_pause(target, state)

    def set_limit(self, target: str, limit: Limit | None) -> None:
        assert self.redis.do(self.store.set_limit(target, limit)) == self.model.set_limit(target, limit)

    def publish_limits(self, limits: dict[str, Limit]) -> None:
        changed = self.redis.do(self.store.publish_limits("app", limits))
        assert changed == self.model.publish_limits(limits)

    def admit_jobs(self) -> None:
        admission = self.redis.do(self.store.admit_jobs(QUEUES))
        # More is to be looked at when a blocked job unblocked another one.
        assert (admission.blocked, bool(admission.unfinished)) == self.model.admit_jobs(QUEUES)

    def watch(self, job: int, wants_event: bool) -> None:
        seen = self.redis.do(self.store.watch_job(f"j{job}", wants_event=wants_event))
        expected = self.model.jobs.get(f"j{job}")
        assert (seen and seen.status.value) == (expected and expected.status)

    def requeue_dead_letters(self, queue: str, most: int) -> None:
        # The store asks until the list is empty; so does the model.
        queued = 0
        while queued < most and self.model.dead_letters:
            queued += self.model.requeue_dead_letters(queue, most - queued)
        assert self.redis.do(self.store.requeue_dlq("default", queue, most)) == queued

    def release_unique(self, job: int, unique_key: str) -> None:
        self.redis.do(self.store.release_unique_job_lock(unique_key, f"j{job}"))
        lock = self.model.unique_locks.get(unique_key)
        if lock is not None and lock.value == f"j{job}":
            del self.model.unique_locks[unique_key]

    # Onlookers, and Redis itself

    def observe(self, horizon_seconds: int) -> None:
        seen = self.redis.do(self.store.observe(QUEUES, horizon_seconds))
        self._expect_no_change()
        model, horizon_ms = self.model, self.model.now_ms + horizon_seconds * 1000
        orphaned = model.count_orphans()
        for name in QUEUES:
            due = list(model.queue(name).values())
            figures = seen.queues[name]
            assert figures.due == sum(due_ms <= model.now_ms for due_ms in due)
            assert figures.due_soon == sum(model.now_ms < due_ms <= horizon_ms for due_ms in due)
            assert figures.later == sum(due_ms > horizon_ms for due_ms in due)
            assert figures.orphaned == orphaned[self.store.keys.queue_key(name)]
            assert figures.blocked == figures.due - min(figures.due, model.queue_room(name))
        assert seen.is_controlled == model.is_controlled()
        assert seen.paused == set(model.pauses)
        living = {worker_id for worker_id, ends_ms in model.leases.items() if ends_ms > model.now_ms}
        assert set(seen.workers) == living
        assert seen.ended_leases == len(model.leases) - len(living)
        for worker_id, worker in seen.workers.items():
            assert worker.busy == len(model.held.get(worker_id, ()))

    def publish_cron_table(self, group: str, text: str) -> None:
        self.redis.do(self.store.publish_cron_table(NewCronTable(group, text, 120), None, 30))

    def flush_scripts(self) -> None:
        self.redis.do(self.store.connection.call("SCRIPT", "FLUSH"))

    def pass_time(self, milliseconds: int) -> None:
        """The clock of Redis jumps, or everybody sleeps."""
        self.model.pass_time(milliseconds)
        self.redis.look(milliseconds)
        self.redis.set_clock(self.model.now_ms)

    # What the steps are made of

    def _token(self, kind: str) -> str:
        self.calls += 1
        return f"{kind}.{self.calls}"

    def _new_job(self, job_id: str, queue: str, **changes: Any) -> NewJob:
        return queue_steps.new_job(
            job_id,
            queue_name=queue,
            # For limits per key: one tenant has more than the others together.
            kwargs_json=json.dumps({"tenant": "abccca"[int(job_id[-1]) % 6]}),
            job_timeout_seconds=JOB_TIMEOUT_SECONDS,
            result_ttl_seconds=RESULT_SECONDS,
            **changes,
        )

    def _expect_no_change(self, apart_from: set[str] | None = None) -> None:
        ignored = ("rrq:notified:", "rrq:wake:")

        def lasting(rows: dict[str, Row]) -> dict[str, Any]:
            return {
                key: row.value
                for key, row in rows.items()
                if not key.startswith(ignored) and key not in (apart_from or ())
            }

        before, after = lasting(self.rows), lasting(self.redis.look())
        changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        assert not changed, "\n".join(f"{key}: {before.get(key)} became {after.get(key)}" for key in changed)
