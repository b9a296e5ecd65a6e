"""The queue protocol: one method per Lua script.

Everything a worker, a producer or an operator does to the queue in one atomic step is here. The
scripts decide; this module only packs arguments, and ``replies.py`` makes of answers the values of
``messages.py``. Records, locks and lists that RRQ 0.7 applications use by name are in ``store.py``.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from rrq.broker.connection import close_redis, open_redis
from rrq.broker.cron_table import MOST_ENTRIES, CronTable, NewCronTable, PublishCode, parse_cron_table
from rrq.broker.durability import DurableConnection
from rrq.broker.keys import Keys
from rrq.broker.messages import (
    Admission,
    Beat,
    CancelCode,
    Claim,
    ClaimedJob,
    ClaimRequest,
    CronVerdict,
    DeathCertificate,
    Enqueued,
    Observation,
    Outcome,
    ReapReport,
    Reconciliation,
    Renewal,
    Verdict,
    WorkerIdentity,
)
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.broker.replies import (
    parse_admission,
    parse_cancellation,
    parse_claim,
    parse_cron_verdict,
    parse_enqueued,
    parse_info,
    parse_observation,
    parse_published,
    parse_reap_report,
    parse_reconciliation,
    parse_renewal,
    parse_verdicts,
    to_texts,
)
from rrq.broker.server_risks import ServerFacts, parse_server_facts
from rrq.job import JobResult
from rrq.jobs.decoding import parse_job_result
from rrq.jobs.encoding import EncodedJob
from rrq.runtime.masking import clean_foreign_text
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

#: What the fleet must have in hand before a sweep pauses to let other clients in.
_JOBS_PER_REAP = 500
_MOST_WORKERS_OBSERVED = 10_000
_MOST_CRON_TABLES = 1_000
#: Entries of a queue that one call looks at for jobs that may not start; a few milliseconds of Redis.
ADMITTED_PER_CALL = 1_000


class QueueProtocol:
    """The atomic steps of the queue, on one connection that carries many of them at once."""

    def __init__(self, settings: RRQSettings) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.redis: Redis = open_redis(settings)
        self.connection = PipelinedConnection(settings, self.redis)
        # Blocks in Redis while idle, so it needs a socket of its own.
        self.blocking_connection = PipelinedConnection(settings, self.redis)
        self._durable_connection = DurableConnection(settings, self.redis)
        self._bad_cron_tables: dict[str, str] = {}

    async def aclose(self) -> None:
        """Close all connections. Repeated calls are harmless."""
        await self.connection.aclose()
        await self.blocking_connection.aclose()
        await self._durable_connection.aclose()
        await close_redis(self.redis)

    async def enqueue_jobs(self, jobs: Sequence[EncodedJob], token: str) -> Enqueued:
        """Store and queue a batch in one round trip, and wait until it is as safe as the settings ask."""
        queue_keys: dict[str, int] = {}
        args: list[Any] = [
            self.keys.prefix,
            token,
            self.settings.default_unique_job_lock_ttl_seconds,
        ]
        for job in jobs:
            key = self.keys.queue_key(job[4])
            position = queue_keys.setdefault(key, len(queue_keys) + 1)
            args += (*job[:4], position, *job[4:])
        connection = self.connection if self.settings.durability == "server" else self._durable_connection
        enqueued: Enqueued = await connection.run(
            "enqueue_jobs", list(queue_keys), args, read=lambda reply: parse_enqueued(reply, len(jobs))
        )
        return enqueued

    async def fire_cron(
        self, digest: str, tick_ms: int, job: EncodedJob, token: str, unique_ttl_seconds: int | None = None
    ) -> CronVerdict:
        """Enqueue one tick of a cron entry unless anybody in the fleet has done so."""
        keys = [self.keys.cron_last, self.keys.queue_key(job[4])]
        ttl_seconds = unique_ttl_seconds
        if ttl_seconds is None:
            ttl_seconds = self.settings.default_unique_job_lock_ttl_seconds
        args = [self.keys.prefix, token, ttl_seconds, digest, tick_ms, *job[:4], 1, *job[4:]]
        verdict: CronVerdict = await self.connection.run("fire_cron", keys, args, read=parse_cron_verdict)
        return verdict

    async def note_cron_entries(self, digests: Sequence[str], now: datetime) -> list[datetime]:
        """Return up to when the ticks of each entry are settled: its last fired tick, or when it was first seen.

        An entry that nobody in the fleet has seen before is seen now. ``now`` is by the clock of Redis.
        """
        now_ms = round(now.timestamp() * 1000)
        settled_ms: list[int] = await self.connection.run(
            "note_cron_entries", [self.keys.cron_last], [self.keys.prefix, now_ms, *digests], read=list
        )
        return [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in settled_ms]

    async def publish_cron_table(
        self, table: NewCronTable, started_ms: int | None, patience_seconds: float
    ) -> tuple[int, PublishCode]:
        """Publish or renew the table of a group, unless a process that started later speaks for it.

        ``started_ms`` is what the first call of this process returned, None for that call. A publisher
        that has not renewed its table for ``patience_seconds`` is taken for gone.
        """
        args = [
            self.keys.prefix,
            table.group,
            "" if started_ms is None else started_ms,
            table.text,
            _to_ms(table.keep_seconds),
            _to_ms(patience_seconds),
        ]
        keys = [self.keys.cron_tables, self.keys.cron_table_key(table.group)]
        published: tuple[int, PublishCode] = await self.connection.run(
            "publish_cron_table", keys, args, read=parse_published
        )
        return published

    async def read_cron_tables(self) -> tuple[CronTable, ...]:
        """Return all published tables that have entries; what cannot be read is left out and logged."""
        groups = to_texts(
            await self.connection.call("ZREVRANGE", self.keys.cron_tables, 0, _MOST_CRON_TABLES - 1)
        )
        # In flight together on the one connection; not a script, so that a reader needs no right to write.
        tables: list[CronTable] = []
        replies = await asyncio.gather(
            *(self._read_cron_table(group, tables) for group in groups), return_exceptions=True
        )
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, ResponseError | ValueError):
                self._complain_of_cron_table(group, str(reply))
            elif isinstance(reply, BaseException):
                raise reply
        return tuple(tables)

    async def _read_cron_table(self, group: str, tables: list[CronTable]) -> None:
        """Add a table to those that are read already, with as many entries as there is room for."""
        reply = await self.connection.call(
            "HMGET", self.keys.cron_table_key(group), "table", "started_ms", "renewed_ms"
        )
        text, started_ms, renewed_ms = reply
        if not text:
            return
        room = MOST_ENTRIES - sum(len(table.entries) for table in tables)
        table, problems = parse_cron_table(text, int(started_ms or 0), int(renewed_ms or 0), room)
        if problems:
            self._complain_of_cron_table(group, "; ".join(problems))
        else:
            self._bad_cron_tables.pop(group, None)
        tables.append(table)

    def _complain_of_cron_table(self, group: str, problem: str) -> None:
        # Read again every few seconds: worth a line only when it is news.
        problem = clean_foreign_text(problem)
        if self._bad_cron_tables.get(group) != problem:
            self._bad_cron_tables[group] = problem
            logger.error(
                "cron table not read in full; start a worker of the application to publish it again",
                extra={"key": self.keys.cron_table_key(group), "error": problem},
            )

    async def claim_jobs(self, request: ClaimRequest) -> Claim:
        """Hand due jobs, or the named ones, to a worker."""
        worker, keys = request.worker, self.keys
        queue_keys = [keys.queue_key(name) for name in request.queues]
        claim: Claim = await self.connection.run(
            "claim_jobs",
            [
                keys.leases,
                keys.active_jobs_key(worker.worker_id),
                keys.worker_key(worker.worker_id),
                keys.guard,
                keys.drain_key(worker.pod_uid),
                *queue_keys,
            ],
            [
                keys.prefix,
                worker.worker_id,
                worker.incarnation,
                request.token_base,
                request.count,
                self.settings.default_job_timeout_seconds,
                self.settings.default_lock_timeout_extension_seconds,
                request.lock_ttl_ms,
                request.wait_ms,
                keys.dlq_key(self.settings.default_dlq_name),
                self.settings.default_dlq_result_ttl_seconds,
                worker.pool,
                ",".join(f"{weight:g}" for weight in request.weights),
                *request.job_ids,
            ],
            read=lambda reply: parse_claim(reply, request, queue_keys),
        )
        return claim

    async def finish_jobs(self, worker_id: str, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """Store outcomes, each only if its attempt still owns the job. May be sent twice."""
        if not outcomes:
            return []
        keys = [
            self.keys.active_jobs_key(worker_id),
            self.keys.counters,
            self.keys.dlq_key(self.settings.default_dlq_name),
        ]
        args: list[Any] = [self.keys.prefix, worker_id, self.settings.default_dlq_result_ttl_seconds]
        for outcome in outcomes:
            args += outcome
        verdicts: list[Verdict] = await self.connection.run(
            "finish_jobs",
            keys,
            args,
            read=lambda reply: parse_verdicts(reply, len(outcomes)),
        )
        return verdicts

    async def leave_trace(self, job_id: str, token: str, trace_context: str) -> bool:
        """Change the trace context (JSON) of a job; False when the attempt no longer owns it."""
        keys = [self.keys.job_key(job_id)]
        args = [self.keys.prefix, token, trace_context]
        return bool(await self.connection.run("leave_trace", keys, args, read=int))

    async def renew_leases(self, beats: Iterable[Beat]) -> Renewal:
        """Send the heartbeat of one or many workers."""
        keys = self.keys
        args: list[Any] = [
            keys.prefix,
            _to_ms(self.settings.worker_lease_seconds),
            _to_ms(self.settings.lease_renewal_seconds),
            *self._letters(),
            *self._limits_of_blame(),
        ]
        for beat in beats:
            args += (
                beat.worker.worker_id,
                beat.worker.incarnation,
                int(beat.is_registration),
                beat.worker.pod_uid,
                beat.capacity,
                json.dumps(beat.health, default=str),
                beat.health_ttl_seconds,
                json.dumps(list(beat.queues)),
                json.dumps(list(beat.functions)) if beat.is_registration else "",
            )
        renewal: Renewal = await self.connection.run(
            "renew_leases",
            [
                keys.leases,
                keys.guard,
                keys.active_workers,
                keys.active_queues,
                keys.monitor_stream,
                keys.counters,
            ],
            args,
            read=parse_renewal,
        )
        return renewal

    def _letters(self) -> tuple[str, int]:
        """Where what cannot be given back ends, and for how many seconds it is kept."""
        settings = self.settings
        return self.keys.dlq_key(settings.default_dlq_name), settings.default_dlq_result_ttl_seconds

    def _limits_of_blame(self) -> tuple[int, int]:
        """How often a job may end, or lose, its worker before it is dead-lettered."""
        return self.settings.worker_crash_limit, self.settings.worker_lost_limit

    async def reap_workers(self, certificate: DeathCertificate | None = None) -> ReapReport:
        """Give back jobs of workers whose lease ended, or of the one that is proven dead."""
        keys, settings = self.keys, self.settings
        args: list[Any] = [
            keys.prefix,
            _to_ms(settings.worker_lease_seconds),
            _JOBS_PER_REAP,
            *self._letters(),
            *self._limits_of_blame(),
        ]
        if certificate is not None:
            cause = "" if certificate.is_explained else "unknown"
            if certificate.cause is not None:
                cause = json.dumps(certificate.cause)
            worker = certificate.worker
            args += (worker.worker_id, worker.incarnation, cause)
        report: ReapReport = await self.connection.run(
            "reap_workers",
            [keys.leases, keys.guard, keys.active_workers, keys.counters],
            args,
            read=parse_reap_report,
        )
        return report

    async def reconcile_worker(self, worker: WorkerIdentity, held: Sequence[ClaimedJob]) -> Reconciliation:
        """Make Redis and the worker agree on what the worker holds."""
        keys, settings = self.keys, self.settings
        args: list[Any] = [
            keys.prefix,
            worker.worker_id,
            worker.incarnation,
            settings.default_job_timeout_seconds,
            settings.default_lock_timeout_extension_seconds,
            *self._letters(),
        ]
        for claimed in held:
            args += (
                claimed.job_id,
                claimed.token,
                claimed.token_before,
                claimed.queue_key,
                claimed.due_score,
            )
        agreed: Reconciliation = await self.connection.run(
            "reconcile_worker",
            [
                keys.leases,
                keys.active_jobs_key(worker.worker_id),
                keys.worker_key(worker.worker_id),
            ],
            args,
            read=parse_reconciliation,
        )
        return agreed

    async def deregister_worker(self, worker: WorkerIdentity) -> int:
        """Take a worker off the books; returns how many jobs it still holds."""
        keys = self.keys
        in_hand: int = await self.connection.run(
            "deregister_worker",
            [
                keys.leases,
                keys.active_jobs_key(worker.worker_id),
                keys.worker_key(worker.worker_id),
                keys.active_workers,
            ],
            [keys.prefix, worker.worker_id, worker.incarnation],
            read=int,
        )
        return max(0, in_hand)

    async def shorten_leases(self, worker_ids: Sequence[str]) -> int:
        """Hint that these workers may be gone; a renewal voids it. Returns how many it reached."""
        args = [self.keys.prefix, _to_ms(self.settings.lease_renewal_seconds), *worker_ids]
        shortened: int = await self.connection.run("shorten_leases", [self.keys.leases], args, read=int)
        return shortened

    async def cancel_job(self, job_id: str) -> tuple[CancelCode, str]:
        """Cancel a job; returns what happened and the status it had."""
        cancelled: tuple[CancelCode, str] = await self.connection.run(
            "cancel_job", [], [self.keys.prefix, job_id], read=parse_cancellation
        )
        return cancelled

    async def watch_job(self, job_id: str, *, wants_event: bool) -> JobResult | None:
        """Look at a job and, if wished, have its end announced on its event stream."""
        seen: JobResult | None = await self.connection.run(
            "watch_job",
            [self.keys.job_key(job_id)],
            [self.keys.prefix, int(wants_event)],
            read=lambda reply: None if reply is None else parse_job_result(*reply),
        )
        return seen

    async def observe(
        self,
        queue_names: Sequence[str],
        horizon_seconds: float | Mapping[str, float] = 0,
        most_workers: int = _MOST_WORKERS_OBSERVED,
    ) -> Observation:
        """Read queues and living workers in one call that changes nothing.

        ``horizon_seconds`` is how far ahead "soon" reaches, for all queues or by queue name (0 where missing).
        A queue whose key holds something else is left out: how full it is cannot be told.
        """
        horizons = horizon_seconds if isinstance(horizon_seconds, Mapping) else {}
        everywhere = 0 if isinstance(horizon_seconds, Mapping) else horizon_seconds
        args = [
            *(self.keys.prefix, most_workers),
            *(_to_ms(horizons.get(name, everywhere)) for name in queue_names),
        ]
        queue_keys = [self.keys.queue_key(name) for name in queue_names]
        seen: Observation = await self.connection.run(
            "observe_queues",
            [self.keys.leases, *queue_keys],
            args,
            read=lambda reply: parse_observation(reply, queue_names),
        )
        return seen

    async def admit_jobs(self, queue_names: Sequence[str], most: int = ADMITTED_PER_CALL) -> Admission:
        """Park due jobs that may not start now, and let in those that may again, whatever their queue.

        Looks at the first ``most`` due jobs of each queue; the answer says where there is more to do.
        """
        keys = [self.keys.queue_key(name) for name in queue_names]
        admission: Admission = await self.connection.run(
            "admit_jobs",
            keys,
            [self.keys.prefix, most],
            read=lambda reply: parse_admission(reply, queue_names),
        )
        return admission

    async def read_time(self) -> datetime:
        """Return what Redis's clock says, in UTC."""
        seconds, microseconds = await self.connection.call("TIME")
        return datetime.fromtimestamp(int(seconds) + int(microseconds) / 1_000_000, UTC)

    async def read_server_facts(self) -> ServerFacts:
        """Return what the server says about memory and persistence."""
        info: dict[str, Any] = {}
        for section in ("memory", "persistence"):
            info |= parse_info(await self.connection.call("INFO", section))
        try:
            _, snapshots = await self.connection.call("CONFIG", "GET", "save")
        except ResponseError:
            # Managed servers and narrow ACLs keep CONFIG to themselves.
            return parse_server_facts(info, None, self.connection.place)
        return parse_server_facts(info, snapshots.decode(), self.connection.place)

    async def set_drain(self, pod_uid: str, ttl_seconds: float = 30) -> None:
        """Keep the workers of a pod from claiming, until the time is up or it is cleared."""
        await self.connection.call("SET", self.keys.drain_key(pod_uid), "1", "PX", _to_ms(ttl_seconds))

    async def clear_drain(self, pod_uid: str) -> None:
        """Let the workers of a pod claim again."""
        await self.connection.call("DEL", self.keys.drain_key(pod_uid))

    @contextlib.asynccontextmanager
    async def watch_events(self, job_id: str) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        """Yield a function that blocks until the end of a job is announced, or for some seconds."""
        connection, events = PipelinedConnection(self.settings, self.redis), self.keys.events_key(job_id)

        async def watch(seconds: float) -> None:
            try:
                await connection.call(
                    *("XREAD", "COUNT", 1, "BLOCK", max(1, _to_ms(seconds)), "STREAMS", events, "0"),
                    timeout_seconds=seconds + self.settings.redis_socket_timeout_seconds,
                )
            except ResponseError:
                # The key holds something else. The hash is the truth, and is looked at when the time is up.
                await asyncio.sleep(seconds)

        try:
            yield watch
        finally:
            await connection.aclose()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[Callable[[float], Awaitable[str | None]]]:
        """Yield a function that returns the name of the next queue that changes, or None when time is up.

        Producers of RRQ 0.7 announce nothing, and a queue is announced at most every 50 ms: whoever listens
        looks again a little later, and now and then unasked.
        """
        async with self.connection.open_subscriber() as subscriber, subscriber.pubsub() as channel:
            await channel.subscribe(self.keys.notify_channel)

            async def hear(timeout_seconds: float) -> str | None:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=timeout_seconds)
                return None if message is None else self.keys.queue_name(to_texts([message["data"]])[0])

            yield hear

    async def wait_for_wake(self, queues: Sequence[str], timeout_seconds: float) -> bool:
        """Block until a job may have come to one of the queues; False when the time is up."""
        tokens = [self.keys.wake_key(name) for name in queues]
        return await self._wait_on(self.blocking_connection, tokens, timeout_seconds)

    async def wait_for_control(self, worker_ids: Iterable[str], timeout_seconds: float) -> bool:
        """Block until somebody has something to tell one of these workers; False when time is up."""
        control = [self.keys.control_key(worker_id) for worker_id in worker_ids]
        return await self._wait_on(self.connection, control, timeout_seconds)

    async def _wait_on(
        self, connection: PipelinedConnection, keys: list[str], timeout_seconds: float
    ) -> bool:
        # Redis takes 0 for "for ever"; the smallest wait it knows is a millisecond.
        seconds = max(0.001, timeout_seconds)
        patience = seconds + self.settings.redis_socket_timeout_seconds
        reply = await connection.call("BLPOP", *keys, f"{seconds:.3f}", timeout_seconds=patience)
        return reply is not None


def _to_ms(seconds: float) -> int:
    return int(seconds * 1000)
