"""Keeps the worker processes of a pod running, replaces the dead, and brings all of them to their end.

It runs no job code and imports no application. Whether and when to start again is decided in ``restarts.py``;
leases, certificates and sweeps are the heartbeat's.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf
from time import monotonic

from rrq.broker.messages import Beat, BeatReply, DeathCertificate
from rrq.pod.channel import BeatAnswer, Farewell, Hello, Message, RenewYourself, Report
from rrq.pod.child_process import ChildProcess
from rrq.pod.container import adopt_orphans, reborn_pod_uid
from rrq.pod.exposition import ChildFigures, PodCollector, PodFigures
from rrq.pod.heartbeat import PodHeartbeat
from rrq.pod.http import PodServer
from rrq.pod.pages import build_pages
from rrq.pod.plan import EX_TEMPFAIL, KILL_AFTER_GRACE_SECONDS, PodPlan
from rrq.pod.probes import PodState
from rrq.pod.restarts import (
    Death,
    End,
    count_failures,
    describe_cause,
    is_hopeless,
    judge_death,
    restart_delay_seconds,
)
from rrq.runtime.metrics import Meter
from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)

_TURN_SECONDS = 0.25
_SAMPLE_SECONDS = 1.0
_OWN_STALL_SECONDS = 2.0
# Children that grow cannot wait for ever until the long job of one that retires has ended.
_LONG_RETIREMENT_SECONDS = 60.0
_LAST_CERTIFICATES_SECONDS = 0.3
# A child that has given its lease back only runs the application's shutdown hook.
_SHUTDOWN_HOOK_SECONDS = 30.0


class Place:
    """One of the pod's places for a child: who is in it, and how its predecessors fared."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: ChildProcess | None = None
        self.failures = 0
        self.start_at = 0.0
        self.restart_reason: str | None = None
        self.has_been_up = False

    def is_settled(self, now: float) -> bool:
        """Whether its child is up; one that retires counts again once its last jobs take their time."""
        child = self.child
        if child is None or not child.is_registered:
            return False
        return child.asked is None or now - child.retired_at > _LONG_RETIREMENT_SECONDS


class Supervisor:
    """Runs one pod from start to end."""

    def __init__(self, plan: PodPlan, say: Callable[[str], None], say_error: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._say_error = say_error
        self.places = [Place(number) for number in range(plan.processes)]
        self.meter = Meter()
        self.heartbeat = PodHeartbeat(self._build_beats, self._incarnations, self._tell, self.meter)
        self._settings: RRQSettings | None = None
        self._wake = asyncio.Event()
        self._burials: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        #: Set once the pod is to end; it ends when the last child has.
        self._exit_code: int | None = None
        self._reload_at = 0.0
        self._sampled_at = 0.0
        self._able_at = monotonic()
        self.state = self._describe(monotonic())

    @property
    def children(self) -> list[ChildProcess]:
        return [place.child for place in self.places if place.child is not None]

    async def run(self) -> int:
        """Run until a signal, the end of a burst, or despair; returns the exit code."""
        adopt_orphans()
        self._handle_signals()
        beating = asyncio.create_task(self.heartbeat.run())
        try:
            with self._serve():
                while self._exit_code is None or self.children or self._burials:
                    if beating.done():
                        # Leases are no longer renewed: better no supervisor, for then the children do it.
                        beating.result()
                    self._look_after(monotonic())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._seconds_to_next_turn(monotonic()))
                    self._wake.clear()
                if not await self.heartbeat.settle(_LAST_CERTIFICATES_SECONDS):
                    logger.warning("Redis gives no answer; jobs still in hand are due when the leases end")
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        return self._exit_code

    def _seconds_to_next_turn(self, now: float) -> float:
        # To the moment: a pod has promised when it will have ended.
        kills = [child.kill_at - now for child in self.children if child.kill_at is not None]
        return max(0.0, min([_TURN_SECONDS, *kills]))

    # Signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        # A terminal that closes sends it too, and then nobody is left who could stop the pod.
        on_hangup = self.stop if sys.stdin is not None and sys.stdin.isatty() else self.reload
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        loop.add_signal_handler(signal.SIGCHLD, self._collect_dead)

    def stop(self) -> None:
        """Drain all children and end; asked a second time, hurry."""
        hurries, self._is_stopping = self._is_stopping, True
        self._end(EX_TEMPFAIL if self._plan.child.burst else 0)
        logger.info("pod hurries" if hurries else "pod stops", extra={"children": len(self.children)})
        now = monotonic()
        for child in self.children:
            grace_seconds = 0.0
            if child.settings is not None and not hurries:
                grace_seconds = child.settings.worker_shutdown_grace_period_seconds
            child.terminate(now + grace_seconds + KILL_AFTER_GRACE_SECONDS)
        self._publish(now)

    def reload(self) -> None:
        """Replace one child after the other, so that new code is loaded without losing capacity."""
        logger.info("reload requested")
        self._reload_at = monotonic()
        self._wake.set()

    def _end(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code
        self._wake.set()

    # Looking after the children

    def _look_after(self, now: float) -> None:
        if now - self.state.at > _OWN_STALL_SECONDS:
            # We stood still ourselves, as in a paused machine or a frozen container: what the children said
            # meanwhile is not read yet, and they may have stood still too.
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
            self._rotate(now)
        self._publish(now)

    def _end_overdue(self, child: ChildProcess, now: float) -> None:
        if child.kill_at is not None and now >= child.kill_at:
            logger.warning("worker process did not end in time, killed", extra={"pid": child.pid})
            child.kill()
        elif child.asked is not End.HUNG and child.is_hung(now) and not child.is_frozen():
            logger.critical(
                "event loop of a worker process stands still past all deadlines, killed"
                if child.has_registered
                else "worker process does not come up, killed",
                extra={"pid": child.pid, "worker_id": child.hello.worker_id if child.hello else None},
            )
            child.asked = End.HUNG
            child.kill()

    def _start_due(self, now: float) -> None:
        for place in self.places:
            if place.child is not None or now < place.start_at:
                continue
            try:
                place.child = ChildProcess(place.number, self._plan.child, self._on_message)
            except OSError as error:
                place.failures += 1
                place.start_at = now + restart_delay_seconds(place.failures)
                logger.critical(
                    "worker process cannot be started",
                    extra={"executable": sys.executable, "error": str(error)},
                )
                self._give_up_if_hopeless()
                continue
            if place.restart_reason is not None:
                self.meter.count("rrq_child_restarts_total", place.restart_reason)
                place.restart_reason = None

    def _rotate(self, now: float) -> None:
        """Retire one child that is due for it, and no second one before its successor is up."""
        # A place whose children only crash must not keep the others from being recycled.
        if all(place.failures or place.is_settled(now) for place in self.places):
            for child in self.children:
                if child.has_outgrown_memory() or child.has_run_its_jobs():
                    logger.info("worker process is recycled", extra={"pid": child.pid})
                    child.retire("recycled")
                    return
        # New code that does not come up must not take the children with it that still run the old one.
        if all(place.is_settled(now) for place in self.places):
            for child in self.children:
                if child.started_at < self._reload_at and child.asked is None:
                    logger.info("worker process is replaced", extra={"pid": child.pid})
                    child.retire("reload")
                    return

    # What children say

    def _on_message(self, child: ChildProcess, message: Message) -> None:
        place = self.places[child.place]
        match message:
            case Hello():
                self._on_hello(child, message)
            case Report():
                self.meter.add(message.metrics)
                if message.is_registered != child.was_registered:
                    child.was_registered = message.is_registered
                    self.heartbeat.beat_soon()
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
        if self._settings is None:
            self._settings = child.settings
            self.heartbeat.connect(child.settings, hello.queues, reborn_pod_uid())
        elif _address(child.settings) != _address(self._settings):
            # Reloaded code that uses another Redis: the supervisor goes on speaking to the one it knows.
            child.renews_itself = True
            child.send(RenewYourself())
            self._follow_to_another_redis()

    def _follow_to_another_redis(self) -> None:
        """Leave a Redis that none of the children uses any more; the others renew for themselves until then."""
        known = [child for child in self.children if child.settings is not None and child.hello is not None]
        if not known or not all(child.renews_itself for child in known):
            return
        first = known[0]
        assert first.settings is not None
        assert first.hello is not None
        self._settings = first.settings
        self.heartbeat.connect(first.settings, first.hello.queues)
        for child in known:
            child.renews_itself = _address(child.settings or first.settings) != _address(first.settings)

    # Deaths

    def _collect_dead(self) -> None:
        """Reap every process that has ended, orphans that were handed to us included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children:
                if child.pid == pid:
                    burial = asyncio.create_task(self._bury(child, os.waitstatus_to_exitcode(status)))
                    self._burials.add(burial)
                    burial.add_done_callback(self._burials.discard)

    async def _bury(self, child: ChildProcess, code: int) -> None:
        await child.bury(code)
        place = self.places[child.place]
        lived_seconds = monotonic() - child.started_at
        death = judge_death(
            code,
            is_orderly=child.is_orderly,
            is_unfit=child.failure is not None,
            asked=child.asked,
        )
        self._certify(child, death)
        self._tell_death(child, death)
        place.child = None
        self._follow_to_another_redis()
        place.failures = count_failures(place.failures, death, child.finished_jobs, lived_seconds)
        place.start_at = monotonic() + restart_delay_seconds(place.failures)
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
        self.heartbeat.certify(DeathCertificate(child.identity, cause))

    def _tell_death(self, child: ChildProcess, death: Death) -> None:
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
            self.meter.count("rrq_child_crashes_total", death.how)
            logger.error("worker process died", extra=fields)
        elif death.end is End.UNFIT:
            logger.error("worker process cannot run the application", extra=fields | {"error": child.failure})
        else:
            logger.info("worker process ended", extra=fields)

    def _conclude(self, child: ChildProcess, death: Death) -> None:
        """End the pod where this death leaves nothing to hope or to do for."""
        if death.end is End.UNFIT and self._settings is None and child.failure is not None:
            if self._exit_code is None:
                self._say_error(child.failure)
            self._end_all(1)
        elif self._plan.child.burst and child.is_orderly:
            # It knows best whether it was done.
            self._exit_code = child.farewell.code if child.farewell is not None else 1
        else:
            self._give_up_if_hopeless()

    def _give_up_if_hopeless(self) -> None:
        is_anyone_up = any(child.is_registered for child in self.children)
        if not is_anyone_up and is_hopeless([place.failures for place in self.places]):
            if self._exit_code is None:
                logger.critical("worker processes only crash, the pod gives up")
            self._end_all(1)

    def _end_all(self, code: int) -> None:
        self._end(code)
        for child in self.children:
            child.terminate(monotonic() + KILL_AFTER_GRACE_SECONDS)

    # For the heartbeat

    def _build_beats(self) -> list[Beat]:
        beats = [child.build_beat() for child in self.children]
        return [beat for beat in beats if beat is not None]

    def _incarnations(self) -> set[str]:
        return {child.hello.incarnation for child in self.children if child.hello is not None}

    def _tell(self, beat: Beat, reply: BeatReply) -> None:
        for child in self.children:
            if child.identity == beat.worker:
                child.send(BeatAnswer.of(beat.worker.worker_id, reply))

    # For probes and scrapes, which ask from another thread

    def _describe(self, now: float) -> PodState:
        return PodState(
            at=now,
            is_stopping=self._is_stopping,
            redis_answered_at=self.heartbeat.pulse.answered_at,
            redis_patience_seconds=self._settings.worker_redis_patience_seconds if self._settings else 0.0,
            failures=tuple(place.failures for place in self.places),
            registered=sum(child.is_registered for child in self.children),
            able_at=self._able_at,
            has_started=all(place.has_been_up for place in self.places),
        )

    def _publish(self, now: float) -> None:
        if any(child.is_registered for child in self.children):
            self._able_at = now
        self.state = self._describe(now)

    @contextlib.contextmanager
    def _serve(self) -> Iterator[None]:
        if self._plan.http is None:
            yield
            return
        loop = asyncio.get_running_loop()
        pages = build_pages(lambda: self.state, PodCollector(self.meter, lambda: self._figures(loop)))
        with PodServer(self._plan.http, pages) as server:
            logger.info("probes and metrics are served", extra={"port": server.port})
            yield

    def _figures(self, loop: asyncio.AbstractEventLoop) -> PodFigures:
        """Called from a thread of the server, unlike the rest here."""
        pulse, renewal_seconds = self.heartbeat.pulse, 0.0
        if self._settings is not None:
            renewal_seconds = self._settings.lease_renewal_seconds
        # Two renewals: one may be under way at this very moment.
        is_up = pulse.answered_at is not None and monotonic() - pulse.answered_at < 2 * renewal_seconds + 1
        figures = [
            child.figures() if child is not None else _absent(place.number)
            for place in self.places
            for child in [place.child]  # read once: the event loop may empty the place meanwhile
        ]
        return PodFigures(figures, is_up, pulse.seen if is_up else None, len(asyncio.all_tasks(loop)))


_RESTART_REASONS = {End.ENDED: "ended", End.CRASHED: "crash", End.UNFIT: "crash", End.HUNG: "hung"}


def _absent(number: int) -> ChildFigures:
    return ChildFigures(number, False, 0, 0, 0, None, None, None)


def _address(settings: RRQSettings) -> tuple[object, ...]:
    return (
        settings.redis_dsn,
        settings.key_prefix,
        settings.redis_sentinel_service,
        tuple(settings.redis_sentinel_hosts),
        settings.worker_lease_seconds,
    )
