"""Leadership of the operator: of all replicas that call `lead`, at most one works at any moment.

The rules are in decide/election_rules.py; this module looks, decides and acts. Whoever writes asks `is_held()` right before
each write: a process that was stopped and goes on learns from its clock, before anything else, that its time is over.
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

#: A stop finds a renewal of ours on the way at most once, so the second attempt knows the latest version.
RELEASE_ATTEMPTS = 3
#: In how many parts work that was cancelled is waited for, each of which lets all that is due have its turn.
_LOOKS_AT_ENDING_WORK = 10
# Goes on while the machine sleeps, which Linux's monotonic clock does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Surroundings:
    """The clocks and the dice, so that tests can bring their own."""

    read_clock_seconds: Callable[[], float] = lambda: time.clock_gettime(_CLOCK)
    read_wall_time: Callable[[], datetime] = lambda: datetime.now(UTC)
    roll: Callable[[], float] = random.random
    """From 0 to 1."""


class Leadership:
    """One term of leadership; a later term is another object, so that work left over from this one stays out."""

    def __init__(self, read_clock_seconds: Callable[[], float], held_until_seconds: float) -> None:
        self._read_clock_seconds = read_clock_seconds
        self._held_until_seconds = held_until_seconds

    def is_held(self) -> bool:
        """Whether a write may be sent now. Nobody else starts before it had 1.5 s (by default) to arrive."""
        return self._read_clock_seconds() < self._held_until_seconds

    def extend(self, held_until_seconds: float) -> None:
        self._held_until_seconds = held_until_seconds

    def revoke(self) -> None:
        self._held_until_seconds = float("-inf")


def make_identity(pod_name: str) -> str:
    """Return a name that no other process has, not even this container after a restart."""
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
    """Take part in the election for ever, and run ``work`` whenever and as long as we lead.

    Lost leadership cancels the work and goes on as a candidate; work that does not end within
    `Timing.work_stop_seconds` raises `WorkDoesNotStop`, upon which the process has to exit. Work that fails or
    returns by itself releases the lease, and `lead` fails or returns with it. Cancelling `lead` stops the work,
    releases the lease and returns. ``on_change`` is told True before the work starts and False after it ended.
    """
    campaign = _Campaign(lease, identity, timing, surroundings)
    is_over = False
    while not is_over:
        try:
            leadership = await campaign.win()
        except asyncio.CancelledError:
            await campaign.release()  # an acquisition may have been on its way
            return
        is_over = await _serve(campaign, leadership, work, on_change)


async def _serve(
    campaign: _Campaign,
    leadership: Leadership,
    work: Callable[[Leadership], Awaitable[None]],
    on_change: Callable[[bool], None],
) -> bool:
    """Run the work for one term; return whether it is over for good, rather than lost."""
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
        # A stop leaves the leadership as it is until then: the work may still write to end well.
        try:
            await _wait_for_end(working, campaign.timing)
        except asyncio.CancelledError:
            if is_stopped:
                raise  # the second time, without patience; the lease stays ours, for the work may go on
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
    await keeping  # lost; or it failed, which must not pass unseen
    return False


async def _wait_for_end(working: asyncio.Future[None], timing: Timing) -> None:
    # In parts: a process that got no processor for a second would take its own standstill for work that goes on,
    # and end in the middle of an outage that it is to outlive. To end takes such a process longer than the work does.
    for _ in range(_LOOKS_AT_ENDING_WORK):
        await asyncio.wait({working}, timeout=timing.work_stop_seconds / _LOOKS_AT_ENDING_WORK)
        if working.done():
            return
    raise WorkDoesNotStop(
        f"The work of the leader goes on {timing.work_stop_seconds} s after it was cancelled. "
        "End this process, so that the next leader is alone."
    )


class _Campaign:
    """One candidate: carries out what the rules decide, and remembers what came of it."""

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
            # An answer that was read too late, after a pause of this process, won nothing.
            if self._leadership is not None and self._leadership.is_held():
                logger.info("became the leader", extra={"identity": self._memory.identity})
                return self._leadership

    async def keep(self) -> None:
        """Renew until the leadership is lost."""
        while self._leadership is not None:
            await self._take_turn()

    async def release(self) -> None:
        """Leave the lease to whoever comes first, if it is ours and can be reached."""
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
                    "lease not released, the next leader waits until it runs out",
                    extra={"identity": self._memory.identity, "error": str(error)},
                )
                return
            logger.info("released the leadership", extra={"identity": self._memory.identity})
            return

    async def _take_turn(self) -> None:
        await asyncio.sleep(self._pause_seconds)
        self._pause_seconds = await self._step()

    async def _step(self) -> float:
        """Do the next thing, and return after how many seconds another is due."""
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
            # A leader has to know at once by whom; a candidate that lost a race has time.
            return 0.0 if self._leadership is not None else self._jitter(self.timing.retry_seconds)
        except LeaseUnreachable as error:
            self._memory = replace(self._memory, is_current=False)
            self._tell_trouble(str(error))
            return self._limit(self._jitter(self.timing.retry_seconds))

    async def _write(self, seen: LeaseRecord) -> float:
        record = build_held(seen, self._memory.identity, self._surroundings.read_wall_time(), self.timing)
        # Before the call: from the moment of its answer we would count too late, by as long as that took.
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
        # Not beyond the end of our time, so that the work is stopped in time whatever the API server does.
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
        """Log each kind of trouble when it begins, not twice a second as long as it lasts."""
        if trouble and trouble != self._last_trouble:
            logger.warning("lease not reached", extra={"identity": self._memory.identity, "error": trouble})
        self._last_trouble = trouble

    def _now(self) -> float:
        return self._surroundings.read_clock_seconds()

    def _jitter(self, seconds: float) -> float:
        """Shorter by up to half: replicas that started together drift apart, and none is later than asked."""
        return seconds * (1 - self._surroundings.roll() / 2)
