"""What git knows of this clone. Where the project is no clone, as in an unpacked archive, tests that ask are skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def require_clone() -> None:
    """Skip the test, and say why, where git has nothing to tell."""
    if shutil.which("git") is None:
        pytest.skip("no git here, which knows the files of the project")
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True)
    if asked.returncode != 0:
        pytest.skip("no clone here, so that git does not know the files of the project")


def list_files(*patterns: str, folder: Path = ROOT) -> list[str]:
    """Return what belongs to the project, relative to the folder: also what is not added yet, and nothing ignored."""
    require_clone()
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return found.stdout.splitlines()


def search_files(pattern: str) -> list[str]:
    """Return the lines in files of the project that match an extended regular expression."""
    require_clone()
    done = subprocess.run(
        ["git", "grep", "--untracked", "-nIE", pattern],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()
