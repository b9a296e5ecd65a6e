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


async def test_a_hook_hears_the_events_it_listens_to() -> None:
    manager = manager_with("Recorder")
    job = Job(function_name="send")
    await manager.trigger_event("on_job_started", job, worker_id="w1")
    await manager.trigger_event("on_job_enqueued", job)

    assert calls_of(manager) == [("started", (job.id, "w1"))]


async def test_hooks_are_loaded_on_first_use_and_only_once() -> None:
    manager = manager_with("Recorder")
    assert manager.hooks == []

    await asyncio.gather(*(manager.trigger_event("on_worker_stopped", "w1") for _ in range(3)))
    await manager.initialize()

    assert len(manager.hooks) == 1
    assert manager.hooks[0].settings is manager.settings
    assert len(calls_of(manager)) == 3


@pytest.mark.parametrize("broken", ["Raising", "CancelsItself"])
async def test_a_broken_hook_disturbs_neither_the_caller_nor_the_other_hooks(broken: str) -> None:
    manager = manager_with(broken, "Recorder")
    await manager.trigger_event("on_worker_stopped", "w1")

    assert calls_of(manager) == [("stopped", ("w1",))]


async def test_the_error_of_a_hook_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    await manager_with("Raising").trigger_event("on_worker_stopped", "w1")

    assert "Raising.on_worker_stopped" in caplog.text
    assert "broken hook" in caplog.text


async def test_hooks_run_concurrently() -> None:
    meeting = asyncio.Barrier(2)

    class Meets(RRQHook):
        async def on_worker_stopped(self, worker_id: str) -> None:
            await meeting.wait()

    manager = manager_with()
    manager.hooks += [Meets(manager.settings), Meets(manager.settings)]

    async with asyncio.timeout(20):
        await manager.trigger_event("on_worker_stopped", "w1")


async def test_cancelling_the_caller_reaches_a_slow_hook() -> None:
    class Sleeps(RRQHook):
        async def on_worker_stopped(self, worker_id: str) -> None:
            await asyncio.sleep(60)

    manager = manager_with()
    manager.hooks.append(Sleeps(manager.settings))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await manager.trigger_event("on_worker_stopped", "w1")


async def test_a_plain_method_serves_as_hook_too() -> None:
    heard: list[str] = []

    class Plain(RRQHook):
        def on_worker_stopped(self, worker_id: str) -> None:  # type: ignore[override]  # users forget async
            heard.append(worker_id)

    manager = manager_with()
    manager.hooks.append(Plain(manager.settings))
    await manager.trigger_event("on_worker_stopped", "w1")

    assert heard == ["w1"]


async def test_an_event_nobody_knows_is_ignored() -> None:
    await manager_with("Recorder").trigger_event("on_full_moon")


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (f"{MODULE}.NoHook", "is not a subclass of RRQHook"),
        (f"{MODULE}.not_a_class", "is not a class"),
        (f"{MODULE}.Missing", "Missing"),
        (f"{MODULE}.Unbuildable", "no database"),
        ("no_such_package_anywhere.Hook", "No module named"),
        ("JustAName", "is not a dotted path"),
        ("", "is not a dotted path"),
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


def test_a_manager_without_hooks_says_so_before_loading() -> None:
    assert not manager_with().has_hooks
    assert not manager_with().has_exporters


async def test_a_manager_with_hooks_says_so_before_and_after_loading() -> None:
    manager = manager_with("Recorder", exporter=f"{MODULE}.Exporter")
    assert manager.has_hooks
    assert manager.has_exporters

    await manager.initialize()

    assert manager.has_hooks
    assert manager.has_exporters


async def test_a_manager_whose_hooks_failed_to_load_has_none() -> None:
    manager = manager_with("NoHook", exporter=f"{MODULE}.NoHook")
    await manager.initialize()

    assert not manager.has_hooks
    assert not manager.has_exporters


async def test_a_hook_added_by_hand_counts() -> None:
    manager = manager_with()
    manager.hooks.append(Recorder(manager.settings))

    assert manager.has_hooks


@pytest.mark.parametrize("metric_type", ["counter", "gauge", "histogram"])
async def test_a_metric_reaches_the_exporter(metric_type: str) -> None:
    path = f"{MODULE}.Exporter"
    manager = manager_with(exporter=path)
    await manager.export_metric(metric_type, "jobs", 2.0, {"queue": "q"})

    exporter = manager.exporters[path]
    assert isinstance(exporter, Exporter)
    assert exporter.values == [(metric_type, "jobs", 2.0, {"queue": "q"})]


async def test_an_unknown_kind_of_metric_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    await manager_with(exporter=f"{MODULE}.Exporter").export_metric("summary", "jobs", 1.0)

    assert "summary" in caplog.text


async def test_closing_closes_every_exporter_even_after_one_fails() -> None:
    manager = manager_with()
    last = Exporter(manager.settings)
    manager.exporters = {"broken": RaisingExporter(manager.settings), "last": last}
    await manager.export_metric("counter", "jobs", 1.0)
    await manager.close()

    assert last.values == [("counter", "jobs", 1.0, None)]
    assert last.closed == 1


async def test_an_exporter_in_the_style_of_rrq_0_7_is_accepted() -> None:
    path = f"{MODULE}.ExporterDerivedFromHook"
    manager = manager_with(exporter=path)
    await manager.export_metric("counter", "jobs", 1.0)
    await manager.close()

    assert list(manager.exporters) == [path]


async def test_something_that_exports_nothing_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    manager = manager_with(exporter=f"{MODULE}.NoHook")
    await manager.initialize()

    assert manager.exporters == {}
    assert "is not a metrics exporter" in caplog.text


def test_an_exporter_without_its_methods_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MetricsExporter(RRQSettings())  # type: ignore[abstract]  # the point of the test


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

    assert [record.message for record in caplog.records] == [
        "job enqueued",
        "job started",
        "job completed",
        "job retrying",
        "job failed",
        "worker started",
        "worker stopped",
    ]
    assert "secret" not in caplog.text
