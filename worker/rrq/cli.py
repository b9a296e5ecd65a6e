"""The command line: arguments in, one call out."""

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from rrq.process import run_worker
from rrq.settings import RRQSettings
from rrq.version import __version__
from rrq.worker import RRQWorker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def rrq() -> None:
    """RRQ: Reliable Redis Queue."""


@rrq.group()
def worker() -> None:
    """Manage RRQ workers (run, watch)."""


@worker.command("run")
@click.option("--burst", is_flag=True, help="Run the jobs that are due, then exit.")
@click.option("--queue", "queues", multiple=True, help="Queue to serve; may be repeated.")
@click.option("--settings", "settings_path", help="Dotted path of the settings object.")
def worker_run(burst: bool, queues: tuple[str, ...], settings_path: str | None) -> None:
    """Run one worker process."""
    settings = load_settings(settings_path)
    if not settings.job_registry:
        _fail("No 'job_registry'. You must provide a JobRegistry instance in settings.")
    runner = RRQWorker(settings, settings.job_registry, list(queues) or None, burst=burst)
    click.echo(f"Worker {runner.worker_id} serves {', '.join(runner.queues)}.")
    run_worker(runner)


def load_settings(path: str | None) -> RRQSettings:
    """Return the settings object at ``path`` or RRQ_SETTINGS, or the defaults with environment."""
    path = path or os.environ.get("RRQ_SETTINGS")
    if path is None:
        return RRQSettings()
    try:
        module_name, _, attribute = path.rpartition(".")
        settings: Any = getattr(importlib.import_module(module_name), attribute)
    except ImportError:
        _fail(f"Could not import settings object '{path}'. Make sure it is in PYTHONPATH.")
    # A settings module is foreign code and may raise anything.
    except Exception as error:  # noqa: BLE001  told to the user as it is
        _fail(f"Unexpected error processing settings object '{path}': {error}")
    return settings  # type: ignore[no-any-return]  # whatever the application calls its settings


def _fail(message: str) -> NoReturn:
    click.echo(f"ERROR: {message}", err=True)
    sys.exit(1)
