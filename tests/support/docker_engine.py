"""A Docker engine for tests: the one that answers, else one of our own that is gone with the tests.

Our own needs root and Debian's packages docker.io and debootstrap, and nothing from an image registry: its
base image is a small Debian made by debootstrap, kept as a tar file between runs. It leaves the network
of the machine alone (no bridge, no packet filter), so containers either share it or have none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BASE_VARIABLE = "RRQ_IMAGE_BASE"
CACHE = Path(__file__).parents[2] / ".cache" / "images"
# Its Python has the minor version of the public base that the Dockerfiles name.
DEBIAN_SUITE = "bookworm"
DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates"
OWN_BASE = f"rrq-test-base:{DEBIAN_SUITE}"
PROGRAMS = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
}
# Options of `docker run` for what a strict cluster demands of a container.
LOCKED_DOWN = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532")

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 30.0
COMMAND_TIMEOUT_SECONDS = 600.0


class NoDockerEngine(Exception):
    """No engine answers and none can be started here; the message says what is missing."""


class CommandFailed(Exception):
    """A program ended with an error; the message has the end of what it said."""


@dataclass(frozen=True)
class DockerEngine:
    """An engine that answers. `host` is None for the one that the docker client finds by itself."""

    host: str | None
    base: str | None  # what images are built on; None leaves it to the Dockerfile

    def run(self, *arguments: str, text_in: str | None = None) -> str:
        """Call the docker client and return what it printed; warnings go another way."""
        environment = dict(os.environ)
        if self.host is not None:
            # Debian's engine builds without the buildx plug-in, and knows only the older builder then.
            environment |= {"DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0"}
        return run_program(["docker", *arguments], text_in, environment)

    def build(self, context: Path, tag: str, dockerfile: str) -> None:
        """Build an image from the text of a Dockerfile."""
        options = ["--tag", tag, "--file", "-"]
        if self.host is not None:
            options += ["--network", "host"]  # the only one there is
        if self.base is not None:
            options += ["--build-arg", f"BASE={self.base}"]
        self.run("build", *options, str(context), text_in=dockerfile)


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """Give an engine for the length of the block, or raise `NoDockerEngine`."""
    base = os.environ.get(BASE_VARIABLE)
    if answers(None):
        yield DockerEngine(None, base)
        return
    refuse_where_none_can_start()
    with own_engine() as host:
        if base is None:
            base = OWN_BASE
            import_base(DockerEngine(host, None), base)
        yield DockerEngine(host, base)


def answers(host: str | None) -> bool:
    try:
        DockerEngine(host, None).run("version")
    except (CommandFailed, FileNotFoundError):
        return False
    return True


def refuse_where_none_can_start() -> None:
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if os.geteuid() != 0:
        needed = "tests that run as root could start one"
    elif missing:
        needed = f"to have the tests start one: apt install {' '.join(missing)}"
    else:
        return
    raise NoDockerEngine(f"No Docker engine answers. Start one or name it in DOCKER_HOST; {needed}.")


@contextmanager
def own_engine() -> Iterator[str]:
    """Run dockerd with everything it keeps in one folder, and leave neither process nor mount behind."""
    folder = Path(tempfile.mkdtemp(prefix="rrq-docker-", dir="/tmp"))  # short: it holds paths of sockets
    host = f"unix://{folder}/docker.sock"
    command = [
        # Should this process be killed, the engine still ends.
        *("setpriv", "--pdeathsig", "TERM"),
        *("dockerd", "--host", host, "--pidfile", f"{folder}/pid"),
        *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
        *("--cgroup-parent", f"/{folder.name}"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
    ]
    log = folder / "log"
    with ExitStack() as afterwards:  # the last one first, and each of them whatever the others meet
        afterwards.callback(remove_folder, folder)
        afterwards.callback(remove_cgroups, folder.name)
        with log.open("wb") as output:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        afterwards.callback(end, daemon)
        wait_for_answer(daemon, host, log)
        yield host


def wait_for_answer(daemon: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not answers(host):
        if daemon.poll() is not None or time.monotonic() > deadline:
            last_words = log.read_text(errors="replace")[-2000:]
            raise NoDockerEngine(
                f"dockerd was started but does not answer. The end of its log:\n{last_words}"
            )
        time.sleep(0.1)


def end(daemon: subprocess.Popen[bytes]) -> None:
    """Stop the engine, which stops its containers first."""
    daemon.terminate()
    try:
        daemon.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def remove_cgroups(name: str) -> None:
    trees = Path("/sys/fs/cgroup")
    # Version 2 has one tree, version 1 one for each controller.
    for top in (*trees.glob(name), *trees.glob(f"*/{name}")):
        for group, _, _ in os.walk(top, topdown=False):
            os.rmdir(group)


def remove_folder(folder: Path) -> None:
    """Unmount what is mounted inside and remove the rest.

    An error on the way leaves the folder alone: deleting through a mount would delete from the machine.
    """
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((path for path in mounts if Path(path).is_relative_to(folder)), reverse=True):
        run_program(["umount", mount])
    shutil.rmtree(folder)


def import_base(engine: DockerEngine, tag: str) -> None:
    """Give the engine a Debian with Python, set up to reach the package index as this machine does."""
    archive = CACHE / f"{DEBIAN_SUITE}.tar"
    if not archive.exists():
        make_base(archive)
    engine.run("import", str(archive), f"{tag}-plain")
    # On top and not in the archive: how a machine reaches its index may change, and is nobody else's business.
    with tempfile.TemporaryDirectory() as context:
        recipe = [f"FROM {tag}-plain"]
        for file in (Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt")):
            if file.exists():
                shutil.copy(file, context)
                recipe.append(f"COPY {file.name} {file}")
        engine.build(Path(context), tag, "\n".join(recipe))


def make_base(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="rrq-debian-"))
    tree, unfinished = folder / "tree", archive.with_suffix(f".{os.getpid()}")
    leave_out = ["usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists"]
    try:
        run_program(
            ["debootstrap", "--variant=minbase", f"--include={DEBIAN_PACKAGES}", DEBIAN_SUITE, str(tree)]
        )
        excluded = [f"--exclude=./{path}/*" for path in leave_out]
        run_program(["tar", "--numeric-owner", *excluded, "-cf", str(unfinished), "-C", str(tree), "."])
        unfinished.rename(archive)  # in one step, so that an interrupted run leaves no half an archive
    finally:
        unfinished.unlink(missing_ok=True)
        remove_folder(folder)


def run_program(
    command: Sequence[str], text_in: str | None = None, environment: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        command,
        check=False,
        input=text_in or "",
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        last_words = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}:\n{last_words}")
    return done.stdout
