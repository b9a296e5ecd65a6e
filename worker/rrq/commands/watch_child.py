"""The process that ``rrq worker watch`` restarts: one worker, with the code as it is now."""

import click

from rrq.commands.lazy_group import refusing_errors
from rrq.commands.options import settings_option
from rrq.process import run_worker
from rrq.settings_loading import load_settings, require_registry
from rrq.worker import RRQWorker


@click.command()
@click.option("--queue", "queues", multiple=True)
@settings_option
def watch_child(queues: tuple[str, ...], settings_path: str | None) -> None:
    with refusing_errors():
        settings = load_settings(settings_path)
        runner = RRQWorker(settings, require_registry(settings), list(queues) or None)
    click.echo(f"Worker {runner.worker_id} serves {', '.join(runner.queues)}.")
    run_worker(runner)


if __name__ == "__main__":
    watch_child()
