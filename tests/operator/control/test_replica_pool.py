"""What a pool with replicas does with a watch that is late or a decision that is old.

The cluster is a stand-in that takes down what it is asked for: a watch cannot be delayed, nor a call be slowed,
at the very moment that matters. What real clusters do is in ``integration/``.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from pools import build_pool
from rrq.broker.messages import Observation, QueueObservation
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord, parse_record
from rrq_operator.cluster.kube import KubeMissing, KubeRefused
from rrq_operator.cluster.redis_sources import SecretVersion
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.pool_group import Round
from rrq_operator.control.replica_pool import ReplicaPool
from rrq_operator.control.services import Services
from rrq_operator.decide.manifests import SCALE_MANAGER
from rrq_operator.decide.objects import BudgetObject, DeploymentObject
from rrq_operator.decide.shrinking import ShrinkPlan
from rrq_operator.decide.status import REPLACING_REASON

if TYPE_CHECKING:
    from rrq_operator.decide.manifests import Manifest

KEY = ("shop", "emails")


class Cluster:
    """Takes what is asked for, gives versions out, and shows no more than the test lets the watch show."""

    def __init__(self) -> None:
        self.version = 10
        self.sizes: list[int] = []
        self.refuses_sizes = False
        self.templates: list[Manifest] = []
        self.metadata: list[Manifest] = []
        self.left: dict[str, Manifest] = {}
        """What an earlier pool has left, by kind."""

    async def read(self, path: str) -> Manifest:
        if (left := self.left.get(path.split("/")[-2])) is not None:
            return left
        raise KubeMissing("not there yet")

    async def apply(self, path: str, manifest: Manifest) -> Manifest:
        if manifest["kind"] == "Deployment":
            self.templates.append(manifest["spec"]["template"])
            self.metadata.append(manifest["metadata"])
        return manifest | {"spec": manifest.get("spec", {})}

    async def apply_scale(self, path: str, name: str, namespace: str, replicas: int) -> int:
        if self.refuses_sizes:
            raise KubeRefused("exceeded quota", "Forbidden")
        self.version += 1
        self.sizes.append(replicas)
        return self.version

    async def list_all(self, path: str, *, selector: str = "") -> tuple[list[Manifest], str]:
        return [], "1"


class Desk:
    """A pool, its controller and what the watch shows of its Deployment."""

    def __init__(self) -> None:
        body = build_pool("emails", scaling={"maxReplicas": 20, "scaleDown": {"windowSeconds": 0}})
        body["metadata"] |= {
            "namespace": "shop",
            "uid": "1",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        self.record: PoolRecord = parse_record(body)
        self.cluster, self.cluster_cache = Cluster(), ClusterCache()
        self.cluster_cache.set_pool(self.record)
        kube: Any = self.cluster
        self.controller = ReplicaPool(self.record, Services(kube, self.cluster_cache, Metrics()))
        assert self.record.pool is not None
        self.pool = self.record.pool
        self.controller.source = self.pool.spec.redis
        self.controller.secret_version = SecretVersion()
        self.controller.queue_names = ("default",)
        self.show(requested=0, version=10)

    def show(
        self, requested: int, version: int, scaled_by: str = SCALE_MANAGER, owner_uid: str = "1"
    ) -> None:
        self.cluster_cache.deployments[KEY] = DeploymentObject(
            KEY, "emails", "2", owner_uid, version, requested, 0, 0, False, "", "", "", scaled_by
        )

    async def look(self, due: int | None) -> None:
        """Go one round with so many jobs due; None when Redis gives no answer."""
        queues = {"default": QueueObservation(due, 0, 0, None, None)} if due is not None else None
        this_round = Round(self.pool, None if queues is None else Observation(1_000, queues))
        self.controller.decide(this_round)
        await self.controller.act(this_round)

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        conditions = self.controller.reporter.latest.conditions or ()
        return {entry.type: (entry.status, entry.reason) for entry in conditions}


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_an_old_view_does_not_undo_the_size_that_was_asked_for(desk: Desk) -> None:
    await desk.look(due=100)
    assert desk.cluster.sizes == [10]
    # The watch still shows what was before, and less is needed by now: shrinking has rules of its own.
    await desk.look(due=60)
    assert desk.cluster.sizes == [10]
    desk.show(requested=10, version=11)
    await desk.look(due=200)
    assert desk.cluster.sizes == [10, 20]


async def test_a_lowered_maximum_is_carried_out_without_redis(desk: Desk) -> None:
    desk.show(requested=30, version=11)
    await desk.look(due=None)
    assert desk.cluster.sizes == []
    controller = desk.controller
    scaling = replace(controller._memory.scaling, unreadable_since=monotonic() - 60)  # as if it had waited
    controller._memory = replace(controller._memory, scaling=scaling)
    await desk.look(due=None)
    assert desk.cluster.sizes == [20]


async def test_a_size_that_is_refused_is_a_condition_until_it_is_taken(desk: Desk) -> None:
    desk.cluster.refuses_sizes = True
    await desk.look(due=100)
    await desk.look(due=100)
    assert desk.conditions["ScalingActive"] == ("False", "Forbidden")
    desk.cluster.refuses_sizes = False
    desk.controller._scale_retry_at = 0.0  # as if the pause were over
    await desk.look(due=100)
    await desk.look(due=100)
    assert desk.conditions["ScalingActive"] == ("True", "Backlog")


async def apply(desk: Desk, live: DeploymentObject, version: SecretVersion) -> DeploymentObject:
    """Go one round with this Secret; returns what the watch then shows of the Deployment."""
    desk.cluster_cache.deployments[KEY] = live
    desk.controller.secret_version = version
    desk.controller._objects._retry_at = 0.0  # as if the watch had caught up
    await desk.look(due=None)
    metadata, template = desk.cluster.metadata[-1], desk.cluster.templates[-1]
    return replace(
        live,
        secret_shown=template["metadata"]["annotations"]["rrq.dev/redis-secret-version"],
        secret_digest=metadata["annotations"].get("rrq.dev/redis-secret-digest", ""),
    )


async def test_operators_that_start_later_roll_no_pods_for_a_secret_that_was_made_anew(desk: Desk) -> None:
    """The digest of the same bytes is another one: the uid of the Secret is its key."""
    live = await apply(desk, desk.cluster_cache.deployments[KEY], SecretVersion("of 1", "1", "of 1"))
    assert (live.secret_shown, live.secret_digest) == ("of 1", "")
    made_anew = await apply(desk, live, SecretVersion("of 1", "2", "of 2"))
    assert (made_anew.secret_shown, made_anew.secret_digest) == ("of 1", "of 2")
    second = Desk()
    started = await apply(second, made_anew, SecretVersion("of 2", "2", "of 2"))
    assert (started.secret_shown, started.secret_digest) == ("of 1", "of 2")
    again = await apply(second, started, SecretVersion("of 2", "3", "of 3"))
    again = await apply(second, again, SecretVersion("of 2", "4", "of 3"))
    assert (again.secret_shown, again.secret_digest) == ("of 1", "of 3")
    third = await apply(Desk(), again, SecretVersion("of 3", "3", "of 3"))
    assert (third.secret_shown, third.secret_digest) == ("of 1", "of 3")
    changed = await apply(Desk(), third, SecretVersion("other bytes", "4", "other bytes"))
    assert (changed.secret_shown, changed.secret_digest) == ("other bytes", "")


async def test_an_operator_that_starts_after_an_upgrade_rolls_no_pods_when_the_secret_was_annotated(
    desk: Desk,
) -> None:
    # The operator before the upgrade showed the resource version.
    upgraded = replace(desk.cluster_cache.deployments[KEY], secret_shown="7")
    upgraded = await apply(desk, upgraded, SecretVersion("first", "7", "first"))
    annotated = await apply(Desk(), upgraded, SecretVersion("first", "8", "first"))
    assert annotated.secret_shown == "7"
    again = await apply(Desk(), annotated, SecretVersion("first", "9", "first"))
    assert again.secret_shown == "7"
    changed = await apply(Desk(), again, SecretVersion("second", "10", "second"))
    assert (changed.secret_shown, changed.secret_digest) == ("second", "")
    without_secret = await apply(
        Desk(), replace(again, secret_digest=""), SecretVersion("second", "10", "second")
    )
    assert without_secret.secret_shown == "second"


async def test_a_pool_made_anew_waits_no_longer_than_until_its_predecessor_has_left(desk: Desk) -> None:
    owner = {"kind": "RRQWorkerPool", "name": "emails", "uid": "0", "controller": True}
    left: Manifest = {"metadata": {"ownerReferences": [owner]}}
    desk.cluster.left = {"deployments": left, "poddisruptionbudgets": left}
    desk.show(requested=3, version=10, owner_uid="0")
    desk.cluster_cache.budgets[KEY] = BudgetObject(KEY, "emails", "0", "", "")
    objects = desk.controller._objects
    await desk.look(due=100)
    assert objects.fault is not None
    assert objects.fault.reason == REPLACING_REASON
    objects._retry_at = monotonic() + 30  # as if it had asked in vain for long
    desk.cluster.left.clear()
    await desk.look(due=100)
    assert desk.cluster.sizes == [], "the watch shows it still"
    del desk.cluster_cache.deployments[KEY]
    await desk.look(due=100)
    assert desk.cluster.sizes == [10]
    assert objects.fault is None


async def test_a_decision_to_shrink_that_has_grown_old_is_not_carried_out(desk: Desk) -> None:
    await desk.look(due=100)
    desk.show(requested=10, version=11)
    controller = desk.controller
    queues = {"default": QueueObservation(0, 0, 0, None, None)}
    this_round = Round(desk.pool, Observation(2_000, queues))
    controller.decide(this_round)
    assert controller._decision is not None
    # Pods that were asked for and never came may go at once; here the decision waited too long for its turn.
    step = replace(controller._decision.step, replicas=0)
    controller._decision = replace(controller._decision, step=step, at=monotonic() - 10)
    await controller.act(this_round)
    assert desk.cluster.sizes == [10]
    controller._decision = replace(controller._decision, at=monotonic())
    await controller.act(this_round)
    assert desk.cluster.sizes == [10, 0]


async def test_pods_are_remembered_as_given_up_before_less_is_asked_for(desk: Desk) -> None:
    await desk.look(due=100)
    desk.show(requested=10, version=11)
    controller = desk.controller
    queues = {"default": QueueObservation(0, 0, 0, None, None)}
    this_round = Round(desk.pool, Observation(2_000, queues))
    controller.decide(this_round)
    assert controller._decision is not None
    step = replace(controller._decision.step, replicas=0, plan=ShrinkPlan(drain=("a",)))
    controller._decision = replace(controller._decision, step=step)
    controller._flags._flagged_at = {"a": monotonic()}
    # Kubernetes may have heard it even where it does not answer.
    desk.cluster.refuses_sizes = True
    await controller.act(this_round)
    assert set(controller._memory.given_up) == {"a"}
