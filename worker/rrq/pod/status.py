"""What probes and scrapes see of a pod. They read in threads of the HTTP server, the supervisor updates."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING

from rrq.pod.exposition import ChildFigures, PodCollector, PodFigures
from rrq.pod.heartbeat import PodHeartbeat
from rrq.pod.http import Answer, Page, PodServer
from rrq.pod.places import Place
from rrq.pod.probes import PodState, Verdict, decide_liveness, decide_readiness, decide_startup
from rrq.runtime.metrics import Meter

if TYPE_CHECKING:
    from rrq.settings import RRQSettings

logger = logging.getLogger(__name__)


class PodStatus:
    """The state of a pod as of the last ``update``."""

    def __init__(self, places: Sequence[Place], heartbeat: PodHeartbeat, meter: Meter) -> None:
        self._places = places
        self._heartbeat = heartbeat
        self._meter = meter
        self.is_stopping = False
        #: None until the first child has loaded its settings.
        self.settings: RRQSettings | None = None
        self._able_at = monotonic()
        self.state = self._describe(self._able_at)

    def update(self, now: float) -> None:
        if any(place.child is not None and place.child.is_registered for place in self._places):
            self._able_at = now
        self.state = self._describe(now)

    def _describe(self, now: float) -> PodState:
        return PodState(
            at=now,
            is_stopping=self.is_stopping,
            redis_answered_at=self._heartbeat.pulse.answered_at,
            redis_patience_seconds=self.settings.worker_redis_patience_seconds if self.settings else 0.0,
            failures=tuple(place.failures for place in self._places),
            registered=sum(place.child is not None and place.child.is_registered for place in self._places),
            able_at=self._able_at,
            has_started=all(place.has_been_up for place in self._places),
        )

    @contextlib.contextmanager
    def serve(self, bind: str | None) -> Iterator[None]:
        """Serve probes and metrics at an address, if there is one, while the context lasts."""
        if bind is None:
            yield
            return
        with PodServer(bind, self._build_pages(asyncio.get_running_loop())) as server:
            logger.info("probes and metrics are served", extra={"port": server.port})
            yield

    def _build_pages(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Page]:
        collector = PodCollector(self._meter, lambda: self._figures(loop))

        def metrics(accept: str) -> Answer:
            content_type, text = collector.expose(accept)
            return HTTPStatus.OK, content_type, text

        return {
            "/livez": lambda _: _answer(decide_liveness(self.state, monotonic())),
            "/readyz": lambda _: _answer(decide_readiness(self.state, monotonic())),
            "/startupz": lambda _: _answer(decide_startup(self.state)),
            "/metrics": metrics,
        }

    def _figures(self, loop: asyncio.AbstractEventLoop) -> PodFigures:
        pulse, renewal_seconds = self._heartbeat.pulse, 0.0
        if self.settings is not None:
            renewal_seconds = self.settings.lease_renewal_seconds
        # Two renewals, because one may be running at this moment.
        is_up = pulse.answered_at is not None and monotonic() - pulse.answered_at < 2 * renewal_seconds + 1
        figures = [
            child.figures() if child is not None else _absent(place.number)
            for place in self._places
            for child in [place.child]  # read once: the event loop may empty the place meanwhile
        ]
        return PodFigures(figures, is_up, pulse.seen if is_up else None, len(asyncio.all_tasks(loop)))


def _absent(number: int) -> ChildFigures:
    return ChildFigures(number, False, 0, 0, 0, None, None, None)


def _answer(verdict: Verdict) -> Answer:
    status = HTTPStatus.OK if verdict.is_green else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "text/plain; charset=utf-8", f"{verdict.reason}\n".encode()
