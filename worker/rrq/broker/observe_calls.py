"""What operators, supervisors and dashboards observe: queues and workers, the server, pools, statistics.

One method per script or read. Most change nothing; ``admit_jobs`` sorts due jobs first, so that an observation tells
which of them may start.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from rrq.broker.access import RedisAccess, to_ms
from rrq.broker.messages import Admission, Observation, QueueObservation, WorkerObservation
from rrq.broker.server_risks import ServerFacts, parse_server_facts
from rrq.flow import (
    MinuteStats,
    PoolDecision,
    PoolReport,
    parse_minute,
    parse_pool_decision,
    parse_pool_report,
)
from rrq.jobs.codec import decode, decode_all, decode_pairs

__all__ = ["ADMITTED_PER_CALL", "ObserveCalls"]

_MOST_WORKERS = 10_000
#: Entries of a queue that one call looks at for jobs that may not start; a few milliseconds of Redis.
ADMITTED_PER_CALL = 1_000
#: Far more queues than a worker serves.
_MOST_NAMES = 1_000
_LONGEST_NAMES_BYTES = 256 * 1024
# The year 10000, which Python cannot write.
_END_OF_CALENDAR_MS = 253_402_300_800_000
_MOST_POOLS_PER_CALL = 500
_MOST_DECISIONS = 500
_KEEP_DECISIONS_SECONDS = 7 * 86_400
_DECISION_FIELDS = tuple(field.name for field in fields(PoolDecision))


class ObserveCalls(RedisAccess):
    """Reads how queues, workers, pools and the server are."""

    async def observe(
        self,
        queue_names: Sequence[str],
        horizon_seconds: float | Mapping[str, float] = 0,
        most_workers: int = _MOST_WORKERS,
    ) -> Observation:
        """Read queues and living workers in one call that changes nothing.

        ``horizon_seconds`` is how far ahead "soon" reaches, for all queues or by queue name (0 where missing).
        A queue whose key is no sorted set is left out: how full it is cannot be known.
        """
        horizons = horizon_seconds if isinstance(horizon_seconds, Mapping) else {}
        everywhere = 0 if isinstance(horizon_seconds, Mapping) else horizon_seconds
        horizons_ms = (to_ms(horizons.get(name, everywhere)) for name in queue_names)
        args = [self.keys.prefix, most_workers, *horizons_ms]

        def read(reply: Any) -> Observation:
            now_ms, queues, workers, is_controlled, paused, ended_leases, has_more_orphans = reply
            if not 0 <= now_ms < _END_OF_CALENDAR_MS:
                raise ValueError(f"no clock shows {now_ms} ms")
            return Observation(
                now_ms,
                {
                    name: _read_queue(figures, now_ms)
                    for name, figures in zip(queue_names, queues, strict=True)
                    if figures
                },
                {decode(row[0]): _read_worker(row) for row in workers},
                bool(is_controlled),
                frozenset(decode_all(paused)),
                int(ended_leases),
                bool(has_more_orphans),
            )

        keys = [self.keys.leases, *map(self.keys.queue_key, queue_names)]
        return await self.connection.run("observe_queues", keys, args, read=read)

    async def admit_jobs(self, queue_names: Sequence[str], most: int = ADMITTED_PER_CALL) -> Admission:
        """Block due jobs that may not start now, and unblock those that may again, whatever their queue.

        Looks at the first ``most`` due jobs of each queue; the answer says where there is more to do.
        """

        def read(reply: Any) -> Admission:
            blocked, unblocked, *counts = reply
            unfinished = {name: count for name, count in zip(queue_names, counts, strict=True) if count >= 0}
            return Admission(blocked, unblocked, unfinished)

        keys = [self.keys.queue_key(name) for name in queue_names]
        return await self.connection.run("admit_jobs", keys, [self.keys.prefix, most], read=read)

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[Callable[[float], Awaitable[str | None]]]:
        """Yield a function that returns the name of the next queue that changes, or None when time is up.

        Producers of RRQ 0.7 announce nothing, and a queue is announced at most every 50 ms: a listener looks again a
        little later, and now and then without an announcement.
        """
        async with self.connection.open_subscriber() as subscriber, subscriber.pubsub() as channel:
            await channel.subscribe(self.keys.notify_channel)

            async def hear(timeout_seconds: float) -> str | None:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=timeout_seconds)
                return None if message is None else self.keys.queue_name(decode(message["data"]))

            yield hear

    async def read_server_facts(self) -> ServerFacts:
        """Return what the server says about memory and persistence."""
        info: dict[str, str] = {}
        for section in ("memory", "persistence"):
            text = await self.connection.call("INFO", section)
            lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
            info |= {name: value for name, colon, value in lines if colon}
        try:
            _, snapshots = await self.connection.call("CONFIG", "GET", "save")
        except ResponseError:
            # Managed servers and narrow ACLs keep CONFIG to themselves.
            return parse_server_facts(info, None, self.connection.place)
        return parse_server_facts(info, snapshots.decode(), self.connection.place)

    async def publish_pools(
        self, reports: Sequence[PoolReport], decided: Collection[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """Store how pools are now.

        Pools in ``decided`` get an entry in their history too, pools that are ``gone`` are forgotten.
        """
        for start in range(0, len(reports) or 1, _MOST_POOLS_PER_CALL):
            part = reports[start : start + _MOST_POOLS_PER_CALL]
            noted = [report for report in part if report.pool in decided]
            args: list[Any] = [self.keys.prefix, _MOST_DECISIONS, _KEEP_DECISIONS_SECONDS]
            args += (2 * len(_DECISION_FIELDS), len(gone), *gone, len(part))
            for report in part:
                args += (report.pool, report.to_json())
            for report in noted:
                for name in _DECISION_FIELDS:
                    value = getattr(report, name)
                    args += (name, "" if value is None else value)
            keys = [self.keys.pools, *(self.keys.decisions_key(report.pool) for report in noted)]
            await self.connection.run("publish_pools", keys, args, read=bool)
            gone = ()

    async def read_pools(self) -> list[PoolReport]:
        """Return the last report of each pool, by name."""
        pools = decode_pairs(await self.connection.call("HGETALL", self.keys.pools))
        reports = (parse_pool_report(pool, text) for pool, text in sorted(pools.items()))
        return [report for report in reports if report is not None]

    async def read_decisions(self, pool: str, count: int = 100) -> list[PoolDecision]:
        """Return the last decisions about the size of a pool (``namespace/name``), the oldest of them first."""
        key = self.keys.decisions_key(pool)
        entries = await self.connection.call("XREVRANGE", key, "+", "-", "COUNT", count)
        return [parse_pool_decision(decode_pairs(values)) for _, values in reversed(entries)]

    async def read_stats(self, minutes: int) -> list[MinuteStats]:
        """Return the last minutes, the oldest first, the present one last."""
        last = await self._read_now_ms() // 60_000
        wanted = range(last - minutes + 1, last + 1)
        replies = await asyncio.gather(
            *(self.connection.call("HGETALL", self.keys.stats_key(minute)) for minute in wanted)
        )
        return [
            parse_minute(minute, decode_pairs(reply)) for minute, reply in zip(wanted, replies, strict=True)
        ]

    async def read_counters(self) -> dict[str, int]:
        """Return the running totals of ended attempts by outcome."""
        counters = decode_pairs(await self.connection.call("HGETALL", self.keys.counters))
        return {name: int(text) for name, text in counters.items() if text.isdigit()}

    async def read_recent(self, offset: int = 0, limit: int = 100) -> list[str]:
        """Return the ids of the jobs that ended last, the newest first."""
        last = offset + limit - 1
        return decode_all(await self.connection.call("LRANGE", self.keys.recent, offset, last))


def _read_queue(figures: Sequence[int], now_ms: int) -> QueueObservation:
    due, soon, later, oldest_ms, next_ms, blocked, orphaned = figures
    return QueueObservation(
        int(due),
        int(soon),
        int(later),
        None if oldest_ms < 0 else max(0, now_ms - oldest_ms) / 1000,
        None if next_ms < 0 else next_ms,
        int(blocked),
        int(orphaned),
    )


def _read_worker(row: Any) -> WorkerObservation:
    worker_id, pod_uid, busy, capacity, draining, queues, lease_ends_ms, incarnation, registered_ms, ended = (
        row
    )
    return WorkerObservation(
        decode(worker_id),
        decode(pod_uid),
        int(busy),
        int(capacity),
        bool(draining),
        _read_names(queues),
        int(lease_ends_ms),
        decode(incarnation),
        None if registered_ms < 0 else registered_ms,
        int(ended),
    )


def _read_names(text: bytes) -> tuple[str, ...]:
    # The worker wrote it when it registered. Another program may have written there since, which must neither break nor
    # fill an observer.
    try:
        if len(text) > _LONGEST_NAMES_BYTES:
            return ()
        return tuple(str(name) for name in islice(json.loads(text), _MOST_NAMES))
    except (TypeError, ValueError, RecursionError):
        return ()
