"""What every part of the operator that acts is handed: the cluster, what is known of it, and where to report."""

from dataclasses import dataclass, field

from rrq.broker.messages import Observation
from rrq_operator.api.spec import Pool
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord
from rrq_operator.cluster.events import Events
from rrq_operator.cluster.kube import Kube
from rrq_operator.cluster.redis_sources import SecretVersion
from rrq_operator.control.metrics import Metrics
from rrq_operator.decide.status import Fault
from rrq_operator.decide.status_pacing import FIGURE_WRITES_PER_SECOND, TURN_WRITES_PER_SECOND, Slots
from rrq_operator.redis.queues import RedisQueues


@dataclass(frozen=True)
class Services:
    kube: Kube
    cluster_cache: ClusterCache
    events: Events
    metrics: Metrics
    figure_slots: Slots = field(default_factory=lambda: Slots(FIGURE_WRITES_PER_SECOND))
    turn_slots: Slots = field(default_factory=lambda: Slots(TURN_WRITES_PER_SECOND))


@dataclass(frozen=True)
class Round:
    """What one round of one pool starts from."""

    record: PoolRecord
    queue_names: tuple[str, ...] = ()
    """The short names of its queues."""
    seen: Observation | None = None
    """Its queues and the workers of its pods; None when Redis could not be read."""
    queue_fault: Fault | None = None
    queues: RedisQueues | None = None
    """None while it is not known which Redis the pool uses."""
    secret_version: SecretVersion | None = None
    """None while it is not known."""
    heard_at: float | None = None
    """When the news came that led to this round, by the monotonic clock."""

    def is_on_hold(self, pool: Pool) -> bool:
        """Whether the pool is paused in Redis, as far as is known."""
        return self.seen is not None and pool.pause_target in self.seen.paused
