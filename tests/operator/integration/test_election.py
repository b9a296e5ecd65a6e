"""The election against a real API server: candidates are processes that get killed, stopped and cut off."""

from __future__ import annotations

import json
import secrets
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from candidate_process import Note, Place, running
from rrq_operator.cluster.election_lease import KubeLeaseStore
from rrq_operator.decide.election_rules import (
    LeaseTaken,
    LeaseUnreachable,
    Timing,
    build_held,
    build_released,
    build_vacant,
)
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kubernetes.aio.client import ApiClient

    from cluster_part import Part
    from control_plane import Cluster
# A candidate is an interpreter that loads, beside those of other tests.
START_SECONDS = 60.0
TIMING = Timing()


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """Without waiting until pods can be created, as elsewhere: after an outage that takes the controllers long."""
    name = f"election-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def place(control_plane: Cluster, namespace: str, tmp_path: Path) -> Place:
    return Place(control_plane.kubeconfig, namespace, tmp_path / "notes")


async def leader_since(place: Place, moment: float, timeout_seconds: float = START_SECONDS) -> Note:
    note = await eventually(lambda: place.find_leader(moment), timeout_seconds, "no candidate leads")
    assert note is not None
    return note


def read_lease(cluster: Cluster, namespace: str) -> dict[str, Any]:
    text = cluster.kubectl("--namespace", namespace, "get", "lease", "rrq-operator", "--output=json")
    lease: dict[str, Any] = json.loads(text)
    return lease


async def test_a_leader_that_was_stopped_and_goes_on_writes_nothing_more(place: Place) -> None:
    with running(place, "a", "b") as candidates:
        first = await leader_since(place, 0)
        candidates[first.candidate].signal(signal.SIGSTOP)
        second = await leader_since(place, time.monotonic())
        assert second.candidate != first.candidate
        candidates[first.candidate].signal(signal.SIGCONT)
        # It is a candidate again: it takes over from the second in its turn, in a new term.
        resumed_at = time.monotonic()
        await eventually(lambda: place.read_notes()[-1].at > resumed_at + 1)
        candidates[second.candidate].kill()
        third = await leader_since(place, time.monotonic())
        assert (third.candidate, third.term) == (first.candidate, first.term + 1)
        terms = place.read_terms()
        assert len(terms) == len(set(terms)), f"a term went on after another had begun: {terms}"


@pytest.mark.parametrize(
    "spec", [None, {"holderIdentity": "somebody", "leaseDurationSeconds": 2, "leaseTransitions": 2**31 - 1}]
)
async def test_a_lease_with_odd_content_can_be_taken_over(
    control_plane: Cluster, api_client: ApiClient, namespace: str, spec: dict[str, object] | None
) -> None:
    lease: dict[str, object] = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "rrq-operator", "labels": {"team": "shop"}},
    }
    if spec is not None:
        lease["spec"] = spec
    control_plane.kubectl("--namespace", namespace, "create", "--filename=-", input=json.dumps(lease))
    store = KubeLeaseStore(api_client, namespace, "rrq-operator")
    seen = await store.read()
    assert seen is not None
    await store.replace(build_held(seen, "a", datetime.now(UTC), TIMING))
    taken = read_lease(control_plane, namespace)
    assert taken["spec"]["holderIdentity"] == "a"
    assert taken["metadata"]["labels"] == {"team": "shop"}


async def test_times_are_written_as_utc_with_microseconds(
    control_plane: Cluster, api_client: ApiClient, namespace: str
) -> None:
    store = KubeLeaseStore(api_client, namespace, "rrq-operator")
    # A whole second is what Python would write without a fraction, and the API server would refuse.
    wall_time = datetime(2031, 5, 17, 12, 0, 0, tzinfo=UTC)
    created = await store.create(build_vacant(TIMING))
    acquired = await store.replace(build_held(created, "a", wall_time, TIMING))
    renewed = await store.replace(build_held(acquired, "a", wall_time, TIMING))
    assert renewed.version != acquired.version, (
        "a clock that stands still must not make a renewal without effect"
    )
    spec = read_lease(control_plane, namespace)["spec"]
    assert (spec["acquireTime"], spec["renewTime"]) == (
        "2031-05-17T12:00:00.000001Z",
        "2031-05-17T12:00:00.000002Z",
    )
    assert spec["leaseDurationSeconds"] == TIMING.lease_seconds


async def test_a_write_onto_a_lease_that_changed_is_refused(api_client: ApiClient, namespace: str) -> None:
    store = KubeLeaseStore(api_client, namespace, "rrq-operator")
    assert await store.read() is None
    now = datetime.now(UTC)
    created = await store.create(build_vacant(TIMING))
    with pytest.raises(LeaseTaken):
        await store.create(build_vacant(TIMING))
    released = await store.replace(build_released(created, now))
    assert await store.read() == released
    with pytest.raises(LeaseTaken):
        await store.replace(build_held(created, "b", now, TIMING))


async def test_a_lease_that_vanished_counts_as_taken(
    control_plane: Cluster, api_client: ApiClient, namespace: str
) -> None:
    store = KubeLeaseStore(api_client, namespace, "rrq-operator")
    created = await store.create(build_vacant(TIMING))
    control_plane.kubectl("--namespace", namespace, "delete", "lease", "rrq-operator")
    with pytest.raises(LeaseTaken):
        await store.replace(build_held(created, "a", datetime.now(UTC), TIMING))


async def test_a_missing_namespace_is_named(api_client: ApiClient) -> None:
    store = KubeLeaseStore(api_client, "nowhere", "rrq-operator")
    with pytest.raises(LeaseUnreachable, match="no namespace 'nowhere'"):
        await store.create(build_vacant(TIMING))


async def test_an_api_server_that_is_away_is_no_answer(
    api_client: ApiClient, namespace: str, api_server: Part
) -> None:
    store = KubeLeaseStore(api_client, namespace, "rrq-operator")
    api_server.stop()
    with pytest.raises(LeaseUnreachable, match="could not be reached"):
        await store.read()
