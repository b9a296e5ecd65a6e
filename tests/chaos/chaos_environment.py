"""The environment of a chaos run: its parts, their ledgers and the faults that are injected."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

import clock_faults
import handler_faults
import network_faults
import process_faults
import redis_faults
from chaos_clock import NoFakeClock, find_library, remove_traces
from chaos_ledger import EFFECT, LedgerReader, LedgerWriter
from chaos_main import OWN, MainPart
from chaos_producer import LONGEST_SECONDS, SHORTEST_SECONDS
from chaos_sentinel import SentinelPart
from chaos_zero import ZeroPart
from evidence import MAIN, SENTINEL, STALL, ZERO, Evidence, HalfDone, Injected
from final_state import read_part_state
from legacy import LegacyUnavailable, legacy_python
from rrq.client import JobRequest, RRQClient
from rrq.settings import RRQSettings
from verdict import find_shortfalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

    from chaos_config import ChaosConfig
    from fault_plan import PlannedFault

FAULTS: dict[str, Callable[[ChaosEnvironment, PlannedFault], Awaitable[Injected | None]]] = {
    **process_faults.FAULTS,
    **handler_faults.FAULTS,
    **redis_faults.FAULTS,
    **network_faults.FAULTS,
    **clock_faults.FAULTS,
}
CAPACITY_JOBS, QUICK_CAPACITY_JOBS = 400, 120
MEASURING_SECONDS = 20.0
# With less there would be no load beside that of RRQ 0.7.1.
LEAST_CAPACITY = 20.0
TURN_SECONDS = 0.1
# Shorter ones are what `REPORT_SECONDS` leaves room for.
SHORTEST_STALL_SECONDS = 0.4
FENCED_MESSAGE = "late outcome refused, the job had been given to another attempt"


class ChaosEnvironment:
    """All parts of a run, their ledgers, and the injected faults."""

    def __init__(self, config: ChaosConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.left_out: list[str] = []
        library = None
        if config.is_quick:
            self.left_out.append(
                "clock faults, fail-overs, fleets at zero, RRQ 0.7.1, and what takes longer: the run of two minutes has them"
            )
        else:
            try:
                library = find_library()
            except NoFakeClock as reason:
                self.left_out.append(f"clock faults: {reason}")
        self.main = MainPart(config, folder, library)
        if library is not None and self.main.clock is None:
            self.left_out.append(
                "clock faults of Redis: the server of this run, or every one here, is built with jemalloc"
            )
        self.sentinel = SentinelPart(config, folder, library)
        self.zero = ZeroPart(config, folder)
        self.parts: Sequence[MainPart | SentinelPart | ZeroPart] = (
            (self.main,) if config.is_quick else (self.main, self.sentinel, self.zero)
        )
        self.acknowledged = LedgerWriter(folder / "acknowledged-faults")
        self.faults: list[Injected] = []
        self.stalls: list[Injected] = []
        self.missed: list[str] = []
        self.complaints: list[str] = []
        self.refused = 0
        self.capacity = config.capacity_jobs_per_second
        self._watches: set[asyncio.Task[None]] = set()
        self._injections: set[asyncio.Task[None]] = set()
        self._ledgers = {
            MAIN: LedgerReader(folder / "ledger"),
            SENTINEL: LedgerReader(self.sentinel.folder / "ledger"),
            ZERO: LedgerReader(self.zero.folder / "ledger"),
        }
        self._readers = {
            MAIN: [LedgerReader(folder / f"acknowledged-{who}") for who in ("main", "legacy", "faults")],
            SENTINEL: [LedgerReader(self.sentinel.folder / "acknowledged")],
            ZERO: [LedgerReader(self.zero.folder / "acknowledged")],
        }
        self._acknowledged: dict[str, dict[str, float]] = {part: {} for part in self._readers}
        self._effects: set[str] = set()
        self._open: set[str] = set()
        self.load_begun_at = self.load_ended_at = 0.0

    # Running

    async def start(self) -> None:
        # Its environment is made at the first use, which takes seconds; under load they would be a fault of ours.
        if not self.config.is_quick:
            with contextlib.suppress(LegacyUnavailable):
                await asyncio.to_thread(legacy_python)
        await asyncio.gather(*(part.start() for part in self.parts))
        settings = RRQSettings(
            redis_dsn=self.main.server.dsn,
            redis_socket_timeout_seconds=self.config.socket_timeout_seconds,
            default_job_timeout_seconds=self.config.job_timeout_seconds,
        )
        self.client = RRQClient(settings)

    async def measure_capacity(self) -> float:
        """Return how many jobs a second the pods do when nothing else is asked of them or of the machine."""
        jobs = QUICK_CAPACITY_JOBS if self.config.is_quick else CAPACITY_JOBS
        requests = [
            JobRequest("note", (seconds,), queue_name=OWN)
            for seconds in (SHORTEST_SECONDS, LONGEST_SECONDS) * (jobs // 2)
        ]
        begun_at = time.monotonic()
        await self.client.enqueue_many(requests)
        # Where a machine has hardly any time for the pods, the rest of these jobs is part of the load.
        while len(self._effects) < jobs and time.monotonic() < begun_at + MEASURING_SECONDS:
            await asyncio.sleep(0.02)
            self.read_ledgers()
        # At the end slots stand empty for want of jobs, for half of a long one on average.
        seconds = max(0.1, time.monotonic() - begun_at - LONGEST_SECONDS / 2)
        self.capacity = max(LEAST_CAPACITY, len(self._effects) / seconds)
        return self.capacity

    @property
    def jobs_per_second(self) -> float:
        """Half of what the pods can do here and now, and never more than half of what their slots allow."""
        return min(self.config.jobs_per_second, self.capacity / 2)

    async def start_load(self) -> None:
        self.load_begun_at = time.monotonic()
        self._stall_watch = asyncio.create_task(watch_for_stalls(self.stalls))
        await self.main.start_load(self.jobs_per_second)
        if self.sentinel in self.parts:
            await self.sentinel.start_load()
        if self.main.legacy_missing:
            self.left_out.append(f"RRQ 0.7.1: {self.main.legacy_missing}")

    async def end_load(self) -> None:
        for refused, complaints in await asyncio.gather(self.main.end_load(), self.sentinel.end_load()):
            self.refused += refused
            self.complaints += complaints
        self.load_ended_at = time.monotonic()

    def inject(self, fault: PlannedFault) -> None:
        """Begin a fault; it goes on beside whatever else there is."""
        task = asyncio.create_task(self._inject(fault), name=f"fault {fault.number} {fault.kind}")
        self._injections.add(task)
        task.add_done_callback(self._injections.discard)

    async def _inject(self, fault: PlannedFault) -> None:
        try:
            injected = await FAULTS[fault.kind](self, fault)
        # Whatever goes wrong here is told in the report; the run goes on and everything is cleaned up.
        except HalfDone as half:
            self.complaints.append(f"fault {fault.number} ({fault.kind}) left a mess: {half.__cause__!r}")
            injected = half.injected
        except Exception as error:  # noqa: BLE001
            self.complaints.append(f"fault {fault.number} ({fault.kind}) could not be injected: {error!r}")
            return
        if injected is None:
            self.missed.append(fault.kind)
        else:
            self.faults.append(injected)

    def watch(self, observation: Coroutine[None, None, None]) -> None:
        """Let something be measured in the background."""
        task = asyncio.create_task(observation)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def faults_are_over(self) -> None:
        while self._injections:
            await asyncio.wait(self._injections)

    async def watches_are_over(self) -> None:
        while self._watches:
            await asyncio.wait(self._watches)

    # Looking

    def read_ledgers(self) -> tuple[int, int]:
        """Return how many jobs are acknowledged, and how many of those had no effect yet."""
        for ledger in self._ledgers.values():
            self._effects.update(entry.job_id for entry in ledger.read_on() if entry.event == EFFECT)
        for part, readers in self._readers.items():
            for reader in readers:
                new = {entry.job_id: entry.at for entry in reader.read_on()}
                self._acknowledged[part].update(new)
                self._open.update(new)
        # Only what was open is looked at: this is called in the loop that the networks of the pods run in.
        self._open -= self._effects
        return sum(map(len, self._acknowledged.values())), len(self._open)

    def poison(self) -> set[str]:
        return {job_id for fault in self.faults for job_id in fault.poison}

    async def gather(self) -> Evidence:
        """Stop everything in order and return what there is to judge."""
        if self.sentinel in self.parts:
            await self.sentinel.look_again()
        self.read_ledgers()
        acknowledged = {part.name: self._acknowledged[part.name] for part in self.parts}
        states = {
            part.name: await read_part_state(part.server.port, acknowledged[part.name]) for part in self.parts
        }
        for part in self.parts:
            self.complaints += await part.end()
        self.read_ledgers()
        self.complaints += find_shortfalls(
            self.config.faults,
            len(self.faults),
            sum(self._cannot_be_had(kind) for kind in self.missed),
            self.config.jobs or 0,
            sum(map(len, acknowledged.values())),
        )
        places = [*self.main.places, *([self.sentinel.place] if self.sentinel.place else [])]
        return Evidence(
            acknowledged,
            sorted(
                (entry for ledger in self._ledgers.values() for entry in ledger.entries),
                key=lambda one: one.at,
            ),
            sorted(self.faults, key=lambda one: one.begun_at),
            states,
            legacy_pids=frozenset(self.main.legacy_worker_pids),
            # Each part has a ledger of its own: whoever wrote to it belongs there.
            pids_by_part={
                part: frozenset(entry.pid for entry in ledger.entries)
                for part, ledger in self._ledgers.items()
            },
            due_again=self.main.due_again,
            samples=self.main.samples,
            stalls=self.stalls,
            fenced=sum(place.count_logged(FENCED_MESSAGE) for place in places),
            refused=self.refused,
            legacy_restarts=sum(process.restarts for process in self.main.legacy),
            load_begun_at=self.load_begun_at,
            load_ended_at=self.load_ended_at,
            jobs_per_second=self.jobs_per_second,
            lease_seconds=self.config.lease_seconds,
            complaints=self.complaints,
            left_out=[
                *self.left_out,
                *(
                    f"{kind}, {times} times: there was nobody to hit"
                    for kind, times in Counter(self.missed).items()
                ),
            ],
        )

    def _cannot_be_had(self, kind: str) -> bool:
        """Whether the faults of a kind need what this machine does not have, which the report says elsewhere."""
        return kind.startswith("clock") and bool(self.left_out)

    async def close(self) -> None:
        """Leave nothing behind, whatever happened before."""
        for task in (*self._watches, *self._injections):
            task.cancel()
        if hasattr(self, "_stall_watch"):
            self._stall_watch.cancel()
        if hasattr(self, "client"):
            await self.client.close()
        await self.main.close()
        await self.sentinel.close()
        await self.zero.close()
        self.acknowledged.close()
        remove_traces()


async def watch_for_stalls(found: list[Injected]) -> None:
    """Note when the machine itself stood still: a fault that nobody planned and that hits everybody.

    All networks of the pods run in the event loop of the run. Whenever that does not turn for a while, because others
    have the processors, nobody reaches Redis, and an outcome may be on its way for that much longer.
    """
    while True:
        begun_at = time.monotonic()
        await asyncio.sleep(TURN_SECONDS)
        ended_at = time.monotonic()
        if ended_at - begun_at - TURN_SECONDS > SHORTEST_STALL_SECONDS:
            found += [Injected(0, STALL, part, begun_at, ended_at) for part in (MAIN, SENTINEL)]
