"""`make soak`: a pod of two processes under steady load while processes and Redis are made to fail.

Every job is entered into a ledger outside Redis. At the end each acknowledged job must be done, every attempt
that ran again must have a cause among the faults that were really injected, nothing may have leaked, and the
jobs of a killed process must have been due again within a second. The seed is printed; the same seed draws the
same faults.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from pod import Pod
from rrq.client import JobRequest, RRQClient
from rrq.connection import REDIS_ERRORS
from rrq.embedded import EmbeddedRedis
from rrq.exc import RRQError
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger import Entry

LEASE_SECONDS = 3.0
JOBS_PER_SECOND = 40
RECYCLE_JOBS = 150
SETTLE_SECONDS = 90.0
WARM_UP_SECONDS = 5.0
# A process that starts and one that was just told to leave hold a few more than usual.
DESCRIPTORS_TO_SPARE = 4
MEMORY_TO_SPARE_BYTES = 8_000_000
DUE_AGAIN_LIMIT_SECONDS = 1.0


@dataclass(frozen=True)
class Fault:
    """What was done to whom, in wall-clock time as the ledger has it."""

    kind: str
    begun_at: float
    ended_at: float
    pid: int | None = None


@dataclass
class Report:
    """What a soak found; `violations` is empty when everything held."""

    seed: int
    seconds: float
    jobs: int = 0
    lost: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    processes_started: int = 0
    recycled: int = 0
    reruns_by_cause: dict[str, int] = field(default_factory=dict)
    repeated_effects: int = 0
    due_again_p50_seconds: float | None = None
    due_again_p99_seconds: float | None = None
    supervisor_descriptors: tuple[int, int] = (0, 0)
    supervisor_rss_bytes: tuple[int, int] = (0, 0)
    violations: list[str] = field(default_factory=list)


class Soak:
    """One run, from the first job to the last check."""

    def __init__(self, seconds: float, seed: int, folder: Path) -> None:
        self.report = Report(seed, seconds)
        self._random = random.Random(seed)
        self._folder = folder
        self._server = EmbeddedRedis(appendonly=True)
        self._faults: list[Fault] = []
        self._due_again_seconds: list[float] = []
        self._job_ids: list[str] = []

    async def run(self) -> Report:
        with self._server:
            settings = RRQSettings(redis_dsn=self._server.dsn, worker_lease_seconds=LEASE_SECONDS)
            self._client = RRQClient(settings)
            self._pod = Pod(
                self._server.dsn,
                self._folder,
                "--num-workers",
                "2",
                worker_lease_seconds=LEASE_SECONDS,
                worker_recycle_jobs=RECYCLE_JOBS,
                redis_socket_timeout_seconds=2,
            )
            with self._pod:
                try:
                    await self._soak()
                finally:
                    await self._client.close()
        return self.report

    async def _soak(self) -> None:
        await self._pod.is_up()
        self._ends_at = time.monotonic() + self.report.seconds
        producing = asyncio.create_task(self._produce())
        await asyncio.sleep(min(WARM_UP_SECONDS, self.report.seconds / 4))
        before = self._look_at_supervisor()
        await self._inject()
        await producing
        unfinished = await self._settle()
        after = self._look_at_supervisor()
        self._judge_jobs(unfinished)
        await self._judge_keys()
        self._judge_leaks(before, after)
        self._judge_times()
        await self._stop_pod()

    # Load

    async def _produce(self) -> None:
        # Random numbers of its own, so that how fast jobs go in does not change which faults are drawn.
        draw = random.Random(self.report.seed + 1)
        while time.monotonic() < self._ends_at:
            batch = [
                JobRequest("note", (round(draw.uniform(0.02, 0.3), 3),)) for _ in range(JOBS_PER_SECOND // 4)
            ]
            # A producer fails fast while Redis is away; only what was acknowledged is promised.
            with contextlib.suppress(RRQError):
                self._job_ids += [job.id for job in await self._client.enqueue_many(batch)]
            await asyncio.sleep(0.25)

    # Faults

    async def _inject(self) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            *(self._kill_process,) * 6,
            *(self._freeze_long,) * 2,
            self._freeze_briefly,
            self._restart_redis,
            self._kill_redis,
        ]
        while time.monotonic() < self._ends_at:
            await asyncio.sleep(self._random.uniform(0.5, 2.5))
            await self._random.choice(faults)()

    async def _pick_process(self) -> tuple[int, str] | None:
        """A child that holds jobs, and its worker id."""
        with contextlib.suppress(*REDIS_ERRORS):
            busy = [
                worker
                for worker in (await self._client.job_store.observe([])).workers.values()
                if worker.busy and int(worker.worker_id.split("_")[2]) in self._pod.children()
            ]
            if busy:
                worker = self._random.choice(sorted(busy, key=lambda worker: worker.worker_id))
                return int(worker.worker_id.split("_")[2]), worker.worker_id
        return None

    async def _kill_process(self) -> None:
        victim = await self._pick_process()
        if victim is None:
            return
        pid, worker_id = victim
        store = self._client.job_store
        held = await store.redis.zrange(store.keys.active_jobs_key(worker_id), 0, -1)
        begun_at, died_at = time.time(), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self._faults.append(Fault("kill -9", begun_at, time.time(), pid))
        while await store.redis.exists(store.keys.active_jobs_key(worker_id)):
            if time.monotonic() - died_at > 3 * LEASE_SECONDS:
                self.report.violations.append(f"jobs of killed process {pid} were not given back")
                return
            await asyncio.sleep(0.002)
        if held:
            self._due_again_seconds.append(time.monotonic() - died_at)

    async def _freeze_long(self) -> None:
        await self._freeze("SIGSTOP past the lease", LEASE_SECONDS * 1.7)

    async def _freeze_briefly(self) -> None:
        await self._freeze("SIGSTOP within the lease", LEASE_SECONDS * 0.3)

    async def _freeze(self, kind: str, seconds: float) -> None:
        victim = await self._pick_process()
        if victim is None:
            return
        begun_at = time.time()
        os.kill(victim[0], signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(victim[0], signal.SIGCONT)
            self._faults.append(Fault(kind, begun_at, time.time(), victim[0]))

    async def _restart_redis(self) -> None:
        begun_at = time.time()
        await asyncio.to_thread(self._server.restart)
        self._faults.append(Fault("Redis restarted", begun_at, time.time()))

    async def _kill_redis(self) -> None:
        begun_at = time.time()
        self._server.kill()
        await asyncio.sleep(self._random.uniform(0.1, 1.5))
        await asyncio.to_thread(self._server.start)
        self._faults.append(Fault("Redis killed", begun_at, time.time()))

    # The end

    async def _settle(self) -> list[str]:
        """Let everything end; returns what is not done when the patience is."""
        deadline = time.monotonic() + SETTLE_SECONDS
        store, unfinished = self._client.job_store, list(self._job_ids)
        while unfinished and time.monotonic() < deadline:
            pipe = store.redis.pipeline(transaction=False)
            for job_id in unfinished:
                pipe.hget(store.keys.job_key(job_id), "status")
            statuses = await pipe.execute()
            unfinished = [
                job_id for job_id, status in zip(unfinished, statuses, strict=True) if status != b"COMPLETED"
            ]
            await asyncio.sleep(0.2)
        return unfinished

    async def _stop_pod(self) -> None:
        family = psutil.Process(self._pod.pid).children(recursive=True)
        self._pod.signal(signal.SIGTERM)
        code = await asyncio.to_thread(self._pod.wait, 30)
        if code != 0:
            self.report.violations.append(f"the pod ended with {code}")
        left = [process.pid for process in family if process.is_running()]
        if left:
            self.report.violations.append(f"processes outlived the pod: {left}")

    # Judging

    def _judge_jobs(self, unfinished: list[str]) -> None:
        report, ledger = self.report, self._pod.ledger
        report.jobs = len(self._job_ids)
        report.lost = len(unfinished)
        report.faults = dict(Counter(fault.kind for fault in self._faults))
        report.processes_started = len({entry.pid for entry in ledger.entries("started")})
        report.recycled = len(self._pod.logged("worker process is recycled"))
        if unfinished:
            report.violations.append(f"{len(unfinished)} acknowledged jobs are not done: {unfinished[:5]}")
        by_job: dict[str, list[Entry]] = {}
        for entry in ledger.entries("started"):
            by_job.setdefault(entry.job_id, []).append(entry)
        causes: Counter[str] = Counter()
        for job_id, starts in by_job.items():
            for start, successor in itertools.pairwise(starts):
                cause = self._cause_of(start, successor)
                causes[cause or "none"] += 1
                if cause is None:
                    report.violations.append(f"job {job_id} ran again without a cause: {start}, {successor}")
        report.reruns_by_cause = dict(causes)
        report.repeated_effects = sum(count - 1 for count in ledger.counts("effect").values())

    def _cause_of(self, cut: Entry, successor: Entry) -> str | None:
        """What cut an attempt before the next one began."""
        for fault in self._faults:
            if fault.pid != cut.pid or fault.begun_at > successor.time or fault.ended_at < cut.time:
                continue
            if fault.kind != "SIGSTOP within the lease":
                return fault.kind
        return None

    async def _judge_keys(self) -> None:
        store = self._client.job_store
        for pattern in ("active:jobs:*", "lock:job:*", "queue:*", "dlq:*", "cancel:*"):
            left = [key async for key in store.redis.scan_iter(store.keys.prefix + pattern)]
            if left:
                self.report.violations.append(f"{len(left)} keys {pattern} are left, such as {left[0]!r}")
        workers = [key async for key in store.redis.scan_iter(store.keys.prefix + "workers:info:*")]
        if len(workers) > 2:
            self.report.violations.append(f"{len(workers)} workers are on record, of which two live")

    def _look_at_supervisor(self) -> tuple[int, int]:
        process = psutil.Process(self._pod.pid)
        return process.num_fds(), process.memory_info().rss

    def _judge_leaks(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        report = self.report
        report.supervisor_descriptors = (before[0], after[0])
        report.supervisor_rss_bytes = (before[1], after[1])
        if after[0] - before[0] > DESCRIPTORS_TO_SPARE:
            report.violations.append(f"descriptors of the supervisor grew from {before[0]} to {after[0]}")
        if after[1] - before[1] > MEMORY_TO_SPARE_BYTES:
            report.violations.append(f"memory of the supervisor grew from {before[1]} to {after[1]} bytes")
        family = psutil.Process(self._pod.pid).children(recursive=True)
        zombies = [process.pid for process in family if process.status() == psutil.STATUS_ZOMBIE]
        # A process that lost its lease while it was stopped goes on; nobody may take that for its end.
        if self._pod.logged("worker process did not end in time, killed"):
            report.violations.append("a process was killed although nothing had asked it to end")
        if zombies:
            report.violations.append(f"zombies: {zombies}")
        if len(family) > 3:  # two, and perhaps one that takes over
            report.violations.append(f"{len(family)} processes below the supervisor")

    def _judge_times(self) -> None:
        samples = sorted(self._due_again_seconds)
        if not samples:
            return
        p99 = samples[min(len(samples) - 1, int(len(samples) * 0.99))]
        self.report.due_again_p50_seconds = round(samples[len(samples) // 2], 4)
        self.report.due_again_p99_seconds = round(p99, 4)
        if p99 >= DUE_AGAIN_LIMIT_SECONDS:
            self.report.violations.append(f"jobs of a killed process were due again after {p99:.2f} s (p99)")


async def soak(seconds: float, seed: int, folder: Path) -> Report:
    """Run one soak and return what it found."""
    return await Soak(seconds, seed, folder).run()


def show(report: Report) -> str:
    lines: list[Any] = [
        f"{name:<24} {value}" for name, value in asdict(report).items() if name != "violations"
    ]
    lines += [f"VIOLATION: {violation}" for violation in report.violations] or ["every promise held"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path, help="write the report there")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1_000_000)
    print(f"soaking for {given.seconds:g} s, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rrq-soak-") as folder:
        report = asyncio.run(soak(given.seconds, seed, Path(folder)))
        if report.violations:
            kept = Path(tempfile.gettempdir()) / f"rrq-soak-{seed}.log"
            kept.write_text((Path(folder) / "pod.log").read_text())
            print(f"the log of the pod is kept in {kept}")
    print(show(report))
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
