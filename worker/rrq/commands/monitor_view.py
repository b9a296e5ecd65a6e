"""What the monitor shows, as tables and as JSON: pure."""

from typing import Any

from rrq.broker.messages import QueueObservation
from rrq.commands.formatting import NOTHING, format_duration, format_ms, format_time, shorten
from rrq.commands.output import Table
from rrq.inspect.dead_letters import DeadLetter
from rrq.inspect.overview import Overview, PodSummary, SeenWorker, WorkerKind

_ERROR_LENGTH = 60


def build_header(overview: Overview) -> str:
    living = [worker for worker in overview.workers if worker.kind is not WorkerKind.LOST]
    due = sum(queue.due for queue in overview.queues.values())
    return (
        f"RRQ at {format_time(overview.now)}: {due} jobs due, "
        f"{sum(worker.busy for worker in living)} running on {len(living)} workers, "
        f"{overview.dead_letters} dead letters"
    )


def build_tables(overview: Overview) -> list[Table]:
    """Return queues, workers, pools and dead letters, each complete."""
    return [
        Table(
            "Queues",
            ("Queue", "Due", "Scheduled", "Oldest Due", "Next Due"),
            [_queue_row(name, queue) for name, queue in _ordered_queues(overview)],
        ),
        Table(
            "Workers",
            ("Worker", "Status", "Busy", "Lease", "Pod", "Queues"),
            [_worker_row(worker) for worker in overview.workers],
        ),
        Table(
            "Pools",
            ("Pod", "Workers", "Busy", "Capacity", "Draining"),
            [_pod_row(pod) for pod in overview.pods],
        ),
        Table(
            f"Dead Letters: {overview.dead_letters}",
            ("Job ID", "Function", "Failed At", "Error"),
            [_dead_letter_row(letter) for letter in overview.newest_dead_letters],
        ),
    ]


def to_json(overview: Overview) -> dict[str, Any]:
    return {
        "at": overview.now.isoformat(),
        "queues": {
            name: {
                "due": queue.due,
                "scheduled": queue.due_soon + queue.later,
                "oldest_due_age_seconds": queue.oldest_due_age_seconds,
                "next_due_ms": queue.next_due_ms,
            }
            for name, queue in _ordered_queues(overview)
        },
        "workers": [_worker_json(worker) for worker in overview.workers],
        "pods": [
            {
                "pod_uid": pod.pod_uid or None,
                "workers": pod.workers,
                "busy": pod.busy,
                "capacity": pod.capacity,
                "draining": pod.is_draining,
            }
            for pod in overview.pods
        ],
        "dead_letters": {
            "total": overview.dead_letters,
            "newest": [
                {"job_id": letter.job_id, "job": letter.job.to_json() if letter.job else None}
                for letter in overview.newest_dead_letters
            ],
        },
    }


def _ordered_queues(overview: Overview) -> list[tuple[str, QueueObservation]]:
    return sorted(overview.queues.items(), key=lambda entry: (-entry[1].due, entry[0]))


def _queue_row(name: str, queue: QueueObservation) -> tuple[str, ...]:
    return (
        name,
        str(queue.due),
        str(queue.due_soon + queue.later),
        format_duration(queue.oldest_due_age_seconds),
        NOTHING if queue.next_due_ms is None else format_ms(queue.next_due_ms),
    )


def _worker_row(worker: SeenWorker) -> tuple[str, ...]:
    lease = NOTHING if worker.lease_seconds is None else f"{worker.lease_seconds:.0f}s"
    return (
        worker.worker_id,
        "draining" if worker.is_draining else worker.status,
        f"{worker.busy}/{worker.capacity}",
        "RRQ 0.7" if worker.kind is WorkerKind.LEGACY else lease,
        worker.pod_uid or NOTHING,
        ", ".join(worker.queues) or NOTHING,
    )


def _worker_json(worker: SeenWorker) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "kind": worker.kind.value,
        "status": worker.status,
        "busy": worker.busy,
        "capacity": worker.capacity,
        "draining": worker.is_draining,
        "lease_seconds": worker.lease_seconds,
        "pod_uid": worker.pod_uid or None,
        "queues": worker.queues,
    }


def _pod_row(pod: PodSummary) -> tuple[str, ...]:
    counts = (pod.workers, pod.busy, pod.capacity)
    return (pod.pod_uid or "(no pod)", *map(str, counts), "draining" if pod.is_draining else NOTHING)


def _dead_letter_row(letter: DeadLetter) -> tuple[str, ...]:
    job = letter.job
    if job is None:
        return (letter.job_id, NOTHING, NOTHING, "(the job has expired)")
    error = shorten(job.described_error, _ERROR_LENGTH)
    return (letter.job_id, job.function_name or NOTHING, format_time(job.completed_at), error)
