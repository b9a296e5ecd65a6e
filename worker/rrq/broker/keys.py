"""The Redis keys of jobs and workers; ``control_keys.py`` has those of flow control, cron, pools and statistics.

With the default prefix ``rrq:`` the names are those of RRQ 0.7, so old producers and workers share the same Redis. A
hash-tagged prefix (``{shop}:``) puts everything into one slot of a Redis Cluster. Lua builds the keys of jobs that it
finds by itself from the same prefix; ``tests/worker/broker/test_keys.py`` compares the names there and here.

docs/reference/keys.md is made of the docstrings: the first words are the type in Redis, the paragraph that
begins with "Lives" is how long a key stays.
"""

from dataclasses import dataclass
from functools import cached_property

from rrq.broker.control_keys import DEFAULT_PREFIX, ControlKeys
from rrq.constants import DLQ_KEY_PREFIX, QUEUE_KEY_PREFIX

__all__ = ["DEFAULT_PREFIX", "Keys"]


@dataclass(frozen=True)
class Keys(ControlKeys):
    """Names the keys of one deployment, all of them starting with ``prefix``."""

    def job_key(self, job_id: str) -> str:
        """Hash with the definition and the outcome of a job.

        Lives while the job waits or runs, then for its result TTL (0: for ever); a dead letter for
        ``default_dlq_result_ttl_seconds``.
        """
        return f"{self.prefix}job:{job_id}"

    def queue_key(self, name: str) -> str:
        """Sorted set of queued job ids, scored by the millisecond at which each becomes due.

        Lives while a job is queued.
        """
        return self._with_prefix(name, "queue:", QUEUE_KEY_PREFIX)

    def dlq_key(self, name: str) -> str:
        """List of dead-lettered job ids, newest at the head.

        Lives while it has entries; those whose job has expired are dropped at its old end, some at a time.
        """
        return self._with_prefix(name, "dlq:", DLQ_KEY_PREFIX)

    def job_lock_key(self, job_id: str) -> str:
        """String: the processing lock; its value is the id of the worker that runs the job.

        Lives until the attempt ends, at most for the timeout of the job and
        ``default_lock_timeout_extension_seconds``.
        """
        return f"{self.prefix}lock:job:{job_id}"

    def unique_lock_key(self, unique_key: str) -> str:
        """String: the uniqueness lock; its value is the id of the job that owns it.

        Lives until that job has ended, at most for ``default_unique_job_lock_ttl_seconds`` or until it is due,
        if that is later.
        """
        return f"{self.prefix}lock:unique:{unique_key}"

    def health_key(self, worker_id: str) -> str:
        """String: the health record of a worker as JSON.

        Lives until the worker ends, else for ``worker_health_check_interval_seconds`` and
        ``worker_health_check_ttl_buffer_seconds`` after its last heartbeat.
        """
        return f"{self.prefix}health:worker:{worker_id}"

    def active_jobs_key(self, worker_id: str) -> str:
        """Sorted set of the jobs that a worker runs, scored by their start in Unix seconds.

        Lives while the worker runs a job, or until its jobs have been given to others.
        """
        return f"{self.prefix}active:jobs:{worker_id}"

    def worker_key(self, worker_id: str) -> str:
        """Hash describing a registered worker: incarnation, pod, capacity, queues, functions.

        Lives until the worker ends or is reaped, at most for twenty leases after its last
        heartbeat.
        """
        return f"{self.prefix}workers:info:{worker_id}"

    def cancel_key(self, worker_id: str) -> str:
        """Set of job ids that this worker was asked to cancel.

        Lives while one of them runs, at most a day after the last request.
        """
        return f"{self.prefix}cancel:{worker_id}"

    def control_key(self, worker_id: str) -> str:
        """List that wakes a worker at once when its ``cancel_key`` changes.

        Lives until the worker has read it, at most a minute.
        """
        return f"{self.prefix}control:{worker_id}"

    def drain_key(self, pod_uid: str) -> str:
        """String: while this key exists, no worker of that pod may claim.

        Lives for 30 seconds after the operator has last set it, unless the operator clears it.
        """
        return f"{self.prefix}drain:{pod_uid}"

    def suspect_key(self, pod_uid: str) -> str:
        """Hash naming the suspect that a worker of that pod has claimed last; a pod runs one suspect at a time.

        Lives for as long as the processing lock of that job may.
        """
        return f"{self.prefix}suspect:{pod_uid}"

    def wake_key(self, queue_name: str) -> str:
        """List of wake-up tokens on which idle workers of a queue block.

        Lives until workers take them, at most five seconds.
        """
        return f"{self.prefix}wake:{self.queue_key(queue_name)}"

    def waiting_key(self, queue_name: str) -> str:
        """Sorted set of workers blocking on ``wake_key``, scored by the end of their wait in ms.

        Lives while workers wait, at most a minute longer.
        """
        return f"{self.prefix}waiting:{self.queue_key(queue_name)}"

    def notified_key(self, queue_name: str) -> str:
        """String: while this key exists, the queue was just announced on ``notify_channel``; only the scripts use it.

        Lives for 50 milliseconds.
        """
        return f"{self.prefix}notified:{self.queue_key(queue_name)}"

    def events_key(self, job_id: str) -> str:
        """Stream that wakes producers that wait for the completion of a job.

        Lives, if a producer waited, as long as the outcome of the job; a day where that is kept for ever.
        """
        return f"{self.prefix}events:job:{job_id}"

    def idempotency_key(self, key: str) -> str:
        """String: the id of the job that an idempotent call made.

        Lives for the window that the call asked for.
        """
        return f"{self.prefix}idempotent:{key}"

    def debounce_key(self, key: str) -> str:
        """String: the id of the waiting job that further calls under this key replace.

        Lives for a day after that job is due.
        """
        return f"{self.prefix}debounce:{key}"

    def batch_key(self, batch_id: str) -> str:
        """Hash describing a batch: total, failed, callback, when it ended.

        Lives until the last job of the batch has ended, and a week longer; at most 30 days, or ``keep_seconds`` of
        ``enqueue_batch``, where the producer failed before it had queued all of them.
        """
        return f"{self.prefix}batch:{batch_id}"

    def batch_pending_key(self, batch_id: str) -> str:
        """Set of the jobs of a batch that have not ended.

        Lives while there are any; at most 30 days where the producer failed before it had queued all of them.
        """
        return f"{self.batch_key(batch_id)}:pending"

    def last_process_key(self, unique_key: str) -> str:
        """String: the last processing time of a unique key. 0.7 wrote it without any prefix.

        Lives for twice ``expected_job_ttl``, at least a minute.
        """
        own = "" if self.prefix == DEFAULT_PREFIX else self.prefix
        return f"{own}last_process:{unique_key}"

    @cached_property
    def leases(self) -> str:
        """Sorted set of living workers, scored by the end of their lease in ms of Redis time.

        Lives while there are workers.
        """
        return f"{self.prefix}workers:lease"

    @cached_property
    def guard(self) -> str:
        """Hash with the last heartbeat of the fleet, to tell a dead fleet from an outage.

        Lives for ever.
        """
        return f"{self.prefix}guard"

    @cached_property
    def awaited(self) -> str:
        """Set of workers that have not reconciled yet since Redis came back.

        Lives for at most two renewals of a lease; mostly it does not exist.
        """
        return f"{self.prefix}workers:awaited"

    @cached_property
    def counters(self) -> str:
        """Hash of running totals, kept by the scripts.

        Lives for ever.
        """
        return f"{self.prefix}counters"

    def queue_name(self, name: str) -> str:
        """The short form of a queue name, the same for each form that producers and workers write."""
        return self.queue_key(name).removeprefix(f"{self.prefix}queue:")

    def dlq_name(self, name: str) -> str:
        """The short form of the name of a dead letter list."""
        return self.dlq_key(name).removeprefix(f"{self.prefix}dlq:")

    def _with_prefix(self, name: str, kind: str, legacy_prefix: str) -> str:
        own_prefix = self.prefix + kind
        if name.startswith(own_prefix):
            return name
        # The defaults in settings are full 0.7 keys; under another prefix they name the same queue.
        return own_prefix + name.removeprefix(legacy_prefix)
