"""One user story on a real cluster: a namespace, a Redis in it, pools of the application `stories`, and a ledger.

What a story does goes through kubectl, Helm and the client of the library, as a user's would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cluster_choice import name_image
from pools import PoolDesk, build_pool
from rrq.client import JobRequest, RRQClient
from story_redis import LEDGER, SECRET, StoryRedis
from waiting import eventually

if TYPE_CHECKING:
    from story_ledger import Entry, StoryLedger

POOL_LABEL = "rrq.dev/pool"
# Pods of a test share two cores: they ask for little, and may use what is there.
SMALL = {"requests": {"cpu": "20m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}}


@dataclass
class Story:
    desk: PoolDesk
    redis: StoryRedis
    client: RRQClient
    job_ids: list[str] = field(default_factory=list)  # of all jobs that were enqueued and recorded

    def apply_pool(
        self,
        name: str = "emails",
        *,
        image: str = "rrq-e2e:test",
        worker: dict[str, Any] | None = None,
        scaling: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        """Apply a pool of small pods with short windows; `worker` and `scaling` change fields of theirs."""
        spec.setdefault("queues", [name])
        usual_worker = {
            "image": name_image(image),
            "settings": "stories.settings",
            "concurrency": 4,
            "processes": 1,
            "drainSeconds": 10,
            "resources": SMALL,
        }
        usual_scaling = {"maxReplicas": 4, "scaleDown": {"windowSeconds": 2}}
        if spec.get("type") != "Job":
            spec["scaling"] = usual_scaling | (scaling or {})
        else:
            del usual_worker["processes"]
        redis = {"urlFrom": {"secretKeyRef": {"name": SECRET, "key": "url"}}}
        self.desk.apply(build_pool(name, redis=redis, worker=usual_worker | (worker or {}), **spec))

    async def enqueue(
        self, count: int = 1, *, queue: str = "emails", handler: str = "work", **arguments: Any
    ) -> list[str]:
        """Enqueue jobs that write to the ledger, and return their ids."""
        request = JobRequest(handler, [LEDGER], arguments, queue_name=queue)
        ids = [job.id for job in await self.client.enqueue_many([request] * count)]
        self.job_ids += ids
        return ids

    async def read_ledger(self) -> StoryLedger:
        return await self.redis.read_ledger()

    async def finished(self, job_ids: list[str] | None = None) -> bool:
        """Whether the handlers of all these jobs came to their end."""
        done = (await self.read_ledger()).count("finished")
        return set(job_ids or self.job_ids) <= set(done)

    async def wait_until_finished(self, timeout_seconds: float, job_ids: list[str] | None = None) -> None:
        await eventually(
            lambda: self.finished(job_ids), timeout_seconds, "jobs were not finished", interval_seconds=0.3
        )

    async def wait_until_started(self, job_ids: list[str], timeout_seconds: float = 60) -> dict[str, Entry]:
        """Wait until each of these jobs was taken in hand; returns the first start of each."""

        async def all_started() -> dict[str, Entry] | None:
            # Last the first one, which stays.
            starts = reversed((await self.read_ledger()).of("started"))
            first = {entry.job_id: entry for entry in starts if entry.job_id in job_ids}
            return first if len(first) == len(job_ids) else None

        found = await eventually(all_started, timeout_seconds, "jobs were not started", interval_seconds=0.1)
        assert found is not None
        return found

    async def assert_completed(self, job_ids: list[str]) -> None:
        """Redis has every one of these jobs as completed, and none of them was counted as failed on the way.

        A handler that writes that it is done does so a moment before its worker can tell.
        """

        async def are_completed() -> bool:
            for job_id in job_ids:
                job = await self.client.job_store.get_job_data_dict(job_id)
                assert job is not None, f"job {job_id} is unknown to Redis"
                seen = job["status"], job.get("current_retries", "0"), job.get("last_error")
                assert seen[:2] == ("COMPLETED", "0"), f"job {job_id}: {seen}"
            return True

        await eventually(are_completed, 30, "a result was not recorded", interval_seconds=0.3)

    def pods(self, pool: str = "emails") -> list[dict[str, Any]]:
        """The pods of a pool that are not ended yet, those that are told to go too."""
        pods = read_labelled(self.desk, "pods", POOL_LABEL, pool)
        return [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]

    async def wait_for_pods(self, count: int, pool: str = "emails", timeout_seconds: float = 60) -> None:
        """Wait until exactly so many pods are there, each of them ready."""
        await eventually(
            lambda: (
                [is_ready(pod) for pod in self.pods(pool)] == [True] * count if count else not self.pods(pool)
            ),
            timeout_seconds,
            f"pool {pool} never had {count} pods",
            interval_seconds=0.3,
        )


def read_labelled(desk: PoolDesk, kind: str, label: str, value: str) -> list[dict[str, Any]]:
    """The objects of a namespace with this label; chosen here, because a selector would cost a kubectl per look."""
    return [found for found in desk.read_all(kind) if found["metadata"].get("labels", {}).get(label) == value]


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
