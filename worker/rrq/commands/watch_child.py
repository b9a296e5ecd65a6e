"""The child process of ``rrq worker watch``: one worker, with the code as it is now."""

import click

from rrq.commands.options import settings_option
from rrq.process import run_worker
from rrq.settings_loading import load_settings
from rrq.worker import RRQWorker


@click.command()
@click.option("--queue", "queues", multiple=True)
@settings_option
def watched_worker(queues: tuple[str, ...], settings_path: str | None) -> None:
    settings = load_settings(settings_path)
    if settings.job_registry is None:
        raise click.ClickException("The settings have no job_registry any more.")
    runner = RRQWorker(settings, settings.job_registry, list(queues) or None)
    click.echo(f"Worker {runner.worker_id} serves {', '.join(runner.queues)}.")
    run_worker(runner)


if __name__ == "__main__":
    watched_worker()
