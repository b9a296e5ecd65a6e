"""What the operator keeps of pools and their objects, in whatever order they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rrq_operator.api.spec import RedisSource
from rrq_operator.cluster.cluster_cache import ClusterCache, PoolRecord, parse_record
from rrq_operator.decide.objects import BudgetObject, parse_budget

if TYPE_CHECKING:
    import pytest

BORN = "2026-01-02T03:04:05Z"
LABELS = {"rrq.dev/pool": "emails"}
KEY = ("shop", "emails")


def metadata(**changes: Any) -> dict[str, Any]:
    return {
        "namespace": "shop",
        "name": "emails",
        "uid": "u",
        "creationTimestamp": BORN,
        "labels": LABELS,
    } | changes


def body(uid: str = "u", generation: int = 1, version: int = 1, **spec: Any) -> dict[str, Any]:
    worker = {"image": "example.com/shop:1", "settings": "shop.jobs.settings"}
    return {
        "apiVersion": "rrq.dev/v1alpha1",
        "kind": "RRQWorkerPool",
        "metadata": metadata(uid=uid, generation=generation, resourceVersion=str(version)),
        "spec": {"queues": ["default"], "worker": worker} | spec,
    }


def record(**changes: Any) -> PoolRecord:
    return parse_record(body(**changes))


def test_a_pool_that_cannot_be_understood_is_kept_with_the_reason() -> None:
    broken = record(queues=[])
    assert broken.pool is None
    assert "queues" in broken.fault


def test_a_changed_status_is_no_change_of_the_pool() -> None:
    notified: list[tuple[str, str]] = []
    cluster_cache = ClusterCache()
    cluster_cache.followers[KEY] = lambda key, delay_seconds: notified.append(key)
    cluster_cache.set_pool(record())
    pool = cluster_cache.pools[KEY].pool
    cluster_cache.set_pool(record(version=2))
    assert notified == [KEY]
    assert cluster_cache.pools[KEY].version == 2
    assert cluster_cache.pools[KEY].pool is pool, "loops tell by the same object that nothing changed"
    cluster_cache.set_pool(record(generation=2, version=3))
    assert len(notified) == 2
    assert cluster_cache.pools[KEY].pool is not pool


def test_events_of_the_watch_are_taken_in_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    cluster_cache = ClusterCache()
    cluster_cache.take_event(None, body())
    pool = cluster_cache.pools[KEY].pool
    cluster_cache.take_event("MODIFIED", {"metadata": metadata(creationTimestamp="yesterday")})
    assert "pool ignored" in caplog.text
    cluster_cache.take_event("MODIFIED", body(version=2))
    assert cluster_cache.pools[KEY].pool is pool, "a spec is parsed once for each generation"
    cluster_cache.take_event("DELETED", body(version=3))
    assert not cluster_cache.pools
    assert cluster_cache.pools_changed.is_set()


def test_a_pool_is_found_by_its_uid_while_it_names_the_same_redis() -> None:
    url = {"url": "redis://here/0"}
    cluster_cache = ClusterCache()
    cluster_cache.set_pool(record(redis=url))
    here = RedisSource.model_validate(url)
    assert cluster_cache.find_pool(KEY, "u", here) is cluster_cache.pools[KEY].pool
    assert cluster_cache.find_pool(KEY, "v", here) is None
    assert cluster_cache.find_pool(KEY, "u", None) is None
    cluster_cache.set_pool(record(generation=2, version=2, redis={"url": "redis://there/0"}))
    assert cluster_cache.find_pool(KEY, "u", here) is None
    cluster_cache.set_pool(record(generation=3, version=3, redis=url, queues=[]))
    assert cluster_cache.find_pool(KEY, "u", here) is None, "its spec cannot be used"


def test_an_older_list_undoes_nothing() -> None:
    cluster_cache = ClusterCache()
    old, new = record(version=1), record(generation=2, version=5)
    cluster_cache.set_pool(new)
    cluster_cache.replace_pools([old])
    assert cluster_cache.pools[KEY].generation == 2
    cluster_cache.replace_pools([])
    assert cluster_cache.pools, "it may have come while the list was made"
    cluster_cache.drop_pool(new.key, new.uid)
    cluster_cache.replace_pools([new])
    assert not cluster_cache.pools, "what was deleted does not come back"
    cluster_cache.set_pool(record(uid="v", version=9))
    assert cluster_cache.pools[KEY].uid == "v", "another pool of the same name does"


def test_a_late_event_of_an_earlier_pool_does_not_drop_its_successor() -> None:
    cluster_cache = ClusterCache()
    cluster_cache.set_pool(record(uid="v", version=9))
    cluster_cache.drop_pool(KEY, "u")
    assert cluster_cache.pools


def budget(pool: str, name: str = "emails") -> BudgetObject:
    return parse_budget({"metadata": metadata(name=name, labels={"rrq.dev/pool": pool}), "spec": {}})


def test_an_object_that_got_the_label_of_another_pool_is_forgotten() -> None:
    notified: list[tuple[str, str]] = []
    cluster_cache = ClusterCache()
    cluster_cache.set_budget(None, budget("emails"))
    cluster_cache.followers[KEY] = lambda key, delay_seconds: notified.append(key)
    cluster_cache.set_budget(budget("emails"), budget("reports"))
    assert (cluster_cache.budgets, notified) == ({}, [KEY]), "by its name it belongs to no pool"
    cluster_cache.set_budget(budget("reports"), budget("emails"))
    assert list(cluster_cache.budgets) == [KEY]
    cluster_cache.set_budget(None, budget("emails", name="other"))
    cluster_cache.set_budget(budget("emails", name="other"), None)
    assert list(cluster_cache.budgets) == [KEY], "what carries another name changes nothing"
    cluster_cache.set_budget(budget("emails"), None)
    assert cluster_cache.budgets == {}
