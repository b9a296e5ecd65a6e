"""What local mode reads, and what it says about files that it cannot run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from commandline import ROOT, child_environment
from local_mode import build_manifest
from rrq_operator.cli import main
from rrq_operator.local.manifest import ManifestError, parse_pools, read_pools

if TYPE_CHECKING:
    from pathlib import Path

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rrq-redis"}}


def test_the_example_is_a_pool_that_a_cluster_takes_too() -> None:
    (pool,) = read_pools(str(ROOT / "examples" / "pool.yaml"))
    assert pool.spec.worker.image
    assert pool.spec.redis is not None
    assert pool.spec.redis.url_from is not None


def test_a_file_may_hold_several_pools_a_list_and_what_is_not_ours() -> None:
    wrapped = {"kind": "List", "items": [SECRET, build_manifest("two")]}
    text = yaml.safe_dump_all([SECRET, build_manifest("one"), None, wrapped])
    assert [pool.name for pool in parse_pools(text, "pools.yaml")] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no RRQWorkerPool but nothing"),
        ("just words", "holds no RRQWorkerPool but a str"),
        (yaml.safe_dump(SECRET), "holds no RRQWorkerPool but Secret"),
        ("a: [1", "is not valid YAML"),
        ("a: !!python/object:os.system {}", "is not valid YAML"),
        (yaml.safe_dump_all([build_manifest("one")] * 2), "Two pools are called one"),
        (
            yaml.safe_dump(build_manifest() | {"apiVersion": "rrq.dev/v9"}),
            "no rrq.dev/v1alpha1 RRQWorkerPool",
        ),
    ],
)
def test_what_is_no_pool_is_refused(text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_pools(text, "pools.yaml")


def test_all_faults_are_reported_at_once() -> None:
    faulty = [
        build_manifest("one", queues=[], colour="red"),
        build_manifest("two", scaling={"minReplicas": 5, "maxReplicas": 2}),
    ]
    with pytest.raises(ManifestError) as told:
        parse_pools(yaml.safe_dump_all(faulty), "pools.yaml")
    for words in ("one", "spec.queues", "spec.colour", "two", "minReplicas must not exceed maxReplicas"):
        assert words in str(told.value)


def test_faults_are_one_message_and_no_traceback(tmp_path: Path) -> None:
    binary, empty = tmp_path / "binary", tmp_path / "empty.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    empty.touch()
    for path in (tmp_path / "missing.yaml", tmp_path, binary, empty):
        result = CliRunner().invoke(main, ["local", "-f", str(path)])
        assert result.exit_code == 1
        assert result.stderr.startswith(f"ERROR: {path} ")
        assert result.stdout == ""
    assert CliRunner().invoke(main, ["local"]).exit_code == 2


@pytest.mark.parametrize(
    ("pool", "options", "message"),
    [
        (build_manifest(), ["--redis-url", "http://shop:secret@here"], "has the scheme 'http'"),
        (
            build_manifest(redis={"url": "redis://here", "keyPrefix": "no colon"}),
            [],
            "a key prefix has no spaces",
        ),
    ],
)
def test_a_redis_that_can_never_work_is_refused(
    tmp_path: Path, pool: dict[str, object], options: list[str], message: str
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool))
    result = CliRunner().invoke(main, ["local", "-f", str(path), *options])
    assert result.exit_code == 1
    assert message in result.stderr
    assert "secret" not in result.output


def test_local_mode_does_not_load_a_kubernetes_client() -> None:
    show = "import sys, rrq_operator.local.command; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", show], env=child_environment({}), text=True)
    assert not {"kopf", "kubernetes", "aiohttp"} & set(modules.split())
