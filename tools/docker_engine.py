"""A Docker engine for tests: the one that answers, else one of our own that ends with the tests.

Our own needs root and Debian's packages docker.io and debootstrap, which it installs, and nothing from an image
registry: its base image is a small Debian made by debootstrap. It leaves the network of the machine alone (no
bridge, no packet filter), so containers either share it or have none.

Its images stay in the cache folder between runs, for one run at a time. Everything it starts lives in a process
and a mount namespace of its own: when the first process there ends, however that came about, the kernel takes
the others and the mounts with it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from control_groups import remove_groups
from kubernetes_build import cache_folder
from packages import MissingPackages, install
from progress import CommandFailed, alone, run_with_progress, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BASE_VARIABLE = "RRQ_IMAGE_BASE"
# Its Python has the minor version of the public base that the Dockerfiles name.
DEBIAN_SUITE = "bookworm"
DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates"
# What a container has no use for; paths in the tree that debootstrap made.
LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
# How pip reaches its index on this machine.
PIP_FILES = (Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt"))
OWN_BASE = f"rrq-test-base:{DEBIAN_SUITE}"
PROGRAMS = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
# Should this process be killed, the next one is, and with it the first one in the namespaces.
OWN_NAMESPACES = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"),
)
# Options of `docker run` for what a strict cluster demands of a container.
LOCKED_DOWN = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532")

START_TIMEOUT_SECONDS = 90.0
STOP_TIMEOUT_SECONDS = 90.0
COMMAND_TIMEOUT_SECONDS = 600.0


class NoDockerEngine(Exception):
    """No engine answers and none can be started here; the message says what is missing."""


@dataclass(frozen=True)
class DockerEngine:
    """An engine that answers. `host` is None for the one that the docker client finds by itself."""

    host: str | None
    base: str | None  # what images are built on; None leaves it to the Dockerfile

    @property
    def is_ours(self) -> bool:
        return self.host is not None

    @property
    def environment(self) -> dict[str, str]:
        if self.host is None:
            return dict(os.environ)
        # Debian's engine builds without the buildx plug-in, and knows only the older builder then.
        return {**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0"}

    def run(self, *arguments: str) -> str:
        """Call the docker client and return what it printed; warnings go another way."""
        return run_program(["docker", *arguments], self.environment)

    def build(self, context: Path, tag: str, dockerfile: str, *more_options: str) -> None:
        """Build an image from the text of a Dockerfile; may take minutes, and says so."""
        options = ["--tag", tag, *more_options]
        if self.is_ours:
            options += ["--network", "host"]  # the only one there is
        if self.base is not None:
            options += ["--build-arg", f"BASE={self.base}"]
        with tempfile.NamedTemporaryFile("w", prefix="Dockerfile-") as file:
            file.write(dockerfile)
            file.flush()
            command = ["docker", "build", *options, "--file", file.name, str(context)]
            run_with_progress(f"image {tag}", command, environment=self.environment)


@contextmanager
def docker_engine(environment: Mapping[str, str] = os.environ) -> Iterator[DockerEngine]:
    """Give an engine for the length of the block, or raise `NoDockerEngine`.

    Where it is our own, other runs wait until the block ends.
    """
    base = environment.get(BASE_VARIABLE)
    if answers(None):
        yield DockerEngine(None, base)
        return
    install_programs()
    cache = cache_folder(environment)
    cache.mkdir(parents=True, exist_ok=True)
    with own_engine(cache / "docker") as host:
        if base is None:
            base = OWN_BASE
            make_base(DockerEngine(host, None), base, base_archive(environment))
        yield DockerEngine(host, base)


def answers(host: str | None) -> bool:
    try:
        DockerEngine(host, None).run("version")
    except (CommandFailed, FileNotFoundError):
        return False
    return True


def install_programs() -> None:
    """Make sure that an engine can be started here; raise `NoDockerEngine` if that needs somebody else."""
    none_answers = "No Docker engine answers. Start one or name it in DOCKER_HOST;"
    if os.geteuid() != 0:
        raise NoDockerEngine(f"{none_answers} root could also have one started here.")
    try:
        install(PROGRAMS)
    except MissingPackages as missing:
        raise NoDockerEngine(f"{none_answers} none can be started here. {missing}") from missing


@contextmanager
def own_engine(data: Path) -> Iterator[str]:
    """Run dockerd on a folder that outlives it, one at a time, and leave neither process nor mount behind."""
    lock = data.with_name(f"{data.name}.lock")
    with alone(lock, "the Docker engine is in use") as turn, run_engine(data, turn) as host:
        yield host


@contextmanager
def run_engine(data: Path, turn: int) -> Iterator[str]:
    mark = data.with_name(f"{data.name}.in-use")
    forget_interrupted_run(data, mark)
    folder = Path(tempfile.mkdtemp(prefix="rrq-docker-", dir="/tmp"))  # short: it holds paths of sockets
    mark.write_text(str(folder))
    host = f"unix://{folder}/docker.sock"
    command = [
        *OWN_NAMESPACES,
        *("dockerd", "--host", host, "--pidfile", f"{folder}/pid"),
        *("--data-root", str(data), "--exec-root", f"{folder}/exec"),
        *("--cgroup-parent", f"/{folder.name}"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
    ]
    log = folder / "log"
    with ExitStack() as afterwards:  # the last one first, and each of them whatever the others meet
        afterwards.callback(shutil.rmtree, folder)
        afterwards.callback(remove_groups, folder.name)
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[turn],  # the next one waits until the last process here is gone
            )
        afterwards.callback(end, daemon, mark)
        wait_for_answer(daemon, host, log)
        yield host


def forget_interrupted_run(data: Path, mark: Path) -> None:
    """Remove what a run left that did not end in order.

    Its images too: whether all that they consist of reached the disk is unknown, and making them again
    takes a minute.
    """
    if not mark.exists():
        return
    say("the last Docker engine did not end in order; its images are made again")
    left = Path(mark.read_text())
    remove_groups(left.name)
    shutil.rmtree(left, ignore_errors=True)
    if data.exists():
        shutil.rmtree(data)
    mark.unlink()


def wait_for_answer(daemon: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not answers(host):
        if daemon.poll() is not None or time.monotonic() > deadline:
            last_words = log.read_text(errors="replace")[-2000:]
            raise NoDockerEngine(
                f"dockerd was started but does not answer. The end of its log:\n{last_words}"
            )
        time.sleep(0.1)


def end(daemon: subprocess.Popen[bytes], mark: Path) -> None:
    """Stop the engine, which stops its containers first; the mark goes if it could write all down."""
    # To the group: the one that we started waits for dockerd and does not pass signals on.
    os.killpg(daemon.pid, signal.SIGTERM)
    try:
        if daemon.wait(STOP_TIMEOUT_SECONDS) == 0:
            mark.unlink()
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def base_archive(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_folder(environment) / f"debian-{DEBIAN_SUITE}-{base_digest()}.tar"


def base_digest() -> str:
    recipe = " ".join((DEBIAN_SUITE, DEBIAN_PACKAGES, *LEFT_OUT))
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def make_base(engine: DockerEngine, tag: str, archive: Path) -> None:
    """Give the engine a Debian with Python, set up to reach the package indexes as this machine does."""
    plain = f"{tag}-{base_digest()}"
    # Only once: imported again, it would be another image, and nothing built on it could be used again.
    if not engine.run("images", "--quiet", plain).strip():
        if not archive.exists():
            make_archive(archive)
        engine.run("import", str(archive), plain)
    # On top and not in the archive: how a machine reaches its index may change, and is nobody else's business.
    with tempfile.TemporaryDirectory() as context:
        recipe = [f"FROM {plain}"]
        for file in PIP_FILES:
            if file.exists():
                shutil.copy(file, context)
                recipe.append(f"COPY {file.name} {file}")
        (Path(context) / "apt.conf").write_text(read_apt_options())
        recipe.append("COPY apt.conf /etc/apt/apt.conf.d/99machine")
        engine.build(Path(context), tag, "\n".join(recipe))


def read_apt_options() -> str:
    """How apt reaches its index here: not whole files, which also call programs that a container lacks."""
    if shutil.which("apt-config") is None:
        return ""
    wanted = ("Acquire::http", "Acquire::Check-Valid-Until", "Acquire::Retries")
    options = run_program(["apt-config", "dump", "Acquire"]).splitlines(keepends=True)
    return "".join(line for line in options if line.startswith(wanted))


def make_archive(archive: Path) -> None:
    unfinished = archive.with_name("unfinished-debian")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
    unfinished.mkdir()
    tree, file = unfinished / "tree", unfinished / "tree.tar"
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={DEBIAN_PACKAGES}", DEBIAN_SUITE, str(tree)]
    try:
        run_with_progress(f"make a Debian {DEBIAN_SUITE} to build images on", [*OWN_NAMESPACES, *bootstrap])
        excluded = [f"--exclude=./{path}/*" for path in LEFT_OUT]
        run_program(["tar", "--numeric-owner", *excluded, "-cf", str(file), "-C", str(tree), "."])
        file.rename(archive)  # in one step, so that an interrupted run leaves no half an archive
    finally:
        shutil.rmtree(unfinished)


def run_program(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        last_words = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}:\n{last_words}")
    return done.stdout
