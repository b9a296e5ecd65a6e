"""Where the Prometheus operator keeps its definitions: in its Go module, fetched when a test asks for them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
KINDS = ("podmonitors", "prometheusrules", "servicemonitors")
FETCH_TIMEOUT_SECONDS = 90.0


class CannotFetchDefinitions(Exception):
    """There is no Go here, or no way to the module; the message says which."""


def fetch_definitions() -> list[Path]:
    """Return one file per kind; Go keeps them, so that only the first call needs a network."""
    if shutil.which("go") is None:
        raise CannotFetchDefinitions("Go is missing: install it (https://go.dev/dl).")
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", MODULE],
            check=False,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotFetchDefinitions(f"{MODULE} could not be fetched within {error.timeout} s.") from error
    answer = json.loads(done.stdout or "{}")
    if done.returncode != 0:
        raise CannotFetchDefinitions(f"{MODULE} could not be fetched: {answer.get('Error') or done.stderr}")
    folder = Path(answer["Dir"]) / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in KINDS]
