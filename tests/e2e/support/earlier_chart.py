"""The chart that landed before this one, taken from git: what an upgrade starts from while there is no release."""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

from helm_client import CHART

if TYPE_CHECKING:
    from pathlib import Path

ROOT = CHART.parents[1]
PLACE = str(CHART.relative_to(ROOT))


def extract_earlier_chart(folder: Path) -> tuple[Path, str]:
    """Write the newest chart that differs from the present one below `folder`.

    Returns it with the commit that it is of; where history has none (a shallow clone, a first landing), the present
    chart and an empty name.
    """
    for commit in git("rev-list", "HEAD", "--", PLACE).decode().split():
        if not git("ls-tree", "--name-only", commit, f"{PLACE}/templates/"):
            continue
        if is_as_present(commit):
            continue
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "--", PLACE))) as archive:
            archive.extractall(folder, filter="data")
        return folder / PLACE, commit
    return CHART, ""


def is_as_present(commit: str) -> bool:
    """Whether the chart of a commit is what lies in the working tree."""
    return not git("diff", "--name-only", commit, "--", PLACE)


def git(*arguments: str) -> bytes:
    """Run git here; a copy of the project that is no clone has no history, which is an empty answer."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True)
    return done.stdout if done.returncode == 0 else b""
