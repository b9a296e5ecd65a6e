"""``rrq worker run``: one worker in this process."""

import click

from rrq.commands.options import settings_option
from rrq.commands.redis_access import open_store
from rrq.commands.refusal import Refusal
from rrq.commands.settings_loading import load_settings
from rrq.process import run_worker
from rrq.worker import RRQWorker


@click.command("run")
@click.option("--burst", is_flag=True, help="Run the jobs that are due, then exit.")
@click.option("--queue", "queues", multiple=True, help="Queue to serve; may be repeated.")
@settings_option
def worker_run(burst: bool, queues: tuple[str, ...], settings_path: str | None) -> None:
    """Run one worker process."""
    settings = load_settings(settings_path)
    if not settings.job_registry:
        raise Refusal("ERROR: No 'job_registry'. You must provide a JobRegistry instance in settings.")
    open_store(settings)  # opens no connection: a DSN that can never work is told in one line
    runner = RRQWorker(settings, settings.job_registry, list(queues) or None, burst=burst)
    click.echo(f"Worker {runner.worker_id} serves {', '.join(runner.queues)}.")
    run_worker(runner)
