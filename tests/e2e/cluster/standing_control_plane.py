"""A control plane that stays until it is told to go: `make cluster-up` and `make cluster-down`.

There is one per cache folder. Tests use it when RRQ_E2E_KUBECONFIG names its kubeconfig file.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import psutil

from cluster_part import PartFailed
from control_plane import ControlPlane
from kubernetes_build import BuildFailed, CannotHostKubernetes, build, cache_folder

PROCESS_FILE = "processes.json"
STOP_TIMEOUT_SECONDS = 10.0


def up(folder: Path) -> None:
    """Start it, or say where the one is that runs."""
    kubeconfig = folder / "admin.kubeconfig"
    if not processes(folder):
        programs = build()
        shutil.rmtree(folder, ignore_errors=True)  # logs and keys of one that ended without us
        folder.mkdir(parents=True)
        plane = ControlPlane(programs, folder, outlives_us=True)
        plane.start()
        started = {part.name: part.process.pid for part in plane.parts if part.process is not None}
        (folder / PROCESS_FILE).write_text(json.dumps(started))
        kubeconfig = plane.kubeconfig
        say(
            f"# ready in {plane.started_in_seconds:.1f} s; no node, so pods stay Pending. `make cluster-down` ends it."
        )
    say(f"export KUBECONFIG={kubeconfig}")


def down(folder: Path) -> None:
    """End it, if it runs, and remove its folder."""
    running = processes(folder)
    for process in running:
        process.kill()
    psutil.wait_procs(running, timeout=STOP_TIMEOUT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    say("the control plane is gone" if running else "no control plane was running")


def processes(folder: Path) -> list[psutil.Process]:
    """Those of its processes that still run."""
    try:
        started: dict[str, int] = json.loads((folder / PROCESS_FILE).read_text())
    except FileNotFoundError:
        return []
    return [psutil.Process(pid) for pid in started.values() if is_ours(pid, folder)]


def is_ours(pid: int, folder: Path) -> bool:
    """Whether it is a process that works in our folder: an id may have gone to another one since."""
    try:
        return Path(psutil.Process(pid).cwd()) == folder
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  speaks to the person who runs make


def main() -> int:
    actions = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        say(f"usage: {Path(sys.argv[0]).name} up|down")
        return 2
    try:
        actions[sys.argv[1]](cache_folder() / "standing")
    except (BuildFailed, CannotHostKubernetes, PartFailed) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
