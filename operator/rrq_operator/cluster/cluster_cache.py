"""What the operator knows of the cluster: pools as they were last seen, and views of their children.

Fed by watches, read by the loops. Whoever cares is told which pool something has changed about.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from rrq_operator.api.spec import Pool, SpecError, parse_pool
from rrq_operator.decide.objects import (
    BudgetObject,
    DeploymentObject,
    JobObject,
    PodObject,
    PoolKey,
    parse_time,
)

#: As long as a lease of a worker may be, and then some: after that Redis has forgotten it as well.
_REMEMBER_VANISHED_SECONDS = 600.0
_MOST_DROPPED = 1_000
#: Longer than a list of all pools takes.
_LIST_LAG_SECONDS = 15.0


@dataclass(frozen=True)
class PoolRecord:
    """One pool object: understood, or with the reason why not."""

    key: PoolKey
    uid: str
    generation: int
    created_at: float
    pool: Pool | None
    fault: str
    status: Mapping[str, Any]
    is_going: bool
    version: int = 0
    """Grows with every change of the object, its status included."""


def parse_record(body: Mapping[str, Any]) -> PoolRecord:
    """Return what is kept of a pool object; a spec that cannot be used is a fault, not an exception."""
    metadata = body["metadata"]
    pool, fault = None, ""
    try:
        pool = parse_pool(body)
    except SpecError as error:
        fault = str(error)
    return PoolRecord(
        key=(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created_at=parse_time(metadata["creationTimestamp"]),
        pool=pool,
        fault=fault,
        status=body.get("status") or {},
        is_going="deletionTimestamp" in metadata,
        version=_parse_version(metadata.get("resourceVersion")),
    )


def _parse_version(text: str | None) -> int:
    """Return a version as a number: the API server counts, though it does not promise to."""
    return int(text) if text and text.isdigit() else 0


class ClusterCache:
    """The caches. All methods are plain and quick; nothing here waits."""

    def __init__(self) -> None:
        self.pools: dict[PoolKey, PoolRecord] = {}
        self._dropped: dict[str, None] = {}
        self._heard_at: dict[str, float] = {}
        self.deployments: dict[PoolKey, DeploymentObject] = {}
        self.budgets: dict[PoolKey, BudgetObject] = {}
        self.jobs: defaultdict[PoolKey, dict[str, JobObject]] = defaultdict(dict)
        self.pods: defaultdict[PoolKey, dict[str, PodObject]] = defaultdict(dict)
        self.pool_of_pod: dict[str, PoolKey] = {}
        self.vanished: dict[str, PodObject] = {}
        """What was last known of pods that are gone, by uid."""
        self._vanished_at: dict[str, float] = {}
        self.on_pool: Callable[[PoolKey], None] = lambda key: None
        self.on_child: Callable[[PoolKey], None] = lambda key: None

    # Pools

    def set_pool(self, record: PoolRecord) -> None:
        before = self.pools.get(record.key)
        # A list that was under way may know less than the watch, which went on meanwhile.
        if record.uid in self._dropped or (
            before is not None and before.uid == record.uid and record.version < before.version
        ):
            return
        self._heard_at[record.uid] = monotonic()
        # Our own writes of the status come back as changes; they are none, and loops tell by the same object.
        if before is not None and (before.uid, before.generation) == (record.uid, record.generation):
            self.pools[record.key] = replace(record, pool=before.pool, fault=before.fault)
            if record.is_going == before.is_going:
                return
        else:
            self.pools[record.key] = record
        self.on_pool(record.key)

    def drop_pool(self, key: PoolKey, uid: str) -> None:
        """Forget a pool that was deleted, for good: an older list shall not bring it back."""
        self._dropped[uid] = None
        if len(self._dropped) > _MOST_DROPPED:
            del self._dropped[next(iter(self._dropped))]
        self._remove_pool(key, uid)

    def replace_pools(self, records: Iterable[PoolRecord]) -> None:
        """Take a whole list as the truth: what it lacks is gone."""
        listed = {record.key: record for record in records}
        for key, record in list(self.pools.items()):
            # Heard of a moment ago, it may have come while the list was made; the next list knows.
            if key not in listed and monotonic() - self._heard_at.get(record.uid, 0.0) > _LIST_LAG_SECONDS:
                self._remove_pool(key, record.uid)
        for record in listed.values():
            self.set_pool(record)

    def _remove_pool(self, key: PoolKey, uid: str) -> None:
        self._heard_at.pop(uid, None)
        record = self.pools.get(key)
        if record is not None and record.uid == uid:
            del self.pools[key]
            self.on_pool(key)

    # Children

    def set_deployment(self, before: DeploymentObject | None, after: DeploymentObject | None) -> None:
        self._set_one(self.deployments, before, after)

    def set_budget(self, before: BudgetObject | None, after: BudgetObject | None) -> None:
        self._set_one(self.budgets, before, after)

    def _set_one(self, views: dict[PoolKey, Any], before: Any, after: Any) -> None:
        # Labels may be changed by anybody: a child by its label only, with another name, is none.
        if before is not None and before.name == before.pool[1]:
            views.pop(before.pool, None)
        if after is not None and after.name == after.pool[1]:
            views[after.pool] = after
        self._tell(*(view for view in (before, after) if view is not None and view.name == view.pool[1]))

    def set_job(self, before: JobObject | None, after: JobObject | None) -> None:
        if before is not None:
            self._forget(self.jobs, before.pool, before.uid)
        if after is not None:
            self.jobs[after.pool][after.uid] = after
        self._tell(before, after)

    def set_pod(self, before: PodObject | None, after: PodObject | None) -> None:
        if before is not None:
            self._forget(self.pods, before.pool, before.uid)
        if after is not None:
            self.pods[after.pool][after.uid] = after
            self.pool_of_pod[after.uid] = after.pool
        elif before is not None:
            self.pool_of_pod.pop(before.uid, None)
            self._remember_vanished(before)
        self._tell(before, after)

    def _remember_vanished(self, pod: PodObject) -> None:
        now = monotonic()
        self.vanished[pod.uid], self._vanished_at[pod.uid] = pod, now
        oldest = now - _REMEMBER_VANISHED_SECONDS
        for other in [other for other, at in self._vanished_at.items() if at < oldest]:
            del self.vanished[other], self._vanished_at[other]

    def _tell(self, *views: Any) -> None:
        """Tell of every pool that is concerned: two, when an object was labelled as another's."""
        for key in {view.pool: None for view in views if view is not None}:
            self.on_child(key)

    @staticmethod
    def _forget(views: defaultdict[PoolKey, dict[str, Any]], key: PoolKey, uid: str) -> None:
        views[key].pop(uid, None)
        if not views[key]:
            del views[key]
