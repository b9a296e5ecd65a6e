"""``rrq debug submit`` and ``stress-test``: real jobs, by hand or in numbers."""

import asyncio
from time import monotonic
from typing import Any

import click

from rrq.client import JobRequest, RRQClient
from rrq.commands.argument_options import args_option, kwargs_option
from rrq.commands.formatting import format_value
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.progress import showing_progress
from rrq.commands.redis_access import run_with_store
from rrq.job import Job
from rrq.store import JobStore

_STRESS_FUNCTION = "stress_test_job"
_TICK_SECONDS = 0.1


@click.command("submit")
@click.argument("function_name", metavar="FUNCTION")
@args_option
@kwargs_option
@click.option(
    "--queue", "queue_name", help="Queue to put it into. Default: default_queue_name of the settings."
)
@click.option("--delay", "delay_seconds", type=click.IntRange(min=0), help="Seconds until the job is due.")
@settings_option
@json_option
def debug_submit(
    function_name: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    queue_name: str | None,
    delay_seconds: int | None,
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Submit one real job for FUNCTION."""
    request = JobRequest(
        function_name, args or [], kwargs or {}, queue_name=queue_name, defer_by=delay_seconds
    )
    job = run_with_store(settings_path, lambda store: _submit(store, request))
    if as_json:
        due_at = job.next_scheduled_run_time
        print_json(
            {"job_id": job.id, "queue": job.queue_name, "due_at": due_at.isoformat() if due_at else None}
        )
        return
    print_line(f"Job submitted: {job.id}")
    print_line(f"Function: {function_name}")
    print_line(f"Args: {format_value(args or [])}")
    print_line(f"Kwargs: {format_value(kwargs or {})}")
    print_line(f"Queue: {job.queue_name}")
    if delay_seconds is not None:
        print_line(f"Delay: {delay_seconds}s")


async def _submit(store: JobStore, request: JobRequest) -> Job:
    client = RRQClient(store.settings, job_store=store)
    try:
        return (await client.enqueue_many([request]))[0]
    finally:
        await client.close()


@click.command("stress-test")
@click.option(
    "--jobs-per-second",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Jobs to submit in a second.",
)
@click.option(
    "--duration",
    "duration_seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Seconds to go on for.",
)
@click.option(
    "--queues",
    multiple=True,
    default=("stress_test",),
    show_default=True,
    help="Queue to put them into; may be repeated.",
)
@settings_option
@json_option
def debug_stress_test(
    jobs_per_second: int,
    duration_seconds: int,
    queues: tuple[str, ...],
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Submit jobs for the function stress_test_job at a steady rate."""
    if not as_json:
        print_line(f"Starting stress test: {jobs_per_second} jobs/sec for {duration_seconds}s")
    submitted = run_with_store(
        settings_path, lambda store: _stress(store, jobs_per_second, duration_seconds, queues)
    )
    if as_json:
        print_json({"submitted": submitted, "queues": list(queues)})
    else:
        print_line(f"Stress test complete: {submitted} jobs submitted")


async def _stress(
    store: JobStore, jobs_per_second: int, duration_seconds: int, queues: tuple[str, ...]
) -> int:
    client = RRQClient(store.settings, job_store=store)
    total, submitted, started_at = jobs_per_second * duration_seconds, 0, monotonic()
    try:
        with showing_progress("Submitting", total) as advance:
            while submitted < total:
                # By the clock and not by the tick: a slow moment is made up for.
                elapsed = monotonic() - started_at + _TICK_SECONDS
                wanted = min(total, int(elapsed * jobs_per_second)) - submitted
                await client.enqueue_many(
                    JobRequest(_STRESS_FUNCTION, (number,), queue_name=queues[number % len(queues)])
                    for number in range(submitted, submitted + wanted)
                )
                submitted += wanted
                advance(wanted)
                await asyncio.sleep(_TICK_SECONDS)
    finally:
        await client.close()
    return submitted
