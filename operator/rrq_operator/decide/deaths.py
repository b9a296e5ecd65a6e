"""Which workers are dead for certain, and which perhaps, by what the cluster shows of their pods. Pure.

A certificate requeues the jobs of a worker at once; a hint only shortens its lease to one renewal, which a living
worker makes without noticing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rrq.broker.messages import DeathCertificate, WorkerObservation
from rrq_operator.decide.manifests import STOPPED_EARLY_EXIT_CODE
from rrq_operator.decide.objects import PodObject

#: A container may restart within a second of its end, and clocks of nodes and Redis differ. Only workers that registered
#: this long before the end of a container count as workers of that container.
_CLOCK_ALLOWANCE_SECONDS = 5.0


@dataclass(frozen=True)
class Deaths:
    certificates: tuple[DeathCertificate, ...] = ()
    hints: tuple[str, ...] = ()
    """Worker ids."""


def find_deaths(
    workers: Iterable[WorkerObservation], pods: Mapping[str, PodObject], vanished: Mapping[str, PodObject]
) -> Deaths:
    """Return what to report to Redis. ``pods`` by uid; ``vanished``: what was last known of those that are gone."""
    certificates, hints = [], []
    for worker in workers:
        pod = pods.get(worker.pod_uid) or vanished.get(worker.pod_uid)
        if pod is None:
            continue
        # The kubelet reports the end of a deleted pod just before its object goes.
        if _is_proven_dead(worker, pod):
            cause = _find_cause(pod)
            certificates.append(DeathCertificate(worker.identity, cause, is_explained=not pod.was_evicted))
        # Force-deleted or lost with its node: the object is gone, the process perhaps not.
        elif worker.pod_uid in vanished or pod.is_cut_off or pod.has_ended:
            hints.append(worker.worker_id)
    return Deaths(tuple(certificates), tuple(hints))


def _is_proven_dead(worker: WorkerObservation, pod: PodObject) -> bool:
    # The phase alone is no proof: the containers of a lost node may still run.
    if pod.has_ended and pod.has_worker_ended:
        return True
    if pod.ending is None or worker.registered_ms is None:
        return False
    # While the kubelet waits, there is no next container whose workers could be mistaken for those of this one.
    allowance_seconds = 0.0 if pod.ending.is_last else _CLOCK_ALLOWANCE_SECONDS
    return worker.registered_ms / 1000 + allowance_seconds < pod.ending.finished_at


def _find_cause(pod: PodObject) -> dict[str, object] | None:
    """Return the crash that the jobs in hand may have caused; None where the cluster ended the pod."""
    end = pod.ending
    if end is None or end.exit_code in (0, STOPPED_EARLY_EXIT_CODE) or pod.was_disrupted:
        return None
    return {"exit_code": end.exit_code, "reason": end.reason or "Error"}
