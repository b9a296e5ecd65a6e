"""Every Redis key of RRQ, in one place.

With the default prefix ``rrq:`` the names are those of RRQ 0.7, so old producers and workers share
the same Redis. A hash-tagged prefix (``{shop}:``) puts everything into one slot of a Redis Cluster.
Lua builds the keys of jobs that it finds by itself from the same prefix; the names there and here
are held together by ``tests/worker/test_keys.py``.

docs/reference/keys.md is made of the docstrings: the first words are the type in Redis, the paragraph that
begins with "Lives" is how long a key stays.
"""

from dataclasses import dataclass
from functools import cached_property

from rrq.constants import DLQ_KEY_PREFIX, QUEUE_KEY_PREFIX

DEFAULT_PREFIX = "rrq:"


@dataclass(frozen=True)
class Keys:
    """Names the keys of one deployment, all of them starting with ``prefix``."""

    prefix: str = DEFAULT_PREFIX

    # Keys with a name inside

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
        """Sorted set of the jobs a worker holds, scored by their start in Unix seconds.

        Lives while the worker holds a job, or until its jobs have been given to others.
        """
        return f"{self.prefix}active:jobs:{worker_id}"

    def worker_key(self, worker_id: str) -> str:
        """Hash describing a registered worker: incarnation, pod, capacity, queues, functions.

        Lives until the worker ends or is given up, at most for twenty leases after its last
        heartbeat.
        """
        return f"{self.prefix}workers:info:{worker_id}"

    def cancel_key(self, worker_id: str) -> str:
        """Set of job ids that this worker was asked to cancel.

        Lives while one of them runs, at most a day after the last was asked for.
        """
        return f"{self.prefix}cancel:{worker_id}"

    def control_key(self, worker_id: str) -> str:
        """List on which a worker is told at once that something in its ``cancel_key`` changed.

        Lives until the worker has read it, at most a minute.
        """
        return f"{self.prefix}control:{worker_id}"

    def drain_key(self, pod_uid: str) -> str:
        """String: while this key exists, no worker of that pod may claim.

        Lives for 30 seconds after the operator has last set it, unless it is taken back.
        """
        return f"{self.prefix}drain:{pod_uid}"

    def suspect_key(self, pod_uid: str) -> str:
        """Hash naming the suspect that a worker of that pod has claimed last; a pod runs one suspect at a time.

        Lives for as long as the processing lock of that job may.
        """
        return f"{self.prefix}suspect:{pod_uid}"

    def wake_key(self, queue_name: str) -> str:
        """List of wake-up tokens on which idle workers of a queue block.

        Lives until they are taken, at most five seconds.
        """
        return f"{self.prefix}wake:{self.queue_key(queue_name)}"

    def waiting_key(self, queue_name: str) -> str:
        """Sorted set of workers blocking on ``wake_key``, scored by the end of their wait in ms.

        Lives while somebody waits, at most a minute longer.
        """
        return f"{self.prefix}waiting:{self.queue_key(queue_name)}"

    def notified_key(self, queue_name: str) -> str:
        """String: while this key exists, ``notify_channel`` has just heard of the queue; the scripts alone use it.

        Lives for 50 milliseconds.
        """
        return f"{self.prefix}notified:{self.queue_key(queue_name)}"

    def events_key(self, job_id: str) -> str:
        """Stream that wakes whoever waits for the completion of a job.

        Lives, if somebody waited, as long as the outcome of the job; a day where that is kept for ever.
        """
        return f"{self.prefix}events:job:{job_id}"

    def slots_key(self, scope: str) -> str:
        """Set of the jobs that run under a limit.

        Lives while one of them runs.
        """
        return f"{self.prefix}slots:{scope}"

    def parked_key(self, scope: str) -> str:
        """Sorted set of jobs that a pause or a limit keeps from starting, scored by when they were due.

        Lives while one of them waits.
        """
        return f"{self.prefix}parked:{scope}"

    def rate_key(self, scope: str) -> str:
        """Sorted set of the last starts under a rate limit; for a limit with a burst a hash with its bucket.

        Lives for as long as it can hold anything back: twice the time of the limit, or what filling the
        bucket takes.
        """
        return f"{self.prefix}rate:{scope}"

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

    def stats_key(self, minute: int) -> str:
        """Hash of what happened in one minute, which is counted since 1970.

        Lives for a day and an hour.
        """
        return f"{self.prefix}stats:{minute}"

    def decisions_key(self, pool: str) -> str:
        """Stream of the last 500 or so scaling decisions about a pool (``namespace/name``).

        Lives for a week after the last one.
        """
        return f"{self.prefix}pool:{pool}:decisions"

    def cron_table_key(self, group: str) -> str:
        """Hash with the cron table of a group of workers.

        Lives for 35 days after it was last renewed, and for as long as its rarest entry waits; an
        empty one for an hour.
        """
        return f"{self.prefix}cron:table:{group}"

    def last_process_key(self, unique_key: str) -> str:
        """String: the last processing time of a unique key. 0.7 wrote it without any prefix.

        Lives for twice ``expected_job_ttl``, at least a minute.
        """
        own = "" if self.prefix == DEFAULT_PREFIX else self.prefix
        return f"{own}last_process:{unique_key}"

    def ended_sessions_key(self, role: str) -> str:
        """Sorted set of dashboard sessions that were signed out, at most a thousand, scored by expiry in Unix seconds.

        Lives for 13 hours after the last one.
        """
        return f"{self.prefix}dashboard:ended:{role}"

    # Keys that exist once

    @cached_property
    def leases(self) -> str:
        """Sorted set of living workers, scored by the end of their lease in ms of Redis time.

        Lives while there are workers.
        """
        return f"{self.prefix}workers:lease"

    @cached_property
    def guard(self) -> str:
        """Hash that remembers the last heartbeat of anyone, to tell a dead fleet from an outage.

        Lives for ever.
        """
        return f"{self.prefix}guard"

    @cached_property
    def awaited(self) -> str:
        """Set of workers that have not said yet what they hold since Redis came back.

        Lives for at most two renewals of a lease; mostly it is not there.
        """
        return f"{self.prefix}workers:awaited"

    @cached_property
    def counters(self) -> str:
        """Hash of running totals, kept by the scripts.

        Lives for ever.
        """
        return f"{self.prefix}counters"

    @cached_property
    def active_queues(self) -> str:
        """Sorted set of recently active queues, scored by Unix seconds.

        Lives while queues are served; one that is not is dropped from it within a day.
        """
        return f"{self.prefix}active:queues"

    @cached_property
    def active_workers(self) -> str:
        """Sorted set of recently active workers, scored by Unix seconds.

        Lives while there are workers.
        """
        return f"{self.prefix}active:workers"

    @cached_property
    def monitor_stream(self) -> str:
        """Stream of monitoring events, the last thousand or so.

        Lives for ever.
        """
        return f"{self.prefix}monitor:events"

    @cached_property
    def cron_last(self) -> str:
        """Hash of the last tick (ms) of each cron entry that fired in the fleet, or ``seen <ms>`` when it was first seen.

        Lives for ever.
        """
        return f"{self.prefix}cron:last"

    @cached_property
    def cron_tables(self) -> str:
        """Sorted set of the groups that have a ``cron_table_key``, scored by its end in ms.

        Lives as long as the last of those tables.
        """
        return f"{self.prefix}cron:tables"

    @cached_property
    def notify_channel(self) -> str:
        """Channel on which operators and live views hear that a queue has changed.

        Lives in nobody's memory: who does not listen does not hear.
        """
        return f"{self.prefix}notify"

    @cached_property
    def pauses(self) -> str:
        """Hash of what is paused or disabled: target (``queue:…``, ``function:…``, ``pool:…``) to JSON.

        Lives until everything is resumed.
        """
        return f"{self.prefix}pauses"

    @cached_property
    def limits(self) -> str:
        """Hash of limits that applications declare: target to JSON.

        Lives until an application no longer declares them.
        """
        return f"{self.prefix}limits"

    @cached_property
    def limit_overrides(self) -> str:
        """Hash of limits that people have set over those.

        Lives until they are removed.
        """
        return f"{self.prefix}limits:override"

    @cached_property
    def parked(self) -> str:
        """Sorted set of the scopes that have a ``parked_key``, scored by when to look at them again in ms.

        Lives while a job is parked.
        """
        return f"{self.prefix}parked"

    @cached_property
    def missing_functions(self) -> str:
        """Sorted set of queues with functions that a worker of theirs lately lacked, a hundred at most, scored by when in ms.

        Lives for a day after the last of them.
        """
        return f"{self.prefix}functions:missing"

    @cached_property
    def recent(self) -> str:
        """List of the last thousand jobs that ended (up to a hundred more), the newest first.

        Lives for ever.
        """
        return f"{self.prefix}recent"

    @cached_property
    def audit(self) -> str:
        """Stream of what people did to queues, functions and jobs; the last ten thousand entries or so.

        Lives for ever.
        """
        return f"{self.prefix}audit"

    @cached_property
    def pools(self) -> str:
        """Hash of the pools that an operator sizes: ``namespace/name`` to JSON.

        Lives while there are pools; one is removed from it when it is deleted.
        """
        return f"{self.prefix}pools"

    # Names for people

    def queue_name(self, name: str) -> str:
        """The short form of a queue name, the same however a producer or a worker spelled it."""
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
