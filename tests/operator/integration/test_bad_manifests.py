"""What a real API server makes of manifests, bad and good, under the committed definition."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from bad_manifests import BAD_MANIFESTS, GOOD_CHANGES, Manifest, change, good_manifest
from control_plane import Cluster, KubectlFailed
from manifest_trial import dry_run, read_refusal
from pool_definition import install_pool_definition, read_trouble
from pools import PoolDesk, build_pool
from rrq_operator.api.pool_status import Condition, PoolStatus
from rrq_operator.api.spec import parse_pool
from rrq_operator.cluster.kube import Kube, KubeUnreadable, pools_path
from rrq_operator.decide.status import build_status_manifest
from waiting import eventually

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

    from operator_process import RunningOperator

pytestmark = pytest.mark.usefixtures("pool_definition")


@pytest.fixture(scope="module")
def pool_definition(control_plane: Cluster) -> None:
    install_pool_definition(control_plane)


@pytest.fixture
def pools(control_plane: Cluster, namespace: str) -> Pools:
    return Pools(control_plane, namespace)


class Pools:
    """The pools of one namespace, by kubectl."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def kubectl(self, *arguments: str, manifest: Manifest | None = None) -> str:
        written = "" if manifest is None else json.dumps(manifest)
        return self._cluster.kubectl("--namespace", self._namespace, *arguments, input=written)

    def apply(self, **changes: Any) -> Manifest:
        """Apply the good manifest with fields of its spec changed, and return what became of it."""
        manifest = change(good_manifest(), {f"spec.{name}": value for name, value in changes.items()})
        written = self.kubectl("apply", "--filename=-", "--output=json", manifest=manifest)
        stored: Manifest = json.loads(written)
        return stored

    def refusal(self, *arguments: str, manifest: Manifest | None = None) -> str:
        with pytest.raises(KubectlFailed) as caught:
            self.kubectl(*arguments, manifest=manifest)
        return str(caught.value)


def test_the_schema_is_structural(control_plane: Cluster) -> None:
    assert read_trouble(control_plane) == []


async def test_bad_manifests_are_refused_in_words(api_client: ApiClient) -> None:
    said = await asyncio.gather(*(read_refusal(api_client, bad.build()) for bad in BAD_MANIFESTS))
    told = {bad.name: (bad.server, words) for bad, words in zip(BAD_MANIFESTS, said, strict=True)}
    assert len(told) == len(BAD_MANIFESTS), "each has a name of its own"
    assert {
        name: (expected, words) for name, (expected, words) in told.items() if expected not in words
    } == {}


async def test_good_manifests_are_taken_and_mean_the_same_afterwards(api_client: ApiClient) -> None:
    for name, changes in GOOD_CHANGES.items():
        manifest = change(good_manifest(), changes)
        made = await dry_run(api_client, manifest)
        assert parse_pool(made).spec == parse_pool(manifest).spec, name


def test_defaults_come_back(pools: Pools) -> None:
    stored = pools.apply(scaling={})["spec"]
    assert stored == {
        "type": "Deployment",
        "queues": ["default"],
        "redis": {"url": "redis://redis:6379/0", "keyPrefix": "rrq:"},
        "worker": {
            "image": "registry.invalid/shop:1.4",
            "settings": "shop.jobs.settings",
            "concurrency": 10,
            "resources": {"limits": {}, "requests": {}},
            "env": [],
            "envFrom": [],
            "drainSeconds": 30,
            "podTemplate": {},
        },
        "replicas": 0,
        "scaling": {
            "minReplicas": 0,
            "maxReplicas": 10,
            "headroomReplicas": 0,
            "scaleDown": {"windowSeconds": 60},
            "paused": False,
        },
        "cron": [],
        "disruption": {"maxUnavailable": 1},
    }


@pytest.mark.parametrize(("before", "after"), [("Deployment", "Job"), ("Job", "Deployment")])
def test_a_pool_keeps_its_type(pools: Pools, before: str, after: str) -> None:
    pools.apply(type=before)
    changed = change(good_manifest(), {"spec.type": after})
    words = pools.refusal("apply", "--filename=-", manifest=changed)
    assert "spec.type" in words
    assert "the type of a pool cannot be changed: delete the pool and create it anew" in words


def test_foreign_parts_are_stored_as_they_came(pools: Pools) -> None:
    template = {
        "metadata": {"labels": {"team": "shop"}},
        "spec": {"tolerations": [{"key": "a"}], "new": {"x": 1}},
    }
    worker = {
        **good_manifest()["spec"]["worker"],
        "podTemplate": template,
        "env": [{"name": "A", "other": [1]}],
    }
    stored = pools.apply(worker=worker)["spec"]["worker"]
    assert stored["podTemplate"] == template
    assert stored["env"] == [{"name": "A", "other": [1]}]


def test_kubectl_scale_sets_the_floor_or_says_why_not(pools: Pools) -> None:
    pools.apply()
    pools.kubectl("scale", "rrqpool/emails", "--replicas=3")
    assert pools.kubectl("get", "rrqpool/emails", "--output=jsonpath={.spec.replicas}") == "3"
    words = pools.refusal("scale", "rrqpool/emails", "--replicas=11")
    assert "replicas must not exceed scaling.maxReplicas (10 unless set)" in words
    pools.kubectl("delete", "rrqpool", "emails")
    pools.apply(type="Job")
    words = pools.refusal("scale", "rrqpool/emails", "--replicas=2")
    assert "replicas is not for type: Job, which is always one pod" in words


def test_kubectl_get_shows_whether_the_pool_keeps_up(pools: Pools) -> None:
    pools.apply()
    condition = Condition.model_validate(
        {
            "type": "Ready",
            "status": "True",
            "reason": "Backlog",
            "message": "Growing to 3 pods.",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    )
    status = PoolStatus.model_validate(
        {
            "observedGeneration": 1,
            "replicas": 3,
            "readyReplicas": 2,
            "desiredReplicas": 4,
            "due": 25,
            "dueSoon": 6,
            "later": 7000,
            "busy": 19,
            "oldestDueTime": "2026-01-01T00:00:00Z",
            "queues": "default,mail",
            "reason": "Backlog",
            "selector": "rrq.dev/pool=emails",
            "startupSeconds": 1.5,
            "conditions": [condition],
            "lastDecision": {
                "time": "2026-01-01T00:00:00Z",
                "reason": "Backlog",
                "words": "so",
                "replicas": 4,
            },
            "job": {"active": "emails-1", "runs": 1, "lastResult": "Succeeded"},
        }
    )
    written = build_status_manifest(status)
    pools.kubectl(
        "patch",
        "rrqpool/emails",
        "--subresource=status",
        "--type=merge",
        f"--patch={json.dumps({'status': written})}",
    )

    stored = json.loads(pools.kubectl("get", "rrqpool/emails", "--output=json"))["status"]
    assert stored == written

    heads, values = (line.split() for line in pools.kubectl("get", "rrqpool").splitlines())
    assert heads == ["NAME", "TYPE", "QUEUES", "DUE", "OLDEST", "BUSY", "READY", "DESIRED", "REASON", "AGE"]
    assert values[:4] == ["emails", "Deployment", "default,mail", "25"]
    assert values[4].endswith(("d", "y"))
    assert values[5:9] == ["19", "2", "4", "Backlog"]

    wide = pools.kubectl("get", "rrqpool", "--output=wide")
    assert "MESSAGE" in wide
    assert "Growing to 3 pods." in wide
    assert "7000" in wide

    assert "emails" in pools.kubectl("get", "all")
    scale = json.loads(pools.kubectl("get", "rrqpool/emails", "--subresource=scale", "--output=json"))
    assert scale["status"] == {"replicas": 3, "selector": "rrq.dev/pool=emails"}


async def test_kubectl_explain_describes_every_field(pools: Pools) -> None:
    def explained() -> str:
        try:
            return pools.kubectl("explain", "rrqpool.spec.scaling")
        except KubectlFailed as not_yet:
            raise AssertionError(not_yet) from not_yet

    # The API server publishes the schema a moment after it serves the objects.
    words = await eventually(explained, 60, "kubectl never explained a pool", interval_seconds=0.5)
    assert "How large the pool may and should be." in words
    assert "minReplicas" in words
    assert "Never fewer while there is work." in words


# Too deep for Python


async def test_a_pool_that_nests_too_deep_to_be_parsed_hides_no_other(
    desk: PoolDesk, api_client: ApiClient, operator: RunningOperator
) -> None:
    deep = build_pool(
        "deep", cron=[{"name": "tick", "function": "f", "schedule": "* * * * *", "args": ["DEEP"]}]
    )
    # By hand, since Python can no more write it than read it.
    text = json.dumps(deep).replace('"DEEP"', "[" * 5000 + "]" * 5000)
    desk.apply(build_pool("a-before"))
    desk.kubectl("create", "--validate=false", "--filename=-", input=text)
    desk.apply(build_pool("z-after"))
    async with Kube(api_client.configuration) as kube:
        with pytest.raises(KubeUnreadable):
            await kube.list_all(pools_path(desk.namespace))
        found = await kube.list_readable(pools_path(desk.namespace))
        assert [pool["metadata"]["name"] for pool in found] == ["a-before", "z-after"]
    for name in ("a-before", "z-after"):
        await eventually(lambda: desk.replicas(name) is not None, 60)  # noqa: B023  awaited here
    operator.kill()
    operator.start()
    desk.kubectl("delete", "deployment", "a-before")
    await eventually(lambda: desk.replicas("a-before") is not None, 60, "one that starts anew sees them too")
    desk.apply(build_pool("later"))
    await eventually(
        lambda: desk.replicas("later") is not None, 30, "so do lists while the watch is of no use"
    )
