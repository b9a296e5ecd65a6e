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
        "the supervisor gives a dead process's jobs back at once and starts another process. A stopped process "
        "loses its jobs when its lease of 15 s ends (`worker_lease_seconds`); what it still does when it wakes "
        "up happens a second time, but its results are refused. After a restart of Redis nobody claims "
        "before everybody has said what is in hand, so that nothing runs twice "
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
            "a job leaves the queue when it is taken, and nothing puts it back when its worker dies; no setting "
            "changes that. A worker process that died is not replaced while the other lives."
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
            "one process per command, so two commands. A job stays in the queue behind a mark that lives 10 s "
            "longer than `job_timeout` (300 s): jobs of the dead return after 310 s; a shorter `job_timeout` "
            "brings them back sooner. A worker ends when Redis hangs up, for a service manager to start it "
            "again; `retry` and `retry_on_error` of its `RedisSettings`, unset by default, may help; not tried here."
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
            "(`retries=1`), so what it finds is marked as aborted, and a job that was stopped for longer than its "
            "timeout fails; with `retries=2` they run again. Jobs that were taken but not yet started when Redis went "
            "have their try left and wait for the sweep; in two runs by hand, three jobs each had not come back "
            "after 170 s. A process that died is not replaced."
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
            "jobs of the dead, and those fetched ahead by them, return after `idle_timeout` (60 s), when a worker "
            "looks next, which on Redis older than 8.4 an idle worker does every 60 s. A worker ends when Redis "
            "hangs up and is not replaced: a service manager has to start it again."
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
            "acknowledged, started or not, return after ten minutes (`idle_timeout`, in milliseconds), and not before "
            "a new job comes: an idle worker does not look for them. A process ends when Redis hangs up, and its "
            "manager replaces it within two seconds or so."
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
            "`ListQueueBroker`. A job leaves Redis when it is taken; its documentation names this broker for "
            "those who want no acknowledgement, and takes the stream broker in its examples."
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
            "two commands with one process each, because a command ends as a whole when one of its processes "
            "dies, for a service manager to start it again. Jobs of the dead and those they fetched ahead "
            "return after `heartbeat_timeout` (60 s), as soon as a command to Redis draws the lot of doing "
            "maintenance (`maintenance_chance`, 1 in 1,000): sooner the busier the queue is."
        ),
    ),
)
