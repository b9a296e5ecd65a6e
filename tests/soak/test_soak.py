"""The soak itself, for half a minute: that it can still be run, and that its promises hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from soak import soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
async def test_no_job_is_lost_and_every_repetition_has_a_cause(tmp_path: Path) -> None:
    report = await soak(seconds=30, seed=20, folder=tmp_path)
    assert report.violations == []
    assert report.jobs > 500
    assert report.faults.get("kill -9", 0) >= 1
    assert report.reruns_by_cause, "no attempt was cut, so that nothing was shown"
