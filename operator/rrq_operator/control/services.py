"""What every part of the operator that acts is given: the cluster, what is known of it, and where to report."""

import asyncio
from dataclasses import dataclass, field

from rrq_operator.cluster.cluster_cache import ClusterCache
from rrq_operator.cluster.kube import Kube
from rrq_operator.control.metrics import Metrics
from rrq_operator.decide.status_pacing import FIGURE_WRITES_PER_SECOND, RESTLESS_WRITES_PER_SECOND, Slots

#: Fewer than the connections to the API server, where an action would wait until its time is up.
_ACTIONS_AT_ONCE = 50
#: Far fewer: a pool that grows must not wait behind the news of fifty others.
_REPORTS_AT_ONCE = 5


@dataclass(frozen=True)
class Services:
    """One set for each term of a leader."""

    kube: Kube
    cluster_cache: ClusterCache
    metrics: Metrics
    actions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ACTIONS_AT_ONCE))
    reports: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_REPORTS_AT_ONCE))
    figure_slots: Slots = field(default_factory=lambda: Slots(FIGURE_WRITES_PER_SECOND))
    restless_slots: Slots = field(default_factory=lambda: Slots(RESTLESS_WRITES_PER_SECOND))
    told_events: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When which event was written last, and how often, by its digest."""
