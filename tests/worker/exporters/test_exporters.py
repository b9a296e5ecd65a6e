"""Metrics exporters: a real registry, and a real UDP socket."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest

from rrq.exc import SettingsError
from rrq.exporters import statsd
from rrq.exporters.prometheus import PrometheusExporter
from rrq.exporters.statsd import StatsdExporter, build_datagram
from rrq.hooks import HookManager
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.worker import RRQWorker
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from rrq.client import RRQClient


async def noop(ctx: dict[str, Any]) -> None: ...


def shown(exporter: PrometheusExporter) -> list[str]:
    """The lines that a scrape would see, without comments and times of creation."""
    lines = generate_latest(exporter.registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#") and "_created" not in line]


@pytest.fixture
def prometheus() -> PrometheusExporter:
    return PrometheusExporter(RRQSettings())


async def test_prometheus_shows_every_kind(prometheus: PrometheusExporter) -> None:
    await prometheus.export_counter("jobs", 1, {"outcome": "done", "function": "f"})
    await prometheus.export_counter("jobs", 2, {"function": "f", "outcome": "done"})
    await prometheus.export_gauge("busy", 3)
    await prometheus.export_gauge("busy", 2.5, {})
    await prometheus.export_histogram("seconds", 0.3)
    lines = shown(prometheus)
    assert 'jobs_total{function="f",outcome="done"} 3.0' in lines
    assert "busy 2.5" in lines
    assert "seconds_count 1.0" in lines
    assert "seconds_sum 0.3" in lines


@pytest.mark.parametrize(
    ("kind", "value", "labels", "complaint"),
    [
        ("counter", 1, {"queue": "q"}, "Metric jobs has the labels ['function'], and this value came with"),
        ("counter", 1, None, "Metric jobs has the labels ['function'], and this value came with []"),
        ("gauge", 1, {"function": "f"}, "Metric jobs is a counter already and cannot be a gauge too"),
        ("counter", -1, {"function": "f"}, "non-negative"),
    ],
)
async def test_prometheus_refuses_what_does_not_fit_and_says_so_once(
    prometheus: PrometheusExporter,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    value: float,
    labels: dict[str, str] | None,
    complaint: str,
) -> None:
    await prometheus.export_counter("jobs", 1, {"function": "f"})
    for _ in range(3):
        await getattr(prometheus, f"export_{kind}")("jobs", value, labels)
    (record,) = caplog.records
    assert record.message == "metric refused"
    assert complaint in record.__dict__["error"]
    assert shown(prometheus) == ['jobs_total{function="f"} 1.0']


async def test_a_worker_counts_its_jobs_for_prometheus(client: RRQClient, settings: RRQSettings) -> None:
    settings.metrics_exporter = "prometheus"
    registry = JobRegistry()
    registry.register("noop", noop)
    for _ in range(3):
        await client.enqueue("noop")
    worker = RRQWorker(settings, registry, burst=True)
    await worker.run()
    exporter = worker._hooks.exporters["prometheus"]
    assert isinstance(exporter, PrometheusExporter)
    assert 'rrq_jobs_total{function="noop",outcome="done"} 3.0' in shown(exporter)


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(10)
        yield receiver


@pytest.fixture
async def exporter(receiver: socket.socket, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StatsdExporter]:
    monkeypatch.setenv("RRQ_STATSD_PORT", str(receiver.getsockname()[1]))
    exporter = StatsdExporter(RRQSettings())
    yield exporter
    await exporter.close()


async def test_statsd_gets_a_datagram_per_value(exporter: StatsdExporter, receiver: socket.socket) -> None:
    await exporter.export_counter("jobs", 1, {"function": "f", "outcome": "done"})
    await exporter.export_gauge("busy", 2.5)
    await exporter.export_histogram("seconds", 0.1, {})
    received = [receiver.recv(1000) for _ in range(3)]
    assert received == [b"jobs:1|c|#function:f,outcome:done", b"busy:2.5|g", b"seconds:0.1|h"]


@pytest.mark.parametrize("prefix", ["shop", "shop."])
async def test_statsd_names_begin_with_the_prefix(
    receiver: socket.socket, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setenv("RRQ_STATSD_PREFIX", prefix)
    # What Kubernetes sets for a Service called rrq-statsd.
    monkeypatch.setenv("RRQ_STATSD_PORT", f"udp://10.0.0.7:{receiver.getsockname()[1]}")
    monkeypatch.setenv("RRQ_STATSD_HOST", "127.0.0.1")
    exporter = StatsdExporter(RRQSettings())
    await exporter.export_counter("jobs", 1)
    assert receiver.recv(1000) == b"shop.jobs:1|c"
    await exporter.close()


async def test_values_wait_until_the_host_name_is_known(
    receiver: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RRQ_STATSD_HOST", "statsd.example")
    monkeypatch.setenv("RRQ_STATSD_PORT", str(receiver.getsockname()[1]))
    real, answers = socket.getaddrinfo, ["", "127.0.0.1", "127.0.0.1", "127.0.0.2"]

    def resolve(_: str, port: int, **options: Any) -> Any:
        answer = answers.pop(0)
        if not answer:
            raise socket.gaierror("no such name")
        return real(answer, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(statsd, "_RESOLVE_RETRY_SECONDS", 0.0)
    named = StatsdExporter(RRQSettings())
    await named.export_counter("first", 1)
    await eventually(lambda: "StatsD host not found" in caplog.text)
    await named.export_counter("second", 1)
    assert [receiver.recv(1000), receiver.recv(1000)] == [b"first:1|c", b"second:1|c"]

    # A while later the name is asked for again: first it means the same, then another address.
    for left, expected in ((1, "127.0.0.1"), (0, "127.0.0.2")):
        named._resolve_at = 0.0
        await named.export_counter("third", 1)
        # Also for the answer that changes nothing: two questions at once would be answered in any order.
        await eventually(lambda left=left: len(answers) == left)  # type: ignore[misc]
        await eventually(lambda expected=expected: named._address == expected)  # type: ignore[misc]
    await named.close()


async def test_statsd_never_raises(exporter: StatsdExporter) -> None:
    await exporter.export_counter("x" * 100_000, 1)
    await exporter.export_gauge("busy", math.nan)
    await exporter.close()
    await exporter.export_counter("jobs", 1)
    await exporter.close()


@pytest.mark.parametrize("port", ["statsd", "0", "65536", "-1", "tcp://10.0.0.7:", "٣"])
async def test_a_port_that_is_none_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, port: str
) -> None:
    monkeypatch.setenv("RRQ_STATSD_PORT", port)
    with pytest.raises(SettingsError, match="RRQ_STATSD_PORT must be a port number"):
        StatsdExporter(RRQSettings())
    manager = HookManager(RRQSettings(metrics_exporter="statsd"))
    await manager.export_metric("counter", "jobs", 1)
    assert "metrics exporter statsd could not be loaded" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "labels", "expected"),
    [
        ("jobs", 1.0, None, b"jobs:1|c"),
        ("jobs", 12345678.5, None, b"jobs:12345678.5|c"),
        ("a:b|c@d e", 1, {}, b"a_b_c_d_e:1|c"),
        ("jobs", 1, {"q,x": "a|b,c\nd", "url": "redis:x"}, b"jobs:1|c|#q_x:a_b_c_d,url:redis:x"),
        ("jobs", 1, {"q": "\udc80ü"}, "jobs:1|c|#q:\\udc80ü".encode()),
        ("jobs", math.inf, None, None),
    ],
)
def test_datagrams_cannot_be_broken_by_what_they_carry(
    name: str, value: float, labels: dict[str, str] | None, expected: bytes | None
) -> None:
    assert build_datagram(name, value, "c", labels) == expected
