"""Speaks to Redis for a whole pod: one heartbeat for all its children, death certificates, sweeps.

One connection only. While nothing is due it blocks on the control lists of the children, so that a cancelled
job is told within milliseconds; a death closes that connection and opens another, because a certificate must
not wait behind the block.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic

from rrq.broker.connection import REDIS_ERRORS, is_script_failure
from rrq.broker.messages import Beat, BeatReply, DeathCertificate, Observation, ReapReport
from rrq.broker.redis_advice import describe_redis_trouble
from rrq.engine.reaper import Reaper
from rrq.runtime.backoff import jittered_delay_seconds
from rrq.runtime.metrics import Meter
from rrq.settings import RRQSettings
from rrq.store import JobStore

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Pulse:
    """What the heartbeat last learned; everything None until Redis has answered once."""

    answered_at: float | None = None
    seen: Observation | None = None


class PodHeartbeat:
    """Renews the leases of all children that deserve it, and sees to it that the dead are buried."""

    def __init__(
        self,
        get_beats: Callable[[], Sequence[Beat]],
        get_incarnations: Callable[[], Collection[str]],
        tell: Callable[[Beat, BeatReply], None],
        meter: Meter,
    ) -> None:
        self._get_beats = get_beats
        self._get_incarnations = get_incarnations
        self._tell = tell
        self._meter = meter
        self._store: JobStore | None = None
        #: Where nothing is left to do but to close the connection.
        self._left: list[JobStore] = []
        self._queues: tuple[str, ...] = ()
        self._reaper: Reaper | None = None
        self._reborn_pod_uid = ""
        self._certificates: deque[DeathCertificate] = deque()
        self._interrupted = asyncio.Event()
        self._all_certified = asyncio.Event()
        self._all_certified.set()
        self.pulse = Pulse()

    def connect(self, settings: RRQSettings, queues: Sequence[str], reborn_pod_uid: str = "") -> None:
        """Learn from the first child where Redis is.

        ``reborn_pod_uid``: this is process 1 of a container in that pod, so that whatever else is registered
        for the pod belongs to an earlier container and is dead.
        """
        self._reborn_pod_uid = reborn_pod_uid
        if self._store is not None:
            self._left.append(self._store)
        self._store = JobStore(settings)
        self._store.wire.on_call = self._meter.on_redis_call
        self._reaper = Reaper(self._store, self._meter)
        self._queues = tuple(queues)
        self.beat_soon()

    def beat_soon(self) -> None:
        """A child has come or gone: beat and listen for those that there are now."""
        self._interrupted.set()

    def certify(self, certificate: DeathCertificate) -> None:
        """Have the jobs of a dead child given back, as soon as Redis can be reached."""
        if self._store is None:
            return  # it had not found its settings, so it cannot have claimed anything
        self._certificates.append(certificate)
        self._all_certified.clear()
        self.beat_soon()

    async def settle(self, timeout_seconds: float) -> bool:
        """Wait until every certificate is delivered; False when the time is up before."""
        try:
            await asyncio.wait_for(self._all_certified.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Beat until cancelled."""
        try:
            while True:
                self._interrupted.clear()
                while self._left:
                    await self._left.pop().aclose()
                if self._store is None:
                    await self._interrupted.wait()
                    continue
                try:
                    await self.run_once(self._store)
                # Without it every child loses its lease; nothing that Redis may hold must end it.
                except Exception:
                    logger.exception("heartbeat failed, trying again on another connection")
                    await self._store.wire.aclose()
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            for store in (*self._left, self._store):
                if store is not None:
                    await store.aclose()

    async def run_once(self, store: JobStore) -> None:
        """Deliver certificates, beat, look at the queues, then listen until the next beat is due."""
        next_beat_at = monotonic() + store.settings.lease_renewal_seconds
        try:
            await self._certify_predecessors(store)
            # One round trip each, and a certificate that cannot be delivered costs no lease.
            await self._deliver(store)
            await self._beat(store)
            while not self._certificates and (left := next_beat_at - monotonic()) > 0:
                if await self._listen(store, left):
                    return
        except REDIS_ERRORS as error:
            told = describe_redis_trouble(store.settings.redis_dsn, error)
            logger.warning("heartbeat failed, trying again", extra={"error": told})
            # Not cut short by a death: its certificate meets the same Redis.
            await asyncio.sleep(jittered_delay_seconds(_RETRY_SECONDS, 0.5, random.uniform))

    async def _certify_predecessors(self, store: JobStore) -> None:
        if not self._reborn_pod_uid:
            return
        workers = (await store.observe([])).workers.values()
        own = self._get_incarnations()
        for worker in workers:
            if worker.pod_uid == self._reborn_pod_uid and worker.incarnation not in own:
                # One that had ended in order would not be registered any more.
                self.certify(DeathCertificate(worker.identity, is_explained=False))
        self._reborn_pod_uid = ""

    async def _deliver(self, store: JobStore) -> None:
        while self._certificates:
            certificate = self._certificates[0]
            try:
                report = await store.reap_workers(certificate)
            except REDIS_ERRORS as error:
                if not is_script_failure(error):
                    raise
                # Sent again it would fail again. The end of its lease gives the jobs back.
                logger.error(
                    "jobs of a dead worker process are due when its lease ends",
                    extra={"worker_id": certificate.worker.worker_id, "error": str(error)},
                )
                self._certificates.popleft()
                continue
            self._note(certificate, report)
            if not report.has_more:
                self._certificates.popleft()
        self._all_certified.set()

    def _note(self, certificate: DeathCertificate, report: ReapReport) -> None:
        self._meter.count("rrq_reaped_jobs_total", "death", by=report.returned)
        self._meter.count("rrq_buried_jobs_total", by=report.buried)
        if report.returned or report.buried:
            logger.warning(
                "jobs of a dead worker process are due again",
                extra={
                    "worker_id": certificate.worker.worker_id,
                    "jobs": report.returned,
                    "dead_lettered": report.buried,
                },
            )

    async def _beat(self, store: JobStore) -> None:
        beats = self._get_beats()
        renewal = await store.renew_leases(beats)
        for beat, reply in zip(beats, renewal.replies, strict=True):
            self._tell(beat, reply)
        if self._reaper is not None:
            self._reaper.plan(renewal)
        self.pulse = Pulse(monotonic(), self.pulse.seen)
        seen = await store.observe(self._queues, most_workers=0)
        self.pulse = Pulse(monotonic(), seen)

    async def _listen(self, store: JobStore, wait_seconds: float) -> bool:
        """Wait for an order, the next sweep or ``wait_seconds``; True when the next beat is due at once."""
        until_reap = self._reaper.seconds_until_due() if self._reaper is not None else None
        is_sweep_next = until_reap is not None and until_reap < wait_seconds
        seconds = until_reap if is_sweep_next and until_reap is not None else wait_seconds
        if await self._wait(store, seconds):
            return True
        if is_sweep_next and self._reaper is not None and not self._certificates:
            await self._reaper.run_once()
        return False

    async def _wait(self, store: JobStore, seconds: float) -> bool:
        worker_ids = [beat.worker.worker_id for beat in self._get_beats()]
        interruption = asyncio.ensure_future(self._interrupted.wait())
        order = asyncio.ensure_future(
            store.wait_for_control(worker_ids, seconds) if worker_ids else asyncio.sleep(seconds, False)
        )
        try:
            await asyncio.wait({interruption, order}, return_when=asyncio.FIRST_COMPLETED)
            if order.done():
                return order.result()
            # A new socket, because on this one every call waits until the block in Redis ends.
            order.cancel()
            await store.wire.aclose()
            return True
        finally:
            interruption.cancel()
            order.cancel()
            await asyncio.gather(interruption, order, return_exceptions=True)
