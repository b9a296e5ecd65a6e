"""The cluster as the caller may see it: finding pools and changing them, and what to say when that fails."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rrq.commands.refusal import Refusal
from rrq_operator.api.spec import API_VERSION, KIND
from rrq_operator.cluster.kube import Kube, KubeError, KubeMissing, KubeRefused, KubeUnavailable, pools_path
from rrq_operator.plugin.options import Access
from rrq_operator.plugin.pools import SeenPool, parse_seen_pool

#: Under this name the API server keeps what was changed by hand here.
_MANAGER = "kubectl-rrq"


class UserCluster:
    """Pools by the rights of the caller. Every trouble is a Refusal in one line."""

    def __init__(self, kube: Kube, namespace: str | None) -> None:
        self.kube = kube
        #: None is for all.
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
        # Entries of a list come without the two fields that all of them share.
        pools = [parse_seen_pool({"apiVersion": API_VERSION, "kind": KIND, **body}) for body in bodies]
        return sorted(pools, key=lambda pool: pool.key)

    async def choose_pools(self, name: str | None) -> list[SeenPool]:
        """Return the named pool, or all of them; a name is looked for in all namespaces where -A says so."""
        if name is not None and self.namespace is not None:
            return [await self.read_pool(name)]
        pools = await self.list_pools()
        if name is None:
            return pools
        chosen = [pool for pool in pools if pool.name == name]
        if not chosen:
            known = ", ".join(pool.title for pool in pools) or "none"
            raise Refusal(f"ERROR: No namespace has a pool {name}. Pools there are: {known}.")
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
        known = f"there are {', '.join(names)}" if names else "it has no pools"
        return (
            f"ERROR: {there}; {known}. Another namespace is named by -n, all of them by `kubectl rrq top -A`."
        )


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
        f"ERROR: This cluster knows no {KIND}. Install the operator with its definition first, or name another "
        "cluster by --context or --kubeconfig."
    )


def _describe(error: KubeError) -> str:
    message = str(error).rstrip(".")
    if isinstance(error, KubeRefused) and error.reason == "Forbidden":
        return f"ERROR: You lack a right: {message}. Have it granted by a Role and a RoleBinding."
    if isinstance(error, KubeUnavailable) and error.reason in ("Unauthorized", "401"):
        return f"ERROR: The cluster does not accept who you are: {message}. Sign in again, or use another context."
    return f"ERROR: {message}."
