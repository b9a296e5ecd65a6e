"""Hooks are called, and cannot do harm."""

import asyncio
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from rrq.hooks import HookManager, LoggingHook, MetricsExporter, RRQHook
from rrq.job import Job
from rrq.settings import RRQSettings

MODULE = "shop_hooks_of_a_test"


class Recorder(RRQHook):
    """Remembers its calls."""

    def __init__(self, settings: RRQSettings) -> None:
        super().__init__(settings)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    async def on_job_started(self, job: Job, worker_id: str) -> None:
        self.calls.append(("started", (job.id, worker_id)))

    async def on_worker_stopped(self, worker_id: str) -> None:
        self.calls.append(("stopped", (worker_id,)))


class Raising(RRQHook):
    async def on_worker_stopped(self, worker_id: str) -> None:
        raise RuntimeError("broken hook")


class CancelsItself(RRQHook):
    async def on_worker_stopped(self, worker_id: str) -> None:
        raise asyncio.CancelledError


class Unbuildable(RRQHook):
    def __init__(self, settings: RRQSettings) -> None:
        raise RuntimeError("no database")


class NoHook:
    pass


class Exporter(MetricsExporter):
    """Remembers what it was given."""

    def __init__(self, settings: RRQSettings) -> None:
        super().__init__(settings)
        self.values: list[tuple[str, str, float, dict[str, str] | None]] = []
        self.closed = 0

    async def export_counter(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self.values.append(("counter", name, value, labels))

    async def export_gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self.values.append(("gauge", name, value, labels))

    async def export_histogram(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self.values.append(("histogram", name, value, labels))

    async def close(self) -> None:
        self.closed += 1


class RaisingExporter(Exporter):
    async def export_counter(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        raise RuntimeError("broken exporter")

    async def close(self) -> None:
        raise RuntimeError("broken exporter")


class ExporterDerivedFromHook(RRQHook):
    """The only kind of custom exporter that RRQ 0.7 could load."""

    async def export_counter(self, *_: Any) -> None: ...

    async def export_gauge(self, *_: Any) -> None: ...

    async def export_histogram(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def importable_module() -> Iterator[None]:
    """Make the classes above importable: test files are not part of a package."""
    module = types.ModuleType(MODULE)
    classes = [Recorder, Raising, CancelsItself, Unbuildable, NoHook, Exporter, RaisingExporter]
    for loaded in (*classes, ExporterDerivedFromHook):
        setattr(module, loaded.__name__, loaded)
    module.not_a_class = 1  # type: ignore[attr-defined]  # a module made up for this test
    sys.modules[MODULE] = module
    yield
    del sys.modules[MODULE]


def manager_with(*hooks: str, exporter: str | None = None) -> HookManager:
    paths = [f"{MODULE}.{name}" for name in hooks]
    return HookManager(RRQSettings(event_handlers=paths, metrics_exporter=exporter))


def calls_of(manager: HookManager) -> list[tuple[str, tuple[Any, ...]]]:
    return [call for hook in manager.hooks if isinstance(hook, Recorder) for call in hook.calls]


async def test_hooks_are_loaded_once_on_first_use_and_hear_the_events_they_listen_to() -> None:
    manager = manager_with("Recorder")
    assert manager.hooks == []
    job = Job(function_name="send")

    await asyncio.gather(*(manager.trigger_event("on_worker_stopped", "w1") for _ in range(3)))
    await manager.initialize()
    await manager.trigger_event("on_job_started", job, worker_id="w1")
    for event in ("on_job_enqueued", "on_full_moon"):
        await manager.trigger_event(event, job)

    assert len(manager.hooks) == 1
    assert manager.hooks[0].settings is manager.settings
    assert calls_of(manager) == [("stopped", ("w1",))] * 3 + [("started", (job.id, "w1"))]


@pytest.mark.parametrize("broken", ["Raising", "CancelsItself"])
async def test_a_broken_hook_disturbs_neither_the_caller_nor_the_other_hooks(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_with(broken, "Recorder")
    await manager.trigger_event("on_worker_stopped", "w1")

    assert calls_of(manager) == [("stopped", ("w1",))]
    assert ("Raising.on_worker_stopped" in caplog.text) is (broken == "Raising")


async def test_a_plain_method_serves_as_hook_too() -> None:
    heard: list[str] = []

    class Plain(RRQHook):
        def on_worker_stopped(self, worker_id: str) -> None:  # type: ignore[override]  # users forget async
            heard.append(worker_id)

    manager = manager_with()
    manager.hooks.append(Plain(manager.settings))
    await manager.trigger_event("on_worker_stopped", "w1")

    assert heard == ["w1"]


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (f"{MODULE}.NoHook", "is not a subclass of RRQHook"),
        (f"{MODULE}.not_a_class", "is not a class"),
        (f"{MODULE}.Unbuildable", "no database"),
        ("no_such_package_anywhere.Hook", "No module named"),
        ("JustAName", "is not a dotted path"),
    ],
)
async def test_a_hook_that_cannot_be_loaded_is_logged_and_left_out(
    path: str, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = HookManager(RRQSettings(event_handlers=[path, f"{MODULE}.Recorder"]))
    await manager.initialize()

    assert [type(hook) for hook in manager.hooks] == [Recorder]
    assert f"hook {path} could not be loaded" in caplog.text
    assert complaint in caplog.text


async def test_a_manager_says_whether_it_has_hooks_before_and_after_loading(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = manager_with("Recorder", exporter=f"{MODULE}.Exporter")
    assert manager.has_hooks
    assert manager.has_exporters
    await manager.initialize()
    assert manager.has_hooks
    assert manager.has_exporters

    manager = manager_with("NoHook", exporter=f"{MODULE}.NoHook")
    await manager.initialize()
    assert not manager.has_hooks
    assert not manager.has_exporters
    assert "is not a metrics exporter" in caplog.text

    manager = manager_with()
    assert not manager.has_hooks
    assert not manager.has_exporters
    manager.hooks.append(Recorder(manager.settings))
    assert manager.has_hooks


async def test_metrics_reach_every_exporter_and_closing_closes_it_even_after_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = f"{MODULE}.Exporter"
    manager = manager_with(exporter=path)
    await manager.initialize()
    manager.exporters = {"broken": RaisingExporter(manager.settings), **manager.exporters}
    kinds = ("counter", "gauge", "histogram", "summary")
    for kind in kinds:
        await manager.export_metric(kind, "jobs", 2.0, {"queue": "q"})
    await manager.close()

    exporter = manager.exporters[path]
    assert isinstance(exporter, Exporter)
    assert exporter.values == [(kind, "jobs", 2.0, {"queue": "q"}) for kind in kinds[:3]]
    assert exporter.closed == 1
    assert "summary" in caplog.text


async def test_an_exporter_in_the_style_of_rrq_0_7_is_accepted() -> None:
    path = f"{MODULE}.ExporterDerivedFromHook"
    manager = manager_with(exporter=path)
    await manager.export_metric("counter", "jobs", 1.0)
    await manager.close()

    assert list(manager.exporters) == [path]


@pytest.mark.parametrize("name", ["prometheus", "statsd"])
async def test_a_missing_built_in_exporter_is_explained(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in sys.modules is how Python marks a module that must not be found.
    monkeypatch.setitem(sys.modules, f"rrq.exporters.{name}", None)
    manager = manager_with(exporter=name)
    await manager.initialize()

    assert manager.exporters == {}
    assert f"metrics exporter {name} could not be loaded" in caplog.text
    assert "is not part of this version of rrq" in caplog.text


async def test_the_logging_hook_logs_every_event_but_the_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    hook, job = LoggingHook(RRQSettings()), Job(id="j1", function_name="send", job_args=["secret"])
    with caplog.at_level(logging.INFO, logger="rrq.hooks"):
        await hook.on_job_enqueued(job)
        await hook.on_job_started(job, "w1")
        await hook.on_job_completed(job, "secret")
        await hook.on_job_retrying(job, 2)
        await hook.on_job_failed(job, ValueError("boom"))
        await hook.on_worker_started("w1", ["q"])
        await hook.on_worker_heartbeat("w1", {})
        await hook.on_worker_stopped("w1")

    events = ["enqueued", "started", "completed", "retrying", "failed"]
    words = [f"job {event}" for event in events] + ["worker started", "worker stopped"]
    assert [record.message for record in caplog.records] == words
    assert "secret" not in caplog.text
