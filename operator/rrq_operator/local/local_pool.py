"""What every pool of local mode has in common, whether it is a Deployment or a Job."""

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rrq.flow import PoolReport
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool
from rrq_operator.control.pool_group import GroupPool
from rrq_operator.local.launch import build_command, build_environment
from rrq_operator.local.snapshot import LocalSnapshot
from rrq_operator.local.worker_process import WorkerProcess

#: How much longer than its drain a replica may take to end before it is killed.
KILL_AFTER_DRAIN_SECONDS = 5.0


@dataclass(frozen=True)
class PoolContext:
    """What a pool needs of the session."""

    pool: Pool
    redis: RedisIdentity
    session: str
    log_folder: Path
    tell: Callable[[str], None]
    """Shows one line about what has happened."""


class LocalPool(GroupPool):
    """One pool on this machine. Times are monotonic."""

    #: Set when the pool cannot run at all, to the reason.
    failure: str | None = None

    def __init__(self, context: PoolContext) -> None:
        super().__init__(asyncio.Semaphore())  # of its own: pools act independently of each other
        self.context = context
        self.spec = context.pool.spec
        self.name = context.pool.name

    def find_pool(self) -> Pool:
        return self.context.pool

    @property
    @abstractmethod
    def is_gone(self) -> bool:
        """Whether no process is left."""

    @abstractmethod
    async def look_after(self, now: float) -> bool:
        """Probe, restart and end processes; returns whether there is news that a decision may depend on."""

    @abstractmethod
    def stop(self, now: float) -> None:
        """Have all processes drain and end; a second call hurries."""

    @abstractmethod
    def snapshot(self) -> LocalSnapshot:
        """Return what is shown of the pool."""

    def build_report(self, now_ms: int) -> PoolReport:
        shown = self.snapshot()
        return PoolReport(
            pool=self.context.pool.qualified_name,
            type=self.spec.type,
            queues=self.queue_names,
            replicas=shown.replicas,
            ready=shown.ready,
            desired=shown.desired,
            due=shown.due,
            blocked=shown.blocked,
            busy=shown.busy,
            reason=shown.reason,
            words=shown.words,
            at_ms=now_ms,
            is_paused=shown.is_paused,
        )

    def _start_process(self, pod_uid: str, log_path: Path) -> WorkerProcess:
        context = self.context
        environment = build_environment(context.pool, context.redis, pod_uid, context.session, os.environ)
        return WorkerProcess(build_command(self.spec), environment, log_path)

    def _kill_at(self, now: float) -> float:
        return now + self.spec.worker.drain_seconds + KILL_AFTER_DRAIN_SECONDS
