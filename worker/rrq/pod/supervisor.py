"""Keeps the worker processes of a pod running, replaces those that die, and shuts all of them down gracefully.

It runs no job code and imports no application. ``restarts.py`` decides whether and when to start a child again,
``places.py`` which one to replace; the heartbeat renews leases, certifies deaths and reaps.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from time import monotonic

from rrq.broker.messages import Beat, BeatReply, DeathCertificate
from rrq.pod.channel import BeatAnswer, Farewell, Hello, Message, RenewYourself, Report
from rrq.pod.child_process import ChildProcess
from rrq.pod.container import adopt_orphans, reborn_pod_uid
from rrq.pod.heartbeat import PodHeartbeat
from rrq.pod.places import Place, choose_to_retire
from rrq.pod.plan import EX_TEMPFAIL, KILL_AFTER_GRACE_SECONDS, PodPlan
from rrq.pod.restarts import Death, End, count_failures, describe_cause, is_hopeless, judge_death
from rrq.pod.status import PodStatus
from rrq.runtime.metrics import Meter
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

_TURN_SECONDS = 0.25
_SAMPLE_SECONDS = 1.0
_OWN_STALL_SECONDS = 2.0
_LAST_CERTIFICATES_SECONDS = 0.3
# A child that has ended its lease only runs the shutdown hook of the application.
_SHUTDOWN_HOOK_SECONDS = 30.0
_RESTART_REASONS = {End.ENDED: "ended", End.CRASHED: "crash", End.UNFIT: "crash", End.HUNG: "hung"}


class Supervisor:
    """Runs one pod from start to end."""

    def __init__(self, plan: PodPlan, say: Callable[[str], None], say_error: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._say_error = say_error
        self._places = [Place(number) for number in range(plan.processes)]
        self._meter = Meter()
        self._heartbeat = PodHeartbeat(
            self._build_beats, self._incarnations, self._forward_answer, self._meter
        )
        self._status = PodStatus(self._places, self._heartbeat, self._meter)
        self._wake = asyncio.Event()
        self._deaths: set[asyncio.Task[None]] = set()
        #: Set once the pod is to end; it ends with its last child.
        self._exit_code: int | None = None
        self._reload_at = 0.0
        self._sampled_at = 0.0

    @property
    def children(self) -> list[ChildProcess]:
        return [place.child for place in self._places if place.child is not None]

    async def run(self) -> int:
        """Run until a signal, the end of a burst, or too many crashes; returns the exit code."""
        adopt_orphans()
        self._handle_signals()
        beating = asyncio.create_task(self._heartbeat.run())
        try:
            with self._status.serve(self._plan.http):
                while self._exit_code is None or self.children or self._deaths:
                    if beating.done():
                        # Without renewals the supervisor does harm: when it has ended, the children renew themselves.
                        beating.result()
                    self._look_after(monotonic())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._seconds_to_next_turn(monotonic()))
                    self._wake.clear()
                if not await self._heartbeat.settle(_LAST_CERTIFICATES_SECONDS):
                    logger.warning("Redis does not answer; unfinished jobs are due when the leases end")
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        return self._exit_code

    def _seconds_to_next_turn(self, now: float) -> float:
        # Kills are on time, because the pod promises when it has ended.
        kills = [child.kill_at - now for child in self.children if child.kill_at is not None]
        return max(0.0, min([_TURN_SECONDS, *kills]))

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        # A terminal that closes sends SIGHUP too, and then a reload would leave a pod that no user can stop.
        on_hangup = self.stop if sys.stdin is not None and sys.stdin.isatty() else self.reload
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        loop.add_signal_handler(signal.SIGCHLD, self._collect_dead)

    def stop(self) -> None:
        """Shut down gracefully; at a second call, without the grace period."""
        is_repeated, self._status.is_stopping = self._status.is_stopping, True
        self._end(EX_TEMPFAIL if self._plan.child.burst else 0)
        logger.info(
            "graceful shutdown cut short" if is_repeated else "graceful shutdown begins",
            extra={"children": len(self.children)},
        )
        now = monotonic()
        for child in self.children:
            grace_seconds = 0.0
            if child.settings is not None and not is_repeated:
                grace_seconds = child.settings.worker_shutdown_grace_period_seconds
            child.terminate(now + grace_seconds + KILL_AFTER_GRACE_SECONDS)
        self._status.update(now)

    def reload(self) -> None:
        """Replace one child after the other, to load new code without losing capacity."""
        logger.info("reload requested")
        self._reload_at = monotonic()
        self._wake.set()

    def _end(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code
        self._wake.set()

    def _look_after(self, now: float) -> None:
        if now - self._status.state.at > _OWN_STALL_SECONDS:
            # The supervisor itself was stopped, as in a paused machine or a frozen container. It has not read the
            # messages of that time, and the children may have been stopped as well.
            for child in self.children:
                child.forgive(now)
        if now - self._sampled_at >= _SAMPLE_SECONDS:
            self._sampled_at = now
            for child in self.children:
                child.sample()
        for child in self.children:
            self._end_overdue(child, now)
        if self._exit_code is None:
            self._start_due(now)
            self._retire_one(now)
        self._status.update(now)

    def _end_overdue(self, child: ChildProcess, now: float) -> None:
        if child.kill_at is not None and now >= child.kill_at:
            logger.warning("worker process did not end in time, killed", extra={"pid": child.pid})
            child.kill()
        elif child.asked is not End.HUNG and child.is_hung(now) and not child.is_frozen():
            logger.critical(
                "event loop of a worker process is blocked past all deadlines, killed"
                if child.has_registered
                else "worker process did not start in time, killed",
                extra={"pid": child.pid, "worker_id": child.hello.worker_id if child.hello else None},
            )
            child.asked = End.HUNG
            child.kill()

    def _start_due(self, now: float) -> None:
        for place in self._places:
            if place.child is not None or now < place.start_at:
                continue
            try:
                place.child = ChildProcess(place.number, self._plan.child, self._on_message)
            except OSError as error:
                place.start_later(place.failures + 1, now)
                logger.critical(
                    "worker process cannot be started",
                    extra={"executable": sys.executable, "error": str(error)},
                )
                self._give_up_if_hopeless()
                continue
            if place.restart_reason is not None:
                self._meter.count("rrq_child_restarts_total", place.restart_reason)
                place.restart_reason = None

    def _retire_one(self, now: float) -> None:
        chosen = choose_to_retire(self._places, self._reload_at, now)
        if chosen is not None:
            child, reason = chosen
            logger.info("worker process is replaced", extra={"pid": child.pid, "reason": reason})
            child.retire(reason)

    def _on_message(self, child: ChildProcess, message: Message) -> None:
        place = self._places[child.place]
        match message:
            case Hello():
                self._on_hello(child, message)
            case Report():
                self._meter.add(message.metrics)
                if message.is_registered != child.was_registered:
                    child.was_registered = message.is_registered
                    self._heartbeat.beat_soon()
                if message.finished_jobs:
                    place.failures = 0
                if message.is_registered:
                    place.has_been_up = True
                if message.has_left:
                    child.kill_at = min(child.kill_at or inf, monotonic() + _SHUTDOWN_HOOK_SECONDS)
            case Farewell():
                # Only handlers that ignore their cancellation keep it from ending now.
                child.kill_at = min(child.kill_at or inf, monotonic() + KILL_AFTER_GRACE_SECONDS)
        self._wake.set()

    def _on_hello(self, child: ChildProcess, hello: Hello) -> None:
        self._say(f"Worker {hello.worker_id} (process {child.pid}) serves {', '.join(hello.queues)}.")
        if child.settings is None:
            return
        if self._status.settings is None:
            self._status.settings = child.settings
            self._heartbeat.connect(child.settings, hello.queues, reborn_pod_uid())
        elif _address(child.settings) != _address(self._status.settings):
            # Reloaded code that uses another Redis: the supervisor stays with the Redis that it knows.
            child.renews_itself = True
            child.send(RenewYourself())
            self._follow_to_another_redis()

    def _follow_to_another_redis(self) -> None:
        """Leave a Redis that no child uses any more; until then, children of another Redis renew themselves."""
        known = [child for child in self.children if child.settings is not None and child.hello is not None]
        if not known or not all(child.renews_itself for child in known):
            return
        first = known[0]
        assert first.settings is not None
        assert first.hello is not None
        self._status.settings = first.settings
        self._heartbeat.connect(first.settings, first.hello.queues)
        for child in known:
            child.renews_itself = _address(child.settings or first.settings) != _address(first.settings)

    def _collect_dead(self) -> None:
        """Collect every process that has ended, including orphans that the kernel gave to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children:
                if child.pid == pid:
                    death = asyncio.create_task(self._on_death(child, os.waitstatus_to_exitcode(status)))
                    self._deaths.add(death)
                    death.add_done_callback(self._deaths.discard)

    async def _on_death(self, child: ChildProcess, code: int) -> None:
        await child.close(code)
        place = self._places[child.place]
        death = judge_death(
            code,
            is_orderly=child.is_orderly,
            is_unfit=child.failure is not None,
            asked=child.asked,
        )
        self._certify(child, death)
        self._log_death(child, death)
        place.child = None
        self._follow_to_another_redis()
        now = monotonic()
        failures = count_failures(place.failures, death, child.finished_jobs, now - child.started_at)
        place.start_later(failures, now)
        place.restart_reason = _RESTART_REASONS.get(death.end, child.restart_reason)
        self._wake.set()
        self._conclude(child, death)

    def _certify(self, child: ChildProcess, death: Death) -> None:
        if child.identity is None:
            return
        cause = None
        if death.is_crash:
            cause = describe_cause(
                death,
                worker_id=child.identity.worker_id,
                rss_bytes=child.vitals.rss_bytes,
                at=datetime.now(UTC).isoformat(),
            )
        self._heartbeat.certify(DeathCertificate(child.identity, cause))

    def _log_death(self, child: ChildProcess, death: Death) -> None:
        fields = {
            "pid": child.pid,
            "worker_id": child.identity.worker_id if child.identity else None,
            "end": death.end.value,
            "signal": death.signal_name,
            "exit_code": death.exit_code,
            "jobs_in_hand": child.active_jobs,
            "rss_bytes": child.vitals.rss_bytes,
        }
        if death.is_crash:
            self._meter.count("rrq_child_crashes_total", death.how)
            logger.error("worker process died", extra=fields)
        elif death.end is End.UNFIT:
            logger.error("worker process cannot run the application", extra=fields | {"error": child.failure})
        else:
            logger.info("worker process ended", extra=fields)

    def _conclude(self, child: ChildProcess, death: Death) -> None:
        """End the pod if this death leaves nothing to run."""
        if death.end is End.UNFIT and self._status.settings is None and child.failure is not None:
            if self._exit_code is None:
                self._say_error(child.failure)
            self._end_all(1)
        elif self._plan.child.burst and child.is_orderly:
            # Only the child knows whether the burst was done.
            self._exit_code = child.farewell.code if child.farewell is not None else 1
        else:
            self._give_up_if_hopeless()

    def _give_up_if_hopeless(self) -> None:
        is_any_up = any(child.is_registered for child in self.children)
        if not is_any_up and is_hopeless([place.failures for place in self._places]):
            if self._exit_code is None:
                logger.critical("all worker processes keep crashing, the pod ends")
            self._end_all(1)

    def _end_all(self, code: int) -> None:
        self._end(code)
        for child in self.children:
            child.terminate(monotonic() + KILL_AFTER_GRACE_SECONDS)

    def _build_beats(self) -> list[Beat]:
        beats = [child.build_beat() for child in self.children]
        return [beat for beat in beats if beat is not None]

    def _incarnations(self) -> set[str]:
        return {child.hello.incarnation for child in self.children if child.hello is not None}

    def _forward_answer(self, beat: Beat, reply: BeatReply) -> None:
        for child in self.children:
            if child.identity == beat.worker:
                child.send(BeatAnswer.of(beat.worker.worker_id, reply))


def _address(settings: RRQSettings) -> tuple[object, ...]:
    return (
        settings.redis_dsn,
        settings.key_prefix,
        settings.redis_sentinel_service,
        tuple(settings.redis_sentinel_hosts),
        settings.worker_lease_seconds,
    )
