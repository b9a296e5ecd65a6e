"""Code of an application that RRQ calls: hooks for events, exporters for metrics.

An error that a hook raises is logged with its name and disturbs no job. Events are raised by ``client.py``,
``worker.py`` and ``engine/``; the exporters that come with RRQ are in ``rrq.exporters``.
"""

# ruff: noqa: B027  empty methods are the point: a hook overrides only the events it listens to.

import asyncio
import importlib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from rrq.exc import SettingsError
from rrq.job import Job
from rrq.settings import RRQSettings

__all__ = ["HookManager", "LoggingHook", "MetricsExporter", "RRQHook"]

logger = logging.getLogger(__name__)

_BUILTIN_EXPORTERS: Final[Mapping[str, str]] = {
    "prometheus": "rrq.exporters.prometheus.PrometheusExporter",
    "statsd": "rrq.exporters.statsd.StatsdExporter",
}
_EXPORT_METHODS: Final[Mapping[str, str]] = {
    "counter": "export_counter",
    "gauge": "export_gauge",
    "histogram": "export_histogram",
}


class RRQHook(ABC):  # noqa: B024  a hook overrides only the events it listens to
    """Base of event hooks. Override the events of interest; the others do nothing."""

    def __init__(self, settings: RRQSettings) -> None:
        self.settings = settings

    async def on_job_enqueued(self, job: Job) -> None:
        """A producer stored the job."""

    async def on_job_started(self, job: Job, worker_id: str) -> None:
        """A worker is about to call the handler."""

    async def on_job_completed(self, job: Job, result: Any) -> None:
        """The handler returned ``result``."""

    async def on_job_failed(self, job: Job, error: Exception) -> None:
        """The job failed for good."""

    async def on_job_retrying(self, job: Job, attempt: int) -> None:
        """The job failed and will be tried again; ``attempt`` is the one that failed."""

    async def on_worker_started(self, worker_id: str, queues: list[str]) -> None:
        """A worker begins to claim jobs."""

    async def on_worker_stopped(self, worker_id: str) -> None:
        """A worker has drained and ends."""

    async def on_worker_heartbeat(self, worker_id: str, health_data: dict[str, Any]) -> None:
        """A worker wrote its health record."""


class MetricsExporter(ABC):
    """Base of metrics exporters."""

    def __init__(self, settings: RRQSettings) -> None:
        self.settings = settings

    @abstractmethod
    async def export_counter(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """Add ``value`` to a counter."""

    @abstractmethod
    async def export_gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """Set a gauge to ``value``."""

    @abstractmethod
    async def export_histogram(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """Record ``value`` as one observation."""

    async def close(self) -> None:
        """Release sockets and the like. Called once, at the end."""


class HookManager:
    """Loads the hooks and the exporter that the settings name, and calls them safely."""

    def __init__(self, settings: RRQSettings) -> None:
        self.settings = settings
        self.hooks: list[RRQHook] = []
        self.exporters: dict[str, MetricsExporter] = {}
        self._initialized = False
        self._soon: set[asyncio.Future[None]] = set()

    @property
    def has_hooks(self) -> bool:
        """False when no hook would receive an event, so that busy loops can skip raising it."""
        return bool(self.hooks) or (not self._initialized and bool(self.settings.event_handlers))

    @property
    def has_exporters(self) -> bool:
        """False when no exporter would receive a metric."""
        return bool(self.exporters) or (not self._initialized and bool(self.settings.metrics_exporter))

    async def initialize(self) -> None:
        """Load everything once. What cannot be loaded is logged and left out."""
        # Nothing is awaited up to the end, so two first events cannot load everything twice.
        if self._initialized:
            return
        self._initialized = True
        for path in self.settings.event_handlers:
            self._try_to_add_hook(path)
        if self.settings.metrics_exporter:
            self._try_to_add_exporter(self.settings.metrics_exporter)

    async def trigger_event(self, event_name: str, *args: Any, **kwargs: Any) -> None:
        """Call the method ``event_name`` of all hooks concurrently and wait for them."""
        await self.initialize()
        listeners = [getattr(hook, event_name, None) for hook in self.hooks]
        calls = [_call_safely(listener, args, kwargs) for listener in listeners if listener]
        if calls:
            # return_exceptions: a hook that cancels itself must not look like our cancellation.
            await asyncio.gather(*calls, return_exceptions=True)

    def trigger_soon(self, event_name: str, *args: Any) -> None:
        """Like ``trigger_event``, for callers that cannot wait."""
        if self.has_hooks:
            calls = asyncio.ensure_future(self.trigger_event(event_name, *args))
            self._soon.add(calls)
            calls.add_done_callback(self._soon.discard)

    async def export_metric(
        self,
        metric_type: str,
        name: str,
        value: float,
        labels: dict[str, str] | None = None,
    ) -> None:
        """Send one value to all exporters; ``metric_type`` is counter, gauge or histogram."""
        await self.initialize()
        method_name = _EXPORT_METHODS.get(metric_type)
        if method_name is None:
            logger.error(
                "metric %s has the unknown type %r; use counter, gauge or histogram",
                name,
                metric_type,
            )
            return
        for exporter in self.exporters.values():
            await _call_safely(getattr(exporter, method_name), (name, value, labels), {})

    async def close(self) -> None:
        """Close the exporters; one that fails does not keep the others open."""
        for exporter in self.exporters.values():
            close = getattr(exporter, "close", None)
            if close is not None:
                await _call_safely(close, (), {})

    def _try_to_add_hook(self, path: str) -> None:
        try:
            self.hooks.append(self._load_hook(path))
        # Importing a module and calling its class runs foreign code.
        except Exception:
            logger.exception("hook %s could not be loaded", path, extra={"resource": path})

    def _try_to_add_exporter(self, name: str) -> None:
        try:
            self.exporters[name] = self._load_exporter(name)
        except SettingsError as error:
            logger.error("metrics exporter %s could not be loaded: %s", name, error, extra={"resource": name})
        # The same for an exporter of the application.
        except Exception:
            logger.exception("metrics exporter %s could not be loaded", name, extra={"resource": name})

    def _load_hook(self, path: str) -> RRQHook:
        loaded = _load_class(path)
        if not issubclass(loaded, RRQHook):
            raise ValueError(  # noqa: TRY004  as in RRQ 0.7
                f"{path} is not a subclass of RRQHook; derive it from rrq.hooks.RRQHook."
            )
        return loaded(self.settings)

    def _load_exporter(self, name: str) -> MetricsExporter:
        path = _BUILTIN_EXPORTERS.get(name, name)
        try:
            loaded = _load_class(path)
        except ModuleNotFoundError as error:
            if path == name or not (error.name or "").startswith("rrq.exporters"):
                raise
            raise ValueError(
                f"The built-in exporter {name!r} is not part of this version of rrq. "
                "Name a class of your own by its dotted path, or unset metrics_exporter."
            ) from error
        except ImportError as error:
            if path == name:
                raise
            raise SettingsError(str(error)) from error  # of ours: it says which extra is missing
        # By its methods, not only by its base: RRQ 0.7 loaded custom exporters only when they
        # were hooks, so existing ones are derived from RRQHook.
        if not all(callable(getattr(loaded, method, None)) for method in _EXPORT_METHODS.values()):
            raise ValueError(f"{path} is not a metrics exporter; derive it from rrq.hooks.MetricsExporter.")
        return cast("MetricsExporter", loaded(self.settings))


def _load_class(path: str) -> type[Any]:
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise ValueError(f"{path!r} is not a dotted path such as 'package.module.ClassName'.")
    loaded = getattr(importlib.import_module(module_name), class_name)
    if not isinstance(loaded, type):
        raise TypeError(f"{path} is not a class.")
    return loaded


async def _call_safely(method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        outcome = method(*args, **kwargs)
        if inspect.isawaitable(outcome):
            await outcome
    # Foreign code runs here: a broken hook costs a log line, never a job.
    except Exception:
        name = getattr(method, "__qualname__", repr(method))
        logger.exception("hook %s failed", name, extra={"resource": name})


class LoggingHook(RRQHook):
    """Logs each event except the heartbeat, which comes too often."""

    async def on_job_enqueued(self, job: Job) -> None:
        logger.info("job enqueued", extra=_describe(job))

    async def on_job_started(self, job: Job, worker_id: str) -> None:
        logger.info("job started", extra={**_describe(job), "worker_id": worker_id})

    async def on_job_completed(self, job: Job, result: Any) -> None:
        # Not the result: it may hold what does not belong in a log.
        logger.info("job completed", extra=_describe(job))

    async def on_job_failed(self, job: Job, error: Exception) -> None:
        logger.error("job failed", extra={**_describe(job), "error": str(error)})

    async def on_job_retrying(self, job: Job, attempt: int) -> None:
        logger.warning("job retrying", extra={**_describe(job), "attempt": attempt})

    async def on_worker_started(self, worker_id: str, queues: list[str]) -> None:
        logger.info("worker started", extra={"worker_id": worker_id, "queues": queues})

    async def on_worker_stopped(self, worker_id: str) -> None:
        logger.info("worker stopped", extra={"worker_id": worker_id})


def _describe(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "function_name": job.function_name, "queue": job.queue_name}
