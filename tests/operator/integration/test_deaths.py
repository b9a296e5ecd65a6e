"""What the cluster says of pods, and what Redis makes of their workers: real API server, real Redis.

The workers are moved by hand and their leases are alive all the time, so that only the operator can have given
their jobs back.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from burst_runs import holds
from operator_process import RunningOperator
from pools import build_pool
from queue_steps import ask, enqueue, is_queued, job_fields, now_ms, start_worker
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control_plane import Cluster
    from fake_node import FakeNode
    from pools import PoolDesk
    from queue_steps import SteppedWorker
    from rrq.store import JobStore

LEASE_SECONDS = 15.0


# In one process: each that runs any of them would start the operator that they share.
pytestmark = pytest.mark.xdist_group("deaths")


@pytest.fixture(scope="module")
def operator(
    control_plane: Cluster, pool_definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningOperator]:
    """One operator for all namespaces, shared by the tests of this file: starting it takes seconds."""
    with RunningOperator(control_plane.kubeconfig, "", tmp_path_factory.mktemp("operator")) as running:
        yield running
    sys.stderr.write(running.log[-20_000:])


@pytest.fixture
async def pod(
    desk: PoolDesk, operator: RunningOperator, fake_node: FakeNode, redis_dsn: str
) -> dict[str, str]:
    """Name and uid of the one pod of a pool."""
    desk.apply(build_pool(redis={"url": redis_dsn}, scaling={"minReplicas": 1}))
    await eventually(lambda: desk.condition("Ready")[:2] == ("True", "AsDesired"), 60)
    [found] = desk.read_all("pods")
    return {name: found["metadata"][name] for name in ("name", "uid")}


async def hold_job(store: JobStore, job_id: str, worker_id: str, pod_uid: str) -> SteppedWorker:
    """A registered worker in that pod with one job in hand."""
    worker = await start_worker(store, worker_id, pod_uid=pod_uid)
    await enqueue(store, job_id)
    await worker.take_one()
    # As if it renewed all the time, however long the test takes.
    await ask(store, "ZADD", store.keys.leases, await now_ms(store) + 3_600_000, worker_id)
    return worker


async def lease_seconds(store: JobStore, worker: SteppedWorker) -> float:
    score = await ask(store, "ZSCORE", store.keys.leases, worker.worker_id)
    return 0.0 if score is None else (float(score) - await now_ms(store)) / 1000


def patch_pod_status(desk: PoolDesk, pod: str, **status: object) -> None:
    patch = json.dumps({"status": status})
    desk.kubectl("patch", "pod", pod, "--subresource=status", "--type=strategic", f"--patch={patch}")


async def test_jobs_of_a_pod_that_failed_are_due_again_within_five_seconds(
    desk: PoolDesk, pod: dict[str, str], fake_node: FakeNode, store: JobStore
) -> None:
    workers = [await hold_job(store, f"job-{number}", f"worker-{number}", pod["uid"]) for number in (1, 2)]
    await fake_node.finish(desk.namespace, pod["name"], 137, "OOMKilled")
    for number in (1, 2):
        await eventually(lambda: is_queued(store, f"job-{number}"), 5, "the job is due again")  # noqa: B023  awaited here
        fields = await job_fields(store, f"job-{number}")
        assert json.loads(fields["crash_history"]) == [{"exit_code": 137, "reason": "OOMKilled"}]
    assert [await worker.in_hand() for worker in workers] == [set(), set()]


async def test_a_restarted_container_buries_the_workers_before_it_and_none_after(
    desk: PoolDesk, pod: dict[str, str], fake_node: FakeNode, store: JobStore
) -> None:
    old = await hold_job(store, "old-job", "old", pod["uid"])
    young = await hold_job(store, "young-job", "young", pod["uid"])
    # Moved into the past; the other one registered right before the end, as one of the next start may have.
    now = await now_ms(store)
    await ask(store, "HSET", store.keys.worker_key("old"), "registered_ms", now - 30_000)
    await ask(store, "HSET", store.keys.worker_key("young"), "registered_ms", now)
    await fake_node.restart(desk.namespace, pod["name"], 1)
    await eventually(lambda: is_queued(store, "old-job"))
    assert (await job_fields(store, "old-job"))["suspect"] == "1"
    after = await hold_job(store, "later-job", "after", pod["uid"])

    async def live_on() -> bool:
        return await young.in_hand() == {"young-job"} and len(await after.in_hand()) == 1

    await holds(live_on, 2.5, "workers that may belong to the new container are left alone")
    assert await old.in_hand() == set()


async def test_an_evicted_pod_gives_its_jobs_back_and_counts_as_a_lost_worker(
    desk: PoolDesk, pod: dict[str, str], store: JobStore
) -> None:
    worker = await hold_job(store, "job", "worker", pod["uid"])
    patch_pod_status(
        desk,
        pod["name"],
        phase="Failed",
        reason="Evicted",
        message="The node was low on resource: memory.",
        containerStatuses=[
            {
                "name": "worker",
                "image": "example.com/shop:1",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {
                    "terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2030-01-01T00:00:00Z"}
                },
            }
        ],
    )
    await eventually(lambda: is_queued(store, "job"))
    fields = await job_fields(store, "job")
    assert (fields.get("losses"), fields.get("suspect"), fields.get("crash_history")) == ("1", None, None)
    assert await worker.in_hand() == set()


async def test_a_pod_deleted_by_force_shortens_the_lease_and_a_renewal_voids_that(
    desk: PoolDesk, pod: dict[str, str], store: JobStore
) -> None:
    gone = await hold_job(store, "job-gone", "gone", pod["uid"])
    alive = await hold_job(store, "job-alive", "alive", pod["uid"])
    desk.kubectl("delete", "pod", pod["name"], "--force", "--grace-period=0", "--wait=false")

    async def is_hinted() -> bool:
        return 0 < await lease_seconds(store, alive) <= LEASE_SECONDS / 3

    await eventually(is_hinted, 30, "the lease is cut to one renewal")
    assert not await is_queued(store, "job-gone"), "a hint is no proof"
    await alive.beat()

    async def is_in_peace() -> bool:
        return await lease_seconds(store, alive) > LEASE_SECONDS / 3

    await holds(is_in_peace, 2.5, "a worker that renews is not hinted at again")
    assert await lease_seconds(store, gone) <= LEASE_SECONDS / 3
    assert await alive.in_hand() == {"job-alive"}


async def test_a_pod_whose_node_is_lost_shortens_the_lease(
    desk: PoolDesk, pod: dict[str, str], store: JobStore
) -> None:
    worker = await hold_job(store, "job", "worker", pod["uid"])
    # As the node controller does 44 s after a node fell silent: only this condition, with this reason.
    patch_pod_status(
        desk, pod["name"], conditions=[{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]
    )

    async def is_hinted() -> bool:
        return 0 < await lease_seconds(store, worker) <= LEASE_SECONDS / 3

    await eventually(is_hinted, 30)
    assert await worker.in_hand() == {"job"}


async def test_a_pod_that_is_merely_not_ready_is_let_alone(
    desk: PoolDesk, pod: dict[str, str], fake_node: FakeNode, store: JobStore
) -> None:
    worker = await hold_job(store, "job", "worker", pod["uid"])
    await fake_node.set_ready(desk.namespace, pod["name"], ready=False)
    await eventually(lambda: desk.condition("Ready")[0] == "False", 30)
    await holds(lambda: desk.replicas() == 1, 1.5, "nothing happens")
    assert await lease_seconds(store, worker) > LEASE_SECONDS / 3
    assert await worker.in_hand() == {"job"}


@pytest.mark.parametrize("kind", [{}, {"type": "Job"}], ids=["Deployment", "Job"])
async def test_a_pool_at_zero_starts_a_pod_for_the_job_of_a_lost_node(
    desk: PoolDesk,
    operator: RunningOperator,
    fake_node: FakeNode,
    store: JobStore,
    redis_dsn: str,
    kind: dict[str, str],
) -> None:
    store.settings.worker_lease_seconds = 3.0
    worker = await start_worker(store, "of a lost node", pod_uid="gone")
    await enqueue(store, "job")
    await worker.take_one()
    desk.apply(build_pool(redis={"url": redis_dsn}, **kind))
    await eventually(lambda: len(desk.read_all("pods")) == 1, 60, "no pod was started for it")
    await eventually(lambda: is_queued(store, "job"), 60, "the job was not requeued")
    assert await worker.in_hand() == set()
