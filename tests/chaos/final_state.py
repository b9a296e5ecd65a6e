"""How Redis stands when everything has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos_main import open_control
from evidence import PartState
from rrq.broker.keys import Keys
from rrq.constants import DEFAULT_DLQ_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

# What must be empty when no job is left. Locks of jobs that an 0.7.1 worker lost end by themselves.
PAGE = 1000
LEFT_OVER = ("queue:*", "active:jobs:*", "cancel:*")


async def read_part_state(port: int, job_ids: Iterable[str]) -> PartState:
    """Read the status of every job, the dead letters and what is left over."""
    keys = Keys()
    connection = open_control(port, timeout_seconds=10.0)
    try:
        statuses = await _read_statuses(connection, keys, list(job_ids))
        dead = await connection.lrange(keys.dlq_key(DEFAULT_DLQ_NAME), 0, -1)
        left = [
            key.decode()
            for pattern in LEFT_OVER
            async for key in connection.scan_iter(keys.prefix + pattern, count=1000)
        ]
    finally:
        await connection.aclose()
    return PartState(statuses, [job_id.decode() for job_id in dead], left)


async def _read_statuses(connection: Any, keys: Keys, job_ids: list[str]) -> dict[str, str | None]:
    statuses: dict[str, str | None] = {}
    for at in range(0, len(job_ids), PAGE):
        some = job_ids[at : at + PAGE]
        pipe = connection.pipeline(transaction=False)
        for job_id in some:
            pipe.hget(keys.job_key(job_id), "status")
        for job_id, status in zip(some, await pipe.execute(), strict=True):
            statuses[job_id] = None if status is None else status.decode()
    return statuses
