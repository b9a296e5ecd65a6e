"""Story 8: each bad manifest of the table is refused with its message, under the definition that the chart installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bad_manifests import BAD_MANIFESTS, GOOD_CHANGES, change, good_manifest
from control_plane import KubectlFailed
from kubernetes_client import open_client
from manifest_trial import read_refusal
from pool_definition import read_trouble
from rrq_operator.crd import CRD_NAME

if TYPE_CHECKING:
    from bad_manifests import BadManifest
    from control_plane import Cluster
    from pools import PoolDesk

pytestmark = pytest.mark.usefixtures("release")


def test_the_definition_is_the_one_of_the_chart(cluster: Cluster) -> None:
    definition = json.loads(cluster.kubectl("get", "crd", CRD_NAME, "--output=json"))
    assert definition["metadata"]["annotations"]["meta.helm.sh/release-name"] == "rrq"
    assert read_trouble(cluster) == []


async def test_bad_manifests_are_refused_with_their_message(cluster: Cluster) -> None:
    async with await open_client(cluster.kubeconfig) as client:
        said = {bad.name: await read_refusal(client, bad.build()) for bad in BAD_MANIFESTS}
    assert len(said) == len(BAD_MANIFESTS), "each has a name of its own"
    wrong = {bad.name: said[bad.name] for bad in BAD_MANIFESTS if bad.server not in said[bad.name]}
    assert not wrong, f"{len(wrong)} of {len(said)} were taken, or refused with other words: {wrong}"


async def test_good_manifests_are_taken(cluster: Cluster) -> None:
    async with await open_client(cluster.kubeconfig) as client:
        said = {
            name: await read_refusal(client, change(good_manifest(), changes))
            for name, changes in GOOD_CHANGES.items()
        }
    assert said == dict.fromkeys(GOOD_CHANGES, "")


@pytest.mark.parametrize("bad", BAD_MANIFESTS[:3], ids=lambda bad: bad.name)
def test_a_person_with_kubectl_reads_the_message(desk: PoolDesk, bad: BadManifest) -> None:
    with pytest.raises(KubectlFailed) as refused:
        desk.apply(bad.build())
    assert bad.server in str(refused.value)
    assert desk.read_all("rrqpool") == []
