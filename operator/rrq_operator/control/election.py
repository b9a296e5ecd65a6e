"""Leadership of the operator: of all replicas that call `lead`, at most one works at any moment.

The rules are in decide/election_rules.py; this module reads, decides and acts. Every write calls `is_leading()` right before: a
process that was suspended and continues learns from its clock, before anything else, that its term is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rrq_operator.decide.election_rules import (
    Acquire,
    Create,
    LeaseRecord,
    LeaseStore,
    LeaseTaken,
    LeaseUnreachable,
    Look,
    Lost,
    Memory,
    Renew,
    Timing,
    Wait,
    WorkDoesNotStop,
    build_held,
    build_released,
    build_vacant,
    decide,
    observe,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    T = TypeVar("T")

logger = logging.getLogger(__name__)

#: At a stop at most one renewal is on its way, so the second attempt knows the latest version.
RELEASE_ATTEMPTS = 3
#: In how many parts the end of cancelled work is awaited. Between two of them everything that is due runs.
_LOOKS_AT_ENDING_WORK = 10
# Continues while the machine sleeps, which Linux's monotonic clock does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Surroundings:
    """Clocks and randomness, which tests replace."""

    read_clock_seconds: Callable[[], float] = lambda: time.clock_gettime(_CLOCK)
    read_wall_time: Callable[[], datetime] = lambda: datetime.now(UTC)
    roll: Callable[[], float] = random.random
    """From 0 to 1."""


class Leadership:
    """One term of leadership. A later term is another object, so that work left over from this one cannot write."""

    def __init__(self, read_clock_seconds: Callable[[], float], held_until_seconds: float) -> None:
        self._read_clock_seconds = read_clock_seconds
        self._held_until_seconds = held_until_seconds

    def is_leading(self) -> bool:
        """Whether a write may be sent now. The next leader starts at least 1.5 s later (by default), so it has time to arrive."""
        return self._read_clock_seconds() < self._held_until_seconds

    def extend(self, held_until_seconds: float) -> None:
        self._held_until_seconds = held_until_seconds

    def revoke(self) -> None:
        self._held_until_seconds = float("-inf")


def make_identity(pod_name: str) -> str:
    """Return a name that no other process has, and not this container after a restart either."""
    return f"{pod_name}_{secrets.token_hex(4)}"


async def lead(
    lease: LeaseStore,
    identity: str,
    work: Callable[[Leadership], Awaitable[None]],
    *,
    timing: Timing = Timing(),  # noqa: B008  frozen, so that all calls may share it
    on_change: Callable[[bool], None] = lambda is_leading: None,
    surroundings: Surroundings = Surroundings(),  # noqa: B008  frozen too
) -> None:
    """Take part in the election for ever, and run ``work`` while this process leads.

    When the leadership is lost, `lead` cancels the work and continues as a candidate; if the work does not end within
    `Timing.work_stop_seconds`, it raises `WorkDoesNotStop`, and the process has to exit. When the work fails or
    returns by itself, `lead` releases the Lease and fails or returns with it. Cancelling `lead` stops the work,
    releases the Lease and returns. ``on_change`` is called with True before the work starts and False after it ended.
    """
    campaign = _Campaign(lease, identity, timing, surroundings)
    is_over = False
    while not is_over:
        try:
            leadership = await campaign.win()
        except asyncio.CancelledError:
            await campaign.release()  # a write of our name may have been on its way
            return
        is_over = await _serve(campaign, leadership, work, on_change)


async def _serve(
    campaign: _Campaign,
    leadership: Leadership,
    work: Callable[[Leadership], Awaitable[None]],
    on_change: Callable[[bool], None],
) -> bool:
    """Run the work for one term; returns whether `lead` is over, rather than the leadership lost."""
    on_change(True)
    working = asyncio.ensure_future(work(leadership))
    keeping = asyncio.ensure_future(campaign.keep())
    is_stopped = False
    try:
        await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        is_stopped = True
    is_cut_short = working.cancel()
    try:
        # The leadership lasts until the work has ended: it may still write.
        try:
            await _wait_for_end(working, campaign.timing)
        except asyncio.CancelledError:
            if is_stopped:
                raise  # a second stop: the Lease stays ours, for the work may still run
            is_stopped = True
            await _wait_for_end(working, campaign.timing)
    finally:
        keeping.cancel()
        leadership.revoke()
        on_change(False)
    if is_cut_short and not working.cancelled() and (error := working.exception()) is not None:
        logger.error("the work of the leader failed while it was stopped", exc_info=error)
    if is_stopped or not is_cut_short:
        await asyncio.wait({keeping})
        await campaign.release()
        if not is_cut_short:
            await working
        return True
    await keeping  # lost; or it failed, which has to be seen
    return False


async def _wait_for_end(working: asyncio.Future[None], timing: Timing) -> None:
    # In parts: a process that got no processor for a second would mistake its own standstill for work that does not end,
    # and exit in the middle of an outage that it should survive.
    for _ in range(_LOOKS_AT_ENDING_WORK):
        await asyncio.wait({working}, timeout=timing.work_stop_seconds / _LOOKS_AT_ENDING_WORK)
        if working.done():
            return
    raise WorkDoesNotStop(
        f"The work of the leader goes on {timing.work_stop_seconds} s after it was cancelled. "
        "End this process, so that the next leader is alone."
    )


class _Campaign:
    """One candidate: does what the rules decide, and remembers the outcome."""

    def __init__(self, lease: LeaseStore, identity: str, timing: Timing, surroundings: Surroundings) -> None:
        self.timing = timing
        self._lease = lease
        self._surroundings = surroundings
        self._memory = Memory(identity)
        self._leadership: Leadership | None = None
        self._pause_seconds = 0.0
        self._last_trouble = ""

    async def win(self) -> Leadership:
        """Return when this candidate has become the leader."""
        while True:
            await self._take_turn()
            # An answer that was read too late, after this process was suspended, won nothing.
            if self._leadership is not None and self._leadership.is_leading():
                logger.info("became the leader", extra={"identity": self._memory.identity})
                return self._leadership

    async def keep(self) -> None:
        """Renew until the leadership is lost."""
        while self._leadership is not None:
            await self._take_turn()

    async def release(self) -> None:
        """Release the Lease for the next candidate, if it is ours and can be reached."""
        self._forget_leadership()
        for _ in range(RELEASE_ATTEMPTS):
            try:
                seen = await self._call(self._lease.read())
                if seen is None or seen.holder != self._memory.identity:
                    return
                await self._call(
                    self._lease.replace(build_released(seen, self._surroundings.read_wall_time()))
                )
            except LeaseTaken:
                continue
            except LeaseUnreachable as error:
                logger.warning(
                    "lease not released, the next leader waits until it expires",
                    extra={"identity": self._memory.identity, "error": str(error)},
                )
                return
            logger.info("released the leadership", extra={"identity": self._memory.identity})
            return

    async def _take_turn(self) -> None:
        await asyncio.sleep(self._pause_seconds)
        self._pause_seconds = await self._step()

    async def _step(self) -> float:
        """Take the next step; returns after how many seconds another is due."""
        decision = decide(self._memory, self._now(), self.timing)
        try:
            match decision:
                case Look():
                    self._note(await self._call(self._lease.read()))
                    return 0.0
                case Create():
                    self._note(await self._call(self._lease.create(build_vacant(self.timing))))
                    return 0.0
                case Acquire(seen) | Renew(seen):
                    return await self._write(seen)
                case Wait(seconds):
                    self._memory = replace(self._memory, is_current=False)
                    self._tell_trouble("")
                    return min(seconds, self._jitter(self.timing.renew_interval_seconds))
                case Lost(reason):
                    logger.warning(
                        "lost the leadership", extra={"identity": self._memory.identity, "reason": reason}
                    )
                    self._forget_leadership()
                    return 0.0
        except LeaseTaken:
            self._memory = replace(self._memory, is_current=False)
            # A leader has to know the new holder at once; a candidate that lost a race has time.
            return 0.0 if self._leadership is not None else self._jitter(self.timing.retry_seconds)
        except LeaseUnreachable as error:
            self._memory = replace(self._memory, is_current=False)
            self._tell_trouble(str(error))
            return self._limit(self._jitter(self.timing.retry_seconds))

    async def _write(self, seen: LeaseRecord) -> float:
        record = build_held(seen, self._memory.identity, self._surroundings.read_wall_time(), self.timing)
        # Before the call: counted from its answer, the time would end too late by the length of the call.
        sent_at_seconds = self._now()
        self._note(await self._call(self._lease.replace(record)))
        held_until_seconds = sent_at_seconds + self.timing.renew_deadline_seconds
        self._memory = replace(self._memory, held_until_seconds=held_until_seconds)
        if self._leadership is None:
            self._leadership = Leadership(self._surroundings.read_clock_seconds, held_until_seconds)
        self._leadership.extend(held_until_seconds)
        self._tell_trouble("")
        return max(0.0, sent_at_seconds + self.timing.renew_interval_seconds - self._now())

    def _note(self, record: LeaseRecord | None) -> None:
        sighting = observe(self._memory.sighting, record, self._now())
        self._memory = replace(self._memory, sighting=sighting, is_current=True)

    async def _call(self, answer: Awaitable[T]) -> T:
        # Not beyond the end of our term, so that the work stops in time whatever the API server does.
        try:
            async with asyncio.timeout(self._limit(self.timing.call_timeout_seconds)):
                return await answer
        except TimeoutError as error:
            raise LeaseUnreachable("The API server did not answer in time.") from error

    def _limit(self, seconds: float) -> float:
        if self._memory.held_until_seconds is None:
            return seconds
        return max(0.0, min(seconds, self._memory.held_until_seconds - self._now()))

    def _forget_leadership(self) -> None:
        if self._leadership is not None:
            self._leadership.revoke()
        self._leadership = None
        self._memory = replace(self._memory, held_until_seconds=None, is_current=False)

    def _tell_trouble(self, trouble: str) -> None:
        """Log trouble when it begins, not twice a second while it lasts."""
        if trouble and trouble != self._last_trouble:
            logger.warning("lease not reached", extra={"identity": self._memory.identity, "error": trouble})
        self._last_trouble = trouble

    def _now(self) -> float:
        return self._surroundings.read_clock_seconds()

    def _jitter(self, seconds: float) -> float:
        """Return up to half less: replicas that started together drift apart, and none is later than asked."""
        return seconds * (1 - self._surroundings.roll() / 2)
