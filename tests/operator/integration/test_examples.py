"""The manifests that people copy, taken by a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from pools import PoolDesk

ROOT = Path(__file__).parents[3]


def test_pools_that_people_copy_are_taken_as_they_stand(desk: PoolDesk) -> None:
    manifests = [(ROOT / "examples" / "pool.yaml").read_text()]
    for page in ("README.md", "docs/operator.md"):
        blocks = (ROOT / page).read_text().split("```yaml\n")[1:]
        assert blocks, f"{page} shows a manifest"
        manifests += [block.partition("```")[0] for block in blocks]
    for manifest in manifests:
        assert yaml.safe_load(manifest)["kind"] == "RRQWorkerPool"
        # Two pages may show a pool of the same name.
        assert "created" in desk.kubectl("create", "--dry-run=server", "--filename", "-", input=manifest)
