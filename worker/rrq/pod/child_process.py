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
    make_line,
)
from rrq.pod.exposition import ChildFigures
from rrq.pod.plan import ChildPlan
from rrq.pod.restarts import End
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

# What holds until a child has said which settings it found.
_DEFAULTS = RRQSettings.model_construct()
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
        # Where /proc is hidden nothing can be told of a process, and it works all the same.
        try:
            self._kernel: psutil.Process | None = psutil.Process(self._process.pid)
        except (psutil.Error, OSError):
            self._kernel = None
        self._listening = asyncio.create_task(self._listen())
        self.hello: Hello | None = None
        self.settings: RRQSettings | None = None
        self.report: Report | None = None
        #: Whether it has ever been able to claim, and what the heartbeat was last told of that.
        self.has_registered = False
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
        """Whether it has given everything back, so that its death harms nobody."""
        return self.farewell is not None or self.has_left

    @property
    def finished_jobs(self) -> int:
        return self.report.finished_jobs if self.report is not None else 0

    # What it says

    async def _listen(self) -> None:
        try:
            async for message in self._line.read():
                self._hear(message)
                self._on_message(self, message)
        # Whatever goes wrong here must not keep the supervisor from burying the child. Unheard, it is soon
        # taken for hung and replaced.
        except Exception:
            logger.exception("worker process is no longer heard", extra={"pid": self.pid})

    def _hear(self, message: Message) -> None:
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
        self._was_frozen = self.is_frozen()
        kernel = self._kernel
        if kernel is None:
            return
        with contextlib.suppress(psutil.Error, OSError), kernel.oneshot():
            times = kernel.cpu_times()
            self.vitals = Vitals(times.user + times.system, kernel.memory_info().rss, kernel.num_fds())

    def is_frozen(self) -> bool:
        """Whether somebody stopped the process; it is then neither renewed nor taken for hung."""
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
        """Do not hold against it the time until now, in which it stood still or could not be heard."""
        self._turned_at = now

    def is_hung(self, now: float) -> bool:
        """Whether its event loop stands still although every job in hand is past its deadline.

        Before it has been able to claim for the first time: whether it takes too long to get there.
        """
        settings = self.settings or _DEFAULTS
        if self.has_left:
            return False  # what is left are the hooks of the application, which have a limit of their own
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
        # A limit below what the application takes from the start would replace it without end.
        return rss_bytes > limit and self.finished_jobs > 0

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
        health = build_health_record(
            identity.worker_id, report.status, self.active_jobs, report.capacity, hello.queues
        )
        return Beat(identity, report.capacity, hello.queues, health, settings.health_ttl_seconds)

    def figures(self) -> ChildFigures:
        report = self.report
        return ChildFigures(
            self.place,
            # Whoever was told to leave, or stands still, claims nothing.
            self.is_registered and self.asked is None and not self._was_frozen,
            self.active_jobs,
            report.capacity if report is not None else 0,
            self.finished_jobs,
            self.vitals.cpu_seconds,
            self.vitals.rss_bytes,
            self.vitals.descriptors,
            report.tasks if report is not None else None,
        )

    # Its end

    def terminate(self, kill_at: float) -> None:
        """Ask it to drain; whatever is left of it at ``kill_at`` is killed."""
        self.asked = End.STOPPED
        self.kill_at = min(kill_at, self.kill_at or kill_at)
        self._signal(signal.SIGTERM)

    def retire(self, reason: str) -> None:
        """Ask it to end when its jobs have ended, for a successor to take its place."""
        self.asked, self.restart_reason = End.RETIRED, reason
        self.retired_at = monotonic()
        self.send(Retire())

    def kill(self) -> None:
        self.kill_at = None
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not Popen.send_signal, which polls first: it would collect a child that died a moment ago, and the
        # supervisor's own waitpid would never learn of that death. Until then the id is not used again.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

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
