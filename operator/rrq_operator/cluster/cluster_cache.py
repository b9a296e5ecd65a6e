"""What the operator knows of the cluster: the pools as they were last seen, and the objects that belong to them.

Watches feed it, loops read it. All of it happens in one event loop, and nothing here waits.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any

from pydantic import ValidationError

from rrq_operator.api.pool_status import PoolStatus
from rrq_operator.api.spec import Pool, RedisSource, SpecError, parse_pool
from rrq_operator.decide.objects import BudgetObject, DeploymentObject, JobObject, PodObject, PoolKey

logger = logging.getLogger(__name__)

#: As long as a lease of a worker may be, and then some: after that Redis has forgotten it as well.
_REMEMBER_VANISHED_SECONDS = 600.0
_MOST_DROPPED = 1_000
#: Longer than a list of all pools takes.
_LIST_LAG_SECONDS = 15.0
#: A file with many pools arrives as many events, and a roll-out as many changes: one look is enough for all of them.
_POOL_DELAY_SECONDS = 0.02
_OBJECT_DELAY_SECONDS = 0.1

Follower = Callable[[PoolKey, float], None]
"""Called with a pool about which something has changed, and how many seconds the news may wait."""


@dataclass(frozen=True)
class PoolRecord:
    """One pool object: understood, or with the reason why not."""

    key: PoolKey
    uid: str
    generation: int
    created_at: float
    pool: Pool | None
    fault: str
    status: PoolStatus
    is_going: bool
    version: int = 0
    """Grows with every change of the object, its status included."""


def parse_record(body: Mapping[str, Any], known: PoolRecord | None = None) -> PoolRecord:
    """Return what is kept of a pool object; a spec that cannot be used is a fault, not an exception.

    The spec of ``known`` is kept where it is the same: the operator's own writes of the status come back as changes, and
    loops tell by the same object that nothing changed.
    """
    metadata = body["metadata"]
    uid, generation = metadata["uid"], metadata.get("generation", 0)
    pool, fault = None, ""
    if known is not None and (known.uid, known.generation) == (uid, generation):
        pool, fault = known.pool, known.fault
    else:
        try:
            pool = parse_pool(body)
        except SpecError as error:
            fault = str(error)
    return PoolRecord(
        key=(metadata["namespace"], metadata["name"]),
        uid=uid,
        generation=generation,
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        pool=pool,
        fault=fault,
        status=parse_status(body),
        is_going="deletionTimestamp" in metadata,
        version=_parse_version(metadata.get("resourceVersion")),
    )


def parse_status(body: Mapping[str, Any]) -> PoolStatus:
    """Return the status of a pool object; an empty one where it is not as the schema demands."""
    try:
        return PoolStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return PoolStatus()


def _parse_version(text: str | None) -> int:
    """Return a version as a number: the API server counts, though it does not promise to."""
    return int(text) if text and text.isdigit() else 0


class ClusterCache:
    """Pools, and their Deployments, budgets, Jobs and pods."""

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
        #: Set when a pool has come, changed or gone.
        self.pools_changed = asyncio.Event()
        #: The loops to notify when something about a pool, or about an object of it, has changed.
        self.followers: dict[PoolKey, Follower] = {}

    def take_event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """Take in one change that the watch of the pools has seen; ``kind`` None is a pool that was there before."""
        record = self._read_record(body)
        if record is None:
            return
        if kind == "DELETED":
            self.drop_pool(record.key, record.uid)
        else:
            self.set_pool(record)

    def take_list(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Take in a list of all pools as the truth."""
        self.replace_pools(record for body in bodies if (record := self._read_record(body)) is not None)

    def find_pool(self, key: PoolKey, uid: str, redis: RedisSource | None) -> Pool | None:
        """Return a pool as it is now; None when it is gone, cannot be used, or names another Redis than this."""
        record = self.pools.get(key)
        if record is None or record.uid != uid or record.is_going or record.pool is None:
            return None
        named = record.pool.spec.redis
        return record.pool if named is redis or named == redis else None

    def _read_record(self, body: Mapping[str, Any]) -> PoolRecord | None:
        """Return what is kept of a pool, or None and a line in the log."""
        metadata = body.get("metadata") or {}
        place = str(metadata.get("namespace")), str(metadata.get("name"))
        try:
            return parse_record(body, self.pools.get(place))
        # One pool's manifest must not hide all others.
        except Exception:
            logger.exception(
                "pool ignored: it cannot be parsed", extra={"namespace": place[0], "resource": place[1]}
            )
            return None

    def set_pool(self, record: PoolRecord) -> None:
        before = self.pools.get(record.key)
        # A list that was under way may know less than the watch, which went on meanwhile.
        if record.uid in self._dropped or (
            before is not None and before.uid == record.uid and record.version < before.version
        ):
            return
        self._heard_at[record.uid] = monotonic()
        if before is not None and (before.uid, before.generation) == (record.uid, record.generation):
            self.pools[record.key] = replace(record, pool=before.pool, fault=before.fault)
            if record.is_going == before.is_going:
                return
        else:
            self.pools[record.key] = record
        self._notify_of_pool(record.key)

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
            # A pool that the watch has just shown may have come while the list was made; the next list knows.
            if key not in listed and monotonic() - self._heard_at.get(record.uid, 0.0) > _LIST_LAG_SECONDS:
                self._remove_pool(key, record.uid)
        for record in listed.values():
            self.set_pool(record)

    def _remove_pool(self, key: PoolKey, uid: str) -> None:
        self._heard_at.pop(uid, None)
        record = self.pools.get(key)
        if record is not None and record.uid == uid:
            del self.pools[key]
            self._notify_of_pool(key)

    def _notify_of_pool(self, key: PoolKey) -> None:
        self.pools_changed.set()
        if (follower := self.followers.get(key)) is not None:
            follower(key, _POOL_DELAY_SECONDS)

    def set_deployment(self, before: DeploymentObject | None, after: DeploymentObject | None) -> None:
        self._set_one(self.deployments, before, after)

    def set_budget(self, before: BudgetObject | None, after: BudgetObject | None) -> None:
        self._set_one(self.budgets, before, after)

    def _set_one(self, known: dict[PoolKey, Any], before: Any, after: Any) -> None:
        # Any client may change labels: an object that has only the label of a pool, and not its name, is none of the pool's.
        if before is not None and before.name == before.pool[1]:
            known.pop(before.pool, None)
        if after is not None and after.name == after.pool[1]:
            known[after.pool] = after
        self._notify(*(one for one in (before, after) if one is not None and one.name == one.pool[1]))

    def set_job(self, before: JobObject | None, after: JobObject | None) -> None:
        if before is not None:
            self._forget(self.jobs, before.pool, before.uid)
        if after is not None:
            self.jobs[after.pool][after.uid] = after
        self._notify(before, after)

    def set_pod(self, before: PodObject | None, after: PodObject | None) -> None:
        if before is not None:
            self._forget(self.pods, before.pool, before.uid)
        if after is not None:
            self.pods[after.pool][after.uid] = after
            self.pool_of_pod[after.uid] = after.pool
        elif before is not None:
            self.pool_of_pod.pop(before.uid, None)
            self._remember_vanished(before)
        self._notify(before, after)

    def _remember_vanished(self, pod: PodObject) -> None:
        now = monotonic()
        self.vanished[pod.uid], self._vanished_at[pod.uid] = pod, now
        oldest = now - _REMEMBER_VANISHED_SECONDS
        for other in [other for other, at in self._vanished_at.items() if at < oldest]:
            del self.vanished[other], self._vanished_at[other]

    def _notify(self, *objects: Any) -> None:
        """Notify the loops of every pool concerned: two, when an object got the label of another pool."""
        for key in {one.pool: None for one in objects if one is not None}:
            if (follower := self.followers.get(key)) is not None:
                follower(key, _OBJECT_DELAY_SECONDS)

    @staticmethod
    def _forget(known: defaultdict[PoolKey, dict[str, Any]], key: PoolKey, uid: str) -> None:
        known[key].pop(uid, None)
        if not known[key]:
            del known[key]
