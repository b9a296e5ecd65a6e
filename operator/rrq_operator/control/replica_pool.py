"""A pool with replicas: its Deployment and disruption budget, and how many pods it asks for.

An object is written when its manifest has changed, when another client has changed the object, and once after a start.
An object with the right name that belongs to something else is left alone.
"""

import asyncio
import contextlib
from dataclasses import dataclass, replace
from time import monotonic

from rrq_operator.api.spec import KIND, Pool
from rrq_operator.cluster.cluster_cache import PoolRecord
from rrq_operator.cluster.kube import (
    Kube,
    KubeConflict,
    KubeError,
    KubeMissing,
    budgets_path,
    deployments_path,
    describe_fault,
    pods_path,
)
from rrq_operator.cluster.redis_sources import SecretVersion
from rrq_operator.control.pool_group import Round
from rrq_operator.control.reporting import ReportingPool
from rrq_operator.control.services import Services
from rrq_operator.decide.manifests import (
    COST_ANNOTATION,
    DIGEST_ANNOTATION,
    MANAGED_SELECTOR,
    MANAGER,
    Manifest,
    SecretShown,
    build_deployment,
    build_disruption_budget,
    build_selector,
    digest_spec,
)
from rrq_operator.decide.objects import BudgetObject, DeploymentObject, PodObject, owner_uid_of, parse_pod
from rrq_operator.decide.shrinking import is_same_choice
from rrq_operator.decide.sizing import (
    RequestedSize,
    SizingInput,
    SizingMemory,
    SizingStep,
    decide_size,
    recall_memory,
)
from rrq_operator.decide.status import NAME_TAKEN_REASON, REPLACING_REASON, Fault, build_replica_status
from rrq_operator.redis.queues import DrainFlags, QueueTrouble

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0
#: A decision to shrink that is older than this was made of what may have changed since.
_FRESH_SECONDS = 3.0


@dataclass(frozen=True)
class _Decision:
    """The last decision, and what it rests on."""

    step: SizingStep
    pods: list[PodObject]
    at: float
    """By the monotonic clock."""


class ReplicaPool(ReportingPool):
    """Decides each round without waiting; acts when there is something to do."""

    def __init__(self, record: PoolRecord, services: Services) -> None:
        super().__init__(record, services)
        self._objects = PoolObjects(services)
        self._memory = SizingMemory()
        self._flags = DrainFlags()
        self._requested = RequestedSize()
        self._act_fault: Fault | None = None
        self._decision: _Decision | None = None
        self._needs_objects = False
        self._scale_retry_at = 0.0

    @property
    def horizon_seconds(self) -> float:
        return self._memory.horizon_seconds

    def decide(self, this_round: Round) -> bool:
        """Take one decision; returns whether there is anything to do about it."""
        pool, now = this_round.pool, monotonic()
        self._needs_objects = self._objects.prepare(pool, self.secret_version)
        deployment = self._find_deployment(pool)
        pods = [
            pod
            for pod in self._services.cluster_cache.pods.get(self._key, {}).values()
            if pod.owner_kind != "Job"
        ]
        if self._decision is None:
            self._memory = recall_memory(self.reporter.written.startup_seconds, pods)
        given = SizingInput(
            queues=self.queue_names,
            seen=this_round.seen,
            pods=[pod for pod in pods if not (pod.is_terminating or pod.has_ended)],
            requested=self._requested.find(deployment, now),
            now_seconds=now,
            is_rolling_out=deployment is not None and deployment.is_rolling_out,
            is_observed=deployment is None or deployment.is_observed,
            is_paused=this_round.is_paused,
        )
        memory = replace(self._memory, flagged=self._flags.fresh)
        step, self._memory = decide_size(pool.spec, given, memory)
        self._decision = _Decision(step, pods, now)
        scale_fault = self._act_fault or self._find_scale_fault()
        snapshot = self._take_snapshot(this_round, pods, self._objects.fault, scale_fault)
        status = build_replica_status(snapshot, step, deployment, self._memory.startup_seconds)
        self._note_status(this_round, status)
        return (
            self._needs_objects
            or bool(step.plan.drain or step.plan.release or step.plan.costs)
            or (deployment is not None and step.replicas != given.requested)
        )

    async def act(self, this_round: Round) -> None:
        """Do what was decided: objects first, then flags and costs, then the size."""
        assert self._decision is not None, "decide comes first"
        pool, step = this_round.pool, self._decision.step
        self.wants_another_look = False
        is_new = self._find_deployment(pool) is None
        if self._needs_objects and await self._objects.apply(pool, step.replicas) and is_new:
            self._requested.note(step.replicas, self._objects.made_version)
        deployment = self._find_deployment(pool)
        if deployment is None:
            return
        requested = self._requested.find(deployment, monotonic())
        may_scale = step.replicas != requested and monotonic() >= self._scale_retry_at
        try:
            # Growing waits for nothing; shrinking waits until flags and costs are written.
            if may_scale and step.replicas > requested:
                await self._scale(this_round, requested, step)
            await self._move_pods(this_round, step)
            if may_scale and step.replicas < requested:
                await self._shrink(this_round, requested, self._decision)
            self._act_fault = None
        except QueueTrouble as trouble:
            self._services.metrics.redis_errors.labels(trouble.reason).inc()
            self._act_fault = Fault(trouble.reason, f"pods cannot be flagged to drain: {trouble}")
        except KubeMissing:
            pass  # the Deployment has gone meanwhile, as the watch will show
        except KubeError as error:
            self._services.metrics.api_errors.labels(error.reason or "Other").inc()
            self._scale_retry_at = monotonic() + 1.0
            self._act_fault = describe_fault(error)

    async def _move_pods(self, this_round: Round, step: SizingStep) -> None:
        """Flag the pods that are to leave, and give them the lowest deletion cost."""
        plan, pool, seen = step.plan, this_round.pool, this_round.seen
        if this_round.queues is None:
            return
        await self._flags.release(this_round.queues, plan.release)
        # A Redis that was restarted may have forgotten a flag that we think it has.
        workers = seen.workers.values() if seen is not None else ()
        claiming = {worker.pod_uid for worker in workers if not worker.is_draining}
        # What was flagged now counts from the next round on, which sees what came before the flag.
        self.wants_another_look = await self._flags.renew(this_round.queues, plan.drain, claiming)
        # When all go, Kubernetes cannot choose wrongly.
        if step.replicas > 0:
            await asyncio.gather(*(self._mark(pool, name, cost) for name, cost in plan.costs.items()))

    async def _mark(self, pool: Pool, name: str, cost: int) -> None:
        change = {"metadata": {"annotations": {COST_ANNOTATION: str(cost)}}}
        # A pod that has gone meanwhile costs nothing.
        with contextlib.suppress(KubeMissing):
            await self._services.kube.merge(f"{pods_path(pool.namespace)}/{name}", change)

    async def _shrink(self, this_round: Round, requested: int, decision: _Decision) -> None:
        """Ask for less, unless what the decision rests on may have changed: then the next round knows better."""
        # A pod that the watch has not shown yet may be in the middle of a job.
        selector = f"{build_selector(this_round.pool)},{MANAGED_SELECTOR}"
        path = pods_path(this_round.pool.namespace)
        listed, _ = await self._services.kube.list_all(path, selector=selector)
        pods = [pod for pod in map(parse_pod, listed) if pod.owner_kind != "Job"]
        if not is_same_choice(pods, decision.pods):
            return
        now, drain = monotonic(), decision.step.plan.drain
        if self._flags.are_live(drain) and now - decision.at < _FRESH_SECONDS:
            # Before it is asked for: the answer may get lost.
            given_up = {**self._memory.given_up, **dict.fromkeys(drain, now)}
            self._memory = replace(self._memory, given_up=given_up)
            await self._scale(this_round, requested, decision.step)

    async def _scale(self, this_round: Round, requested: int, step: SizingStep) -> None:
        pool, metrics = this_round.pool, self._services.metrics
        path = f"{deployments_path(pool.namespace)}/{pool.name}"
        version = await self._services.kube.apply_scale(path, pool.name, pool.namespace, step.replicas)
        self._requested.note(step.replicas, version)
        metrics.decisions.labels(*self._key, step.decision.reason.value).inc()
        if this_round.heard_at is not None and step.replicas > requested:
            metrics.reaction_seconds.observe(monotonic() - this_round.heard_at)
        self.reporter.say("Scaled", f"{requested} → {step.replicas} replicas: {step.decision.words}")

    def _find_deployment(self, pool: Pool) -> DeploymentObject | None:
        """Return the Deployment if it is ours; one of an earlier pool of the same name is not."""
        deployment = self._services.cluster_cache.deployments.get(self._key)
        if deployment is None or deployment.owner_uid != pool.uid:
            return None
        # What was changed and not applied yet is no state to call ready.
        is_applied = self._objects.is_applied(deployment)
        return deployment if is_applied else replace(deployment, is_rolling_out=True)

    def _find_scale_fault(self) -> Fault | None:
        scaler = self._requested.find_foreign_scaler(monotonic())
        if scaler is None:
            return None
        return Fault(
            "ForeignScaler",
            f"{scaler} changed the replicas of Deployment {self._key[1]}; only the operator should. Remove the "
            "HorizontalPodAutoscaler, or use kubectl scale on the pool.",
        )


@dataclass
class _Wanted:
    """One object: what it should be and what it was made to be."""

    manifest: Manifest
    live_digest: str | None = None

    @property
    def digest(self) -> str:
        return str(self.manifest["metadata"]["annotations"][DIGEST_ANNOTATION])

    def differs_from(self, live: DeploymentObject | BudgetObject | None) -> bool:
        if live is None or self.live_digest is None:
            return True
        return live.digest != self.digest or live.live_digest != self.live_digest


class PoolObjects:
    """Keeps the Deployment and the disruption budget of one pool as its spec wants them."""

    def __init__(self, services: Services) -> None:
        self._kube = services.kube
        self._cache = services.cluster_cache
        self._metrics = services.metrics
        #: Generation and uid of the pool, what is shown of its Secret, and the digest of that for later operators.
        self._made_of: tuple[int, str, str, str] | None = None
        self._secret_shown = SecretShown()
        self._deployment: _Wanted | None = None
        self._budget: _Wanted | None = None
        self._retry_at = 0.0
        self._retry_seconds = _FIRST_RETRY_SECONDS
        #: How many objects of an earlier pool were in sight when a write failed last.
        self._in_the_way = 0
        #: Why the objects are not as they should be.
        self.fault: Fault | None = None
        #: The version of a Deployment that was made here, with the size it was made with.
        self.made_version = 0

    def prepare(self, pool: Pool, secret_version: SecretVersion | None) -> bool:
        """Build the manifests anew if they may have changed; returns whether something has to be written."""
        deployment, budget = self._cache.deployments.get(pool.key), self._cache.budgets.get(pool.key)
        if secret_version is not None:
            version, digest = secret_version, secret_version.next_digest
            shown = self._secret_shown.choose(version.digest, version.resource_version, deployment)
        elif self._made_of is not None:
            shown, digest = self._made_of[2:]
        else:
            return False  # which Redis the workers use is not known yet
        made_of = (pool.generation, pool.uid, shown, digest)
        if self._made_of != made_of:
            self._made_of = made_of
            self._deployment = _Wanted(build_deployment(pool, shown, digest))
            self._budget = _Wanted(build_disruption_budget(pool))
            self._retry_at, self._retry_seconds = 0.0, _FIRST_RETRY_SECONDS
        if (in_the_way := self._count_predecessors(pool)) < self._in_the_way:
            # What was waited for has happened. By now the next try may be half a minute away.
            self._in_the_way = in_the_way
            self._retry_at, self._retry_seconds = 0.0, _FIRST_RETRY_SECONDS
        if monotonic() < self._retry_at:
            return False
        differs = (self._deployment is not None and self._deployment.differs_from(deployment)) or (
            self._budget is not None and self._budget.differs_from(budget)
        )
        if not differs:
            # Also when another client has corrected it, or a write took effect whose answer was lost.
            self.fault = None
        return differs

    def is_applied(self, deployment: DeploymentObject) -> bool:
        """Whether this Deployment was made of the current manifest; true while no manifest can be made."""
        return self._deployment is None or deployment.digest == self._deployment.digest

    async def apply(self, pool: Pool, replicas: int) -> bool:
        """Write what differs; a new Deployment starts with ``replicas``. Returns whether all is in place."""
        if self._deployment is None or self._budget is None:
            return False
        try:
            await self._apply_deployment(pool, self._deployment, replicas)
            await self._apply_budget(pool, self._budget)
        except KubeError as error:
            self._metrics.api_errors.labels(error.reason or "Other").inc()
            self._retry_at = monotonic() + self._retry_seconds
            self._retry_seconds = min(_LONGEST_RETRY_SECONDS, self._retry_seconds * 2)
            self._in_the_way = self._count_predecessors(pool)
            self.fault = describe_fault(error)
            return False
        # The watch takes a while to show what was written; until then it would look like a difference.
        self._retry_at = monotonic() + _FIRST_RETRY_SECONDS
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._in_the_way = 0
        self.fault = None
        return True

    def _count_predecessors(self, pool: Pool) -> int:
        """Return how many of the objects that the watches show belong to an earlier pool of this name."""
        known = (self._cache.deployments.get(pool.key), self._cache.budgets.get(pool.key))
        return sum(one is not None and one.owner_uid != pool.uid for one in known)

    async def _apply_deployment(self, pool: Pool, wanted: _Wanted, replicas: int) -> None:
        path, live = f"{deployments_path(pool.namespace)}/{pool.name}", self._cache.deployments.get(pool.key)
        is_known = live is not None and live.owner_uid == pool.uid
        is_new = not is_known and not await _is_ours(self._kube, path, pool)
        manifest = wanted.manifest
        if live is not None and is_known and live.scaled_by == MANAGER:
            # Created by an operator that ended halfway: without another owner, replicas left out would become 1.
            await self._kube.apply_scale(path, pool.name, pool.namespace, live.requested)
        if is_new:
            # Left out, replicas would be 1 at first: a pod for nothing.
            manifest = manifest | {"spec": manifest["spec"] | {"replicas": 0}}
        raw = await self._kube.apply(path, manifest)
        if is_new:
            self.made_version = await self._kube.apply_scale(path, pool.name, pool.namespace, replicas)
        wanted.live_digest = digest_spec(raw["spec"])

    async def _apply_budget(self, pool: Pool, wanted: _Wanted) -> None:
        path, live = f"{budgets_path(pool.namespace)}/{pool.name}", self._cache.budgets.get(pool.key)
        if live is None or live.owner_uid != pool.uid:
            await _is_ours(self._kube, path, pool)
        raw = await self._kube.apply(path, wanted.manifest)
        wanted.live_digest = digest_spec(raw["spec"])


async def _is_ours(kube: Kube, path: str, pool: Pool) -> bool:
    """Tell whether the object is there and belongs to the pool; raises KubeConflict when it is another's."""
    try:
        raw = await kube.read(path)
    except KubeMissing:
        return False
    if owner_uid_of(raw) == pool.uid:
        return True
    kind, name = raw.get("kind", "object"), f"{pool.namespace}/{pool.name}"
    # Of a pool of the same name that was deleted: Kubernetes is about to collect its objects.
    owners = raw["metadata"].get("ownerReferences") or ()
    if any((owner.get("kind"), owner.get("name")) == (KIND, pool.name) for owner in owners):
        raise KubeConflict(f"The {kind} of an earlier pool {name} is being removed.", REPLACING_REASON)
    raise KubeConflict(
        f"There is a {kind} {name} already that does not belong to this pool; it is left alone. Rename the pool, or "
        "delete or rename that object.",
        NAME_TAKEN_REASON,
    )
