"""One child as the supervisor sees it: a process, the connection to it, and its messages so far."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import psutil

from rrq.broker.messages import Beat, WorkerIdentity
from rrq.engine.lease import build_health_record
from rrq.pod.channel import (
    Failed,
    Farewell,
    Hello,
    InHand,
    Message,
    Report,
    Retire,
    make_channel,
)
from rrq.pod.exposition import ChildFigures
from rrq.pod.plan import ChildPlan
from rrq.pod.restarts import End
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

# Used until a child has sent its settings.
_DEFAULTS = RRQSettings.model_construct()
# The last messages of a dead child are in the socket. Only a process that it forked keeps the socket open longer.
_LAST_MESSAGES_SECONDS = 0.2


@dataclass(frozen=True)
class Vitals:
    """What the kernel reports of a process; None where it does not."""

    cpu_seconds: float | None = None
    rss_bytes: int | None = None
    descriptors: int | None = None


class ChildProcess:
    """A worker process that was started and may have died since."""

    def __init__(self, place: int, plan: ChildPlan, on_message: Callable[["ChildProcess", Message], None]):
        self.place = place
        self._on_message = on_message
        self.started_at = monotonic()
        self._channel, theirs = make_channel()
        with theirs:
            plan = replace(plan, channel=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rrq.pod.child", plan.to_argument()],
                stdin=subprocess.DEVNULL,
                pass_fds=(plan.channel,),
                # A process group of its own: Ctrl-C reaches only the supervisor, and programs that handlers have
                # started can be killed with the child.
                start_new_session=True,
            )
        # Where /proc is hidden, the vitals stay unknown; everything else works.
        try:
            self._kernel: psutil.Process | None = psutil.Process(self._process.pid)
        except (psutil.Error, OSError):
            self._kernel = None
        self._listening = asyncio.create_task(self._listen())
        self.hello: Hello | None = None
        self.settings: RRQSettings | None = None
        self.report: Report | None = None
        #: Whether it has ever been able to claim, and whether it was at the last report.
        self.has_registered = False
        self.was_registered = False
        self.failure: str | None = None
        self.farewell: Farewell | None = None
        #: When its event loop last showed that it runs.
        self._turned_at = self.started_at
        self._deadline = 0.0
        self.active_jobs = 0
        #: The end that the supervisor has asked for, if any, and why it will start a successor.
        self.asked: End | None = None
        self.restart_reason = "crash"
        self.kill_at: float | None = None
        self.retired_at = 0.0
        self.renews_itself = False
        self.vitals = Vitals()
        self._was_frozen = False

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
    def has_left(self) -> bool:
        return self.report is not None and self.report.has_left

    @property
    def is_orderly(self) -> bool:
        """Whether it has returned all its jobs, so that its death has no consequences."""
        return self.farewell is not None or self.has_left

    @property
    def finished_jobs(self) -> int:
        return self.report.finished_jobs if self.report is not None else 0

    async def _listen(self) -> None:
        try:
            async for message in self._channel.read():
                self._take(message)
                self._on_message(self, message)
        # An error here must not keep the supervisor from handling the death of the child. A child without messages soon
        # counts as hung and is replaced.
        except Exception:
            logger.exception("messages of a worker process cannot be read", extra={"pid": self.pid})

    def _take(self, message: Message) -> None:
        match message:
            case Hello():
                self.hello = message
                # Not validated again: an application may have put other types into its own settings.
                self.settings = RRQSettings.model_construct(**message.settings)
            case Report():
                self.report = message
                self.has_registered = self.has_registered or message.is_registered
                self._turned_at, self._deadline = monotonic(), message.deadline
                self.active_jobs = message.active_jobs
            case InHand():
                self._deadline, self.active_jobs = message.deadline, message.active_jobs
                # This may be the only sample of a process that dies early.
                self.sample()
            case Failed():
                self.failure = message.message
            case Farewell():
                self.farewell = message

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def sample(self) -> None:
        """Read the vitals; a process that has just died keeps its last ones."""
        self._was_frozen = self.is_frozen()
        kernel = self._kernel
        if kernel is None:
            return
        with contextlib.suppress(psutil.Error, OSError), kernel.oneshot():
            times = kernel.cpu_times()
            self.vitals = Vitals(times.user + times.system, kernel.memory_info().rss, kernel.num_fds())

    def is_frozen(self) -> bool:
        """Whether the process is stopped (SIGSTOP); its lease is then not renewed, and it does not count as hung."""
        if self._kernel is None:
            return False
        try:
            is_frozen = self._kernel.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except (psutil.Error, OSError):
            return False
        if is_frozen:
            self.forgive(monotonic())
        return is_frozen

    def forgive(self, now: float) -> None:
        """Restart the clock for hanging, after a time in which it was stopped or its messages were not read."""
        self._turned_at = now

    def is_hung(self, now: float) -> bool:
        """Whether its event loop is blocked although every running job is past its deadline.

        Before its first registration: whether the start takes too long.
        """
        settings = self.settings or _DEFAULTS
        if self.has_left:
            return False  # only hooks of the application are left, which have a limit of their own
        if self.has_registered:
            return now > max(self._deadline, self._turned_at + settings.worker_loop_stall_limit_seconds)
        return now > self._turned_at + settings.worker_start_limit_seconds

    def has_run_its_jobs(self) -> bool:
        limit = self.settings.worker_recycle_jobs if self.settings is not None else None
        return self._may_be_retired and limit is not None and self.finished_jobs >= limit

    def has_outgrown_memory(self) -> bool:
        limit = self.settings.worker_recycle_rss_bytes if self.settings is not None else None
        rss_bytes = self.vitals.rss_bytes
        if limit is None or rss_bytes is None or not self._may_be_retired:
            return False
        # A limit below what the application needs from the start would replace it without end.
        return rss_bytes > limit and self.finished_jobs > 0

    @property
    def _may_be_retired(self) -> bool:
        return self.is_registered and self.asked is None

    def build_beat(self) -> Beat | None:
        """Return the heartbeat of this child; None when its lease must not be renewed."""
        identity, report, settings, hello = self.identity, self.report, self.settings, self.hello
        if identity is None or report is None or settings is None or hello is None:
            return None
        if not report.is_registered or self.renews_itself or self.is_frozen() or self.is_hung(monotonic()):
            return None
        health = build_health_record(
            identity.worker_id, report.status, self.active_jobs, report.capacity, hello.queues
        )
        return Beat(identity, report.capacity, hello.queues, health, settings.health_ttl_seconds)

    def figures(self) -> ChildFigures:
        report = self.report
        return ChildFigures(
            self.place,
            # A child that is retiring or stopped claims nothing.
            self.is_registered and self.asked is None and not self._was_frozen,
            self.active_jobs,
            report.capacity if report is not None else 0,
            self.finished_jobs,
            self.vitals.cpu_seconds,
            self.vitals.rss_bytes,
            self.vitals.descriptors,
            report.tasks if report is not None else None,
        )

    def terminate(self, kill_at: float) -> None:
        """Ask it to drain; kills it if it is still alive at ``kill_at``."""
        self.asked = End.STOPPED
        self.kill_at = min(kill_at, self.kill_at or kill_at)
        self._signal(signal.SIGTERM)

    def retire(self, reason: str) -> None:
        """Ask it to end after its jobs, so that a successor can take its place."""
        self.asked, self.restart_reason = End.RETIRED, reason
        self.retired_at = monotonic()
        self.send(Retire())

    def kill(self) -> None:
        self.kill_at = None
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not Popen.send_signal, which polls first: it would collect a child that has just died, and the waitpid of the
        # supervisor would never see that death. Until it does, the kernel does not reuse the process id.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def close(self, exit_code: int) -> None:
        """Finish after the death that ``waitpid`` returned: read the last messages and kill what it left running."""
        self._process.returncode = exit_code
        await asyncio.wait({self._listening}, timeout=_LAST_MESSAGES_SECONDS)
        self._listening.cancel()
        self._channel.close()
        if self.farewell is None or self.asked is End.STOPPED:
            # A program that a handler started must not go on while the job runs in another worker.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
