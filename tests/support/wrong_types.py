"""What another program may leave in Redis: values of every type, under every key of RRQ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.broker.keys import Keys
    from rrq.store import JobStore

#: One command per type; the key goes between the first word and the rest.
VALUES: dict[str, tuple[Any, ...]] = {
    "string": ("SET", b"\xff\x00 no such thing"),
    "list": ("RPUSH", "a", b"\xff\x00", ""),
    "set": ("SADD", "a", b"\xff\x00", ""),
    "zset": ("ZADD", 1, "a", "+inf", b"\xff\x00", "-inf", ""),
    "hash": ("HSET", "a", b"\xff\x00", "", "b"),
    "stream": ("XADD", "*", "a", b"\xff\x00"),
}

WORKER_ID = "worker-under-attack"
POD_UID = "pod-under-attack"
JOB_ID = "job-under-attack"
QUEUE_NAME = "under-attack"
UNIQUE_KEY = "unique-under-attack"
CRON_GROUP = "group-under-attack"
FUNCTION = "function-under-attack"
BATCH_ID = "batch-under-attack"


@dataclass(frozen=True)
class Family:
    """Keys that differ only in the name inside, and the type of what belongs there."""

    name: str
    kind: str
    key: Callable[[Keys], str]


FAMILIES = (
    Family("job_key", "hash", lambda keys: keys.job_key(JOB_ID)),
    Family("queue_key", "zset", lambda keys: keys.queue_key(QUEUE_NAME)),
    Family("dlq_key", "list", lambda keys: keys.dlq_key("rrq:dlq:default")),
    Family("job_lock_key", "string", lambda keys: keys.job_lock_key(JOB_ID)),
    Family("unique_lock_key", "string", lambda keys: keys.unique_lock_key(UNIQUE_KEY)),
    Family("health_key", "string", lambda keys: keys.health_key(WORKER_ID)),
    Family("active_jobs_key", "zset", lambda keys: keys.active_jobs_key(WORKER_ID)),
    Family("worker_key", "hash", lambda keys: keys.worker_key(WORKER_ID)),
    Family("cancel_key", "set", lambda keys: keys.cancel_key(WORKER_ID)),
    Family("control_key", "list", lambda keys: keys.control_key(WORKER_ID)),
    Family("drain_key", "string", lambda keys: keys.drain_key("another-pod")),
    Family("suspect_key", "hash", lambda keys: keys.suspect_key(POD_UID)),
    Family("wake_key", "list", lambda keys: keys.wake_key("rrq:queue:default")),
    Family("waiting_key", "zset", lambda keys: keys.waiting_key("rrq:queue:default")),
    Family("events_key", "stream", lambda keys: keys.events_key(JOB_ID)),
    Family("cron_table_key", "hash", lambda keys: keys.cron_table_key(CRON_GROUP)),
    Family("last_process_key", "string", lambda keys: keys.last_process_key(UNIQUE_KEY)),
    Family("leases", "zset", lambda keys: keys.leases),
    Family("guard", "hash", lambda keys: keys.guard),
    Family("awaited", "set", lambda keys: keys.awaited),
    Family("counters", "hash", lambda keys: keys.counters),
    Family("active_queues", "zset", lambda keys: keys.active_queues),
    Family("active_workers", "zset", lambda keys: keys.active_workers),
    Family("monitor_stream", "stream", lambda keys: keys.monitor_stream),
    Family("cron_last", "hash", lambda keys: keys.cron_last),
    Family("cron_tables", "zset", lambda keys: keys.cron_tables),
    Family("slots_key", "set", lambda keys: keys.slots_key(f"f:{FUNCTION}")),
    Family("blocked_key", "zset", lambda keys: keys.blocked_key(f"f:{FUNCTION}")),
    Family("rate_key", "zset", lambda keys: keys.rate_key(f"f:{FUNCTION}")),
    Family("idempotency_key", "string", lambda keys: keys.idempotency_key(UNIQUE_KEY)),
    Family("debounce_key", "string", lambda keys: keys.debounce_key(UNIQUE_KEY)),
    Family("batch_key", "hash", lambda keys: keys.batch_key(BATCH_ID)),
    Family("batch_pending_key", "set", lambda keys: keys.batch_pending_key(BATCH_ID)),
    Family("decisions_key", "stream", lambda keys: keys.decisions_key("shop/under-attack")),
    Family("pauses", "hash", lambda keys: keys.pauses),
    Family("limits", "hash", lambda keys: keys.limits),
    Family("limit_overrides", "hash", lambda keys: keys.limit_overrides),
    Family("blocked_scopes", "zset", lambda keys: keys.blocked_scopes),
    Family("recent", "list", lambda keys: keys.recent),
    Family("missing_functions", "zset", lambda keys: keys.missing_functions),
    Family("audit", "stream", lambda keys: keys.audit),
    Family("pools", "hash", lambda keys: keys.pools),
    Family("notified_key", "string", lambda keys: keys.notified_key("default")),
    Family("ended_sessions_key", "zset", lambda keys: keys.ended_sessions_key("admin")),
    # This is named in Lua alone.
    Family("overflow", "list", lambda keys: f"{keys.dlq_key('rrq:dlq:default')}:overflow"),
)
#: What Keys has and no key is: a channel, a name for people. The statistics of a minute end with it, and have a
#: test of their own.
NO_KEYS = {"prefix", "notify_channel", "queue_name", "dlq_name", "stats_key"}


async def put(store: JobStore, key: str, kind: str) -> None:
    """Replace whatever a key holds, in one step: a worker may be writing it all the time."""
    command, *values = VALUES[kind]
    async with store.redis.pipeline(transaction=True) as pipe:
        pipe.delete(key)
        pipe.execute_command(command, key, *values)
        await pipe.execute()
