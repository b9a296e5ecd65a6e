"""RRQ: a Redis job queue for Python, at home in Kubernetes.

``App`` is the typed way in. Below it ``RRQClient`` enqueues, ``RRQWorker`` runs, ``RRQSettings`` says how. Each is
loaded when it is first asked for: a probe on the command line should not wait for the worker, and a supervisor
should not hold it in memory.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rrq.version import __version__

if TYPE_CHECKING:
    from rrq.app import App
    from rrq.client import RRQClient
    from rrq.cron import CronJob, CronSchedule
    from rrq.registry import JobRegistry
    from rrq.settings import RRQSettings
    from rrq.worker import RRQWorker

__all__ = [
    "App",
    "CronJob",
    "CronSchedule",
    "JobRegistry",
    "RRQClient",
    "RRQSettings",
    "RRQWorker",
    "__version__",
]

_HOMES = {
    "App": "rrq.app",
    "CronJob": "rrq.cron",
    "CronSchedule": "rrq.cron",
    "JobRegistry": "rrq.registry",
    "RRQClient": "rrq.client",
    "RRQSettings": "rrq.settings",
    "RRQWorker": "rrq.worker",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rrq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
