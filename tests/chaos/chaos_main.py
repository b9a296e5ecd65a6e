"""The main part of a chaos run: one Redis, pods behind networks of their own, producers, and RRQ 0.7.1 beside them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from chaos_clock import FakeClock
from chaos_config import LEGACY_JOBS_PER_SECOND
from chaos_network import Network
from chaos_pods import PodPlace
from chaos_processes import make_legacy, make_producers, read_producers
from chaos_redis import ALWAYS, EVERY_SECOND, ChaosRedis, find_server_for_fake_clock
from evidence import MAIN, DueAgain, Sample
from legacy import LegacyUnavailable
from newer_redis import find_server_with_waitaof
from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.keys import Keys
from rrq.constants import DEFAULT_DLQ_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_config import ChaosConfig
    from chaos_processes import SideProcess

SHARED, OWN = "shared", "own"
PRODUCERS = 4
SAMPLE_SECONDS = 0.5
POLL_SECONDS = 0.004
PATIENCE_SECONDS, RETRIES, RETRY_SECONDS = 10.0, 30, 0.3


def open_control(port: int, timeout_seconds: float = 1.0, *, retries: int = 0) -> Any:
    """Return a connection of the run itself, which no fault of the network touches.

    Untyped: redis-py's own types say bytes or text where it is always bytes, and know no raw commands.
    """
    return Redis(
        port=port,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(ConstantBackoff(RETRY_SECONDS), retries),
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
        protocol=2,
    )


def open_patient(port: int) -> Any:
    """The same for what has to be answered, however busy the machine."""
    return open_control(port, PATIENCE_SECONDS, retries=RETRIES)


async def has_work(connection: Any) -> bool:
    """Whether any job is queued or in hand; a Redis that gives no answer may have some."""
    keys = Keys()
    try:
        for pattern in ("queue:*", "active:jobs:*"):
            async for _ in connection.scan_iter(keys.prefix + pattern, count=5000):
                return True
    except REDIS_ERRORS:
        return True
    return False


class MainPart:
    """Everything that the faults of most families hit."""

    name = MAIN

    def __init__(self, config: ChaosConfig, folder: Path, faketime: Path | None) -> None:
        self.config = config
        self.folder = folder
        self.keys = Keys()
        self.clock = None
        newer = find_server_with_waitaof() if config.durability == "fsync" else None
        # With WAITAOF jobs are waited for until the next fsync; an older server has to do one for each.
        fsync = ALWAYS if config.durability == "fsync" and newer is None else EVERY_SECOND
        if faketime is not None and newer is None and find_server_for_fake_clock() is not None:
            self.clock = FakeClock(faketime, folder / "redis.clock")
        self.server = ChaosRedis(self.clock, fsync, newer)
        self._faketime = faketime
        self.places: list[PodPlace] = []
        self.producer_network: Network | None = None
        self.producer_clock: FakeClock | None = None
        self.producers: SideProcess | None = None
        self.legacy: list[SideProcess] = []
        self.legacy_missing: str | None = None
        self.due_again: list[DueAgain] = []
        self.samples: list[Sample] = []
        #: Held by whoever takes Redis away: one such fault at a time.
        self.redis_fault = asyncio.Lock()

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)
        self.control = open_control(self.server.port)
        # For orders that have to be carried out, however busy the machine and whatever else befalls Redis.
        self.patient = open_patient(self.server.port)
        for number in range(1, self.config.pods + 1):
            network = await Network(self.server.port).start()
            clock = None
            # The last one runs as pods do anywhere, without a library between it and the time.
            if self._faketime is not None and number < self.config.pods:
                clock = FakeClock(self._faketime, self.folder / f"pod-{number}.clock")
            place = PodPlace(
                f"pod-{number}",
                f"redis://127.0.0.1:{network.port_to(self.server.port)}/0",
                self.folder,
                self.config,
                # In another order each: whoever comes first must not starve the other.
                [OWN, SHARED] if number % 2 else [SHARED, OWN],
                network=network,
                clock=clock,
            )
            self.places.append(place)
            place.start()
        await asyncio.gather(*(place.is_up() for place in self.places))
        for place in self.places:
            place.keep()

    async def start_load(self, jobs_per_second: float) -> None:
        config = self.config
        self.producer_network = await Network(self.server.port).start()
        if self._faketime is not None:
            self.producer_clock = FakeClock(self._faketime, self.folder / "producers.clock")
        options = {
            "dsn": f"redis://127.0.0.1:{self.producer_network.port_to(self.server.port)}/0",
            "ledger": str(self.folder / "acknowledged-main"),
            "rate": jobs_per_second - (0.0 if config.is_quick else LEGACY_JOBS_PER_SECOND),
            "producers": PRODUCERS,
            "queues": [OWN, OWN, OWN, SHARED],
            "shared_queue": SHARED,
            "seed": config.seed,
            "socket_timeout_seconds": config.socket_timeout_seconds,
            "job_timeout_seconds": config.job_timeout_seconds,
            # There is no replica here to wait for.
            "durability": "" if config.durability == "replica" else config.durability,
        }
        self.producers = make_producers(options, self.folder, self.producer_clock).start()
        self.producers.keep()
        if not config.is_quick:
            self._start_legacy()
        self._sampling = asyncio.create_task(self._sample())

    def _start_legacy(self) -> None:
        common = {"dsn": self.server.dsn, "queue": SHARED, "rate": LEGACY_JOBS_PER_SECOND}
        common["seed"] = str(self.config.seed)
        roles = (
            {"role": "worker", "ledger": str(self.folder / "ledger")},
            {"role": "producer", "ledger": str(self.folder / "acknowledged-legacy")},
        )
        try:
            self.legacy = [make_legacy(common | role, self.folder).start() for role in roles]
        except LegacyUnavailable as reason:
            self.legacy_missing = str(reason)
        for process in self.legacy:
            process.keep()

    @property
    def legacy_worker_pids(self) -> set[int]:
        return self.legacy[0].pids if self.legacy else set()

    async def _sample(self) -> None:
        connection = open_control(self.server.port, 0.4)
        try:
            while True:
                self.samples.append(Sample(time.monotonic(), await self.read_backlog(connection)))
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            await connection.aclose()

    async def read_backlog(self, connection: Any) -> int | None:
        """Return how many jobs are due and wait; None when Redis gives no answer."""
        try:
            seconds, microseconds = await connection.time()
            now_ms = seconds * 1000 + microseconds // 1000
            counts = [
                await connection.zcount(self.keys.queue_key(queue), "-inf", now_ms) for queue in (OWN, SHARED)
            ]
        except REDIS_ERRORS:
            return None
        return int(sum(counts))

    async def watch_due_again(
        self, kind: str, worker_ids: list[str], begun_at: float, pids: tuple[int, ...]
    ) -> None:
        """Take the time until nobody holds the jobs of these workers any more."""
        keys = [self.keys.active_jobs_key(worker_id) for worker_id in worker_ids]
        try:
            jobs = sum([await self.control.zcard(key) for key in keys])
        except REDIS_ERRORS:
            return
        deadline = begun_at + self.config.watch_seconds
        while jobs:
            with contextlib.suppress(*REDIS_ERRORS):
                if not await self.control.exists(*keys):
                    seconds = time.monotonic() - begun_at
                    self.due_again.append(DueAgain(kind, begun_at, seconds, jobs, pids))
                    return
            if time.monotonic() > deadline:
                self.due_again.append(DueAgain(kind, begun_at, None, jobs, pids))
                return
            await asyncio.sleep(POLL_SECONDS)

    async def worker_ids(self, pids: set[int]) -> list[str]:
        """The workers that these processes are, as Redis knows them."""
        try:
            known = await self.control.zrange(self.keys.leases, 0, -1)
        except REDIS_ERRORS:
            return []
        return [name for name in (one.decode() for one in known) if _pid_of(name) in pids]

    async def has_work(self) -> bool:
        """Whether any job is queued or in hand, as far as Redis says."""
        return await has_work(self.control)

    async def has_buried(self, job_ids: set[str]) -> bool:
        """Whether all of these are among the dead letters."""
        try:
            dead = await self.control.lrange(self.keys.dlq_key(DEFAULT_DLQ_NAME), 0, -1)
        except REDIS_ERRORS:
            return False
        return job_ids <= {job_id.decode() for job_id in dead}

    async def end_load(self) -> tuple[int, list[str]]:
        """Have no more jobs come in; returns how many sends were refused or unanswered, and what went wrong."""
        found: tuple[int, list[str]] = 0, []
        if self.producers is not None:
            found = read_producers(MAIN, await self.producers.end(), self.producers.exit_codes)
        for process in self.legacy[1:]:
            await process.end()
        return found

    async def end(self) -> list[str]:
        complaints: list[str] = []
        for process in self.legacy[:1]:
            await process.end()
        for found in await asyncio.gather(*(place.end() for place in self.places)):
            complaints += found
        self._sampling.cancel()
        return complaints

    async def close(self) -> None:
        """Leave nothing behind, whatever happened before."""
        if hasattr(self, "_sampling"):
            self._sampling.cancel()
        for process in (self.producers, *self.legacy):
            if process is not None:
                process.kill()
        for place in self.places:
            place.kill_everything()
            await place.network.stop()
        if self.producer_network is not None:
            await self.producer_network.stop()
        if hasattr(self, "control"):
            await self.control.aclose()
            await self.patient.aclose()
        await asyncio.to_thread(self.server.stop)


def _pid_of(worker_id: str) -> int | None:
    # rrq_worker_<pid>_<random>
    parts = worker_id.split("_")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None
