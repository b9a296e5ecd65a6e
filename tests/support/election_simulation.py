"""The election in simulated time: candidates with clocks of their own, and a Lease behind a bad network.

Each candidate runs the real `lead` on an event loop of its own, because a process that is stopped stops as a whole:
its timers and answers wait, while the simulation, the Lease and requests on their way go on. Nothing here really waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import selectors
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVarTuple

from rrq_operator.control.election import (
    Leadership,
    Surroundings,
    lead,
)
from rrq_operator.decide.election_rules import LeaseTaken, LeaseUnreachable, Timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

    from rrq_operator.decide.election_rules import LeaseRecord

Arguments = TypeVarTuple("Arguments")

FIRST_DAY = datetime(2031, 5, 17, tzinfo=UTC)
MOST_EVENTS = 100_000


@dataclass(frozen=True)
class Network:
    """What becomes of requests that are sent now."""

    longest_delay_seconds: float = 0.02
    """Each way."""
    lost_requests: float = 0.0
    """The share of them, 0 to 1."""
    lost_answers: float = 0.0
    """Of requests that were carried out."""
    refused: float = 0.0


class Simulation:
    """Time, the Lease, and the candidates; after every event it checks that at most one of them leads."""

    def __init__(self, seed: int = 0, record: LeaseRecord | None = None) -> None:
        self.now_seconds = 0.0
        self.network = Network()
        self.record = record
        self.is_frozen = False
        self.candidates: dict[str, Candidate] = {}
        self.dice = random.Random(seed)
        self.history: list[str] = []
        self._delayed: list[Callable[[], None]] = []
        self._on_the_way: dict[int, Callable[[], None]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._versions = itertools.count(1000)  # as in etcd, none ever comes back: not the given one either

    def add(self, name: str, **options: Any) -> Candidate:
        self.candidates[name] = Candidate(self, name, **options)
        return self.candidates[name]

    def at(self, moment_seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment_seconds, next(self._order), action))

    def deliver(self, action: Callable[[], None]) -> None:
        """Bring a request or an answer to where it goes, as fast as the present network allows."""

        def arrive() -> None:
            if self._on_the_way.pop(number, None) is not None:
                action()

        number = next(self._order)
        self._on_the_way[number] = action
        self.at(self.now_seconds + self.dice.uniform(0, self.network.longest_delay_seconds), arrive)

    def calm(self) -> None:
        """End all trouble of network and server: what was on its way arrives now."""
        self.network = Network()
        self.thaw()
        on_the_way, self._on_the_way = list(self._on_the_way.values()), {}
        self.dice.shuffle(on_the_way)
        for action in on_the_way:
            action()

    def run(self, seconds: float) -> None:
        """Let that much time pass."""
        until_seconds = self.now_seconds + seconds
        for _ in range(MOST_EVENTS):
            self._let_everybody_act()
            if not self._events or self._events[0][0] > until_seconds:
                self.now_seconds = until_seconds
                return
            moment_seconds, _, action = heapq.heappop(self._events)
            self.now_seconds = max(self.now_seconds, moment_seconds)
            action()
        raise AssertionError(f"a candidate acts without pause: {self.history[-20:]}")

    def run_until_led(self, longest_seconds: float) -> float:
        """Return after how many seconds a candidate led."""
        began_at_seconds = self.now_seconds
        while not self.leaders():
            assert self.now_seconds < began_at_seconds + longest_seconds, (
                f"no candidate leads: {self.history[-30:]}"
            )
            self.run(0.01)
        return self.now_seconds - began_at_seconds

    def leaders(self) -> list[str]:
        return [name for name, candidate in self.candidates.items() if candidate.is_leading()]

    def delete(self) -> None:
        """Somebody deletes the Lease."""
        self.note("the lease is deleted")
        self.record = None

    def freeze(self) -> None:
        """From now on requests arrive and wait, as with a server that is stopped."""
        self.is_frozen = True

    @property
    def is_waited_for(self) -> bool:
        """Whether a request has arrived since it froze."""
        return bool(self._delayed)

    def thaw(self) -> None:
        self.is_frozen = False
        delayed, self._delayed = self._delayed, []
        self.dice.shuffle(delayed)
        for action in delayed:
            action()

    def close(self) -> None:
        for candidate in self.candidates.values():
            candidate.close()

    def send(
        self, action: Callable[[], LeaseRecord | None], answer: asyncio.Future[LeaseRecord | None]
    ) -> None:
        """Carry out a request some time later, and answer it some time after that, if the network lets us."""

        def arrive() -> None:
            if self.is_frozen:
                self._delayed.append(arrive)
                return
            try:
                outcome: LeaseRecord | LeaseTaken | None = action()
            except LeaseTaken as error:
                outcome = error
            if self.dice.random() >= network.lost_answers:
                self.deliver(lambda: _settle(answer, outcome))

        network = self.network
        if self.dice.random() < network.refused:
            self.deliver(lambda: _settle(answer, LeaseUnreachable("refused")))
        elif self.dice.random() >= network.lost_requests:
            self.deliver(arrive)

    def store(self, record: LeaseRecord) -> LeaseRecord:
        """The API server: an update that changes nothing gives no new version."""
        if self.record is None or replace(record, version="") != replace(self.record, version=""):
            self.record = replace(record, version=str(next(self._versions)))
        return self.record

    def note(self, text: str) -> None:
        self.history.append(f"{self.now_seconds:.3f} {text}")

    def _let_everybody_act(self) -> None:
        for candidate in self.candidates.values():
            candidate.act()
            leaders = self.leaders()
            assert len(leaders) <= 1, f"{leaders} lead at once: {self.history[-30:]}"


class Candidate:
    """A process that takes part: it may be stopped for a while, asked to end, or killed."""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        *,
        clock_offset_seconds: float = 0.0,
        clock_rate: float = 1.0,
        wall_offset_seconds: float = 0.0,
        work: Callable[[Leadership], Awaitable[None]] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.name = name
        self.is_paused = False
        self.is_killed = False
        self.changes: list[bool] = []
        self.terms: list[Leadership] = []
        self._simulation = simulation
        self._clock_offset_seconds = clock_offset_seconds
        self._clock_rate = clock_rate
        self._wall_offset = timedelta(seconds=wall_offset_seconds)
        self._work = work or _work_for_ever
        self._loop = _Loop(self)
        surroundings = Surroundings(self.read_clock_seconds, self._read_wall_time, simulation.dice.random)
        self.task = self._loop.create_task(
            lead(
                _Store(simulation, self._loop),
                name,
                self._do_work,
                timing=timing or Timing(),
                on_change=self._note_change,
                surroundings=surroundings,
            )
        )

    def read_clock_seconds(self) -> float:
        return self._clock_offset_seconds + self._simulation.now_seconds * self._clock_rate

    def is_leading(self) -> bool:
        return not self.is_killed and any(term.is_leading() for term in self.terms)

    def stop(self) -> None:
        self._simulation.note(f"{self.name} is asked to end")
        self._loop.call_soon(self.task.cancel)

    def kill(self) -> None:
        self._simulation.note(f"{self.name} is killed")
        self.is_killed = True

    def pause(self) -> None:
        self._simulation.note(f"{self.name} is stopped")
        self.is_paused = True

    def resume(self) -> None:
        self._simulation.note(f"{self.name} goes on")
        self.is_paused = False

    def act(self) -> None:
        """Do all that is due at this moment."""
        while not self.is_paused and not self.is_killed and self._loop.has_something_to_do():
            self._loop.stop()  # after one round
            self._loop.run_forever()

    def wake_at(self, own_clock_seconds: float) -> None:
        moment_seconds = (own_clock_seconds - self._clock_offset_seconds) / self._clock_rate
        self._simulation.at(moment_seconds + 1e-6, lambda: None)

    def close(self) -> None:
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        while unfinished := asyncio.all_tasks(self._loop):
            for task in unfinished:
                task.cancel()  # again and again, for the first time only begins an orderly end
            self._loop.stop()
            self._loop.run_forever()
        self._loop.close()

    async def _do_work(self, leadership: Leadership) -> None:
        self.terms.append(leadership)
        await self._work(leadership)

    def _note_change(self, is_leading: bool) -> None:
        self._simulation.note(f"{self.name} {'leads' if is_leading else 'has stopped to lead'}")
        self.changes.append(is_leading)

    def _read_wall_time(self) -> datetime:
        return FIRST_DAY + timedelta(seconds=self._simulation.now_seconds) + self._wall_offset


class _Store:
    """The Lease as one candidate reaches it."""

    def __init__(self, simulation: Simulation, loop: _Loop) -> None:
        self._simulation = simulation
        self._loop = loop

    async def read(self) -> LeaseRecord | None:
        return await self._ask(lambda: self._simulation.record)

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        def act() -> LeaseRecord:
            if self._simulation.record is not None:
                raise LeaseTaken("there is one")
            return self._simulation.store(record)

        return await self._ask_to_write(act)

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        def act() -> LeaseRecord:
            if self._simulation.record is None or self._simulation.record.version != record.version:
                raise LeaseTaken("it is another one by now")
            return self._simulation.store(record)

        return await self._ask_to_write(act)

    async def _ask_to_write(self, action: Callable[[], LeaseRecord]) -> LeaseRecord:
        written = await self._ask(action)
        assert written is not None
        return written

    async def _ask(self, action: Callable[[], LeaseRecord | None]) -> LeaseRecord | None:
        answer: asyncio.Future[LeaseRecord | None] = self._loop.create_future()
        self._simulation.send(action, answer)
        return await answer


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is the candidate's clock; it never waits, the simulation says when it runs."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._due: list[float] = []
        self._has_called = False
        super().__init__(_NoFiles())

    def time(self) -> float:
        return self._candidate.read_clock_seconds()

    def has_something_to_do(self) -> bool:
        called, self._has_called = self._has_called, False
        is_due = False
        while self._due and self._due[0] <= self.time():
            heapq.heappop(self._due)
            is_due = True
        return called or is_due

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        self._has_called = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        heapq.heappush(self._due, when)
        self._candidate.wake_at(when)
        return super().call_at(when, callback, *args, context=context)


class _NoFiles(selectors.SelectSelector):
    """Has nothing to tell: a simulation waits for no files."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


async def _work_for_ever(leadership: Leadership) -> None:
    await asyncio.get_running_loop().create_future()


def _settle(answer: asyncio.Future[LeaseRecord | None], outcome: LeaseRecord | Exception | None) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
