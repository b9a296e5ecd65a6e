"""`make demo`: a pod of two worker processes empties a queue of example jobs while you watch.

Starts a private Redis (unless RRQ_REDIS_DSN names one), enqueues a few thousand jobs in bulk, kills one of the
processes in the middle of its work, and at the end asks Redis about every single job. Exit code 1 if any is
missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from rrq import RRQClient, RRQSettings
from rrq.client import JobRequest
from rrq.embedded import redis_for_development
from rrq.job import JobStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

JOB_COUNT = 3_000
GIVE_UP_SECONDS = 120.0
REFRESH_SECONDS = 0.2
LOG_LINE_SECONDS = 2.0
KILL_AT_SHARE = 0.4
STOP_SECONDS = 15.0
READ_BATCH = 200


@dataclass(frozen=True)
class Progress:
    queued: int
    running: int
    total: int
    elapsed_seconds: float

    @property
    def done(self) -> int:
        return max(0, self.total - self.queued - self.running)

    @property
    def jobs_per_second(self) -> float:
        return self.done / self.elapsed_seconds if self.elapsed_seconds > 0 else 0.0


def build_requests(count: int) -> list[JobRequest]:
    requests = []
    for number in range(count):
        match number % 3:
            case 0:
                request = JobRequest("send_email", args=(f"user{number}@example.com",))
            case 1:
                request = JobRequest("resize_picture", args=(f"{number}.jpg",), kwargs={"width": 640})
            case _:
                request = JobRequest("charge_card", args=(number,))
        requests.append(request)
    return requests


async def read_progress(client: RRQClient, queue: str, total: int, started_at: float) -> Progress:
    seen = await client.job_store.observe([queue])
    depth = seen.queues[queue]
    queued = depth.due + depth.due_soon + depth.later  # a retry waits in the queue until its time
    ours = (worker for worker in seen.workers.values() if any(name.endswith(queue) for name in worker.queues))
    running = sum(worker.busy for worker in ours)
    return Progress(queued, running, total, time.monotonic() - started_at)


async def read_unfinished(client: RRQClient, job_ids: Iterable[str]) -> set[str]:
    """Return the jobs that Redis does not call completed, whatever the live figures said."""
    waiting, unfinished = list(job_ids), set()
    for start in range(0, len(waiting), READ_BATCH):
        batch = waiting[start : start + READ_BATCH]
        jobs = await asyncio.gather(*(client.job_store.get_job_definition(job_id) for job_id in batch))
        unfinished |= {
            job_id
            for job_id, job in zip(batch, jobs, strict=True)
            if job is None or job.status is not JobStatus.COMPLETED
        }
    return unfinished


@contextlib.asynccontextmanager
async def running_pod(environment: dict[str, str]) -> AsyncIterator[int]:
    """Run a pod of two worker processes, as `rrq worker run` does it; yields its process id."""
    command = ("-m", "rrq", "worker", "run", "--settings", "examples.jobs.settings", "--num-workers", "2")
    pod = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--log-level",
        "CRITICAL",
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield pod.pid
    finally:
        if pod.returncode is None:
            pod.terminate()
        try:
            await asyncio.wait_for(pod.wait(), STOP_SECONDS)
        except TimeoutError:
            pod.kill()
            await pod.wait()


def kill_one_process(pod_pid: int) -> int:
    """Do to a worker process what a full memory or a lost node does; returns its process id."""
    victim = psutil.Process(pod_pid).children()[0]
    victim.kill()
    return victim.pid


def draw(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row("queued", "running", "done", "jobs/s", style="dim")
    table.add_row(
        f"{progress.queued:,}",
        f"{progress.running:,}",
        f"[green]{progress.done:,}[/green]",
        f"{progress.jobs_per_second:,.0f}",
        ProgressBar(total=progress.total, completed=progress.done, width=40),
    )
    return table


@contextlib.contextmanager
def open_display(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows figures: live in a terminal, now and then a line in a log."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda progress: live.update(draw(progress), refresh=True)
        return
    next_line_seconds = 0.0

    def print_line(progress: Progress) -> None:
        nonlocal next_line_seconds
        if progress.elapsed_seconds >= next_line_seconds:
            next_line_seconds = progress.elapsed_seconds + LOG_LINE_SECONDS
            console.print(
                f"queued {progress.queued}, running {progress.running}, done {progress.done}, "
                f"{progress.jobs_per_second:.0f} jobs/s"
            )

    yield print_line


async def watch(
    client: RRQClient, queue: str, job_ids: list[str], console: Console, pod_pid: int
) -> set[str]:
    """Show the figures until every job is done; return those that are not when time is up."""
    started_at = time.monotonic()
    unfinished = set(job_ids)
    has_killed = False
    with open_display(console) as show:
        while unfinished:
            progress = await read_progress(client, queue, len(job_ids), started_at)
            show(progress)
            if not has_killed and progress.done > len(job_ids) * KILL_AT_SHARE:
                has_killed = True
                console.print(f"kill -9 of worker process {kill_one_process(pod_pid)}, with its jobs in hand")
            if progress.queued == progress.running == 0:
                unfinished = await read_unfinished(client, unfinished)
            if progress.elapsed_seconds > GIVE_UP_SECONDS:
                return await read_unfinished(client, unfinished)
            await asyncio.sleep(REFRESH_SECONDS)
    return unfinished


async def run(dsn: str, console: Console) -> int:
    # A queue of its own, so that a Redis that was given is left as it was; results go after ten minutes.
    queue = f"demo-{uuid.uuid4().hex[:8]}"
    settings = RRQSettings(redis_dsn=dsn, default_queue_name=queue, default_result_ttl_seconds=600)
    environment = os.environ | {"RRQ_REDIS_DSN": dsn, "RRQ_DEFAULT_QUEUE_NAME": queue}
    client = RRQClient(settings)
    # SIGTERM ends the demo the way Ctrl-C does: the worker is stopped too, not orphaned.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        started_at = time.monotonic()
        jobs = await client.enqueue_many(build_requests(JOB_COUNT))
        console.print(f"{len(jobs):,} jobs enqueued in {time.monotonic() - started_at:.2f} s")
        async with running_pod(environment) as pod_pid:
            lost = await watch(client, queue, [job.id for job in jobs], console, pod_pid)
    finally:
        await client.close()
    console.print(f"{len(jobs) - len(lost)} jobs done, {len(lost)} lost")
    return 1 if lost or len(jobs) != JOB_COUNT else 0


def main() -> int:
    console = Console()
    with redis_for_development() as dsn:
        try:
            return asyncio.run(run(dsn, console))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("stopped before the end")
            return 130


if __name__ == "__main__":
    sys.exit(main())
