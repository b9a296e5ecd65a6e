"""What each worker process of a pod executes: ``python -m rrq.pod.child <plan>``.

It loads the application, tells the supervisor who it is, and runs one worker whose lease the supervisor
renews. When the supervisor is gone, the child renews its own lease, drains as after SIGTERM, and ends.
"""

import asyncio
import logging
import signal
import sys
import threading
from time import monotonic
from typing import Any

from rrq.commands.refusal import Refusal
from rrq.commands.settings_loading import load_settings, require_registry
from rrq.exc import BurstFailed, FunctionsMissing, SettingsError
from rrq.heartbeat import Lease
from rrq.logs import configure_logging
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
from rrq.settings import RRQSettings
from rrq.worker import RRQWorker

logger = logging.getLogger(__name__)

# Settings that are objects of the application, not values that could be told.
_OBJECTS = frozenset({"on_startup", "on_shutdown", "job_registry", "cron_jobs"})
# A deadline is told with this much to spare, so that a busy worker tells one a second and not one a claim.
_DEADLINE_SLACK_SECONDS = 1.0
# The share of a lease without a word of the supervisor after which a child renews for itself.
_SILENCE_OF_A_LEASE = 2 / 3


class SupervisedLease:
    """The lease of a child: renewed by the supervisor, and by itself for as long as that gives no answer."""

    def __init__(self, link: "Link", own: Lease, settings: RRQSettings) -> None:
        self._link = link
        self._own = own
        self._settings = settings
        self._is_wanted = False
        #: The worker has given it up for good.
        self.has_ended = False
        self._is_alone = False
        self._answered_at = monotonic()
        self._stopping: asyncio.Task[None] | None = None
        #: Renewing alone is begun by the event loop, and by a thread when that stands still.
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
        """Do without the supervisor until it is heard of again."""
        with self._beginning:
            self._is_alone = True
            if self._is_wanted and not self._own.is_running:
                self._own.start()

    def look(self) -> None:
        """Called once a second: a supervisor that stands still must not cost its children their jobs."""
        silent_seconds = monotonic() - self._answered_at
        if self._is_wanted and silent_seconds > self._settings.worker_lease_seconds * _SILENCE_OF_A_LEASE:
            self.renew_alone()

    def note_answer(self) -> None:
        """The supervisor renews."""
        self._answered_at = monotonic()
        self._is_alone = False
        if self._own.is_running and (self._stopping is None or self._stopping.done()):
            self._stopping = asyncio.ensure_future(self._own.stop())


class Link:
    """Ties one worker to the supervisor: reports go out, orders come in."""

    def __init__(self, end: ChildEnd, worker: RRQWorker) -> None:
        self._end = end
        self._worker = worker
        self._told_deadline = 0.0
        self.exit_code = 0
        ownership = worker.ownership
        self._lease = SupervisedLease(self, ownership.lease, worker.settings)
        ownership.lease = self._lease
        ownership.on_deadline = self._tell_deadline
        ownership.on_first_finish = self.report
        worker.on_turn = self._on_turn
        worker.job_store.wire.on_call = ownership.meter.on_redis_call

    def say_hello(self) -> None:
        worker, settings = self._worker, self._worker.settings
        told = {
            name: getattr(settings, name, None) for name in RRQSettings.model_fields if name not in _OBJECTS
        }
        self._end.send(Hello(worker.worker_id, worker.ownership.incarnation, worker.queues, told))

    async def run(self) -> None:
        """Run the worker to its end, listening to the supervisor meanwhile."""
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
        # Said now and not at the very end: a handler that ignores its cancellation keeps the loop from
        # closing until the supervisor loses its patience.
        self._end.send(Farewell(self.exit_code))

    def _on_turn(self) -> None:
        self._lease.look()
        self.report()

    def report(self) -> None:
        """Tell how the worker stands, with what it has counted since the last time."""
        worker, ownership = self._worker, self._worker.ownership
        self._told_deadline = ownership.book.latest_deadline
        metrics = {} if self._end.has_backlog else {"metrics": ownership.meter.take()}
        self._end.send(
            Report(
                worker.worker_id,
                ownership.is_registered,
                self._lease.has_ended,
                worker.status,
                worker.active_jobs,
                worker.settings.worker_concurrency,
                self._told_deadline,
                ownership.finished,
                tasks=len(asyncio.all_tasks()),
                **metrics,
            )
        )

    def _tell_deadline(self, deadline: float) -> None:
        if deadline > self._told_deadline:
            self._told_deadline = deadline + _DEADLINE_SLACK_SECONDS
            self._end.send(InHand(self._told_deadline, len(self._worker.ownership.book)))

    def _on_order(self, order: Message) -> None:
        match order:
            case BeatAnswer():
                self._lease.note_answer()
                self._worker.ownership.hear(order.worker_id, self._worker.describe_health(), order.reply)
            case Retire():
                self._worker.retire()
            case RenewYourself():
                self._lease.renew_alone()

    def _on_supervisor_gone(self) -> None:
        logger.critical(
            "the supervisor is gone; this process drains and ends",
            extra={"worker_id": self._worker.worker_id},
        )
        self._lease.renew_alone()
        self._worker.drain()


def build_worker(plan: ChildPlan) -> RRQWorker:
    """Load the application; Refusal when it cannot be run."""
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
    # Meant for the supervisor, which hands the processes over one by one; ended by it, jobs would be cut.
    signal.signal(signal.SIGHUP, lambda *_: None)
    configure_logging(plan.log_format, plan.log_level)
    try:
        worker = build_worker(plan)
    except Refusal as error:
        end.send(Failed(error.message))
        return 1
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
    # The application's own hooks may raise anything. No farewell: this was no orderly end.
    except Exception:
        logger.critical("worker failed", exc_info=True, extra={"worker_id": worker.worker_id})
        return 1
    finally:
        end.close()
    return link.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
