"""The controller of a pool and what it is doing now: one action at a time, whoever has the pool.

A pool moves from one Redis to another when its Secret changes, or has none for a while. Its seat goes with it, so
that the next one knows that an action of the one before is not over.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from rrq_operator.api.spec import Pool
from rrq_operator.cluster.redis_sources import SecretVersion
from rrq_operator.control.burst_pool import BurstPool
from rrq_operator.control.replica_pool import ReplicaPool
from rrq_operator.control.services import Round

logger = logging.getLogger(__name__)

Controller = ReplicaPool | BurstPool
Work = Callable[[], Coroutine[None, None, None]]


class Turn:
    """Room for one action, which goes on beside everything else."""

    def __init__(self, actions: asyncio.Semaphore) -> None:
        self._actions = actions
        self._when_free: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_free(self) -> bool:
        return self.task is None or self.task.done()

    def take(self, work: Work) -> None:
        """Start an action; a failure of it is logged."""
        assert self.is_free, "one action at a time"
        self.task = asyncio.create_task(self._act(work))
        self.task.add_done_callback(self._end)

    def call_when_free(self, call: Callable[[], None]) -> None:
        """Have somebody told once that the action is over; the last one who asks."""
        self._when_free = call

    async def _act(self, work: Work) -> None:
        async with self._actions:
            await work()

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("pool not brought in step", exc_info=error)
        call, self._when_free = self._when_free, None
        if call is not None:
            call()


@dataclass(frozen=True)
class Seat:
    """A controller with room for one action, and for one report beside it: telling must not hold up acting."""

    uid: str
    controller: Controller
    turn: Turn
    voice: Turn

    def step(self, this_round: Round, pool: Pool, look_again: Callable[[], None] = lambda: None) -> None:
        """Decide, and act and tell if there is something to do or to say. The turn has to be free."""
        if self.controller.decide(this_round, pool):
            self.turn.take(lambda: self._act(this_round, pool, look_again))
        self._tell()

    async def _act(self, this_round: Round, pool: Pool, look_again: Callable[[], None]) -> None:
        await self.controller.act(this_round, pool)
        self._tell()
        if self.controller.wants_another_look:
            look_again()

    def _tell(self) -> None:
        if self.voice.is_free and self.controller.has_news:
            self.voice.take(self.controller.report)


@dataclass(frozen=True)
class Membership:
    """A pool that belongs to a Redis, as the leader has found out."""

    pool: Pool
    seat: Seat
    secret_version: SecretVersion
