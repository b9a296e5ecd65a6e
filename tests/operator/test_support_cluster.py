"""Where no cluster can be made, one line says what is missing, before anything is installed or compiled.

And one that stays is handed out only while its images are those of the tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import kubernetes_build
import packages
import real_cluster
from cluster_choice import build_all
from image_bundle import bundle_folder
from kubernetes_build import CACHE_VARIABLE, CannotHostKubernetes, build
from packages import MissingPackages, extract, install
from standing_cluster import STATE_FILE, StaleCluster, up

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nothing was built yet, and on which whoever begins anything has failed the test."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setattr(real_cluster, "group_trees", lambda: [tmp_path])

    def refuse(task: str, *_: object, **__: object) -> None:
        pytest.fail(f"{task} was begun")

    monkeypatch.setattr(packages, "run_with_progress", refuse)
    monkeypatch.setattr(kubernetes_build, "run_with_progress", refuse)


def become(monkeypatch: pytest.MonkeyPatch, *, user_id: int, without: tuple[str, ...] = ()) -> None:
    """Be that user, on a machine with all programs but some."""
    monkeypatch.setattr(os, "geteuid", lambda: user_id)
    monkeypatch.setattr(
        shutil, "which", lambda program, path=None: None if program in without else f"/usr/bin/{program}"
    )


def test_an_ordinary_user_is_told_that_nodes_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, user_id=1000, without=("go", "containerd"))
    with pytest.raises(CannotHostKubernetes, match=r"^Nodes need namespaces and mounts: run as root\.$"):
        build_all()


def test_root_without_go_is_told_which_go(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, user_id=0, without=("go", "containerd"))
    with pytest.raises(CannotHostKubernetes, match=r"^Go is missing: install Go 1\.24 or newer \(.+\) .+\.$"):
        build_all()


def test_root_without_apt_is_told_all_packages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_build, "refuse_without_go", lambda: None)
    become(
        monkeypatch,
        user_id=0,
        without=("apt-get", "containerd", "conntrack", "etcd", "debootstrap", "docker"),
    )
    with pytest.raises(
        CannotHostKubernetes,
        match=r"no apt-get to install them with\. On Debian: "
        r"apt install conntrack containerd debootstrap docker\.io etcd-server\.$",
    ):
        build_all()


def test_a_control_plane_needs_no_root_but_for_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_build, "refuse_without_go", lambda: None)
    become(monkeypatch, user_id=1000, without=("etcd",))
    with pytest.raises(
        CannotHostKubernetes, match=r"only root can install them: run as root, or apt install etcd-server\.$"
    ):
        build()


def test_an_old_go_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho 'go: go.mod requires go >= 1.24' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(CannotHostKubernetes, match=r"this one refuses: go: go\.mod requires go >= 1\.24$"):
        build()


def test_nothing_is_asked_for_where_every_program_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, user_id=1000, without=("apt-get",))
    install({"containerd": "containerd"})


def test_a_program_of_a_package_that_cannot_be_fetched_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    become(monkeypatch, user_id=0, without=("apt-get",))
    with pytest.raises(MissingPackages, match=r"^promtool is missing.+: install prometheus\.$"):
        extract("promtool", "prometheus", tmp_path)


def stay(folder: Path, images: str) -> subprocess.Popen[bytes]:
    """Be a cluster that runs, as far as it is known by its first process."""
    process = subprocess.Popen(["sleep", "60"], cwd=folder)
    state = {"first_process": process.pid, "network": 200, "images": images}
    (folder / STATE_FILE).write_text(json.dumps(state))
    return process


def test_a_cluster_that_stayed_is_handed_out_while_its_images_are_those_of_the_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stay(tmp_path, bundle_folder().name) as process:
        try:
            up(tmp_path)
        finally:
            process.kill()
    assert (
        capsys.readouterr().out
        == f'export KUBECONFIG={tmp_path}/admin.kubeconfig PATH="{tmp_path}/bin:$PATH"\n'
    )


def test_a_cluster_with_images_of_another_tree_is_to_go_first(tmp_path: Path) -> None:
    with stay(tmp_path, "images-of-yesterday") as process:
        try:
            with pytest.raises(
                StaleCluster, match=r"given images-of-yesterday, .+: `make cluster-down` first\.$"
            ):
                up(tmp_path)
        finally:
            process.kill()
