"""The pages of a pod: three probes and the metrics."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from time import monotonic

from rrq.pod.exposition import PodCollector
from rrq.pod.http import Answer, Page
from rrq.pod.probes import PodState, Verdict, decide_liveness, decide_readiness, decide_startup


def build_pages(get_state: Callable[[], PodState], collector: PodCollector) -> Mapping[str, Page]:
    """Return what is served under which path."""

    def metrics(accept: str) -> Answer:
        content_type, text = collector.expose(accept)
        return HTTPStatus.OK, content_type, text

    return {
        "/livez": lambda _: _answer(decide_liveness(get_state(), monotonic())),
        "/readyz": lambda _: _answer(decide_readiness(get_state(), monotonic())),
        "/startupz": lambda _: _answer(decide_startup(get_state())),
        "/metrics": metrics,
    }


def _answer(verdict: Verdict) -> Answer:
    status = HTTPStatus.OK if verdict.is_green else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "text/plain; charset=utf-8", f"{verdict.reason}\n".encode()
