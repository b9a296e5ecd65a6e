"""The programs that the clusters of the tests run: built once from Go modules, kept outside the clone.

Each folder with a go.mod in cluster/ is one module, and all that its build reads; its digest is part of the
name of what is built, so that a change there makes a new build and an old clone still finds its own. etcd and what
a node needs come from the system. `make cluster-build` runs this file; who starts a cluster asks it where the
programs are.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packages import MissingPackages, find, install
from progress import CommandFailed, alone, run_with_progress, say
from tier_report import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CACHE_VARIABLE = "RRQ_CLUSTER_CACHE"
KUBECONFIG_VARIABLE = "RRQ_E2E_KUBECONFIG"  # a cluster that tests use instead
HERE = Path(__file__).parent / "cluster"
ETCD = {"etcd": "etcd-server"}
# What a node is made of, beside the kubelet: the container runtime, and the network of pods and Services.
NODE_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "sysctl": "procps",
}


class CannotHostKubernetes(Exception):
    """This machine lacks something; the message is one line that says what, and what to do."""


@dataclass(frozen=True)
class GoModule:
    """One build: what it is called, what it makes, and which requirement gives it its version."""

    name: str
    programs: tuple[str, ...]  # one file under several names, when there are several
    requirement: str | None = None
    package: str = "."
    stamps: tuple[str, ...] = ()  # packages that want to be told the version, or else say v0.0.0

    @property
    def source(self) -> Path:
        return HERE / self.name

    @property
    def version(self) -> str:
        """As in v1.34.4, read from where it is pinned."""
        if self.requirement is None:
            return "v0"
        pinned = re.escape(self.requirement)
        found = re.search(
            rf"^(?:require)?\s*{pinned} (v\S+)", (self.source / "go.mod").read_text(), re.MULTILINE
        )
        assert found is not None, f"{self.source}/go.mod requires no {self.requirement}"
        return found[1]

    def digest(self) -> str:
        digest = hashlib.sha256()
        for file in sorted(self.source.iterdir()):
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:12]

    def folder(self, environment: Mapping[str, str] = os.environ) -> Path:
        return cache_folder(environment) / f"{self.name}-{self.version}-{self.digest()}"


KUBERNETES = GoModule(
    "kube",
    ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"),
    requirement="k8s.io/kubernetes",
    stamps=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
)
HELM = GoModule("helm", ("helm",), "helm.sh/helm/v3", "helm.sh/helm/v3/cmd/helm")
COREDNS = GoModule("coredns", ("coredns",), "github.com/coredns/coredns")
PAUSE = GoModule("pause", ("pause",))
MODULES = (KUBERNETES, HELM, COREDNS, PAUSE)
CLIENTS = {"kubectl": KUBERNETES, "helm": HELM}  # all that a cluster needs that is there


@dataclass(frozen=True)
class Programs:
    """Where the programs are."""

    folders: Mapping[str, Path]  # by program

    def path(self, name: str) -> Path:
        return self.folders[name] / name


def find_programs(environment: Mapping[str, str] = os.environ) -> Programs:
    """Return the programs if they are built and installed; raise `CannotHostKubernetes` if not."""
    folders: dict[str, Path] = {}
    for module in MODULES:
        folder = module.folder(environment)
        if not folder.is_dir():
            refuse_without_go()
            raise CannotHostKubernetes(
                f"{module.name} is not built in {folder}: run `make cluster-build` first."
            )
        folders |= dict.fromkeys(module.programs, folder)
    etcd = find("etcd")
    if etcd is None:
        raise CannotHostKubernetes(
            f"etcd is missing: run `make cluster-build` as root, or apt install {ETCD['etcd']}."
        )
    return Programs({**folders, "etcd": etcd.parent})


def find_client(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return kubectl or helm: ours if it is built, else an installed one; raise `CannotHostKubernetes` if neither."""
    folder = CLIENTS[name].folder(environment)
    if folder.is_dir():
        return folder / name
    installed = find(name)
    if installed is None:
        raise CannotHostKubernetes(f"{name} is missing: run `make cluster-build` first, or install it.")
    return installed


def build_clients() -> None:
    """Make sure that `find_client` finds: ours where Go is at hand, as installed ones may be of any age."""
    try:
        compile_missing(list(CLIENTS.values()))
    except CannotHostKubernetes:
        for name in CLIENTS:
            find_client(name)


def given_kubeconfig(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file of a cluster that the tests are to use instead of starting one."""
    named = environment.get(KUBECONFIG_VARIABLE)
    return Path(named).resolve() if named else None


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    named = environment.get(CACHE_VARIABLE)
    if named:
        return Path(named).resolve()
    caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(caches) / "rrq").resolve()  # runc refuses a root that is a link


def build() -> Programs:
    """Make sure that the programs are there: seconds when they are, minutes the first time."""
    refuse_where_none_can_be_built()  # before etcd: nothing is installed on a machine that cannot build
    try:
        install(ETCD)
    except MissingPackages as missing:
        raise CannotHostKubernetes(str(missing)) from missing
    compile_missing(MODULES)
    return find_programs()


def refuse_where_none_can_be_built() -> None:
    """Raise `CannotHostKubernetes` where something has yet to be compiled and cannot be."""
    if not all(module.folder().is_dir() for module in MODULES):
        refuse_without_go()


def compile_missing(modules: Sequence[GoModule]) -> None:
    """Build what is not built yet."""
    unbuilt = [module for module in modules if not module.folder().is_dir()]
    if unbuilt:
        refuse_without_go()
        with alone(cache_folder() / "build.lock"):
            for module in unbuilt:
                if not module.folder().is_dir():  # the one that held the lock before us may have made it
                    compile_module(module)


def refuse_without_go() -> None:
    if shutil.which("go") is None:
        raise CannotHostKubernetes(
            "Go is missing: install Go 1.24 or newer (https://go.dev/dl) to build Kubernetes."
        )
    # In the folder of a module, where an older Go fetches the version that go.mod asks for, if it can.
    answer = subprocess.run(
        ["go", "version"], cwd=KUBERNETES.source, check=False, capture_output=True, text=True
    )
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotHostKubernetes(
            f"Go 1.24 or newer is needed to build Kubernetes, and this one refuses: {reason}"
        )


def compile_module(module: GoModule) -> None:
    """Build one module into its folder, under the name of its first program with links for the others."""
    version, folder = module.version, module.folder()
    if module is KUBERNETES:
        say(
            f"building Kubernetes {version} from Go modules: about 10 minutes the first time, once per machine"
        )
    major, minor = ([*version.removeprefix("v").split("."), "0"])[:2]
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = [f"-X {package}.{name}={value}" for package in module.stamps for name, value in stamped.items()]
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    first, *others = module.programs
    command = ["go", "build", "-trimpath", "-ldflags", " ".join(["-s -w", *flags])]
    try:
        run_with_progress(
            f"compile {module.name} {version}",
            [*command, "-o", f"{unfinished}/{first}", module.package],
            folder=module.source,
        )
        for name in others:
            (unfinished / name).symlink_to(first)
        unfinished.chmod(0o755)
        unfinished.rename(folder)  # in one step, so that an interrupted build leaves no half a folder
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the programs that the clusters of the tests run.")
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
        if not arguments.if_possible:
            return 1
        if given_kubeconfig() is None:  # else most of them run on that cluster
            note("control-plane", str(missing))
        return 0
    except CommandFailed as error:
        say(str(error))
        return 1
    say(f"Kubernetes {KUBERNETES.version} is in {programs.folders['kube-apiserver']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
