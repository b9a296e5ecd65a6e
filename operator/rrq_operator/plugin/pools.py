"""A pool as the plugin sees it: pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rrq_operator.api.pool_status import PoolStatus
from rrq_operator.api.spec import Pool, SpecError, parse_pool
from rrq_operator.decide.sizing import SizingMemory


@dataclass(frozen=True)
class SeenPool:
    """One pool of the cluster with its status.

    ``pool`` is None when this version cannot read the spec, and ``fault`` then says why: one pool of a newer
    operator must not hide the others.
    """

    namespace: str
    name: str
    type: str
    queues: tuple[str, ...]
    is_paused: bool
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
        """How far ahead "soon" reaches for this pool, by the rule of the operator."""
        return SizingMemory(startup_seconds=self.status.startup_seconds).horizon_seconds


def parse_seen_pool(body: Mapping[str, Any]) -> SeenPool:
    """Return what can be told of a pool, however new its spec is."""
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
        is_paused=any(bool((spec.get(part) or {}).get("paused")) for part in ("scaling", "job")),
        status=PoolStatus.model_validate(body.get("status") or {}),
        pool=pool,
        fault=fault,
    )
