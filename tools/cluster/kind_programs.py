"""kind, and the programs that a node image of ours needs beside those of the source-built cluster.

All of them come from the Go module in `kind/`, each into a folder of its own beside the other builds.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from kubernetes_build import (
    CannotHostKubernetes,
    GoModule,
    cache_folder,
    compile_module,
    refuse_without_go,
)
from progress import CommandFailed, alone

KIND_SOURCES = Path(__file__).parent / "kind"
# The one that the pinned kind is made for; another kind takes it as well.
PUBLISHED_NODE_IMAGE = (
    "kindest/node:v1.34.0@sha256:7416a61b42b1662ca6ca89f02028ac133a309a2a30ba309614e8ec94d976dc5a"
)


class KindModule(GoModule):
    """A program of the Go module in `kind/`."""

    @property
    def source(self) -> Path:
        return KIND_SOURCES

    def digest(self) -> str:
        """Of what Go reads: the folder also has what the node image is made of."""
        digest = hashlib.sha256()
        for file in sorted((self.source / "go.mod", self.source / "go.sum", *self.source.glob("*.go"))):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:12]


KIND = KindModule("kind", ("kind",), "sigs.k8s.io/kind", "sigs.k8s.io/kind")
KUBEADM = KindModule(
    "kubeadm",
    ("kubeadm",),
    "k8s.io/kubernetes",
    "k8s.io/kubernetes/cmd/kubeadm",
    stamps=("k8s.io/component-base/version",),
)
# Debian's etcd is older than what kubeadm configures: it knows neither the options nor the probes.
ETCD = KindModule("kind-etcd", ("etcd",), "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3")
# With the plugins that the configuration of kubeadm names, which the source-built cluster has no use for.
COREDNS = KindModule("kind-coredns", ("coredns",), "github.com/coredns/coredns")


def find_kind() -> Path:
    """Return kind: the pinned one if it is built, else the installed one, else compile it in seconds."""
    installed = shutil.which("kind")
    if KIND.folder().is_dir() or installed is None:
        return find_or_compile(KIND)
    return Path(installed)


def find_or_compile(module: KindModule) -> Path:
    """Return the program of a module; raise `CannotHostKubernetes` where it is not built and cannot be."""
    if not module.folder().is_dir():
        refuse_without_go()
        with alone(cache_folder() / "build.lock"):
            if not module.folder().is_dir():  # the one that held the lock before us may have made it
                try:
                    compile_module(module)
                except CommandFailed as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise CannotHostKubernetes(f"{module.name} could not be compiled: {reason}") from error
    return module.folder() / module.programs[0]


def find_base_files() -> Path:
    """Return the files of kind's base image, which are part of its module; whoever has kind may lack that."""
    refuse_without_go()
    fetch = ["go", "mod", "download", "-json", "sigs.k8s.io/kind"]
    answer = subprocess.run(fetch, cwd=KIND.source, check=False, capture_output=True, text=True)
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotHostKubernetes(f"the files of kind's base image could not be fetched: {reason}")
    return Path(json.loads(answer.stdout)["Dir"]) / "images" / "base" / "files"
