"""`make demo`: the pool of examples/pool.yaml on this machine, from zero to its full size and back.

The demo enqueues a wave of jobs. The pool scales up, the demo kills one worker process in the middle of its work, and the
pool scales down to zero. At the end the demo reads the status of every job from Redis, and exits with 1 if one is missing.
`make demo ARGS="--plot docs/img/wave.svg"` also draws the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import psutil
from rich.console import Console

from examples.wave_plot import Sample, build_plot
from rrq import RRQClient, RRQSettings
from rrq.client import JobRequest
from rrq.exc import RRQError
from rrq.job import JobStatus
from rrq_operator.local.display import Display
from rrq_operator.local.manifest import read_pools
from rrq_operator.local.replica_pool import LocalReplicaPool
from rrq_operator.local.running import log_folder_of, redis_of, running
from rrq_operator.local.session import LocalPlan, LocalSession, PoolFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rrq_operator.api.redis_urls import RedisIdentity
    from rrq_operator.api.spec import Pool

MANIFEST = Path(__file__).with_name("pool.yaml")
GIVE_UP_SECONDS = 300.0
LOOK_SECONDS = 0.05
KILL_AT_SHARE = 0.4
READ_BATCH = 200


@dataclass
class Story:
    """The figures that the demo reports at the end."""

    samples: list[Sample] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    peak_replicas: int = 0
    first_start_seconds: float | None = None
    slowest_start_seconds: float = 0.0
    killed_pid: int | None = None
    killed_at_seconds: float | None = None
    elapsed_seconds: float = 0.0
    is_back_at_zero: bool = False

    def tell(self) -> str:
        first = "never" if self.first_start_seconds is None else f"{self.first_start_seconds:.1f} s"
        return (
            f"{len(self.job_ids) - len(self.lost):,} jobs done, {len(self.lost)} lost"
            f"{f', though process {self.killed_pid} was killed while it ran jobs' if self.killed_pid else ''}\n"
            f"0 -> {self.peak_replicas} -> {0 if self.is_back_at_zero else 'not yet 0'} replicas "
            f"in {self.elapsed_seconds:.0f} s, peak {self.peak_replicas}\n"
            f"first job running {first} after the wave; slowest start {self.slowest_start_seconds:.1f} s "
            "(from asking for a replica to its being ready)"
        )


def build_wave(count: int) -> list[JobRequest]:
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


async def read_unfinished(client: RRQClient, job_ids: Iterable[str]) -> set[str]:
    """Return the jobs whose status in Redis is not COMPLETED."""
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


def kill_one_worker(pool: LocalReplicaPool) -> int | None:
    """Kill one worker process with SIGKILL; returns its process id, or None if no replica is ready yet."""
    for replica in pool.replicas:
        if replica.ready_at is not None and replica.process is not None:
            with contextlib.suppress(psutil.Error, IndexError):
                victim = psutil.Process(replica.process.pid).children()[0]
                victim.kill()
                return victim.pid
    return None


async def watch(pool: LocalReplicaPool, client: RRQClient, story: Story, display: Display) -> None:
    """Record the size of the pool until it is back at zero, and kill one of its processes on the way."""
    wave_at = time.monotonic()
    while story.elapsed_seconds < GIVE_UP_SECONDS and not story.is_back_at_zero:
        snapshot = pool.snapshot()
        story.elapsed_seconds = time.monotonic() - wave_at
        story.peak_replicas = max(story.peak_replicas, snapshot.replicas)
        story.slowest_start_seconds = snapshot.slowest_start_seconds
        if snapshot.due is not None and snapshot.later is not None:
            waiting = snapshot.due + snapshot.later
            story.samples.append(Sample(story.elapsed_seconds, waiting, snapshot.replicas, snapshot.ready))
        if story.first_start_seconds is None:
            seen = await client.job_store.observe([])
            if any(worker.busy for worker in seen.workers.values()):
                story.first_start_seconds = time.monotonic() - wave_at
        if story.killed_pid is None and snapshot.done > len(story.job_ids) * KILL_AT_SHARE:
            story.killed_pid = kill_one_worker(pool)
            if story.killed_pid is not None:
                story.killed_at_seconds = story.elapsed_seconds
                display.tell(pool.name, f"kill -9 of worker process {story.killed_pid} while it runs jobs")
        story.is_back_at_zero = story.peak_replicas > 0 and snapshot.is_at_rest and snapshot.later == 0
        await asyncio.sleep(LOOK_SECONDS)


async def play(session: LocalSession, client: RRQClient, display: Display, count: int) -> Story | None:
    """Run the wave through the pool; None when the user stopped it."""
    story = Story()
    pool = session.pools[0]
    assert isinstance(pool, LocalReplicaPool)
    async with running(session, display) as ending:
        jobs = await client.enqueue_many(build_wave(count))
        story.job_ids = [job.id for job in jobs]
        display.tell(pool.name, f"a wave of {len(jobs):,} jobs is enqueued")
        watching = asyncio.create_task(watch(pool, client, story, display))
        await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            watching.cancel()
            return None
        await watching
        story.lost = await read_unfinished(client, story.job_ids)
    return story


def take_pool() -> Pool:
    """Return the example pool with a queue of its own, so that the demo leaves other queues of that Redis alone."""
    pool = read_pools(str(MANIFEST))[0]
    queue = f"demo-{uuid.uuid4().hex[:8]}"
    return replace(pool, spec=pool.spec.model_copy(update={"queues": [queue]}))


async def run(pool: Pool, address: RedisIdentity, display: Display, count: int) -> Story | None:
    with log_folder_of(None) as folder:
        session = LocalSession(LocalPlan([(pool, address)], folder), display.tell)
        client = RRQClient(
            RRQSettings(
                redis_dsn=address.url,
                key_prefix=address.key_prefix,
                default_queue_name=pool.spec.queues[0],
                default_result_ttl_seconds=600,
            )
        )
        try:
            return await play(session, client, display, count)
        finally:
            await client.close()


@click.command()
@click.option("--jobs", "count", type=click.IntRange(min=1), default=3_000, show_default=True)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the run into this SVG file."
)
def main(count: int, plot: Path | None) -> None:
    """Watch a pool scale up from zero, run a wave of jobs, and scale down to zero."""
    pool = take_pool()
    try:
        with redis_of([pool], None, click.echo) as [address]:
            story = asyncio.run(run(pool, address, Display(Console()), count))
    except (PoolFailed, RRQError) as error:
        raise click.ClickException(str(error)) from error
    if story is None:
        click.echo("stopped before the end")
        sys.exit(130)
    click.echo(story.tell())
    if plot is not None:
        plot.write_text(build_plot(story.samples, story.killed_at_seconds))
    sys.exit(1 if story.lost or len(story.job_ids) != count or not story.is_back_at_zero else 0)


if __name__ == "__main__":
    main()
