"""What the cluster is told: red for the right reason, green again, and not red for a trifle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fleet import all_done, enqueue_some
from rrq.pod.probes import PodState, decide_liveness, decide_readiness, decide_startup
from running import stays_true
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from pod import Pod
    from rrq.client import RRQClient
    from rrq.embedded import EmbeddedRedis

NOW = 1000.0
WELL = PodState(
    at=NOW,
    is_stopping=False,
    redis_answered_at=NOW - 3,
    redis_patience_seconds=30.0,
    failures=(0, 0),
    registered=2,
    able_at=NOW,
    has_started=True,
)


@pytest.mark.parametrize(
    ("changes", "live", "ready"),
    [
        ({}, True, True),
        ({"redis_answered_at": NOW - 29}, True, True),
        ({"redis_answered_at": NOW - 31}, True, False),
        ({"is_stopping": True}, True, False),
        ({"failures": (7, 0), "registered": 1}, True, True),
        ({"failures": (4, 0), "registered": 0}, True, True),
        ({"failures": (4, 5), "registered": 0}, False, True),
        ({"failures": (4, 5), "registered": 1}, True, True),
        ({"registered": 0, "able_at": NOW - 5}, True, True),
        ({"registered": 0, "able_at": NOW - 31}, True, False),
        ({"redis_answered_at": None}, True, False),
        ({"at": NOW - 9}, True, True),
        ({"at": NOW - 11}, False, True),
        ({"has_started": False, "registered": 1}, True, False),
        ({"has_started": False, "registered": 0, "redis_answered_at": None}, True, False),
    ],
)
def test_probes_by_state(changes: dict[str, object], live: bool, ready: bool) -> None:
    state = replace(WELL, **changes)  # type: ignore[arg-type]  # a table of fields by name
    assert decide_liveness(state, NOW).is_green is live
    assert decide_readiness(state, NOW).is_green is ready
    assert decide_startup(state).is_green is state.has_started


def test_a_red_probe_says_why() -> None:
    assert "4 starts in a row" in decide_liveness(replace(WELL, failures=(4, 6), registered=0), NOW).reason
    assert "not checked its children for 12 s" in decide_liveness(replace(WELL, at=NOW - 12), NOW).reason
    assert "31 s" in decide_readiness(replace(WELL, redis_answered_at=NOW - 31), NOW).reason
    assert decide_startup(replace(WELL, has_started=False, registered=1)).reason.startswith("1 of 2")


async def test_readiness_follows_a_long_outage_of_redis_and_liveness_does_not(
    make_pod: Callable[..., Pod], make_redis: Callable[..., EmbeddedRedis]
) -> None:
    server = make_redis(appendonly=True)
    server.kill()
    quick = {"worker_lease_renewal_seconds": 0.5, "redis_socket_timeout_seconds": 1}
    # A blip is over long before, also where a server takes seconds to start.
    pod = make_pod("--num-workers", "1", dsn=server.dsn, worker_redis_patience_seconds=6, **quick)
    await pod.turns("/livez", 200)
    await stays_true(lambda: pod.get("/startupz")[0] == pod.get("/readyz")[0] == 503, 1.0)
    server.start()
    await pod.is_up()
    assert await pod.turns("/readyz", 200) == "ready\n"
    status, text = pod.get("/nothing")
    assert status == 404
    assert "/livez, /readyz, /startupz, /metrics" in text
    assert pod.get("/livez?verbose=1")[0] == 200
    server.kill()
    await stays_true(lambda: pod.get("/readyz")[0] == 200, 1.0, "a blip made the pod unready")
    server.start()
    await stays_true(lambda: pod.get("/readyz")[0] == 200, 1.5, "a blip made the pod unready")
    await eventually(lambda: pod.metric("rrq_redis_up") == 1, message="Redis is back, and nobody says so")
    server.kill()
    reason = await pod.turns("/readyz", 503)
    assert "Redis has not answered" in reason
    assert pod.get("/livez") == (200, "alive\n")
    assert pod.metric("rrq_redis_up") == 0
    assert pod.metric("rrq_queue_jobs", queue="rrq:queue:default", state="due") is None
    server.start()
    await pod.turns("/readyz", 200)
    assert not pod.logged("worker process died")


async def test_a_pod_that_the_operator_drains_claims_nothing_and_stays_ready(
    make_pod: Callable[..., Pod], client: RRQClient
) -> None:
    # The lease is not shorter: on a busy machine one of seconds ends now and then, and the pod is not ready then.
    pod = make_pod("--num-workers", "1", worker_lease_renewal_seconds=1, environment={"RRQ_POD_UID": "uid-7"})
    await pod.is_up()
    await client.job_store.set_drain("uid-7")
    jobs = await enqueue_some(client, "note", count=3)
    # Several heartbeats long: each of them tells the pod that it drains.
    await stays_true(
        lambda: pod.get("/readyz") == (200, "ready\n") and pod.ledger.count("started") == 0,
        2.5,
        "a draining pod claimed, or told the cluster to take it away",
    )
    await client.job_store.clear_drain("uid-7")
    await all_done(client.job_store, jobs)
