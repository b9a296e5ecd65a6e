"""Runs the commands of docs/operations.md and docs/monitoring.md that need no cluster, on a real Redis."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from commandline import CommandLine
from doc_commands import check_command, is_value_of_the_chart
from doc_pages import ROOT, find_blocks, find_commands, find_pages
from page_shell import PageShell, find_free_port, find_redis_cli
from promql import find_metrics
from rrq import RRQClient, RRQSettings, telemetry
from rrq.broker.connection import open_redis
from rrq.client import JobRequest
from rrq.embedded import find_redis_server
from rrq_operator.decide.manifests import build_deployment
from rrq_operator.local.manifest import read_pools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis

EXAMPLES = ROOT / "examples"
UNITS = EXAMPLES / "units"
PAGE = "docs/operations.md"
COMMAND = re.compile(r"^(?:ExecStart|command)=\S*/(rrq .*)$", re.MULTILINE)
GRACE = re.compile(r"RRQ_WORKER_SHUTDOWN_GRACE_PERIOD_SECONDS=\"?(\d+)")
STOP = re.compile(r"^(?:TimeoutStopSec|stopwaitsecs)=(\d+)$", re.MULTILINE)

needs_redis_cli = pytest.mark.skipif(
    find_redis_cli() is None, reason="the commands of the page need redis-cli or valkey-cli on PATH"
)


def block_with(text: str, page: str = PAGE) -> str:
    (found,) = (block.text for block in find_blocks(page) if text in block.text)
    return found


async def fill(dsn: str, jobs: int) -> None:
    client = RRQClient(RRQSettings(redis_dsn=dsn))
    await client.enqueue_many(JobRequest("send_mail", [number], queue_name="mail") for number in range(jobs))
    await client.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    """A shell for the restore, with a folder of the test for /srv/restored and a free port for the second server."""
    port = str(find_free_port())
    shell = PageShell(tmp_path, {"/srv/restored": str(tmp_path), "6380": port})
    try:
        yield shell
    finally:
        # Repeat until the server is gone: while it writes its first append-only file, it refuses to shut down.
        shell.run(
            f"while redis-cli -p {port} ping; do redis-cli -p {port} shutdown nosave || sleep 0.1; done"
        )
        shell.end()


@needs_redis_cli
@pytest.mark.slow
async def test_a_copy_is_restored_beside_the_old_server(
    shell: PageShell, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    await fill(own_redis.dsn, 12)
    shell.prelude = f'URL="{own_redis.dsn}"'
    shell.run(block_with("--rdb"), cwd=tmp_path)
    (copy,) = tmp_path.glob("rrq-*.rdb")
    copy.rename(tmp_path / "rrq.rdb")
    said = shell.run(block_with("/srv/restored"), cwd=tmp_path)
    assert re.search(r"mail\s+12\b", said), said
    assert "12" in re.findall(r"^.*cancel.*$", said, re.MULTILINE | re.IGNORECASE)[-1], said


@needs_redis_cli
@pytest.mark.slow
async def test_the_commands_for_the_memory_of_redis_work(
    tmp_path: Path, own_redis: EmbeddedRedis, make_redis: Callable[..., EmbeddedRedis]
) -> None:
    await fill(own_redis.dsn, 3)
    shell = PageShell(
        tmp_path, {"rrq:job:JOB_ID": '"$(redis-cli -u "$URL" --scan --pattern "rrq:job:*" | tail -1)"'}
    )
    shell.prelude = f'URL="{own_redis.dsn}"\nexport RRQ_REDIS_DSN="$URL"'
    hash_bytes, *_ = shell.run(block_with("memory usage")).splitlines()
    assert 200 < int(hash_bytes) < 2000
    assert "mail" in shell.run(block_with("config set maxmemory"))


def test_a_page_starts_the_server_of_the_tests_whatever_its_name(tmp_path: Path) -> None:
    server = find_redis_server()
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    assert PageShell(tmp_path, {}).run("redis-server --version") == version


async def test_the_rrq_commands_of_the_pages_run(redis_dsn: str) -> None:
    await fill(redis_dsn, 3)
    cli = CommandLine(redis_dsn)
    lines = [
        words[1:]
        for page in ("docs/operations.md", "docs/performance.md")
        for block in find_blocks(page)
        if block.language == "sh"
        for words in find_commands(block.text)
        # A worker does not exit by itself; other files test `rrq worker run`.
        if words[0] == "rrq" and words[1] != "worker"
    ]
    assert len(lines) >= 7
    for words in lines:
        await cli.ok(*words)


def test_redis_with_the_settings_of_the_page_gives_no_warning(tmp_path: Path) -> None:
    assert block_with("maxmemory-policy noeviction\n") in (EXAMPLES / "redis.conf").read_text()
    shell, port = PageShell(tmp_path, {}), find_free_port()
    try:
        shell.start(f"exec redis-server examples/redis.conf --dir {tmp_path} --port {port}")
        said = shell.run(
            f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done\n"
            f"RRQ_REDIS_DSN=redis://127.0.0.1:{port}/0 rrq check --json || true"
        )
    finally:
        shell.end()
    assert '"risks": []' in said


def test_the_addresses_of_the_page_are_valid() -> None:
    urls = block_with("redis+sentinel://").split()
    assert len(urls) == 2
    for url in urls:
        open_redis(RRQSettings(redis_dsn=url))


def test_units_start_existing_commands_and_wait_for_their_jobs(tmp_path: Path) -> None:
    for unit in sorted(UNITS.iterdir()):
        text = unit.read_text()
        (command,) = COMMAND.findall(text)
        check_command(command.split())
        (grace_seconds,), (stop_seconds,) = GRACE.findall(text), STOP.findall(text)
        assert int(stop_seconds) == int(grace_seconds) + 10, unit.name
    if shutil.which("systemd-analyze") is not None:
        service = tmp_path / "rrq-worker.service"
        # Replaces the command, which only the machine of the reader has.
        service.write_text((UNITS / service.name).read_text().replace("/opt/shop/venv/bin/rrq", "/bin/true"))
        verify = ["systemd-analyze", "verify", str(service)]
        told = subprocess.run(verify, capture_output=True, text=True, check=False).stderr
        assert [line for line in told.splitlines() if service.name in line] == []


def test_examples_of_pools_and_values_are_accepted() -> None:
    for manifest in sorted((EXAMPLES / "pools").glob("*.yaml")):
        if manifest.name != "values.yaml":
            (pool,) = read_pools(str(manifest))
            assert build_deployment(pool, "1")["kind"] == "Deployment"
    for values in (EXAMPLES / "pools" / "values.yaml", EXAMPLES / "monitoring" / "values.yaml"):
        assert find_unknown_values(yaml.safe_load(values.read_text())) == []
    unknown = find_unknown_values({"podMonitor": {"enable": True}, "monitor": 1})
    assert unknown == ["podMonitor.enable", "monitor"]


def find_unknown_values(values: Mapping[str, Any], above: str = "") -> list[str]:
    unknown = []
    for name, value in values.items():
        # Users choose the names of pools; Helm, and the test above, check their content.
        path = f"{above}{name}"
        if not is_value_of_the_chart(path):
            unknown.append(path)
        elif isinstance(value, dict) and path != "pools":
            unknown += find_unknown_values(value, f"{path}.")
    return unknown


def test_prometheus_without_its_operator_finds_the_pods() -> None:
    config = yaml.safe_load((EXAMPLES / "monitoring" / "prometheus.yml").read_text())
    workers, _operator = config["scrape_configs"]
    (pool,) = read_pools(str(EXAMPLES / "pools" / "emails.yaml"))
    template = build_deployment(pool, "1")["spec"]["template"]
    seen = {_as_meta_label(name): value for name, value in template["metadata"]["labels"].items()}
    (container,) = template["spec"]["containers"]
    seen["__meta_kubernetes_pod_container_port_name"] = container["ports"][0]["name"]
    kept = [rule for rule in workers["relabel_configs"] if rule.get("action") == "keep"]
    assert len(kept) == 2
    for rule in kept:
        assert re.fullmatch(rule["regex"], seen[rule["source_labels"][0]])
    (label,) = (
        rule["source_labels"][0] for rule in workers["relabel_configs"] if rule.get("target_label") == "pool"
    )
    assert seen[label] == "emails"


def _as_meta_label(name: str) -> str:
    return "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name)


def test_the_queries_of_the_pages_use_existing_metrics() -> None:
    known = set(re.findall(r"`(rrq_\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    expressions = [
        block.text for page in find_pages() for block in find_blocks(page) if block.language == "promql"
    ]
    asked = {name for expression in expressions for name in find_metrics(expression)}
    assert len(asked) >= 6
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} - known == set()


def test_the_memory_figures_are_those_of_the_benchmark() -> None:
    page = (ROOT / "docs/scaling-out.md").read_text()
    (measured,) = json.loads((ROOT / "bench/results/footprint.json").read_text())
    for name, seen in measured["by_arguments"].items():
        assert f"| {name} | {seen['queued_bytes']:,.0f} | {seen['ended_bytes']:,.0f} |" in page
    workers = measured["workers"]
    assert f"{workers['pod_bytes']:,.0f} bytes" in page
    assert (
        f"{workers['connections_per_pod']:.0f} connections, {workers['connection_bytes']:,.0f} bytes each"
        in page
    )


def test_opentelemetry_is_enabled_as_the_page_shows() -> None:
    source = (EXAMPLES / "tracing_otel.py").read_text()
    before = telemetry.get_telemetry()
    try:
        exec(compile(source, "tracing_otel.py", "exec"), {})  # noqa: S102  a file of this project
        assert telemetry.get_telemetry() is not before
    finally:
        telemetry.disable()
