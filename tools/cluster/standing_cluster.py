"""A cluster that stays until it is told to go: `make cluster-up` and `make cluster-down`.

There is one per cache folder. Tests use it when RRQ_E2E_KUBECONFIG names its kubeconfig file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from cluster_choice import build_all
from cluster_part import PartFailed
from control_groups import remove_groups
from image_bundle import bundle_folder
from kubernetes_build import CannotHostKubernetes, Programs, cache_folder
from machine import MachineFailed
from progress import CommandFailed
from real_cluster import RealCluster, leave_network, name_group

STATE_FILE = "state.json"
TOOLS_FOLDER = "bin"
STOP_TIMEOUT_SECONDS = 30.0


class StaleCluster(Exception):
    """The cluster that runs has images of another tree; the message says what to do."""


def up(folder: Path) -> None:
    """Start it, or say where the one is that runs; raise `StaleCluster` if its images are not those of this tree."""
    if find_first_process(folder) is not None:
        refuse_other_images(folder)
    else:
        remove(folder)  # what one left that ended without us
        programs, images = build_all()
        folder.mkdir(parents=True)
        cluster = RealCluster(programs, folder, images=[images], outlives_us=True)
        # Before it starts: should we be killed meanwhile, `down` finds what there is.
        state = {
            "first_process": cluster.machine.first_process_id,
            "network": cluster.network,
            "images": images.parent.name,
        }
        (folder / STATE_FILE).write_text(json.dumps(state))
        link_tools(folder / TOOLS_FOLDER, programs)
        cluster.start()
        started = f"{len(cluster.nodes)} nodes, ready in {cluster.started_in_seconds:.1f} s"
        say(f"# {started}. `make cluster-down` ends it.")
    say(f'export KUBECONFIG={folder / "admin.kubeconfig"} PATH="{folder / TOOLS_FOLDER}:$PATH"')


def link_tools(folder: Path, programs: Programs) -> None:
    """For whoever has no kubectl and no Helm: those that came about with the cluster."""
    folder.mkdir()
    for name in ("kubectl", "helm"):
        (folder / name).symlink_to(programs.path(name))


def refuse_other_images(folder: Path) -> None:
    """Its pods would run what the tree was when it started: the name of a bundle has the digest of its sources."""
    loaded, wanted = read_state(folder).get("images"), bundle_folder().name
    if loaded != wanted:
        raise StaleCluster(
            f"The cluster that runs was given {loaded}, and this tree makes {wanted}: `make cluster-down` first."
        )


def down(folder: Path) -> None:
    """End it, if it runs, and remove all it kept."""
    running = find_first_process(folder)
    if running is not None:
        # The first process last: the number of the network, by which all is named, is ours while the cable is there.
        kill_others(running)
        network = read_state(folder).get("network")
        if network is not None:
            remove_groups(name_group(network, "*"))
            leave_network(network)
        running.kill()
        running.wait(STOP_TIMEOUT_SECONDS)  # it is gone only after every process of its machine
    remove(folder)
    say("the cluster is gone" if running else "no cluster was running")


def kill_others(first: psutil.Process) -> None:
    """End what runs on a machine and on those inside it, which end with the process that made them."""
    namespace = read_namespace(first.pid)
    if not namespace:
        return  # it has just ended, and all others with it
    assert namespace != read_namespace(os.getpid()), f"process {first.pid} is not that of a machine"
    in_it = [process for process in psutil.process_iter() if read_namespace(process.pid) == namespace]
    others = [process for process in in_it if process != first]
    for process in others:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(others, STOP_TIMEOUT_SECONDS)


def read_namespace(process_id: int) -> str:
    """The namespace of processes that one is in; nothing of one that has ended."""
    try:
        return os.readlink(f"/proc/{process_id}/ns/pid")
    except OSError:
        return ""


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def find_first_process(folder: Path) -> psutil.Process | None:
    """The process that all others end with, if it runs and is ours: an id may have gone to another one since."""
    state = read_state(folder)
    try:
        process = psutil.Process(state["first_process"])
        return process if Path(process.cwd()) == folder else None
    except (KeyError, psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def read_state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
    except FileNotFoundError:
        return {}
    return state


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    actions = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        say(f"usage: {Path(sys.argv[0]).name} up|down")
        return 2
    try:
        actions[sys.argv[1]](cache_folder() / "standing")
    except (CannotHostKubernetes, CommandFailed, MachineFailed, PartFailed, StaleCluster) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
