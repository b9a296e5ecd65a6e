"""The manifests that people copy, taken by a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from pools import PoolDesk

ROOT = Path(__file__).parents[3]


def test_the_example_pool_is_taken_as_it_stands(desk: PoolDesk) -> None:
    said = desk.kubectl("apply", "--filename", str(ROOT / "examples" / "pool.yaml"))
    assert "created" in said


@pytest.mark.parametrize("page", ["README.md", "docs/operator.md"])
def test_the_pool_in_the_documentation_is_taken_as_it_stands(desk: PoolDesk, page: str) -> None:
    blocks = (ROOT / page).read_text().split("```yaml\n")[1:]
    manifests = [block.partition("```")[0] for block in blocks]
    assert manifests, f"{page} shows a manifest"
    for manifest in manifests:
        assert yaml.safe_load(manifest)["kind"] == "RRQWorkerPool"
        assert "created" in desk.kubectl("apply", "--filename", "-", input=manifest)
