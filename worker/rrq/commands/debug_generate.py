"""``rrq debug generate-jobs`` and ``generate-workers``: something to look at."""

import asyncio
import random
from datetime import UTC, datetime
from time import monotonic

import click

from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.progress import showing_progress
from rrq.commands.redis_access import run_with_store
from rrq.job import JobStatus
from rrq.simulation import (
    FAKE_QUEUES,
    FAKE_STATUSES,
    build_fake_job,
    write_fake_jobs,
    write_fake_workers,
)
from rrq.store import JobStore

_WORKER_REFRESH_SECONDS = 5.0


@click.command("generate-jobs")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Jobs to make.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    help=f"Queue to put them into; may be repeated. Default: {', '.join(FAKE_QUEUES)}.",
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value.lower() for status in FAKE_STATUSES], case_sensitive=False),
    help="What they look like; may be repeated. Default: all of them.",
)
@click.option(
    "--age-hours",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    help="Hours back over which they are spread.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Jobs to write in one go.",
)
@settings_option
@json_option
def debug_generate_jobs(
    count: int,
    queues: tuple[str, ...],
    statuses: tuple[str, ...],
    age_hours: float,
    batch_size: int,
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Generate fake jobs in queues, histories and dead letters.

    Workers that serve these queues will try to run the pending ones.
    """
    chosen_queues = queues or FAKE_QUEUES
    chosen_statuses = [JobStatus(status.upper()) for status in statuses] or FAKE_STATUSES

    async def generate(store: JobStore) -> None:
        chance, now = random.Random(), datetime.now(UTC)
        with showing_progress("Generating", count) as advance:
            for start in range(0, count, batch_size):
                size = min(batch_size, count - start)
                await write_fake_jobs(
                    store,
                    [
                        build_fake_job(chance, now, chosen_queues, chosen_statuses, age_hours)
                        for _ in range(size)
                    ],
                )
                advance(size)

    run_with_store(settings_path, generate)
    if as_json:
        print_json({"generated": count, "queues": list(chosen_queues)})
    else:
        print_line(f"Generated {count} fake jobs across {len(chosen_queues)} queues")


@click.command("generate-workers")
@click.option(
    "--count", type=click.IntRange(min=1), default=5, show_default=True, help="Workers to simulate."
)
@click.option(
    "--duration",
    "duration_seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Seconds for which they show signs of life.",
)
@settings_option
@json_option
def debug_generate_workers(
    count: int, duration_seconds: int, settings_path: str | None, as_json: bool
) -> None:
    """Simulate workers: health records as RRQ 0.7 writes them, which expire by themselves."""

    async def simulate(store: JobStore) -> None:
        chance, ends_at = random.Random(), monotonic() + duration_seconds
        while (left_seconds := ends_at - monotonic()) > 0:
            await write_fake_workers(store, chance, count)
            await asyncio.sleep(min(_WORKER_REFRESH_SECONDS, left_seconds))

    if not as_json:
        print_line(f"Simulating {count} workers for {duration_seconds} seconds...")
    run_with_store(settings_path, simulate)
    if as_json:
        print_json({"workers": [f"test_worker_{number}" for number in range(count)]})
    else:
        print_line("Worker simulation complete")
