"""Who takes part, and how many jobs each gets."""

from __future__ import annotations

from harness import Contender

OURS = "rrq_current"
SUPERVISED = "rrq_pod"
BASELINE = "rrq_0_7"

CONTENDERS = (
    Contender(OURS, "rrq (this project)", "rrq_current.py", None, has_bulk=True, weight=5.0),
    Contender(SUPERVISED, "rrq, under its supervisor", "rrq_pod.py", None, has_bulk=True, weight=5.0),
    Contender("rrq_0_7", "RRQ 0.7.1", "rrq_0_7.py", "rrq_0_7", pauses_when_full=True),
    Contender("rrq_0_11", "RRQ 0.11.1", "rrq_0_11.py", "rrq_0_11", pauses_when_full=True),
    Contender("taskiq_list", "taskiq 0.13 list", "taskiq_0_13.py", "taskiq_0_13", {"TASKIQ_BROKER": "list"}),
    Contender(
        "taskiq_stream",
        "taskiq 0.13 stream",
        "taskiq_0_13.py",
        "taskiq_0_13",
        {"TASKIQ_BROKER": "stream"},
    ),
    Contender("dramatiq", "dramatiq 2.2", "dramatiq_2_2.py", "dramatiq_2_2"),
    Contender("arq", "arq 0.28", "arq_0_28.py", "arq_0_28", weight=0.75, pauses_when_full=True),
    Contender("saq", "saq 0.26", "saq_0_26.py", "saq_0_26", weight=0.75),
    Contender("streaq", "streaq 7.2", "streaq_7_2.py", "streaq_7_2", has_bulk=True, weight=0.5),
)

# The pod again, with one and with two worker processes; only the section on scaling runs these.
PODS = tuple(
    Contender(
        f"pod_{count}",
        f"{count} process(es)",
        "rrq_pod.py",
        None,
        {"BENCH_PROCESSES": str(count)},
        has_bulk=True,
    )
    for count in (1, 2)
)

LABELS = {contender.name: contender.label for contender in (*CONTENDERS, *PODS)}
# At concurrency 1 a worker that pauses between jobs would need minutes for the usual number.
JOBS_WHEN_PAUSING = 200


def jobs_for(contender: Contender, base_jobs: int, concurrency: int) -> int:
    """Return how many jobs give this contender a run of a few seconds."""
    jobs = max(100, int(base_jobs * contender.weight))
    if concurrency == 1 and contender.pauses_when_full:
        return min(jobs, JOBS_WHEN_PAUSING)
    return jobs
