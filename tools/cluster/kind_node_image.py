"""A node image for kind, made of Debian's packages, kind's own files and the programs of the source-built cluster.

For machines that reach no image registry. What kubeadm expects to be published as images is one layer of
programs under all the names that it asks for; the node takes them in when it starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from docker_engine import run_program
from kind_programs import COREDNS, ETCD, KIND, KUBEADM, find_base_files, find_or_compile
from kubernetes_build import CannotHostKubernetes, GoModule, cache_folder, find_programs, refuse_without_go
from progress import CommandFailed, alone, run_with_progress, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker_engine import DockerEngine

DEBIAN_SUITE = "bookworm"
DEBIAN_PACKAGES = (
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "ethtool",
    "iproute2",
    "iptables",
    "jq",
    "kmod",
    "nftables",
    "procps",
    "runc",
    "systemd",
)
# What a node has no use for; paths in the tree that debootstrap made.
LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
POD_NETWORK_IMAGE = "rrq.dev/pod-network:test"  # as in pod-network.yaml


def refuse_where_none_can_be_built() -> None:
    """Raise `CannotHostKubernetes` where something is missing to build the image."""
    if os.geteuid() != 0:
        raise CannotHostKubernetes("only root can make its file system")
    if shutil.which("debootstrap") is None:
        raise CannotHostKubernetes("debootstrap is missing: apt install debootstrap")
    refuse_without_go()
    find_programs()


def own_node_image() -> str:
    """The name of the image; another one as soon as anything that it is made of changes."""
    recipe = " ".join((GoModule.digest(KIND), DEBIAN_SUITE, *DEBIAN_PACKAGES))
    return f"rrq-kind-node:{KUBEADM.version}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def build_node_image(engine: DockerEngine) -> str:
    """Make sure that the engine has the image: half a minute, and minutes the first time on a machine."""
    image = own_node_image()
    if not has_image(engine, image):
        say(f"building {image}: what kind's node images contain, without a registry")
        kubeadm = find_or_compile(KUBEADM)
        files = find_base_files()
        base = import_base(engine)
        with scratch_folder() as context:
            programs = [find_programs().path(name) for name in ("kube-apiserver", "pause")]
            gather(context, *programs, find_or_compile(ETCD), find_or_compile(COREDNS), kubeadm, KIND.source)
            (context / "kube-apiserver").rename(context / "kube")  # it is all programs of Kubernetes
            shutil.copytree(files, context / "files")
            (context / "version").write_text(f"{KUBEADM.version}\n")
            names = pod_images(kubeadm, files / "etc" / "containerd" / "config.toml")
            save_pod_images(engine, base, context, names)
            build(engine, base, context, "node.Dockerfile", image)
    return image


def has_image(engine: DockerEngine, image: str) -> bool:
    try:
        engine.run("image", "inspect", image)
    except CommandFailed as error:
        if "No such image" in str(error):
            return False
        raise
    return True


def pod_images(kubeadm: Path, containerd_configuration: Path) -> list[str]:
    """The images that kubeadm puts into pods, the sandbox that kind's containerd takes, and the network."""
    listed = run_program([str(kubeadm), "config", "images", "list", "--kubernetes-version", KUBEADM.version])
    sandbox = re.search(r'^\s*sandbox_image = "(.+)"$', containerd_configuration.read_text(), re.MULTILINE)
    assert sandbox is not None, f"{containerd_configuration} names no sandbox image"
    return [*listed.split(), sandbox[1], POD_NETWORK_IMAGE]


def save_pod_images(engine: DockerEngine, base: str, context: Path, names: list[str]) -> None:
    """Build what pods run and write it to images.tar, as the node image takes it."""
    special = {name: name.split(":")[0].rsplit("/", 1)[1] for name in names}
    for name in names:
        stage = special[name] if special[name] in ("coredns", "pause") else "programs"
        build(engine, base, context, "pods.Dockerfile", name, "--target", stage)
    engine.run("save", "--output", str(context / "images.tar"), *names)


def build(engine: DockerEngine, base: str, context: Path, dockerfile: str, image: str, *options: str) -> None:
    without_network = ("--network", "none", "--build-arg", f"BASE={base}")
    recipe = ("--file", str(context / dockerfile), "--tag", image)
    engine.run("build", *without_network, *recipe, *options, str(context))


def import_base(engine: DockerEngine) -> str:
    """Give the engine a Debian with what a node needs; the tree is kept as a file between runs."""
    digest = hashlib.sha256(" ".join((DEBIAN_SUITE, *DEBIAN_PACKAGES, *LEFT_OUT)).encode()).hexdigest()[:12]
    base = f"rrq-kind-debian:{digest}"
    if not has_image(engine, base):
        archive = cache_folder() / f"kind-debian-{digest}.tar"
        with alone(cache_folder() / "kind-debian.lock"):
            if not archive.exists():
                make_base(archive)
        engine.run("import", str(archive), base)
    return base


def make_base(archive: Path) -> None:
    unfinished = archive.with_suffix(f".{os.getpid()}")
    # In namespaces of its own, so that what debootstrap mounts goes with it.
    bootstrap = ["unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "debootstrap"]
    packages = f"--include={','.join(DEBIAN_PACKAGES)}"
    excluded = [f"--exclude=./{path}/*" for path in LEFT_OUT]
    try:
        with scratch_folder() as tree:
            run_with_progress(
                "make a Debian for the node image",
                [*bootstrap, "--variant=minbase", packages, DEBIAN_SUITE, str(tree)],
            )
            run_program(["tar", "--numeric-owner", *excluded, "-cf", str(unfinished), "-C", str(tree), "."])
        unfinished.rename(archive)  # in one step, so that an interrupted run leaves no half an archive
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that goes with all its content; beside the cache, because it takes a gigabyte."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=cache_folder()) as folder:
        os.chmod(folder, 0o755)  # it becomes the root folder of the image
        yield Path(folder)


def gather(context: Path, *sources: Path) -> None:
    """Copy programs, and the files of folders, to where a build finds them."""
    for source in sources:
        for file in source.iterdir() if source.is_dir() else (source,):
            shutil.copy(file, context)
