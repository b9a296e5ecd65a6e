"""What each worker process of a pod executes: ``python -m rrq.pod.child <plan>``.

It loads the application, introduces itself to the supervisor, and runs one worker whose lease the supervisor renews.
When the supervisor has died, the child renews its own lease, drains as after SIGTERM, and ends.
"""

import asyncio
import logging
import signal
import sys
import threading
from time import monotonic
from typing import Any

from rrq.broker.messages import Claim, Outcome, Verdict
from rrq.engine.attempts import Attempt
from rrq.engine.lease import Lease
from rrq.engine.observer import Figures
from rrq.exc import BurstFailed, FunctionsMissing, SettingsError
from rrq.pod.channel import (
    BeatAnswer,
    ChildEnd,
    Failed,
    Farewell,
    Hello,
    InHand,
    Message,
    RenewYourself,
    Report,
    Retire,
)
from rrq.pod.orphan import OrphanWatch
from rrq.pod.plan import EX_TEMPFAIL, EX_UNAVAILABLE, ChildPlan
from rrq.process import run_tuned
from rrq.registry import JobRegistry
from rrq.runtime.logs import configure_logging
from rrq.runtime.metrics import Meter
from rrq.settings import RRQSettings
from rrq.settings_loading import load_settings, require_registry
from rrq.worker import RRQWorker

logger = logging.getLogger(__name__)

# Settings that are objects of the application, which no message can carry.
_OBJECTS = frozenset({"on_startup", "on_shutdown", "job_registry", "cron_jobs"})
# Reported deadlines get this margin, so that a busy worker reports one each second instead of one for each claim.
_DEADLINE_SLACK_SECONDS = 1.0
# The share of a lease without an answer of the supervisor after which a child renews its own lease.
_SILENCE_OF_A_LEASE = 2 / 3


class SupervisedLease:
    """The lease of a child: the supervisor renews it, and the child itself while the supervisor does not answer."""

    def __init__(self, link: "Link", own: Lease, settings: RRQSettings) -> None:
        self._link = link
        self._own = own
        self._settings = settings
        self._is_wanted = False
        #: The worker has ended it for good.
        self.has_ended = False
        self._is_alone = False
        self._answered_at = monotonic()
        self._stopping: asyncio.Task[None] | None = None
        #: The event loop starts renewing alone, or a thread while the event loop is blocked.
        self._beginning = threading.Lock()

    @property
    def is_running(self) -> bool:
        return self._is_wanted

    def start(self) -> None:
        self._is_wanted, self.has_ended = True, False
        self._answered_at = monotonic()
        if self._is_alone:
            self.renew_alone()
        self._link.report()

    async def stop(self) -> None:
        self._is_wanted, self.has_ended = False, True
        self._link.report()
        await self._own.stop()

    def renew_alone(self) -> None:
        """Renew without the supervisor until it answers again."""
        with self._beginning:
            self._is_alone = True
            if self._is_wanted and not self._own.is_running:
                self._own.start()

    def check_silence(self) -> None:
        """Called once a second: a supervisor that hangs must not cost its children their leases."""
        silent_seconds = monotonic() - self._answered_at
        if self._is_wanted and silent_seconds > self._settings.worker_lease_seconds * _SILENCE_OF_A_LEASE:
            self.renew_alone()

    def note_answer(self) -> None:
        """Note that the supervisor renews the lease."""
        self._answered_at = monotonic()
        self._is_alone = False
        if self._own.is_running and (self._stopping is None or self._stopping.done()):
            self._stopping = asyncio.ensure_future(self._own.stop())


class Link:
    """Connects one worker to the supervisor: sends reports and carries out orders."""

    def __init__(self, end: ChildEnd, worker: RRQWorker) -> None:
        self._end = end
        self._worker = worker
        self._reported_deadline = 0.0
        self.exit_code = 0
        self._lease = SupervisedLease(self, worker.registration.lease, worker.settings)
        worker.registration.lease = self._lease
        self._observer = worker.observer = LinkObserver(self, worker.job_registry)
        worker.job_store.connection.on_call = self._observer.meter.on_redis_call

    def say_hello(self) -> None:
        worker, settings = self._worker, self._worker.settings
        values = {
            name: getattr(settings, name, None) for name in RRQSettings.model_fields if name not in _OBJECTS
        }
        incarnation = worker.registration.identity.incarnation
        self._end.send(Hello(worker.worker_id, incarnation, worker.queues, values))

    async def run(self) -> None:
        """Run the worker to its end and carry out the orders of the supervisor meanwhile."""
        self._end.listen(self._on_order, self._on_supervisor_gone)
        OrphanWatch(
            self._end, self._lease.renew_alone, lambda: self._worker.worker_id, self._worker.settings
        ).start()
        try:
            await self._worker.run()
        except BurstFailed as error:
            logger.error("burst failed", extra={"error": str(error), "worker_id": self._worker.worker_id})
            self.exit_code = EX_UNAVAILABLE if isinstance(error, FunctionsMissing) else 1
        if self._worker.burst and self.exit_code == 0 and not self._worker.is_burst_over:
            self.exit_code = EX_TEMPFAIL
        # Sent before the event loop closes: a handler that ignores its cancellation delays that until the supervisor
        # kills the process.
        self._end.send(Farewell(self.exit_code))

    def on_turn(self) -> None:
        self._lease.check_silence()
        self.report()

    def report(self) -> None:
        """Send the state of the worker, and the metrics since the last report."""
        worker, observer = self._worker, self._observer
        self._reported_deadline = worker.book.latest_deadline
        metrics = {} if self._end.has_backlog else {"metrics": observer.meter.take()}
        self._end.send(
            Report(
                worker.worker_id,
                worker.registration.is_registered,
                self._lease.has_ended,
                worker.status,
                worker.active_jobs,
                worker.settings.worker_concurrency,
                self._reported_deadline,
                observer.finished,
                tasks=len(asyncio.all_tasks()),
                **metrics,
            )
        )

    def report_deadline(self, deadline: float) -> None:
        if deadline > self._reported_deadline:
            self._reported_deadline = deadline + _DEADLINE_SLACK_SECONDS
            self._end.send(InHand(self._reported_deadline, len(self._worker.book)))

    def _on_order(self, order: Message) -> None:
        match order:
            case BeatAnswer():
                self._lease.note_answer()
                registration = self._worker.registration
                registration.hear(order.worker_id, registration.describe_health(), order.reply)
            case Retire():
                self._worker.retire()
            case RenewYourself():
                self._lease.renew_alone()

    def _on_supervisor_gone(self) -> None:
        logger.critical(
            "the supervisor has died; this process drains and ends",
            extra={"worker_id": self._worker.worker_id},
        )
        self._lease.renew_alone()
        self._worker.drain()


class LinkObserver(Figures):
    """Counts what the worker does, and has the link tell the supervisor what cannot wait."""

    def __init__(self, link: Link, registry: JobRegistry) -> None:
        super().__init__(Meter(), registry)
        self._link = link
        #: Outcomes that Redis has answered, of whatever kind.
        self.finished = 0

    def on_claim(self, claim: Claim, latest_deadline: float) -> None:
        super().on_claim(claim, latest_deadline)
        self._link.report_deadline(latest_deadline)

    def on_end(self, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> None:
        super().on_end(attempt, outcome, verdict)
        self.finished += 1
        if self.finished == 1:
            # This process is able to work.
            self._link.report()

    def on_turn(self, lag_seconds: float) -> None:
        super().on_turn(lag_seconds)
        self._link.on_turn()


def build_worker(plan: ChildPlan) -> RRQWorker:
    """Load the application. Raises SettingsError when it cannot run."""
    settings = load_settings(plan.settings_path)
    registry = require_registry(settings)
    if plan.burst_linger_seconds is not None:
        settings.worker_burst_linger_seconds = plan.burst_linger_seconds
    if plan.weights is not None:
        settings.worker_queue_weights = plan.weights
    return RRQWorker(settings, registry, list(plan.queues) or None, burst=plan.burst)


def main(argument: str) -> int:
    plan = ChildPlan.parse(argument)
    end = ChildEnd(plan.channel)
    # SIGHUP is for the supervisor, which replaces the processes one by one; here it would end running jobs.
    signal.signal(signal.SIGHUP, lambda *_: None)
    configure_logging(plan.log_format, plan.log_level)
    try:
        worker = build_worker(plan)
    except SettingsError as error:
        end.send(Failed(f"ERROR: {error}"))
        return 1
    if plan.log_context:
        context: dict[str, Any] = {"worker_id": worker.worker_id, "queues": worker.queues}
        configure_logging(plan.log_format, plan.log_level, context)
    link = Link(end, worker)
    link.say_hello()
    try:
        run_tuned(link.run())
    # Hooks of the application may raise anything. Without a farewell, the supervisor counts this as a crash.
    except Exception:
        logger.critical("worker failed", exc_info=True, extra={"worker_id": worker.worker_id})
        return 1
    finally:
        end.close()
    return link.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
