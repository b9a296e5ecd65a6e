"""``rrq debug``: submit real jobs by hand or in numbers, and delete keys by pattern."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import click

from rrq.client import JobRequest, RRQClient
from rrq.commands.formatting import format_value
from rrq.commands.job import enqueue_one
from rrq.commands.options import args_option, json_option, kwargs_option
from rrq.commands.output import print_json, print_line, show_progress
from rrq.commands.redis_access import RunOnStore, store_option
from rrq.inspect.jobs import find_keys_like, in_batches
from rrq.store import JobStore

_STRESS_FUNCTION = "stress_test_job"
_TICK_SECONDS = 0.1
_KEYS_PER_DELETION = 500


@click.group()
def debug() -> None:
    """Debug and testing tools: do not use them on a Redis that others rely on."""


@debug.command("submit")
@click.argument("function_name", metavar="FUNCTION")
@args_option
@kwargs_option
@click.option("--queue", "queue_name", help="Queue of the job. Default: default_queue_name of the settings.")
@click.option("--delay", "delay_seconds", type=click.IntRange(min=0), help="Seconds until the job is due.")
@store_option
@json_option
def debug_submit(
    function_name: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    queue_name: str | None,
    delay_seconds: int | None,
    run: RunOnStore,
    as_json: bool,
) -> None:
    """Submit one real job for FUNCTION."""
    request = JobRequest(
        function_name, args or [], kwargs or {}, queue_name=queue_name, defer_by=delay_seconds
    )
    job = run(lambda store: enqueue_one(store, request))
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


@debug.command("clear")
@click.option("--confirm", "is_confirmed", is_flag=True, help="Do not ask.")
@click.option(
    "--pattern",
    default="test_*",
    show_default=True,
    help="Pattern of whole Redis keys, such as 'rrq:job:test_*'.",
)
@store_option
@json_option
def debug_clear(is_confirmed: bool, pattern: str, run: RunOnStore, as_json: bool) -> None:
    """Delete all keys that match a pattern, whatever they hold."""
    keys = run(lambda store: _find_keys(store, pattern))
    if not keys:
        _print_cleared(as_json, f"No keys found matching pattern: {pattern}", 0, 0)
        return
    if not as_json:
        print_line(f"Found {len(keys)} keys matching pattern: {pattern}")
    # The question goes to stderr, where it cannot spoil JSON.
    if not is_confirmed and not click.confirm(f"Delete {len(keys)} keys?", err=True):
        _print_cleared(as_json, "Deletion cancelled", len(keys), 0)
        return
    deleted = run(lambda store: _delete_keys(store, keys))
    _print_cleared(as_json, f"Deleted {deleted} keys", len(keys), deleted)


async def _find_keys(store: JobStore, pattern: str) -> list[bytes]:
    return sorted({key async for key in find_keys_like(store, pattern)})


async def _delete_keys(store: JobStore, keys: Sequence[bytes]) -> int:
    deleted = 0
    with show_progress("Deleting", len(keys)) as advance:
        for batch in in_batches(keys, _KEYS_PER_DELETION):
            # UNLINK frees the memory in the background, however large the value.
            deleted += int(await store.redis.unlink(*batch))
            advance(len(batch))
    return deleted


def _print_cleared(as_json: bool, message: str, found: int, deleted: int) -> None:
    if as_json:
        print_json({"found": found, "deleted": deleted})
    else:
        print_line(message)


@debug.command("stress-test")
@click.option(
    "--jobs-per-second",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of jobs to submit each second.",
)
@click.option(
    "--duration",
    "duration_seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Length of the test in seconds.",
)
@click.option(
    "--queues",
    multiple=True,
    default=("stress_test",),
    show_default=True,
    help="Queue of the jobs; may be repeated.",
)
@store_option
@json_option
def debug_stress_test(
    jobs_per_second: int,
    duration_seconds: int,
    queues: tuple[str, ...],
    run: RunOnStore,
    as_json: bool,
) -> None:
    """Submit jobs for the function stress_test_job at a steady rate."""
    if not as_json:
        print_line(f"Starting stress test: {jobs_per_second} jobs/sec for {duration_seconds}s")
    submitted = run(lambda store: _submit_steadily(store, jobs_per_second, duration_seconds, queues))
    if as_json:
        print_json({"submitted": submitted, "queues": list(queues)})
    else:
        print_line(f"Stress test complete: {submitted} jobs submitted")


async def _submit_steadily(
    store: JobStore, jobs_per_second: int, duration_seconds: int, queues: tuple[str, ...]
) -> int:
    client = RRQClient(store.settings, job_store=store)
    total, submitted, started_at = jobs_per_second * duration_seconds, 0, monotonic()
    try:
        with show_progress("Submitting", total) as advance:
            while submitted < total:
                # By the clock and not by the tick, so that it catches up after a slow moment.
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
