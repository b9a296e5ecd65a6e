"""A pool with replicas: its Deployment, and how many pods it asks for."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic, time
from typing import Any

from rrq.flow import PoolReport
from rrq_operator.api.spec import Pool
from rrq_operator.cluster.kube import SCALE_MANAGER, KubeError, KubeMissing, deployments_path, pods_path
from rrq_operator.control.children import Children, describe_fault
from rrq_operator.control.reporting import Reporter
from rrq_operator.control.services import Round, Services
from rrq_operator.decide.manifests import COST_ANNOTATION, MANAGED_SELECTOR, build_selector
from rrq_operator.decide.objects import DeploymentObject, PodObject, PoolKey, parse_pod
from rrq_operator.decide.sizing import PodState, SizingInput, SizingMemory, SizingStep, decide_size
from rrq_operator.decide.status import Fault, PoolSnapshot, build_deployment_status
from rrq_operator.redis.queues import DRAIN_SECONDS, QueueTrouble

logger = logging.getLogger(__name__)

#: A decision to shrink that is older than this was made of what may have changed since.
_FRESH_SECONDS = 3.0
_FOREIGN_SCALER_SECONDS = 60.0
#: Three renewals fit into the life of a flag.
_RENEW_DRAIN_SECONDS = DRAIN_SECONDS / 3


class ReplicaPool:
    """Decides each round without waiting; acts when there is something to do."""

    def __init__(self, key: PoolKey, services: Services) -> None:
        self._key = key
        self._services = services
        self._children = Children(services)
        self._reporter = Reporter(key, services)
        self._memory = SizingMemory()
        self._flagged_at: dict[str, float] = {}
        self._asked: tuple[int, int] | None = None
        """The size that was asked for last, and the version of the Deployment that has it."""
        self._act_fault: Fault | None = None
        self._decided_at = 0.0
        self._foreign: tuple[str, float] | None = None
        self._step: SizingStep | None = None
        self._decided_on: frozenset[tuple[str, bool, bool]] = frozenset()
        self._needs_children = False
        self._scale_retry_at = 0.0
        #: Whether the next round should come soon: flags were set and may be confirmed.
        self.wants_another_look = False

    @property
    def horizon_seconds(self) -> float:
        return self._memory.horizon_seconds

    def decide(self, this_round: Round, pool: Pool) -> bool:
        """Take one decision; returns whether there is anything to do about it."""
        self._needs_children = self._children.prepare(pool, this_round.secret_version)
        deployment = self._find_deployment(pool)
        pods = [
            pod
            for pod in self._services.cluster_cache.pods.get(self._key, {}).values()
            if pod.owner_kind != "Job"
        ]
        if self._step is None:
            self._memory = _recall(this_round.record.status, pods)
        requested = self._find_requested(deployment)
        scene = SizingInput(
            seen=this_round.seen,
            pods=[_pod_state(pod) for pod in pods if not (pod.is_terminating or pod.has_ended)],
            requested=requested,
            is_rolling_out=deployment is not None and deployment.is_rolling_out,
            is_observed=deployment is None or deployment.is_observed,
            is_on_hold=this_round.is_on_hold(pool),
        )
        self._decided_on, self._decided_at = _tell_apart(pods), monotonic()
        memory = replace(self._memory, flagged=frozenset(self._flagged_at))
        self._step, self._memory = decide_size(
            pool.spec, this_round.queue_names, scene, memory, now_seconds=monotonic()
        )
        picture = PoolSnapshot(
            pool=pool,
            queues=None if this_round.seen is None else this_round.seen.queues,
            queue_fault=this_round.queue_fault,
            child_fault=self._children.fault,
            scale_fault=self._act_fault or self._find_scale_fault(),
            pods=pods,
            now=time(),
            is_on_hold=scene.is_on_hold,
        )
        status, conditions = build_deployment_status(
            picture, self._step, deployment, self._memory.startup_seconds
        )
        self._reporter.note(this_round, status, conditions)
        return (
            self._needs_children
            or bool(self._step.plan.drain or self._step.plan.release or self._step.plan.costs)
            or self._wants_scaling(deployment, requested)
        )

    async def act(self, this_round: Round, pool: Pool) -> None:
        """Do what was decided: objects first, then flags and costs, then the size."""
        step = self._step
        assert step is not None, "decide comes first"
        self.wants_another_look = False
        is_new = self._find_deployment(pool) is None
        if self._needs_children and await self._children.apply(pool, step.replicas) and is_new:
            self._asked = (step.replicas, self._children.made_version)
        deployment = self._find_deployment(pool)
        if deployment is None:
            return
        requested = self._find_requested(deployment)
        may_scale = step.replicas != requested and monotonic() >= self._scale_retry_at
        try:
            # Growing waits for nothing; shrinking waits until flags and costs are written.
            if may_scale and step.replicas > requested:
                await self._scale(this_round, pool, requested, step)
            await self._move_pods(this_round, pool, step)
            if may_scale and step.replicas < requested:
                await self._shrink(this_round, pool, requested, step)
            self._act_fault = None
        except QueueTrouble as trouble:
            self._services.metrics.redis_errors.labels(trouble.reason).inc()
            self._act_fault = Fault(trouble.reason, f"pods cannot be told to drain: {trouble}")
        except KubeMissing:
            pass  # the Deployment has gone meanwhile, as the watch will show
        except KubeError as error:
            self._services.metrics.api_errors.labels(error.reason or "Other").inc()
            self._scale_retry_at = monotonic() + 1.0
            self._act_fault = describe_fault(error)

    @property
    def has_news(self) -> bool:
        """Whether the pool has something to tell."""
        return self._reporter.has_news

    @property
    def card(self) -> PoolReport | None:
        """What dashboards are told of the pool."""
        return self._reporter.card

    async def report(self) -> None:
        await self._reporter.write()

    def _wants_scaling(self, deployment: DeploymentObject | None, requested: int) -> bool:
        return deployment is not None and self._step is not None and self._step.replicas != requested

    async def _move_pods(self, this_round: Round, pool: Pool, step: SizingStep) -> None:
        plan, now = step.plan, monotonic()
        if this_round.queues is None:
            return
        if plan.release:
            await this_round.queues.release(plan.release)
            for uid in plan.release:
                self._flagged_at.pop(uid, None)
        # A Redis that was restarted may have forgotten a flag that we think it has.
        claiming = {
            worker.pod_uid
            for worker in (this_round.seen.workers.values() if this_round.seen is not None else ())
            if not worker.is_draining
        }
        renew = [
            uid
            for uid in plan.drain
            if uid in claiming or now - self._flagged_at.get(uid, -1e9) > _RENEW_DRAIN_SECONDS
        ]
        if renew:
            await this_round.queues.drain(renew)
            # What we flagged now counts from the next round on, which sees what came before the flag.
            self.wants_another_look = True
            self._flagged_at |= dict.fromkeys(renew, monotonic())
        self._flagged_at = {
            uid: at for uid, at in self._flagged_at.items() if monotonic() - at < DRAIN_SECONDS
        }
        # When all go, Kubernetes cannot choose wrongly.
        if step.replicas > 0:
            await asyncio.gather(*(self._mark(pool, name, cost) for name, cost in plan.costs.items()))

    async def _mark(self, pool: Pool, name: str, cost: int) -> None:
        change = {"metadata": {"annotations": {COST_ANNOTATION: str(cost)}}}
        # A pod that has gone meanwhile costs nothing.
        with contextlib.suppress(KubeMissing):
            await self._services.kube.merge(f"{pods_path(pool.namespace)}/{name}", change)

    async def _shrink(self, this_round: Round, pool: Pool, requested: int, step: SizingStep) -> None:
        """Ask for less, unless what the decision rests on may have changed: then the next round knows better."""
        if not await self._are_pods_as_decided(pool):
            return
        now = monotonic()
        has_live_flags = all(
            now - self._flagged_at.get(uid, -1e9) < DRAIN_SECONDS / 2 for uid in step.plan.drain
        )
        if has_live_flags and now - self._decided_at < _FRESH_SECONDS:
            # Before it is asked for: the answer may get lost.
            given_up = {**self._memory.given_up, **dict.fromkeys(step.plan.drain, now)}
            self._memory = replace(self._memory, given_up=given_up)
            await self._scale(this_round, pool, requested, step)

    async def _scale(self, this_round: Round, pool: Pool, requested: int, step: SizingStep) -> None:
        path = f"{deployments_path(pool.namespace)}/{pool.name}"
        version = await self._services.kube.apply_scale(path, pool.name, pool.namespace, step.replicas)
        self._asked = (step.replicas, version)
        metrics = self._services.metrics
        metrics.decisions.labels(*self._key, step.decision.reason.value).inc()
        if this_round.heard_at is not None and step.replicas > requested:
            metrics.reaction_seconds.observe(monotonic() - this_round.heard_at)
        self._reporter.say("Scaled", f"{requested} → {step.replicas} replicas: {step.decision.words}")

    async def _are_pods_as_decided(self, pool: Pool) -> bool:
        """Ask for the pods themselves: a pod that the watch has not shown yet may be in the middle of a job."""
        selector = f"{build_selector(pool)},{MANAGED_SELECTOR}"
        listed, _ = await self._services.kube.list_all(pods_path(pool.namespace), selector=selector)
        pods = [pod for pod in map(parse_pod, listed) if pod.owner_kind != "Job"]
        return _tell_apart(pods) == self._decided_on

    def _find_deployment(self, pool: Pool) -> DeploymentObject | None:
        """Return the Deployment if it is ours; one of an earlier pool of the same name is not."""
        deployment = self._services.cluster_cache.deployments.get(self._key)
        if deployment is None or deployment.owner_uid != pool.uid:
            return None
        # What was changed and not applied yet is no state to call ready.
        is_applied = self._children.is_applied(deployment)
        return deployment if is_applied else replace(deployment, is_rolling_out=True)

    def _find_requested(self, deployment: DeploymentObject | None) -> int:
        """Return the size that is asked for now: what we wrote last, until the watch has caught up with it."""
        if deployment is None:
            return 0 if self._asked is None else self._asked[0]
        if self._asked is not None:
            replicas, version = self._asked
            if deployment.version < version:
                return replicas
            # Ours, and yet another size: what we wrote was overtaken by an outage, or by another operator's term.
            if replicas != deployment.requested and deployment.scaled_by != SCALE_MANAGER:
                self._foreign = (deployment.scaled_by, monotonic())
        self._asked = (deployment.requested, deployment.version)
        return deployment.requested

    def _find_scale_fault(self) -> Fault | None:
        if self._foreign is None or monotonic() - self._foreign[1] > _FOREIGN_SCALER_SECONDS:
            self._foreign = None
            return None
        return Fault(
            "ForeignScaler",
            f"the replicas of Deployment {self._key[1]} were changed by {self._foreign[0] or 'somebody else'}; only "
            "the operator should. Remove the HorizontalPodAutoscaler, or use kubectl scale on the pool.",
        )


def _tell_apart(pods: Iterable[PodObject]) -> frozenset[tuple[str, bool, bool]]:
    """Return the pods that count, by what Kubernetes chooses the first victims by."""
    return frozenset(
        (pod.uid, pod.has_started, pod.ready_at is not None)
        for pod in pods
        if not (pod.is_terminating or pod.has_ended)
    )


def _recall(status: Mapping[str, Any], pods: Iterable[PodObject]) -> SizingMemory:
    """Return what an earlier operator has measured: a pool at zero has no pod to measure anew."""
    seconds = status.get("startupSeconds")
    if not isinstance(seconds, int | float):
        return SizingMemory()
    return SizingMemory(
        startup_seconds=float(seconds), started=frozenset(pod.uid for pod in pods if pod.ready_at is not None)
    )


def _pod_state(pod: PodObject) -> PodState:
    return PodState(
        pod.uid, pod.name, pod.created_at, pod.ready_at, pod.deletion_cost, has_started=pod.has_started
    )
