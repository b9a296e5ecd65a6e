"""Finds functions that jobs need and workers lack: compares what workers noted with what living workers register.

For ``rrq check``. A note alone says little during a roll-out, when some workers already have a function and others do
not.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rrq.broker.messages import Observation
from rrq.inspect.jobs import read_in_batches
from rrq.store import JobStore

# While one of its jobs waits, workers note a missing function about once a minute. An old note is settled.
_RECENT_SECONDS = 3600.0


@dataclass(frozen=True)
class MissingFunction:
    """A function that some living worker of a queue lacks, or all of them."""

    queue: str
    name: str
    met_seconds_ago: float
    """Since a worker without the function last put off a job."""
    workers_with: int
    workers_without: int


async def read_missing_functions(store: JobStore, observation: Observation) -> list[MissingFunction]:
    """Return the functions that workers noted recently and some worker still lacks, the latest first."""
    since_ms = observation.now_ms - int(_RECENT_SECONDS * 1000)
    noted = await store.connection.call(
        "ZREVRANGEBYSCORE", store.keys.missing_functions, "+inf", since_ms, "WITHSCORES"
    )
    if not noted:
        return []
    registered = await _read_registered(store, observation)
    found = []
    for entry, met_ms in zip(noted[::2], noted[1::2], strict=True):
        if (queue_and_name := _parse_note(entry)) is not None:
            met_seconds_ago = max(0.0, (observation.now_ms - float(met_ms)) / 1000)
            found.append(count_workers(*queue_and_name, met_seconds_ago, registered))
    return [missing for missing in found if missing.workers_without or not missing.workers_with]


def count_workers(
    queue: str,
    name: str,
    met_seconds_ago: float,
    registered: Sequence[tuple[Collection[str], Collection[str]]],
) -> MissingFunction:
    """Count the workers of the queue that have the function; ``registered``: queues and functions of each worker."""
    of_queue = [functions for queues, functions in registered if queue in queues]
    workers_with = sum(name in functions for functions in of_queue)
    return MissingFunction(queue, name, met_seconds_ago, workers_with, len(of_queue) - workers_with)


def describe_missing(missing: MissingFunction) -> str:
    met = f"A job of this function was put off {missing.met_seconds_ago:.0f} s ago."
    if missing.workers_with == 0:
        return (
            f"No worker of queue {missing.queue!r} has function {missing.name!r}. {met} Correct the name where the job "
            "is enqueued, or deploy workers that register it."
        )
    workers = missing.workers_with + missing.workers_without
    return (
        f"{missing.workers_without} of {workers} workers of queue {missing.queue!r} do not have function "
        f"{missing.name!r}, so its jobs may start late. {met} If no roll-out is under way, deploy the same code to all "
        "workers of the queue."
    )


async def _read_registered(
    store: JobStore, observation: Observation
) -> list[tuple[Collection[str], Collection[str]]]:
    """Return the queues and functions of each living worker that publishes its functions."""

    def ask(pipe: Any, worker_id: str) -> None:
        pipe.hget(store.keys.worker_key(worker_id), "functions")

    replies = await read_in_batches(store, list(observation.workers), ask)
    return [
        (frozenset(map(store.keys.queue_name, worker.queues)), functions)
        for worker, reply in zip(observation.workers.values(), replies, strict=True)
        if (functions := _parse_functions(reply)) is not None
    ]


def _parse_functions(reply: bytes | None) -> Collection[str] | None:
    try:
        functions = json.loads(reply or b"")
    except (ValueError, RecursionError):
        return None
    return frozenset(map(str, functions)) if isinstance(functions, list) else None


def _parse_note(entry: bytes) -> tuple[str, str] | None:
    try:
        queue, name = json.loads(entry)
    except (ValueError, TypeError, RecursionError):
        return None
    return str(queue), str(name)
