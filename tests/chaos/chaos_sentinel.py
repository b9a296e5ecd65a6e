"""The part of a chaos run with Sentinel: a master, a replica that may lag, and a pod that asks who the master is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_clock import FakeClock
from chaos_config import SENTINEL_JOBS_PER_SECOND
from chaos_main import OWN, has_work, open_control
from chaos_network import Network
from chaos_pods import PodPlace
from chaos_processes import make_producers, read_producers
from chaos_redis import ChaosRedis
from embedded_sentinel import EmbeddedSentinel
from evidence import SENTINEL
from rrq.broker.connection import REDIS_ERRORS
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_config import ChaosConfig
    from chaos_processes import SideProcess

MASTER_NAME = "mymaster"
# A Sentinel that has stood still for two seconds trusts nothing that it sees for thirty more.
PATIENCE_SECONDS = 90.0
# Longer than a server stands still on a busy machine: a fail-over that nobody asked for is a complaint. Ten times this
# long a replica may have been without its master to be promoted, which has to outlast those thirty seconds.
DOWN_AFTER_MS = 5_000
# More than the kernel keeps for a receiver that does not read: what the master says after it never arrives.
FILLER_BYTES = 24 << 20


@dataclass(frozen=True)
class FailOver:
    """The moments of a fail-over, in the order of time."""

    lagging_since: float
    begun_at: float
    killed_at: float
    promoted_at: float


class SentinelPart:
    """Two servers, of which one is the master, and those who work with it."""

    name = SENTINEL

    def __init__(self, config: ChaosConfig, folder: Path, faketime: Path | None = None) -> None:
        self.config = config
        self.folder = folder / "sentinel"
        self.folder.mkdir()
        self.master = ChaosRedis()
        self.replica = ChaosRedis()
        self._sentinel: EmbeddedSentinel | None = None
        self._faketime = faketime
        self._network: Network | None = None
        self.place: PodPlace | None = None
        self._producers: SideProcess | None = None
        self.redis_fault = asyncio.Lock()
        self.complaints: list[str] = []

    async def start(self) -> None:
        await self.start_servers()
        assert self._sentinel is not None
        sentinel_port, ports = self._sentinel.port, (self.master.port, self.replica.port)
        self._network = await Network(sentinel_port, *ports).start()
        self._network.announce(sentinel_port, ports)
        clock = None
        if self._faketime is not None:
            clock = FakeClock(self._faketime, self.folder / "pod.clock")
        dsn = f"redis+sentinel://127.0.0.1:{self._network.port_to(sentinel_port)}/{MASTER_NAME}/0"
        self.place = PodPlace(
            "pod-sentinel", dsn, self.folder, self.config, [OWN], network=self._network, clock=clock
        )
        self.place.start()
        await self.place.is_up()
        self.place.keep()

    async def start_servers(self) -> None:
        await asyncio.to_thread(self.master.start)
        self.replica.replica_of = self.master.port
        await asyncio.to_thread(self.replica.start)
        self._sentinel = EmbeddedSentinel(self.master, master_name=MASTER_NAME)
        await asyncio.to_thread(self._sentinel.start)
        sentinel = open_control(self._sentinel.port, retries=10)
        try:
            await sentinel.execute_command(
                "SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", DOWN_AFTER_MS
            )
        finally:
            await sentinel.aclose()
        await self.is_replicating()

    @property
    def server(self) -> ChaosRedis:
        """Whoever is the master just now."""
        return self.master

    @property
    def dsn(self) -> str:
        assert self._sentinel is not None
        return f"redis+sentinel://127.0.0.1:{self._sentinel.port}/{MASTER_NAME}/0"

    async def is_replicating(self) -> None:
        """Wait until the replica has all that the master has, and Sentinel knows it."""
        assert self._sentinel is not None
        sentinel = open_control(self._sentinel.port)
        replica = open_control(self.replica.port)

        async def is_ready() -> bool:
            try:
                about = await replica.info("replication")
                known = await sentinel.execute_command("SENTINEL", "REPLICAS", MASTER_NAME)
            except REDIS_ERRORS:
                return False
            return about.get("master_link_status") == "up" and any(
                str(self.replica.port) in str(one) and "s_down" not in str(one) for one in known
            )

        try:
            await eventually(is_ready, PATIENCE_SECONDS, "the replica never caught up", interval_seconds=0.1)
        finally:
            await sentinel.aclose()
            await replica.aclose()

    async def start_load(self) -> None:
        options = {
            "dsn": self.dsn,
            "ledger": str(self.folder / "acknowledged"),
            "rate": SENTINEL_JOBS_PER_SECOND,
            "producers": 2,
            "queues": [OWN],
            "seed": self.config.seed + 1,
            "socket_timeout_seconds": self.config.socket_timeout_seconds,
            "job_timeout_seconds": self.config.job_timeout_seconds,
            "durability": "" if self.config.durability == "fsync" else self.config.durability,
        }
        self._producers = make_producers(options, self.folder).start()
        self._producers.keep()

    async def fail_over(self, lag_seconds: float) -> FailOver:
        """Let the replica fall behind, kill the master, wait for the new one."""
        await self._learn_master()
        lagging_since = time.monotonic()
        self.replica.pause()
        try:
            master = open_control(self.master.port, timeout_seconds=10.0)
            try:
                await master.set("chaos:filler", b"x" * FILLER_BYTES)
                await master.delete("chaos:filler")
            finally:
                await master.aclose()
            await asyncio.sleep(lag_seconds)
            begun_at = time.monotonic()
            await asyncio.to_thread(self.master.kill)
            # Until a moment ago it may have acknowledged something.
            killed_at = time.monotonic()
        finally:
            self.replica.resume()
        await self._is_master(self.replica)
        promoted_at = time.monotonic()
        self._exchange()
        return FailOver(lagging_since, begun_at, killed_at, promoted_at)

    async def restore_replica(self) -> None:
        """Bring the old master back as a replica of the new one."""
        await asyncio.to_thread(self.replica.start)
        await self.is_replicating()

    def _exchange(self) -> None:
        self.master, self.replica = self.replica, self.master
        self.master.replica_of, self.replica.replica_of = None, self.master.port

    async def _learn_master(self) -> None:
        """Ask Sentinel who the master is. One that it chose without a fault of ours is told."""
        if await self._read_master_port() == self.replica.port:
            self.complaints.append("Sentinel failed over by itself, with no fault of ours that explains it")
            self._exchange()

    async def _read_master_port(self) -> int:
        assert self._sentinel is not None
        sentinel = open_control(self._sentinel.port, retries=10)
        try:
            found = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
        finally:
            await sentinel.aclose()
        return int(found[1])

    async def _is_master(self, server: ChaosRedis) -> None:
        async def is_promoted() -> bool:
            return await self._read_master_port() == server.port

        await eventually(is_promoted, PATIENCE_SECONDS, "no fail-over", interval_seconds=0.05)

    async def look_again(self) -> None:
        """Before the books are closed: whoever Sentinel says is the master has them."""
        async with self.redis_fault:
            await self._learn_master()

    async def has_work(self) -> bool:
        """Whether any job is queued or in hand, as far as the master says."""
        connection = open_control(self.master.port)
        try:
            return await has_work(connection)
        finally:
            await connection.aclose()

    async def end_load(self) -> tuple[int, list[str]]:
        if self._producers is None:
            return 0, []
        return read_producers(SENTINEL, await self._producers.end(), self._producers.exit_codes)

    async def end(self) -> list[str]:
        found = await self.place.end() if self.place is not None else []
        return [*self.complaints, *found]

    async def close(self) -> None:
        if self._producers is not None:
            self._producers.kill()
        if self.place is not None:
            self.place.kill_everything()
        if self._network is not None:
            await self._network.stop()
        for server in (self._sentinel, self.replica, self.master):
            if server is not None:
                await asyncio.to_thread(server.stop)
