"""Story 8: a person with kubectl reads why a manifest is refused, by the definition that the chart installed.

All bad manifests are tried on a control plane, in `tests/operator/integration`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bad_manifests import BAD_MANIFESTS
from control_plane import KubectlFailed
from pool_definition import read_trouble
from rrq_operator.api.crd import CRD_NAME

if TYPE_CHECKING:
    from pools import PoolDesk


@pytest.mark.usefixtures("release")
def test_a_person_with_kubectl_reads_why_a_manifest_is_refused(desk: PoolDesk) -> None:
    definition = json.loads(desk.kubectl("get", "crd", CRD_NAME, "--output=json"))
    assert definition["metadata"]["annotations"]["meta.helm.sh/release-name"] == "rrq"
    assert read_trouble(desk.cluster) == []
    for bad in BAD_MANIFESTS[:3]:
        with pytest.raises(KubectlFailed) as refused:
            desk.apply(bad.build())
        assert bad.server in str(refused.value)
    assert desk.read_all("rrqpool") == []
