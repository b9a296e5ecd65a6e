"""Pools as the caller may see and change them, by the rights of the kubeconfig."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from rrq.commands.refusal import Refusal
from rrq_operator.api.pool_status import PoolStatus
from rrq_operator.api.spec import API_VERSION, KIND, Pool, SpecError, parse_pool
from rrq_operator.cluster.kube import Kube, KubeError, KubeMissing, KubeRefused, KubeUnavailable, pools_path
from rrq_operator.decide.sizing import SizingMemory
from rrq_operator.plugin.options import Access

#: The name under which the API server records changes by this plugin.
_MANAGER = "kubectl-rrq"


@dataclass(frozen=True)
class SeenPool:
    """One pool of the cluster with its status.

    ``pool`` is None when this version cannot read the spec, and ``fault`` says why: one pool of a newer operator must
    not hide the others.
    """

    namespace: str
    name: str
    type: str
    queues: tuple[str, ...]
    is_frozen: bool
    status: PoolStatus
    pool: Pool | None
    fault: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def horizon_seconds(self) -> float:
        """How far ahead jobs count as due soon for this pool, by the rule of the operator."""
        return SizingMemory(startup_seconds=self.status.startup_seconds).horizon_seconds


def parse_seen_pool(body: Mapping[str, Any]) -> SeenPool:
    """Return what this version can read of a pool, however new its spec is."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    pool, fault = None, ""
    try:
        pool = parse_pool(body)
    except SpecError as error:
        fault = str(error)
    return SeenPool(
        namespace=metadata["namespace"],
        name=metadata["name"],
        type=str(spec.get("type") or "Deployment"),
        queues=tuple(map(str, spec.get("queues") or ())),
        is_frozen=any(bool((spec.get(part) or {}).get("paused")) for part in ("scaling", "job")),
        status=PoolStatus.model_validate(body.get("status") or {}),
        pool=pool,
        fault=fault,
    )


class UserCluster:
    """Pools by the rights of the caller. Every failure is a Refusal of one line."""

    def __init__(self, kube: Kube, namespace: str | None) -> None:
        self.kube = kube
        #: None for all namespaces.
        self.namespace = namespace

    @property
    def place(self) -> str:
        return "any namespace" if self.namespace is None else f"namespace {self.namespace}"

    async def list_pools(self) -> list[SeenPool]:
        try:
            bodies, _ = await self.kube.list_all(pools_path(self.namespace))
        except KubeMissing as error:
            raise _no_definition() from error
        except KubeError as error:
            raise Refusal(_describe(error)) from error
        # The API server leaves these two fields out of the entries of a list.
        pools = [parse_seen_pool({"apiVersion": API_VERSION, "kind": KIND, **body}) for body in bodies]
        return sorted(pools, key=lambda pool: pool.key)

    async def choose_pools(self, name: str | None) -> list[SeenPool]:
        """Return the named pool, or all pools; with -A the name is looked up in all namespaces."""
        if name is not None and self.namespace is not None:
            return [await self.read_pool(name)]
        pools = await self.list_pools()
        if name is None:
            return pools
        chosen = [pool for pool in pools if pool.name == name]
        if not chosen:
            known = ", ".join(pool.title for pool in pools) or "none"
            raise Refusal(f"ERROR: No namespace has a pool {name}. The cluster has these pools: {known}.")
        return chosen

    async def read_pool(self, name: str) -> SeenPool:
        try:
            return parse_seen_pool(await self.kube.read(f"{pools_path(self.namespace)}/{name}"))
        except KubeMissing as error:
            raise Refusal(await self._describe_missing(name)) from error
        except KubeError as error:
            raise Refusal(_describe(error)) from error

    async def change_pool(self, pool: SeenPool, change: dict[str, Any]) -> None:
        await self._merge(pool, "", change)

    async def scale_pool(self, pool: SeenPool, replicas: int) -> None:
        await self._merge(pool, "/scale", {"spec": {"replicas": replicas}})

    async def _merge(self, pool: SeenPool, part: str, change: dict[str, Any]) -> None:
        path = f"{pools_path(pool.namespace)}/{pool.name}{part}"
        try:
            await self.kube.merge(path, change, manager=_MANAGER)
        except KubeError as error:
            raise Refusal(_describe(error)) from error

    async def _describe_missing(self, name: str) -> str:
        there = f"There is no pool {name} in namespace {self.namespace}"
        try:
            names = [pool.name for pool in await self.list_pools()]
        except Refusal as refusal:
            if isinstance(refusal.__cause__, KubeMissing):
                raise
            return f"ERROR: {there}."
        known = f"it has {', '.join(names)}" if names else "it has no pools"
        return f"ERROR: {there}; {known}. -n names another namespace; `kubectl rrq top -A` lists the pools of all of them."


@contextlib.asynccontextmanager
async def open_cluster(access: Access) -> AsyncIterator[UserCluster]:
    """Connect by the kubeconfig of the caller."""
    try:
        kube = await Kube.connect_as_user(access.kubeconfig, access.context)
    except KubeUnavailable as error:
        raise Refusal(f"ERROR: {error}") from error
    async with kube:
        yield UserCluster(kube, None if access.all_namespaces else access.namespace or kube.namespace)


def _no_definition() -> Refusal:
    return Refusal(
        f"ERROR: This cluster has no definition of {KIND}. Install the operator first, or name another cluster with "
        "--context or --kubeconfig."
    )


def _describe(error: KubeError) -> str:
    message = str(error).rstrip(".")
    if isinstance(error, KubeRefused) and error.reason == "Forbidden":
        return f"ERROR: You lack a right: {message}. A Role and a RoleBinding grant it."
    if isinstance(error, KubeUnavailable) and error.reason in ("Unauthorized", "401"):
        return (
            f"ERROR: The cluster rejected your credentials: {message}. Sign in again, or use another context."
        )
    return f"ERROR: {message}."
