"""The pods of a chaos run: each behind a network and under a clock of its own, started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

from chaos_config import PROCESSES_PER_POD
from chaos_ledger import KILLED, LedgerReader
from pod import SUPPORT, Pod

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_clock import FakeClock
    from chaos_config import ChaosConfig
    from chaos_network import Network

CHAOS = os.path.dirname(__file__)
LOOK_SECONDS = 0.25
# What a kubelet takes at least until a container runs again.
RESTART_SECONDS = 0.5
# For a pod that is told to stop, and for orphans that may be on their way out: beyond every grace period.
END_SECONDS, GONE_SECONDS = 60.0, 30.0


class PodPlace:
    """A pod that is always there, whatever becomes of the processes in it."""

    def __init__(
        self,
        name: str,
        dsn: str,
        folder: Path,
        config: ChaosConfig,
        queues: list[str],
        *,
        network: Network,
        clock: FakeClock | None = None,
    ) -> None:
        self.name = name
        self.network = network
        self.clock = clock
        self.folder = folder / name
        self.folder.mkdir()
        self._dsn = dsn
        self._config = config
        self._options = [option for queue in queues for option in ("--queue", queue)]
        self._environment = {
            "CHAOS_LEDGER": str(folder / "ledger"),
            "PYTHONPATH": os.pathsep.join((CHAOS, str(SUPPORT))),
            **(clock.environment if clock is not None else {}),
        }
        #: Worker processes that are stopped just now; whoever looks for a victim leaves them alone.
        self.stopped: set[int] = set()
        #: Supervisors that a fault has killed; any other that ends has ended by itself.
        self.killed: set[int] = set()
        self._ends: list[tuple[int, int | None]] = []
        self._ledger = LedgerReader(folder / "ledger")
        self.every_process: dict[int, float] = {}
        self._pods: list[Pod] = []
        self._keeping: asyncio.Task[None] | None = None
        self.is_ending = False

    @property
    def pod(self) -> Pod:
        return self._pods[-1]

    def children(self) -> list[int]:
        """Process ids of the living worker processes, oldest first."""
        return self.pod.children()

    def start(self) -> None:
        config = self._config
        self._pods.append(
            Pod(
                self._dsn,
                self.folder,
                "--num-workers",
                str(PROCESSES_PER_POD),
                "--log-level",
                "WARNING",
                *self._options,
                app="chaos_app.settings",
                environment=self._environment,
                worker_concurrency=config.concurrency,
                worker_lease_seconds=config.lease_seconds,
                worker_loop_stall_limit_seconds=5,
                worker_recycle_jobs=500,
                default_job_timeout_seconds=config.job_timeout_seconds,
                base_retry_delay_seconds=0.5,
                redis_socket_timeout_seconds=config.socket_timeout_seconds,
                redis_connect_timeout_seconds=config.socket_timeout_seconds,
            ).start()
        )

    async def is_up(self) -> None:
        await self.pod.is_up()

    def keep(self) -> None:
        """From now on start another pod whenever the supervisor has ended."""
        self._keeping = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    async def _keep(self) -> None:
        while not self.is_ending:
            self._note_processes()
            if self.pod.process.poll() is not None:
                self._note_end()
                await asyncio.sleep(RESTART_SECONDS)
                self.start()
            await asyncio.sleep(LOOK_SECONDS)

    def _note_end(self) -> None:
        pid = self.pod.pid
        if pid not in self.killed:
            self._ends.append((pid, self.pod.process.poll()))
            # Once is enough.
            self.killed.add(pid)

    def unexplained_ends(self) -> list[str]:
        """Return what to say about supervisors that neither a fault nor a job has killed."""
        killed_by_jobs = {entry.pid for entry in self._ledger.read_on() if entry.event == KILLED}
        return [
            f"{self.name} (process {pid}) ended with {code}, and no fault had hit it"
            for pid, code in self._ends
            if pid not in killed_by_jobs
        ]

    def _note_processes(self) -> None:
        for pid in (self.pod.pid, *self.children()):
            with contextlib.suppress(psutil.Error):
                self.every_process.setdefault(pid, psutil.Process(pid).create_time())

    async def end(self) -> list[str]:
        """Stop it in order; returns what was not in order about that."""
        self.is_ending = True
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        self._note_processes()
        complaints = []
        if self.pod.process.poll() is not None:
            self._note_end()
        else:
            self.pod.signal(signal.SIGTERM)
            code = await asyncio.to_thread(self._wait_for_end)
            if code != 0:
                complaints.append(f"{self.name} ended with {code} when it was told to stop")
        complaints += self.unexplained_ends()
        left = await asyncio.to_thread(self._living_after, GONE_SECONDS)
        if left:
            complaints.append(f"processes outlived {self.name}: {left}")
        self.kill_everything()
        return complaints

    def _wait_for_end(self) -> int | None:
        try:
            return self.pod.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _living_after(self, seconds: float) -> list[int]:
        # Orphans of a killed supervisor may stay behind as zombies where nobody collects them; those are dead.
        deadline = time.monotonic() + seconds
        while (alive := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [process.pid for process in alive]

    def _processes(self) -> list[psutil.Process]:
        found = []
        for pid, created_at in self.every_process.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == created_at and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill_everything(self) -> None:
        """Leave nothing behind, also after a run that failed."""
        self.is_ending = True
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for pod in self._pods:
            pod.stop()

    def count_logged(self, message: str) -> int:
        """How many lines of the logs say this."""
        path = self.folder / "pod.log"
        return path.read_text(errors="replace").count(f'"{message}"') if path.exists() else 0
