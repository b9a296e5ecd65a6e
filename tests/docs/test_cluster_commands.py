"""Runs the cluster commands of the pages with the real kubectl and helm, without a cluster.

Both look at their command line before they look for a cluster. So a command that ends because nobody answers is a command
that exists, with options that exist. What Helm would install is rendered as well, with the values that the page sets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

import pytest
import yaml

from doc_pages import ROOT, find_blocks, find_commands, find_pages
from kubernetes_build import CannotHostKubernetes, find_client

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NO_SERVER = "http://127.0.0.1:1"
# Files of the reader, and their replacements here.
STAND_INS = {
    "charts/rrq": str(ROOT / "charts/rrq"),
    "crds/": str(ROOT / "crds"),
    "rrq-*.tgz": str(ROOT / "charts/rrq"),
    "pool.yaml": str(ROOT / "examples/pools/smallest.yaml"),
    "values.yaml": str(ROOT / "examples/monitoring/values.yaml"),
}
# Options of an upgrade or a wait, which `helm template` does not have.
NOT_OF_TEMPLATE = {"--reuse-values", "--wait"}
KUBE_VERSION = "--kube-version=1.34.0"


@cache
def find_lines(program: str) -> list[tuple[str, ...]]:
    """Return each command of a program on any page, once."""
    commands = {
        tuple(words)
        for page in find_pages()
        for block in find_blocks(page)
        if block.language in ("sh", "")
        for line in block.text.replace("\\\n", " ").splitlines()
        # Without a language a block may be a drawing or a help text.
        if block.language or (line.startswith(f"{program} ") and "[OPTIONS]" not in line)
        for words in find_commands(line)
        if words[0] == program and words[1:2] != ["rrq"]
    }
    return sorted(commands)


def run(program: Path, words: Iterable[str], folder: Path) -> tuple[int, str]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "none", "cluster": {"server": NO_SERVER}}],
                "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
                "users": [{"name": "none", "user": {}}],
                "current-context": "none",
            }
        )
    )
    homes = {name: str(folder / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    with (ROOT / "examples/pool.yaml").open() as manifest:
        finished = subprocess.run(
            [program, *(STAND_INS.get(word, word) for word in words)],
            cwd=folder,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), **homes},
            stdin=manifest,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return finished.returncode, finished.stdout + finished.stderr


def _find(name: str) -> Path:
    try:
        return find_client(name)
    except CannotHostKubernetes as missing:
        pytest.skip(f"no {name} here. {missing}")


@pytest.mark.cluster
def test_kubectl_has_the_commands_of_the_pages(tmp_path: Path) -> None:
    kubectl = _find("kubectl")
    commands = find_lines("kubectl")
    assert len(commands) > 30
    faults = []
    for words in commands:
        code, said = run(kubectl, words[1:], tmp_path)
        if code == 0 or "refused" not in said.splitlines()[-1]:
            faults.append(f"{' '.join(words)}: {said}")
    assert faults == []
    assert "refused" not in run(kubectl, ["get", "pods", "--namespaces", "x"], tmp_path)[1]


@pytest.mark.cluster
def test_helm_has_the_commands_of_the_pages_and_accepts_their_values(tmp_path: Path) -> None:
    helm = _find("helm")
    commands = find_lines("helm")
    assert len(commands) > 6
    faults = []
    for words in commands:
        is_offline = words[1] in ("template", "package")
        version = [KUBE_VERSION] if words[1] == "template" else []
        code, said = run(helm, [*words[1:], *version], tmp_path)
        if code != 0 if is_offline else "cluster unreachable" not in said:
            faults.append(f"{' '.join(words)}: {said}")
        if words[1] in ("install", "upgrade"):
            rest = [word for word in words[2:] if word not in NOT_OF_TEMPLATE]
            code, said = run(helm, ["template", *rest, KUBE_VERSION], tmp_path)
            if code != 0 or "kind: Deployment" not in said:
                faults.append(f"{' '.join(words)}: {said}")
    assert faults == []
    assert "unreachable" not in run(helm, ["install", "rrq", "charts/rrq", "--value", "x"], tmp_path)[1]
    assert run(helm, ["template", "rrq", "charts/rrq", KUBE_VERSION, "--set", "replica=2"], tmp_path)[0] != 0


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker here")
def test_docker_has_the_commands_of_the_pages() -> None:
    for words in find_lines("docker"):
        told = subprocess.run(
            [words[0], words[1], "--help"], capture_output=True, text=True, check=False
        ).stdout
        assert [
            word for word in words[2:] if word.startswith("-") and word.partition("=")[0] not in told
        ] == []
