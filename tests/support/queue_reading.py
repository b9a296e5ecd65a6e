"""What is stored, read into the words of the model, and what must hold of it whatever happened before.

`describe_stored` and `describe_model` give the same description of the same queue. `find_violations` knows
nothing of the model: it looks at the keys alone.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from queue_model import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clocked_redis import Row
    from fleet_model import ModelFleet

# They exist once, whatever the number of jobs, with one entry per worker, queue or counter, or a thousand at most.
_SINGLE_KEYS = (
    "workers:lease",
    "guard",
    "counters",
    "active:queues",
    "active:workers",
    "monitor:events",
    "cron:last",
    "recent",
)


@dataclass
class Stored:
    """The keys of one moment, by kind."""

    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    jobs_left_ms: dict[str, int] = field(default_factory=dict)
    queues: dict[str, dict[str, float]] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    unique_locks: dict[str, str] = field(default_factory=dict)
    dead_letters: list[str] = field(default_factory=list)
    leases: dict[str, float] = field(default_factory=dict)
    guard: dict[str, str] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    counters: dict[str, int] = field(default_factory=dict)
    parked: dict[str, dict[str, float]] = field(default_factory=dict)
    """By scope, who waits there and since when it is due."""
    looks: dict[str, float] = field(default_factory=dict)
    slots: dict[str, set[str]] = field(default_factory=dict)
    controls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By kind of control, target to its JSON."""
    batches: dict[str, dict[str, str]] = field(default_factory=dict)
    pending: dict[str, set[str]] = field(default_factory=dict)
    """By batch, whose end it waits for."""
    without_expiry: list[str] = field(default_factory=list)
    """Keys of other kinds that would stay for ever."""


def read_rows(rows: Mapping[str, Row]) -> Stored:
    """Sort the keys by what they are."""
    stored = Stored()
    for full_key, (left_ms, value) in rows.items():
        key = full_key.removeprefix("rrq:")
        kind, _, name = key.partition(":")
        match kind, name.partition(":"):
            case "job", _:
                stored.jobs[name] = value
                stored.jobs_left_ms[name] = left_ms
            case "queue", _:
                stored.queues[full_key] = value
            case "active", ("jobs", _, worker_id):
                stored.held[worker_id] = set(value)
            case "dlq", _:
                stored.dead_letters = value[::-1]
            case "lock", ("job", _, job_id) if left_ms > 0:
                stored.locks[job_id] = value
            case "lock", ("unique", _, unique_key) if left_ms > 0:
                stored.unique_locks[unique_key] = value
            case "parked", _ if name:
                stored.parked[name] = value
            case "parked", _:
                stored.looks = value
            case "slots", _:
                stored.slots[name] = set(value)
            case (("pauses" | "limits"), _):
                stored.controls[key] = {target: json.loads(text) for target, text in value.items()}
            case "batch", (batch_id, _, "pending"):
                stored.pending[batch_id] = set(value)
            case "batch", _:
                stored.batches[name] = value
            case _ if key == "workers:lease":
                stored.leases = value
            case _ if key == "workers:awaited" and left_ms > 0:
                stored.awaited = set(value)
            case _ if key == "guard":
                stored.guard = value
            case _ if key == "counters":
                stored.counters = {name: int(count) for name, count in value.items()}
            case _ if left_ms < 0 and key not in _SINGLE_KEYS:
                stored.without_expiry.append(full_key)
    return stored


def describe_stored(stored: Stored) -> dict[str, Any]:
    found: dict[str, Any] = {
        "locks": stored.locks,
        "unique locks": stored.unique_locks,
        "dead letters": stored.dead_letters,
        "leases": stored.leases,
        "counters": stored.counters,
        "last beat": float(stored.guard.get("last_beat_ms", -1)),
        "reap not before": float(stored.guard.get("reap_not_before_ms", 0)),
        "claim not before": float(stored.guard.get("claim_not_before_ms", 0)),
        "restarted": float(stored.guard.get("restarted_ms", -1)),
        "awaited": stored.awaited,
        "looks": stored.looks,
        "pauses": {target: pause["state"] for target, pause in stored.controls.get("pauses", {}).items()},
        "slots": stored.slots,
        "batches": {
            batch_id: (
                stored.pending.get(batch_id, set()),
                int(batch["failed"]),
                "open" in batch,
                "ended" in batch,
            )
            for batch_id, batch in stored.batches.items()
        },
    }
    found |= {f"parked {scope}": parked for scope, parked in stored.parked.items()}
    found |= {f"queue {name}": queue for name, queue in stored.queues.items()}
    found |= {f"in hand of {worker_id}": held for worker_id, held in stored.held.items()}
    for job_id, job in stored.jobs.items():
        found[f"job {job_id}"] = {
            "place": _place(stored, job_id),
            "status": job["status"],
            "token": job["attempt_token"],
            "home": job["queue_name"],
            "retries": int(job["current_retries"]),
            "to be cancelled": "cancel_requested" in job,
            "suspect": job.get("suspect", ""),
            "slots": set(json.loads(job.get("slots", "[]"))),
            "follow-ups": [kept[0] for kept in json.loads(job.get("next", "[]"))],
            "crashes": int(job.get("crashes", 0)),
            "losses": int(job.get("losses", 0)),
            "reserved": _reservation(job),
            "left ms": stored.jobs_left_ms[job_id],
        }
    return found


def _reservation(job: Mapping[str, str]) -> str | tuple[str, float, float]:
    """Who was asked to come for a suspect, until when, and since when somebody is; times without a name mean nothing."""
    name = job.get("reserved_by", "")
    return name and (name, float(job["reserved_until_ms"]), float(job["reserved_since_ms"]))


def describe_model(model: ModelFleet) -> dict[str, Any]:
    guard = model.guard
    expected: dict[str, Any] = {
        "locks": {job_id: lock.value for job_id, lock in model.locks.items()},
        "unique locks": {unique_key: lock.value for unique_key, lock in model.unique_locks.items()},
        "dead letters": model.dead_letters,
        "leases": model.leases,
        "counters": dict(+model.counters),
        "last beat": -1 if guard.last_beat_ms is None else guard.last_beat_ms,
        "reap not before": guard.reap_not_before_ms,
        "claim not before": guard.claim_not_before_ms,
        "restarted": -1 if guard.restarted_ms is None else guard.restarted_ms,
        "awaited": guard.awaited,
        "looks": model.looks,
        "pauses": model.pauses,
        "slots": {scope: taken for scope, taken in model.slots.items() if taken},
        "batches": {
            batch_id: (batch.pending, batch.failed, batch.is_open, batch.has_ended)
            for batch_id, batch in model.batches.items()
        },
    }
    for job_id, job in model.jobs.items():
        expected[f"job {job_id}"] = {
            "place": job.place(),
            "status": job.status,
            "token": job.token,
            "home": job.home,
            "retries": job.retries,
            "to be cancelled": job.is_to_be_cancelled,
            "suspect": job.suspicion,
            "slots": set(job.slots),
            "follow-ups": [follower.job_id for follower in job.chain],
            "crashes": job.crashes,
            "losses": job.losses,
            "reserved": job.reserved_by and (job.reserved_by, job.reserved_until_ms, job.reserved_since_ms),
            "left ms": -1 if job.expires_ms is None else job.expires_ms - model.now_ms,
        }
        if job.queued_in is not None:
            expected.setdefault(f"queue {job.queued_in}", {})[job_id] = job.due_ms
        if job.parked_in is not None:
            expected.setdefault(f"parked {job.parked_in}", {})[job_id] = job.due_ms
    return expected | {f"in hand of {worker_id}": held for worker_id, held in model.held.items() if held}


def find_differences(model: ModelFleet, stored: Stored) -> list[str]:
    """Say where the two disagree, a line each."""
    expected, found = describe_model(model), describe_stored(stored)
    return [
        f"{name}: expected {expected.get(name)}, stored {found.get(name)}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def find_violations(stored: Stored) -> list[str]:
    """Say which promises the keys break, a line each."""
    return [
        *_misplaced_jobs(stored),
        *_misplaced_slots(stored),
        *_wrongly_parked(stored),
        *_wrong_owners(stored),
        *_orphans(stored),
    ]


def find_overruns(stored: Stored, job_ids: Iterable[str]) -> Iterator[str]:
    """Say where more run than a limit allows, of what these jobs, which started just now, are counted in."""
    limits = stored.controls.get("limits", {}) | stored.controls.get("limits:override", {})
    for scope in {
        scope for job_id in job_ids for scope in json.loads(stored.jobs[job_id].get("slots", "[]"))
    }:
        kind, name = scope.split(":")[:2]
        limit = limits.get(f"queue:{name}" if kind == "q" else f"function:{name}", {})
        most = limit.get("per_key" if kind == "k" else "concurrency", -1)
        if len(stored.slots[scope]) > most:
            yield f"{stored.slots[scope]} run in {scope}, which allows {most}"


def _misplaced_jobs(stored: Stored) -> Iterator[str]:
    places = *stored.queues.values(), *stored.parked.values()
    queued = Counter(job_id for place in places for job_id in place)
    for job_id in queued - Counter(stored.jobs.keys()):
        yield f"{job_id} is queued or parked twice, or without a job"
    for job_id, job in stored.jobs.items():
        status, is_queued = job["status"], job_id in queued
        is_held = job_id in stored.held.get(job.get("worker_id", ""), ())
        if status == "ACTIVE" and (is_queued or not is_held):
            yield f"{job_id} is ACTIVE, and {'queued' if is_queued else 'in nobodys hands'}"
        if status in ("PENDING", "RETRYING") and not is_queued:
            yield f"{job_id} is {status} and neither in a queue nor parked: lost"
        if status in ENDED and is_queued:
            yield f"{job_id} is {status} and queued"
        if status == "FAILED" and job_id not in stored.dead_letters:
            yield f"{job_id} is FAILED and no dead letter"


def _misplaced_slots(stored: Stored) -> Iterator[str]:
    """A slot is held by a job that runs, and such a job says which it holds."""
    for scope, taken in stored.slots.items():
        for job_id in taken:
            job = stored.jobs.get(job_id, {})
            if job.get("status") != "ACTIVE" or scope not in json.loads(job.get("slots", "[]")):
                yield f"{job_id} has a slot of {scope} and does not run in it"
    for job_id, job in stored.jobs.items():
        for scope in json.loads(job.get("slots", "[]")):
            if job_id not in stored.slots.get(scope, ()):
                yield f"{job_id} runs in {scope} without a slot"


def _wrongly_parked(stored: Stored) -> Iterator[str]:
    """Whoever is parked will be looked at, and without delay where nothing holds it any more."""
    pauses = stored.controls.get("pauses", {})
    limits = stored.controls.get("limits", {}) | stored.controls.get("limits:override", {})
    for scope, parked in stored.parked.items():
        target = f"function:{scope.split(':')[1]}"
        if scope not in stored.looks:
            yield f"{set(parked)} are parked in {scope}, where nobody looks"
        elif target not in pauses and target not in limits and stored.looks[scope] > 0:
            yield f"{set(parked)} are parked in {scope}, and nothing holds them"
        for job_id in parked:
            if stored.jobs[job_id].get("parked_in") != scope:
                yield f"{job_id} is parked in {scope} and does not know it"


def _wrong_owners(stored: Stored) -> Iterator[str]:
    for job_id, holder in stored.locks.items():
        if job_id not in stored.held.get(holder, ()):
            yield f"{holder} has the lock of {job_id} and not the job"
        job = stored.jobs.get(job_id, {})
        if job.get("status") == "ACTIVE" and job["worker_id"] != holder:
            yield f"{job_id} is run by {job['worker_id']} under the lock of {holder}"
    for worker_id in stored.held:
        if worker_id not in stored.leases:
            yield f"{worker_id} holds jobs without a lease: nobody would reap it"


def _orphans(stored: Stored) -> Iterator[str]:
    for job_id, job in stored.jobs.items():
        has_expiry, has_ended = stored.jobs_left_ms[job_id] > 0, job["status"] in ENDED
        if has_expiry != has_ended:
            yield f"{job_id} is {job['status']} and {'expires' if has_expiry else 'never expires'}"
    for key in stored.without_expiry:
        yield f"{key} has neither an owner nor an expiry"


def _place(stored: Stored, job_id: str) -> str:
    queues = [name for name, queue in stored.queues.items() if job_id in queue]
    scopes = [scope for scope, parked in stored.parked.items() if job_id in parked]
    job = stored.jobs[job_id]
    if scopes:
        return f"parked in {' and '.join(scopes)}"
    if queues:
        return f"queued in {' and '.join(queues)}"
    return f"held by {job.get('worker_id')}" if job["status"] == "ACTIVE" else job["status"]
