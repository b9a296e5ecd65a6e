"""Keeps the Deployment and the disruption budget of a pool as the spec wants them.

An object is written when the manifest has changed, when somebody else has changed the object, and once after a
start. What carries the right name but is not ours is left alone.
"""

from dataclasses import dataclass
from time import monotonic

from rrq_operator.kube import (
    Kube,
    KubeConflict,
    KubeError,
    KubeMissing,
    KubeUnavailable,
    budgets_path,
    deployments_path,
)
from rrq_operator.manifests import (
    DIGEST_ANNOTATION,
    MANAGER,
    Manifest,
    build_deployment,
    build_disruption_budget,
)
from rrq_operator.redis_sources import SecretVersion
from rrq_operator.shell import Shell
from rrq_operator.spec import KIND, Pool
from rrq_operator.status import REPLACING_REASON, Fault
from rrq_operator.views import BudgetView, DeploymentView, digest_spec, owner_uid_of

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0


@dataclass
class _Child:
    """One object: what it should be and what it was made to be."""

    manifest: Manifest
    live_digest: str | None = None

    @property
    def digest(self) -> str:
        return str(self.manifest["metadata"]["annotations"][DIGEST_ANNOTATION])

    def differs_from(self, view: DeploymentView | BudgetView | None) -> bool:
        if view is None or self.live_digest is None:
            return True
        return view.digest != self.digest or view.live_digest != self.live_digest


class Children:
    """The objects of one pool with replicas."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._made_of: tuple[int, str, str, str] | None = None
        #: A digest, and what an earlier operator showed instead of it.
        self._inherited = ("", "")
        self._deployment: _Child | None = None
        self._budget: _Child | None = None
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
        if secret_version is not None:
            shown, digest = self._choose_shown(pool, secret_version), secret_version.next_digest
        elif self._made_of is not None:
            shown, digest = self._made_of[2:]
        else:
            return False  # nobody knows yet which Redis the workers shall use
        made_of = (pool.generation, pool.uid, shown, digest)
        if self._made_of != made_of:
            self._made_of = made_of
            self._deployment = _Child(build_deployment(pool, shown, digest))
            self._budget = _Child(build_disruption_budget(pool))
            self._retry_at, self._retry_seconds = 0.0, _FIRST_RETRY_SECONDS
        if (in_the_way := self._count_predecessors(pool)) < self._in_the_way:
            # What was waited for has happened. By now the next try may be half a minute away.
            self._in_the_way = in_the_way
            self._retry_at, self._retry_seconds = 0.0, _FIRST_RETRY_SECONDS
        if monotonic() < self._retry_at:
            return False
        world = self._shell.world
        differs = (
            self._deployment is not None and self._deployment.differs_from(world.deployments.get(pool.key))
        ) or (self._budget is not None and self._budget.differs_from(world.budgets.get(pool.key)))
        if not differs:
            # Also when it was not us who mended it, or a write took effect whose answer was lost.
            self.fault = None
        return differs

    def _choose_shown(self, pool: Pool, version: SecretVersion) -> str:
        """Return what the pod template shows of the Secret: the digest that its value had when it was first seen.

        It stays until the value changes. Where an operator that starts now would find another digest for the same value,
        because the Secret was made anew, that digest is on the Deployment itself, and tells it that the pods have the value.
        Earlier operators showed the resource version. If the Secret still has that version, the pods have its current
        value as well: an upgrade rolls no pods.
        """
        live = self._shell.world.deployments.get(pool.key)
        if live is not None and live.secret_shown and version.digest:
            is_version = live.secret_shown == version.resource_version
            if is_version or live.secret_digest == version.digest:
                self._inherited = version.digest, live.secret_shown
        digest, shown = self._inherited
        return shown if digest == version.digest else version.digest

    def is_applied(self, deployment: DeploymentView) -> bool:
        """Whether this Deployment was made of the manifest of now; true while no manifest can be made."""
        return self._deployment is None or deployment.digest == self._deployment.digest

    async def apply(self, pool: Pool, replicas: int) -> bool:
        """Write what differs; a new Deployment starts with ``replicas``. Returns whether all is in place."""
        if self._deployment is None or self._budget is None:
            return False
        try:
            await self._apply_deployment(pool, self._deployment, replicas)
            await self._apply_budget(pool, self._budget)
        except KubeError as error:
            self._shell.metrics.api_errors.labels(error.reason or "Other").inc()
            self._retry_at = monotonic() + self._retry_seconds
            self._retry_seconds = min(_LONGEST_RETRY_SECONDS, self._retry_seconds * 2)
            self._in_the_way = self._count_predecessors(pool)
            self.fault = describe_fault(error)
            return False
        # The watch needs a moment to show what was written; until then it would look like a difference.
        self._retry_at = monotonic() + _FIRST_RETRY_SECONDS
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._in_the_way = 0
        self.fault = None
        return True

    def _count_predecessors(self, pool: Pool) -> int:
        """Return how many of the objects that the watches show belong to an earlier pool of this name."""
        world = self._shell.world
        views = (world.deployments.get(pool.key), world.budgets.get(pool.key))
        return sum(view is not None and view.owner_uid != pool.uid for view in views)

    async def _apply_deployment(self, pool: Pool, child: _Child, replicas: int) -> None:
        kube, path = self._shell.kube, f"{deployments_path(pool.namespace)}/{pool.name}"
        view = self._shell.world.deployments.get(pool.key)
        is_known = view is not None and view.owner_uid == pool.uid
        is_new = not is_known and not await _is_ours(kube, path, pool)
        manifest = child.manifest
        if view is not None and is_known and view.scaled_by == MANAGER:
            # Begun by an operator that ended halfway: without another owner, replicas left out would become 1.
            await kube.apply_scale(path, pool.name, pool.namespace, view.requested)
        if is_new:
            # Left out, replicas would be 1 for a moment: a pod for nothing.
            manifest = manifest | {"spec": manifest["spec"] | {"replicas": 0}}
        raw = await kube.apply(path, manifest)
        if is_new:
            self.made_version = await kube.apply_scale(path, pool.name, pool.namespace, replicas)
        child.live_digest = digest_spec(raw["spec"])

    async def _apply_budget(self, pool: Pool, child: _Child) -> None:
        kube, path = self._shell.kube, f"{budgets_path(pool.namespace)}/{pool.name}"
        view = self._shell.world.budgets.get(pool.key)
        if view is None or view.owner_uid != pool.uid:
            await _is_ours(kube, path, pool)
        raw = await kube.apply(path, child.manifest)
        child.live_digest = digest_spec(raw["spec"])


async def _is_ours(kube: Kube, path: str, pool: Pool) -> bool:
    """Tell whether the object is there and belongs to the pool; raises KubeConflict when it is another's."""
    try:
        raw = await kube.read(path)
    except KubeMissing:
        return False
    if owner_uid_of(raw) != pool.uid:
        if _is_of_predecessor(raw, pool):
            raise KubeConflict(
                f"The {raw.get('kind', 'object')} of an earlier pool {pool.namespace}/{pool.name} is being removed.",
                REPLACING_REASON,
            )
        raise KubeConflict(
            f"There is a {raw.get('kind', 'object')} {pool.namespace}/{pool.name} already that does not belong to "
            "this pool; it is left alone. Rename the pool, or delete or rename that object.",
            "NameTaken",
        )
    return True


def _is_of_predecessor(raw: Manifest, pool: Pool) -> bool:
    """Whether it belonged to a pool of the same name that was deleted: Kubernetes is about to collect it."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any((owner.get("kind"), owner.get("name")) == (KIND, pool.name) for owner in owners)


def describe_fault(error: KubeError) -> Fault:
    """Return a refusal of the API server as it goes into a condition."""
    if isinstance(error, KubeUnavailable):
        return Fault("APIUnavailable", f"the Kubernetes API did not answer, it is tried again: {error}")
    reason = error.reason if error.reason.isalnum() and not error.reason.isdigit() else "Refused"
    return Fault(reason, str(error))
