"""A pool that always has the same work, watched all the time: whatever moves it was not the work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from operator_release import restarts
from rrq.job import JobStatus
from waiting import eventually

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from story import Story

CONCURRENCY = 2
# Long enough that at any moment some are running, short enough that many begin while the operator is away.
JOB_SECONDS = 1.5
FEED_SECONDS = 0.2
ENDED_TIMEOUT_SECONDS = 60
# Each change of the Deployment as one line, the first one at once.
REPLICAS = '--output=jsonpath={.spec.replicas} {.metadata.generation}{"\\n"}'


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    restarts: int


class SteadyPool:
    """For the length of an `async with` block, `pod_count` pods have exactly as many jobs as they can run at once.

    Jobs are enqueued when others have finished. The pool would need a calm of ten minutes to shrink, so that nothing in
    the work asks for more or fewer pods. Leaving the block lets the last jobs finish, and then asserts that pods,
    replicas and jobs were left alone.
    """

    def __init__(self, story: Story, name: str = "steady", pod_count: int = 2) -> None:
        self._story = story
        self.name = name
        self.pod_count = pod_count
        self.job_ids: list[str] = []
        self._pods: set[Pod] = set()
        self._ends = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None
        self._watch: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        scaling = {"maxReplicas": 2 * self.pod_count, "scaleDown": {"windowSeconds": 600}}
        self._story.apply_pool(self.name, worker={"concurrency": CONCURRENCY}, scaling=scaling)
        self._feeder = asyncio.create_task(self._feed())
        await self._story.wait_for_pods(self.pod_count, self.name, timeout_seconds=90)
        await eventually(self._all_pods_work, 60, "not every pod had a job", interval_seconds=0.3)
        self._pods = self._read_pods()
        self._watch = await asyncio.create_subprocess_exec(
            *self._story.desk.command("get", "deployment", self.name, "--watch", REPLICAS),
            env=self._story.desk.cluster.environment,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._watch.stdout is not None
        await asyncio.wait_for(self._watch.stdout.readline(), ENDED_TIMEOUT_SECONDS)  # it watches
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._feeder is not None
        # Told, not cancelled: a call to Redis is not a good place to be interrupted in.
        self._ends.set()
        await self._feeder
        changes = await self._end_watch()
        if kind is None:
            await self.assert_undisturbed(changes)

    async def assert_undisturbed(self, changes: list[str]) -> None:
        await self._story.wait_until_finished(ENDED_TIMEOUT_SECONDS, self.job_ids)
        pods = self._read_pods()
        assert pods == self._pods, f"pool {self.name} had other pods before: {self._pods}, now {pods}"
        sizes = {line.split()[0] for line in changes}
        assert sizes <= {str(self.pod_count)}, f"pool {self.name} changed its size: {changes}"
        ledger = await self._story.read_ledger()
        mine = set(self.job_ids)
        again = {job: times for job, times in ledger.count("started").items() if job in mine and times != 1}
        assert not again, f"jobs were started more than once: {again}"

    async def running(self) -> list[str]:
        """Jobs that have started and not finished."""
        ledger = await self._story.read_ledger()
        mine = set(self.job_ids)
        return [entry.job_id for entry in ledger.interrupted if entry.job_id in mine]

    async def started_between(self, begin: float, end: float) -> int:
        """How many jobs began in a span of time."""
        ledger = await self._story.read_ledger()
        mine = set(self.job_ids)
        return sum(begin < entry.time < end and entry.job_id in mine for entry in ledger.of("started"))

    async def _feed(self) -> None:
        in_flight: list[str] = []
        while not self._ends.is_set():
            # As Redis sees it: the handler has finished a moment before its worker is free.
            statuses = [await self._story.client.get_job_status(job) for job in in_flight]
            in_flight = [
                job
                for job, seen in zip(in_flight, statuses, strict=True)
                if seen is None or seen.status is not JobStatus.COMPLETED
            ]
            missing = self.pod_count * CONCURRENCY - len(in_flight)
            if missing:
                in_flight += await self._story.enqueue(missing, queue=self.name, seconds=JOB_SECONDS)
            self.job_ids += [job for job in in_flight if job not in self.job_ids]
            await asyncio.sleep(FEED_SECONDS)

    async def _all_pods_work(self) -> bool:
        ledger = await self._story.read_ledger()
        names = {entry.pod for entry in ledger.entries if entry.job_id in self.job_ids}
        return len(names) == self.pod_count

    def _read_pods(self) -> set[Pod]:
        return {
            Pod(pod["metadata"]["name"], pod["metadata"]["uid"], restarts(pod))
            for pod in self._story.pods(self.name)
        }

    async def _end_watch(self) -> list[str]:
        if self._watch is None:
            return []
        assert self._watch.returncode is None, (
            "kubectl stopped watching: nobody knows what happened meanwhile"
        )
        self._watch.terminate()
        output, _ = await self._watch.communicate()
        return output.decode().splitlines()
