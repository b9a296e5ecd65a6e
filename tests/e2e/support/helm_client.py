"""Helm, as a person calls it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CHART = Path(__file__).parents[3] / "charts" / "rrq"
TIMEOUT_SECONDS = 180.0


class HelmFailed(Exception):
    """Helm ended with an error; the message is what it said."""


@dataclass(frozen=True)
class Helm:
    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run Helm and return what it printed; `values` become its values file."""
        if values is not None:
            arguments = (*arguments, "--values", "-")
        done = subprocess.run(
            [self.program, *arguments],
            check=False,
            input=json.dumps(values or {}),
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            raise HelmFailed(f"helm {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout
