"""The part of a chaos run that is at zero most of the time: a pool of local mode, and burst runs, on a Redis of its own.

Nothing disturbs that Redis. What is tried here is that jobs come back when not one worker is left to take them back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

from chaos_ledger import ACKNOWLEDGED, EFFECT, STARTED, LedgerReader, LedgerWriter
from chaos_main import has_work, open_control
from chaos_redis import ChaosRedis
from evidence import ZERO
from local_mode import LocalMode, build_manifest
from pod import SUPPORT
from rrq.broker.keys import Keys
from rrq.client import JobRequest, RRQClient
from rrq.settings import RRQSettings
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_config import ChaosConfig

POOL_QUEUE, BURST_QUEUE = "scaled-to-zero", "bursts"
# All of them fit into one process, so that nothing is due while they are in hand.
JOBS = 4
# Long enough to be in hand together when their processes are killed.
JOB_SECONDS = 2.0
# Several interpreters start one after the other, on processors that the rest of the run keeps busy.
START_SECONDS = 60.0
CHAOS = os.path.dirname(__file__)


class ZeroPart:
    """One Redis, and processes that come and go with each fault."""

    name = ZERO

    def __init__(self, config: ChaosConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder / ZERO
        self.folder.mkdir()
        self.server = ChaosRedis()
        self.complaints: list[str] = []
        #: Held by a fault, because each of them wants to see Redis without any other worker.
        self.only_fault = asyncio.Lock()
        self._acknowledged = LedgerWriter(self.folder / ACKNOWLEDGED)
        self._ledger = LedgerReader(self.folder / "ledger")
        self._family: set[psutil.Process] = set()

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)
        self.control = open_control(self.server.port, timeout_seconds=10.0)
        self.client = RRQClient(RRQSettings(redis_dsn=self.server.dsn))

    # Processes

    @property
    def _environment(self) -> dict[str, str]:
        settings = {
            "worker_concurrency": JOBS,
            "worker_lease_seconds": self.config.lease_seconds,
            "default_job_timeout_seconds": self.config.job_timeout_seconds,
        }
        return {
            "CHAOS_LEDGER": str(self.folder / "ledger"),
            "PYTHONPATH": os.pathsep.join((CHAOS, str(SUPPORT))),
            **{f"RRQ_{name.upper()}": str(value) for name, value in settings.items()},
        }

    def start_pool(self) -> LocalMode:
        """Start local mode with one pool that may go to zero."""
        pool = build_manifest(
            queues=[POOL_QUEUE],
            worker={"settings": "chaos_app.settings"},
            scaling={"minReplicas": 0, "maxReplicas": 1},
        )
        return LocalMode(self.folder, self.server.dsn, pool, **self._environment).start()

    def start_burst(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rrq", "worker", "run", "--burst", "--queue", BURST_QUEUE]
        with (self.folder / "bursts.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--settings", "chaos_app.settings", "--num-workers", "1"],
                env=os.environ | {"RRQ_REDIS_DSN": self.server.dsn} | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill_family(self, process: subprocess.Popen[bytes]) -> tuple[int, ...]:
        """Kill a process and all that it started, in a way that leaves none of them time to tell of another."""
        root = psutil.Process(process.pid)
        root.suspend()
        family = [*root.children(recursive=True), root]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        return tuple(one.pid for one in family)

    def note_family(self, process: subprocess.Popen[bytes]) -> None:
        """Remember what there is to be ended with the run."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            self._family |= {root, *root.children(recursive=True)}

    # Jobs

    async def enqueue(self, queue: str) -> list[str]:
        """Send as many jobs as one process holds; returns their ids."""
        jobs = await self.client.enqueue_many(
            [JobRequest("note", (JOB_SECONDS,), queue_name=queue) for _ in range(JOBS)]
        )
        for job in jobs:
            self._acknowledged.record(ACKNOWLEDGED, job.id)
        return [job.id for job in jobs]

    async def have(self, event: str, job_ids: list[str], seconds: float) -> None:
        """Wait until the ledger has this event of all of these jobs."""

        def seen() -> bool:
            missing = self.missing(event, job_ids)
            assert not missing, f"{missing} have not"
            return True

        await eventually(seen, seconds, f"jobs without {event!r}")

    def missing(self, event: str, job_ids: list[str]) -> list[str]:
        self._ledger.read_on()
        found = {entry.job_id for entry in self._ledger.entries if entry.event == event}
        return [job_id for job_id in job_ids if job_id not in found]

    async def are_in_hand(self, job_ids: list[str]) -> None:
        await self.have(STARTED, job_ids, START_SECONDS)

    async def have_ended(self, job_ids: list[str]) -> None:
        await self.have(EFFECT, job_ids, self.config.watch_seconds + START_SECONDS)

    async def leases_have_ended(self) -> None:
        """Wait until not one worker is alive by the clock of Redis."""
        leases = Keys().leases

        async def seen() -> bool:
            seconds, _ = await self.control.time()
            return not await self.control.zcount(leases, f"({seconds * 1000}", "+inf")

        await eventually(seen, 3 * self.config.lease_seconds, "a lease goes on", interval_seconds=0.1)

    async def has_work(self) -> bool:
        """Whether any job is queued or in hand."""
        return await has_work(self.control)

    # End

    async def end(self) -> list[str]:
        return self.complaints

    async def close(self) -> None:
        for process in self._family:
            with contextlib.suppress(psutil.Error):
                if process.is_running():
                    process.kill()
        self._acknowledged.close()
        if hasattr(self, "control"):
            await self.control.aclose()
            await self.client.close()
        await asyncio.to_thread(self.server.stop)
