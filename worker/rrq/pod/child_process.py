"""One child as the supervisor sees it: a process, the line to it, and what it has said so far."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import psutil

from rrq.messages import Beat, WorkerIdentity
from rrq.pod.channel import (
    Failed,
    Farewell,
    Hello,
    InHand,
    Message,
    Report,
    Retire,
    make_line,
)
from rrq.pod.exposition import ChildFigures
from rrq.pod.plan import ChildPlan
from rrq.pod.restarts import End
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

# What a dead child has said last lies in the socket. Only a process that it forked keeps the line open longer.
_LAST_WORDS_SECONDS = 0.2


@dataclass(frozen=True)
class Vitals:
    """What the kernel says of a process; None where it would not tell."""

    cpu_seconds: float | None = None
    rss_bytes: int | None = None
    descriptors: int | None = None


class ChildProcess:
    """A worker process that was started and may have died by now."""

    def __init__(self, place: int, plan: ChildPlan, on_message: Callable[["ChildProcess", Message], None]):
        self.place = place
        self._on_message = on_message
        self.started_at = monotonic()
        self._line, theirs = make_line()
        with theirs:
            plan = replace(plan, channel=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rrq.pod.child", plan.to_argument()],
                stdin=subprocess.DEVNULL,
                pass_fds=(plan.channel,),
                # A group of its own: Ctrl-C reaches the supervisor alone, and what its handlers have
                # started can be ended with it.
                start_new_session=True,
            )
        self._kernel = psutil.Process(self._process.pid)
        self._listening = asyncio.create_task(self._listen())
        self.hello: Hello | None = None
        self.settings: RRQSettings | None = None
        self.report: Report | None = None
        #: What the heartbeat was last told of it.
        self.was_registered = False
        self.failure: str | None = None
        self.farewell: Farewell | None = None
        #: When its event loop last showed that it turns.
        self._turned_at = self.started_at
        self._deadline = 0.0
        self.active_jobs = 0
        #: What the supervisor wants of it, if anything, and why a successor will be started.
        self.asked: End | None = None
        self.restart_reason = "crash"
        self.kill_at: float | None = None
        self.renews_itself = False
        self.vitals = Vitals()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def identity(self) -> WorkerIdentity | None:
        if self.hello is None:
            return None
        worker_id = self.report.worker_id if self.report is not None else self.hello.worker_id
        return WorkerIdentity(worker_id, self.hello.incarnation, os.environ.get("RRQ_POD_UID", ""))

    @property
    def is_registered(self) -> bool:
        return self.report is not None and self.report.is_registered

    @property
    def finished_jobs(self) -> int:
        return self.report.finished_jobs if self.report is not None else 0

    # What it says

    async def _listen(self) -> None:
        try:
            async for message in self._line.read():
                self._hear(message)
                self._on_message(self, message)
        # Unheard, it is soon taken for hung and replaced.
        except ValueError as error:
            logger.error(
                "worker process said what makes no sense", extra={"pid": self.pid, "error": str(error)}
            )

    def _hear(self, message: Message) -> None:
        match message:
            case Hello():
                self.hello = message
                # Not validated again: an application may have put other types into its own settings.
                self.settings = RRQSettings.model_construct(**message.settings)
            case Report():
                self.report = message
                self._turned_at, self._deadline = monotonic(), message.deadline
                self.active_jobs = message.active_jobs
            case InHand():
                self._deadline, self.active_jobs = message.deadline, message.active_jobs
                # Of a process that dies young this may be the only look there ever was.
                self.sample()
            case Failed():
                self.failure = message.message
            case Farewell():
                self.farewell = message

    def send(self, message: Message) -> None:
        self._line.send(message)

    # How it is

    def sample(self) -> None:
        """Look at the process; what died a moment ago keeps its last figures."""
        with contextlib.suppress(psutil.Error, OSError), self._kernel.oneshot():
            times = self._kernel.cpu_times()
            self.vitals = Vitals(
                times.user + times.system, self._kernel.memory_info().rss, self._kernel.num_fds()
            )

    def is_frozen(self) -> bool:
        """Whether somebody stopped the process; it is then neither renewed nor taken for hung."""
        try:
            is_frozen = self._kernel.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False
        if is_frozen:
            # The time it stands still is not held against its event loop when it goes on.
            self._turned_at = monotonic()
        return is_frozen

    def is_hung(self, now: float) -> bool:
        """Whether its event loop stands still although every job in hand is past its deadline."""
        if self.settings is None or not self.is_registered:
            return False
        limit_seconds = self.settings.worker_loop_stall_limit_seconds
        return now > max(self._deadline, self._turned_at + limit_seconds)

    def has_run_its_jobs(self) -> bool:
        limit = self.settings.worker_recycle_jobs if self.settings is not None else None
        return self._may_be_retired and limit is not None and self.finished_jobs >= limit

    def has_outgrown_memory(self) -> bool:
        limit = self.settings.worker_recycle_rss_bytes if self.settings is not None else None
        return self._may_be_retired and limit is not None and (self.vitals.rss_bytes or 0) > limit

    @property
    def _may_be_retired(self) -> bool:
        return self.is_registered and self.asked is None

    def build_beat(self) -> Beat | None:
        """Return what the heartbeat says for this child; None when its lease is not to be renewed."""
        identity, report, settings, hello = self.identity, self.report, self.settings, self.hello
        if identity is None or report is None or settings is None or hello is None:
            return None
        if not report.is_registered or self.renews_itself or self.is_frozen() or self.is_hung(monotonic()):
            return None
        health: dict[str, Any] = {
            "worker_id": identity.worker_id,
            "timestamp": datetime.now(UTC).isoformat(),
            "status": report.status,
            "active_jobs": self.active_jobs,
            "concurrency_limit": report.capacity,
            "queues": hello.queues,
        }
        return Beat(identity, report.capacity, hello.queues, health, settings.health_ttl_seconds)

    def figures(self) -> ChildFigures:
        report = self.report
        return ChildFigures(
            self.place,
            self.is_registered,
            self.active_jobs,
            report.capacity if report is not None else 0,
            self.finished_jobs,
            self.vitals.cpu_seconds,
            self.vitals.rss_bytes,
            self.vitals.descriptors,
        )

    # Its end

    def terminate(self, kill_at: float) -> None:
        """Ask it to drain; whatever is left of it at ``kill_at`` is killed."""
        self.asked = End.STOPPED
        self.kill_at = min(kill_at, self.kill_at or kill_at)
        self._process.send_signal(signal.SIGTERM)

    def retire(self, reason: str) -> None:
        """Ask it to end when its jobs have ended, for a successor to take its place."""
        self.asked, self.restart_reason = End.RETIRED, reason
        self.send(Retire())

    def kill(self, because: End) -> None:
        self.asked, self.kill_at = because, None
        self._process.send_signal(signal.SIGKILL)

    async def bury(self, exit_code: int) -> None:
        """Take note of the death that ``waitpid`` told: hear its last words and end what it left running."""
        self._process.returncode = exit_code
        await asyncio.wait({self._listening}, timeout=_LAST_WORDS_SECONDS)
        self._listening.cancel()
        self._line.close()
        if self.farewell is None or self.asked is End.STOPPED:
            # A program that a handler started must not go on while the job runs elsewhere.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
