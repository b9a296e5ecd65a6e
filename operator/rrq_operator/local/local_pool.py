"""What every pool of local mode is to the session that runs it, whether it is a Deployment or a Job."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rrq.broker.messages import Observation
from rrq.flow import PoolReport
from rrq.store import JobStore
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.local.launch import build_command, build_environment
from rrq_operator.local.pool_snapshot import LocalSnapshot
from rrq_operator.local.worker_process import WorkerProcess

#: How much longer than its drain a replica may take to end before it is killed.
KILL_AFTER_DRAIN_SECONDS = 5.0


@dataclass(frozen=True)
class PoolContext:
    """What a pool needs of the session."""

    pool: Pool
    address: RedisIdentity
    store: JobStore
    session: str
    log_folder: Path
    tell: Callable[[str], None]
    """Shows one line about what has happened."""


class LocalPool(ABC):
    """One pool on this machine. Times are monotonic."""

    #: Set when the pool cannot run at all, to the reason.
    failure: str | None = None

    def __init__(self, context: PoolContext) -> None:
        self.context = context
        self.spec = context.pool.spec
        self.name = context.pool.name
        #: Short names, however the manifest spells them.
        self.queues = [context.store.keys.queue_name(name) for name in self.spec.queues]

    @property
    @abstractmethod
    def horizon_seconds(self) -> float:
        """How far ahead work is of interest."""

    @property
    @abstractmethod
    def is_gone(self) -> bool:
        """Whether no process is left."""

    @abstractmethod
    async def run_once(self, seen: Observation | None, now: float) -> None:
        """Bring the pool in step with what was seen; None when Redis gave no answer."""

    @abstractmethod
    async def look_after(self, now: float) -> bool:
        """See to the processes; returns whether there is news that a decision may depend on."""

    @abstractmethod
    def stop(self, now: float) -> None:
        """Have all processes drain and end; a second time they hurry."""

    def _is_on_hold(self, seen: Observation | None) -> bool:
        """Whether the pool is paused in Redis, as far as is known."""
        return seen is not None and self.context.pool.pause_target in seen.paused

    @abstractmethod
    def picture(self) -> LocalSnapshot: ...

    def report(self, at_ms: int) -> PoolReport:
        """Return what dashboards are told of it."""
        seen = self.picture()
        return PoolReport(
            pool=self.context.pool.qualified_name,
            type=self.spec.type,
            queues=tuple(self.queues),
            replicas=seen.replicas,
            ready=seen.ready,
            desired=seen.desired,
            due=seen.due,
            held=seen.held,
            busy=seen.busy,
            reason=seen.reason,
            words=seen.words,
            at_ms=at_ms,
            is_paused=seen.is_on_hold,
        )

    def _start_process(self, pod_uid: str, log_path: Path) -> WorkerProcess:
        context = self.context
        environment = build_environment(context.pool, context.address, pod_uid, context.session, os.environ)
        return WorkerProcess(build_command(self.spec), environment, log_path)

    def _kill_at(self, now: float) -> float:
        return now + self.spec.worker.drain_seconds + KILL_AFTER_DRAIN_SECONDS
