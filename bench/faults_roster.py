"""Who takes part in the fault comparison, how each is started, and what its defaults are.

Every statement under ``returns`` and ``note`` was read in the source of the pinned version; the figures in
the tables are measured.
"""

from __future__ import annotations

from faults_deployment import FaultContender
from faults_trial import KILL, REDIS_KILL, REDIS_SHUTDOWN

OURS = FaultContender(
    "rrq",
    "rrq (this project)",
    "with_rrq",
    None,
    ("python", "-m", "rrq", "worker", "run", "--settings", "with_rrq.settings", "--num-workers", "2"),
    note=(
        "the supervisor requeues the jobs of a dead process at once and starts another process. A stopped process "
        "loses its jobs when its lease of 15 s ends (`worker_lease_seconds`); its work after it wakes up happens "
        "a second time, but its results are refused. After a restart of Redis no worker claims before all workers "
        "have reported their running jobs, so that no job runs twice "
        "([decision 15](decisions/0015-claims-wait-after-a-redis-restart.md))."
    ),
)

CONTENDERS = (
    OURS,
    FaultContender(
        "rrq_0_7",
        "RRQ 0.7.1",
        "with_rrq",
        "rrq_0_7",
        ("rrq", "worker", "run", "--settings", "with_rrq.settings", "--num-workers", "2"),
        note=(
            "a job leaves the queue when a worker takes it, and nothing requeues it when that worker dies; no setting "
            "changes that. A dead worker process is not replaced while the other lives."
        ),
    ),
    FaultContender(
        "arq",
        "arq 0.28.0",
        "with_arq",
        "arq_0_28",
        ("arq", "with_arq.WorkerSettings"),
        commands=2,
        returns=frozenset({KILL}),
        note=(
            "one process per command, so two commands. A job stays in the queue behind a key that lives 10 s "
            "longer than `job_timeout` (300 s): jobs of dead workers return after 310 s, sooner with a shorter "
            "`job_timeout`. A worker exits when Redis closes the connection, and a service manager has to restart "
            "it; `retry` and `retry_on_error` of its `RedisSettings`, unset by default, may help; not tried here."
        ),
    ),
    FaultContender(
        "saq",
        "saq 0.26.4",
        "with_saq",
        "saq_0_26",
        ("saq", "with_saq.settings", "--workers", "2"),
        returns=frozenset({REDIS_SHUTDOWN, REDIS_KILL}),
        note=(
            "a sweep once a minute finds jobs past their `timeout` (10 s). By default a job has one try "
            "(`retries=1`), so the sweep marks it as aborted, and a job that was stopped for longer than its timeout "
            "fails; with `retries=2` they run again. Jobs that were taken but not started when Redis went away have "
            "their try left and wait for the sweep; in two manual runs, three jobs each had not returned after 170 s. "
            "A dead process is not replaced."
        ),
    ),
    FaultContender(
        "streaq",
        "streaq 7.2.0",
        "with_streaq",
        "streaq_7_2",
        ("streaq", "run", "with_streaq:worker", "--workers", "2"),
        returns=frozenset({KILL, REDIS_SHUTDOWN, REDIS_KILL}),
        note=(
            "jobs of dead workers, and those that they prefetched, return after `idle_timeout` (60 s), when a worker looks "
            "next; on Redis older than 8.4 an idle worker looks every 60 s. A worker exits when Redis closes the "
            "connection and is not replaced: a service manager has to restart it."
        ),
    ),
    FaultContender(
        "taskiq_stream",
        "taskiq 0.13.0, stream",
        "with_taskiq",
        "taskiq_0_13",
        ("taskiq", "worker", "with_taskiq:broker", "--workers", "2", "--max-async-tasks", "10"),
        environment={"TASKIQ_BROKER": "stream"},
        returns=frozenset({KILL, REDIS_SHUTDOWN, REDIS_KILL}),
        note=(
            "`RedisStreamBroker`. A process reads up to 100 messages ahead (`xread_count`); those it never "
            "acknowledged, started or not, return after ten minutes (`idle_timeout`, in milliseconds), and only when a "
            "new job comes: an idle worker does not look for them. A process exits when Redis closes the connection, "
            "and its manager replaces it within about two seconds."
        ),
    ),
    FaultContender(
        "taskiq_list",
        "taskiq 0.13.0, list",
        "with_taskiq",
        "taskiq_0_13",
        ("taskiq", "worker", "with_taskiq:broker", "--workers", "2", "--max-async-tasks", "10"),
        environment={"TASKIQ_BROKER": "list"},
        note=(
            "`ListQueueBroker`. A job leaves Redis when a worker takes it. The documentation names this broker for "
            "users without acknowledgements, and uses the stream broker in its examples."
        ),
    ),
    FaultContender(
        "dramatiq",
        "dramatiq 2.2.1",
        "with_dramatiq",
        "dramatiq_2_2",
        ("dramatiq", "with_dramatiq", "--processes", "1", "--threads", "10"),
        commands=2,
        returns=frozenset({KILL}),
        note=(
            "two commands with one process each, because a command exits as a whole when one of its processes dies, "
            "and a service manager has to restart it. Jobs of dead workers and those that they prefetched return after "
            "`heartbeat_timeout` (60 s), when a command to Redis happens to do maintenance (`maintenance_chance`, 1 in "
            "1,000): the busier the queue, the sooner."
        ),
    ),
)
