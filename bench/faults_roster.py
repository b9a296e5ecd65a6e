"""Who takes part in the fault comparison, how each is started, and what its defaults are.

Every statement under ``returns`` and ``note`` was read in the source of the pinned version; the figures in
the tables are measured.
"""

from __future__ import annotations

from faults_deployment import FaultContender

OURS = FaultContender(
    "rrq",
    "rrq (this project)",
    "with_rrq",
    None,
    ("python", "-m", "rrq", "worker", "run", "--settings", "with_rrq.settings", "--num-workers", "2"),
)

CONTENDERS = (
    OURS,
    FaultContender(
        "rrq_0_7",
        "RRQ 0.7.1",
        "with_rrq",
        "rrq_0_7",
        ("rrq", "worker", "run", "--settings", "with_rrq.settings", "--num-workers", "2"),
    ),
    FaultContender(
        "arq", "arq 0.28.0", "with_arq", "arq_0_28", ("arq", "with_arq.WorkerSettings"), commands=2
    ),
    FaultContender(
        "saq", "saq 0.26.4", "with_saq", "saq_0_26", ("saq", "with_saq.settings", "--workers", "2")
    ),
    FaultContender(
        "streaq",
        "streaq 7.2.0",
        "with_streaq",
        "streaq_7_2",
        ("streaq", "run", "with_streaq:worker", "--workers", "2"),
    ),
    FaultContender(
        "taskiq_stream",
        "taskiq 0.13.0, stream",
        "with_taskiq",
        "taskiq_0_13",
        ("taskiq", "worker", "with_taskiq:broker", "--workers", "2", "--max-async-tasks", "10"),
        environment={"TASKIQ_BROKER": "stream"},
    ),
    FaultContender(
        "taskiq_list",
        "taskiq 0.13.0, list",
        "with_taskiq",
        "taskiq_0_13",
        ("taskiq", "worker", "with_taskiq:broker", "--workers", "2", "--max-async-tasks", "10"),
        environment={"TASKIQ_BROKER": "list"},
    ),
    FaultContender(
        "dramatiq",
        "dramatiq 2.2.1",
        "with_dramatiq",
        "dramatiq_2_2",
        ("dramatiq", "with_dramatiq", "--processes", "1", "--threads", "10"),
        commands=2,
    ),
)
