"""The Kubernetes programs that the tests run: built once from Go modules, kept outside the clone.

`tests/e2e/cluster/kube` names the version and is all that the build reads; its digest is part of the
folder's name, so that a change there makes a new build and an old clone still finds its own. etcd comes from
the system. `make cluster-build` runs this file; `control_plane` asks it where the programs are.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CACHE_VARIABLE = "RRQ_CLUSTER_CACHE"
KUBECONFIG_VARIABLE = "RRQ_E2E_KUBECONFIG"  # a cluster that tests use instead
MODULE = Path(__file__).parent / "kube"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet")
ETCD_PACKAGE = "etcd-server"

PROGRESS_INTERVAL_SECONDS = 15.0


class CannotHostKubernetes(Exception):
    """This machine lacks something; the message is one line that says what, and what to do."""


class BuildFailed(Exception):
    """Everything was there and a command failed all the same; the message has the end of what it said."""


@dataclass(frozen=True)
class Programs:
    """Where the programs are."""

    kubernetes: Path  # a folder with one link per name in PROGRAMS
    etcd: Path

    def path(self, name: str) -> Path:
        return self.kubernetes / name


def find_programs(environment: Mapping[str, str] = os.environ) -> Programs:
    """Return the programs if they are built and installed; raise `CannotHostKubernetes` if not."""
    folder = build_folder(environment)
    if not folder.is_dir():
        refuse_without_go()
        raise CannotHostKubernetes(f"Kubernetes is not built in {folder}: run `make cluster-build` first.")
    etcd = shutil.which("etcd")
    if etcd is None:
        raise CannotHostKubernetes(f"etcd is missing: run `make cluster-build` as root, or {install_hint()}.")
    return Programs(folder, Path(etcd))


def given_kubeconfig(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file of a cluster that the tests are to use instead of starting one."""
    named = environment.get(KUBECONFIG_VARIABLE)
    return Path(named).resolve() if named else None


def install_hint() -> str:
    return f"apt install {ETCD_PACKAGE}"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    named = environment.get(CACHE_VARIABLE)
    if named:
        return Path(named).resolve()
    caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches).resolve() / "rrq"


def build_folder(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_folder(environment) / f"kubernetes-{kubernetes_version()}-{module_digest()}"


def kubernetes_version() -> str:
    """The version as in v1.34.4, read from where it is pinned."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, f"{MODULE}/go.mod requires no k8s.io/kubernetes"
    return found[1]


def module_digest() -> str:
    digest = hashlib.sha256()
    for file in sorted(MODULE.iterdir()):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def build() -> Programs:
    """Make sure that the programs are there: seconds when they are, minutes the first time."""
    folder = build_folder()
    if not folder.is_dir():
        refuse_without_go()  # before etcd: nothing is installed on a machine that cannot build
    install_etcd()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.parent / "build.lock"):
            if not folder.is_dir():  # the one that held the lock before us may have made it
                compile_into(folder)
    return find_programs()


def refuse_without_go() -> None:
    if shutil.which("go") is None:
        raise CannotHostKubernetes(
            "Go is missing: install Go 1.24 or newer (https://go.dev/dl) to build Kubernetes."
        )
    # In the folder of the module, where an older Go fetches the version that go.mod asks for, if it can.
    answer = subprocess.run(["go", "version"], cwd=MODULE, check=False, capture_output=True, text=True)
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotHostKubernetes(
            f"Go 1.24 or newer is needed to build Kubernetes, and this one refuses: {reason}"
        )


def install_etcd() -> None:
    if shutil.which("etcd") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotHostKubernetes(
            f"etcd is missing, and only root on Debian can install it here: {install_hint()}."
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", ETCD_PACKAGE]
    with service_starts_refused():
        try:
            run_with_progress("apt-get update", ["apt-get", "update"], environment=environment)
            run_with_progress(f"install {ETCD_PACKAGE}", install, environment=environment)
        except BuildFailed as error:
            reason = str(error).strip().splitlines()[-1]
            raise CannotHostKubernetes(f"etcd is missing and could not be installed: {reason}") from error


@contextmanager
def service_starts_refused() -> Iterator[None]:
    """Keep Debian from starting what it installs: the tests run their own etcd, and need no other."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold the lock; the system drops it if this process dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build is under way; waiting for it ({lock})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_into(folder: Path) -> None:
    version = kubernetes_version()
    say(f"building Kubernetes {version} from Go modules: about 10 minutes the first time, once per machine")
    major, minor = version.removeprefix("v").split(".")[:2]
    # What `kubectl version` and the API server answer; without it they call themselves v0.0.0.
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [f"-X {package}.{name}={value}" for package in packages for name, value in stamps.items()]
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        run_with_progress(
            f"compile Kubernetes {version}",
            [
                "go",
                "build",
                "-trimpath",
                "-ldflags",
                " ".join(["-s -w", *flags]),
                "-o",
                f"{unfinished}/kube",
                ".",
            ],
            folder=MODULE,
        )
        for name in PROGRAMS:
            (unfinished / name).symlink_to("kube")
        unfinished.chmod(0o755)
        unfinished.rename(folder)  # in one step, so that an interrupted build leaves no half a folder
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def run_with_progress(
    task: str,
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command that may take minutes, and say every so often that it still does."""
    started_at = time.monotonic()
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            try:
                while True:
                    try:
                        process.wait(PROGRESS_INTERVAL_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        say(f"{task}: {time.monotonic() - started_at:.0f} s")
            except BaseException:
                process.kill()  # an interrupted build does not go on in the background
                raise
        if process.returncode != 0:
            output.seek(0)
            last_words = output.read().decode(errors="replace")[-3000:]
            raise BuildFailed(f"{' '.join(command)} ended with {process.returncode}:\n{last_words}")
    say(f"{task}: done in {time.monotonic() - started_at:.0f} s")


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)  # noqa: T201  speaks to the person who runs make


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the Kubernetes programs that the tests run.")
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="a machine that lacks something is told so, and is no error",
    )
    arguments = parser.parse_args()
    try:
        programs = build()
    except CannotHostKubernetes as missing:
        say(f"no Kubernetes here, tests that need it are skipped. {missing}")
        return 0 if arguments.if_possible else 1
    except BuildFailed as error:
        say(str(error))
        return 1
    say(f"Kubernetes {kubernetes_version()} is in {programs.kubernetes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
