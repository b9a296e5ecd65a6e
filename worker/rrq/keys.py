"""Every Redis key of RRQ, in one place.

With the default prefix ``rrq:`` the names are those of RRQ 0.7, so old producers and workers share
the same Redis. A hash-tagged prefix (``{shop}:``) puts everything into one slot of a Redis Cluster.
Lua builds the keys of jobs that it finds by itself from the same prefix; the names there and here
are held together by ``tests/worker/test_keys.py``.
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
        """Hash with the definition and the outcome of a job."""
        return f"{self.prefix}job:{job_id}"

    def queue_key(self, name: str) -> str:
        """Sorted set of queued job ids, scored by the millisecond at which each becomes due."""
        return self._with_prefix(name, "queue:", QUEUE_KEY_PREFIX)

    def dlq_key(self, name: str) -> str:
        """List of dead-lettered job ids, newest at the head."""
        return self._with_prefix(name, "dlq:", DLQ_KEY_PREFIX)

    def job_lock_key(self, job_id: str) -> str:
        """Processing lock; its value is the id of the worker that runs the job."""
        return f"{self.prefix}lock:job:{job_id}"

    def unique_lock_key(self, unique_key: str) -> str:
        """Uniqueness lock; its value is the id of the job that owns it."""
        return f"{self.prefix}lock:unique:{unique_key}"

    def health_key(self, worker_id: str) -> str:
        """Health record of a worker as JSON, expiring unless renewed."""
        return f"{self.prefix}health:worker:{worker_id}"

    def active_jobs_key(self, worker_id: str) -> str:
        """Sorted set of the jobs a worker holds, scored by their start in Unix seconds."""
        return f"{self.prefix}active:jobs:{worker_id}"

    def worker_key(self, worker_id: str) -> str:
        """Hash describing a registered worker: incarnation, pod, capacity."""
        return f"{self.prefix}workers:info:{worker_id}"

    def cancel_key(self, worker_id: str) -> str:
        """Set of job ids that this worker was asked to cancel."""
        return f"{self.prefix}cancel:{worker_id}"

    def control_key(self, worker_id: str) -> str:
        """List on which a worker is told at once that something in its ``cancel_key`` changed."""
        return f"{self.prefix}control:{worker_id}"

    def drain_key(self, pod_uid: str) -> str:
        """While this key exists, no worker of that pod may claim."""
        return f"{self.prefix}drain:{pod_uid}"

    def wake_key(self, queue_name: str) -> str:
        """List of wake-up tokens on which idle workers of a queue block."""
        return f"{self.prefix}wake:{self.queue_key(queue_name)}"

    def waiting_key(self, queue_name: str) -> str:
        """Sorted set of workers blocking on ``wake_key``, scored by the end of their wait in ms."""
        return f"{self.prefix}waiting:{self.queue_key(queue_name)}"

    def events_key(self, job_id: str) -> str:
        """Stream that wakes whoever waits for the completion of a job."""
        return f"{self.prefix}events:job:{job_id}"

    def slots_key(self, scope: str) -> str:
        """Set of the jobs that run under a limit."""
        return f"{self.prefix}slots:{scope}"

    def parked_key(self, scope: str) -> str:
        """Sorted set of jobs that a pause or a limit keeps from starting, scored by when they were due."""
        return f"{self.prefix}parked:{scope}"

    def rate_key(self, scope: str) -> str:
        """The last starts under a rate limit (sorted set), or its bucket (hash); expires."""
        return f"{self.prefix}rate:{scope}"

    def idempotency_key(self, key: str) -> str:
        """Id of the job that an idempotent call made, for as long as its window lasts."""
        return f"{self.prefix}idempotent:{key}"

    def debounce_key(self, key: str) -> str:
        """Id of the waiting job that further calls under this key replace."""
        return f"{self.prefix}debounce:{key}"

    def batch_key(self, batch_id: str) -> str:
        """Hash describing a batch: total, failed, callback, when it ended; expires."""
        return f"{self.prefix}batch:{batch_id}"

    def batch_pending_key(self, batch_id: str) -> str:
        """Set of the jobs of a batch that have not ended; expires."""
        return f"{self.batch_key(batch_id)}:pending"

    def stats_key(self, minute: int) -> str:
        """Hash of what happened in one minute since 1970; expires after a day."""
        return f"{self.prefix}stats:{minute}"

    def decisions_key(self, pool: str) -> str:
        """Stream of the last scaling decisions of a pool (``namespace/name``); expires a week after the last."""
        return f"{self.prefix}pool:{pool}:decisions"

    def cron_table_key(self, group: str) -> str:
        """Hash with the cron table of a group of workers, expiring unless renewed."""
        return f"{self.prefix}cron:table:{group}"

    def last_process_key(self, unique_key: str) -> str:
        """Last processing time of a unique key. 0.7 wrote it without any prefix."""
        own = "" if self.prefix == DEFAULT_PREFIX else self.prefix
        return f"{own}last_process:{unique_key}"

    # Keys that exist once

    @cached_property
    def leases(self) -> str:
        """Sorted set of living workers, scored by the end of their lease in ms of Redis time."""
        return f"{self.prefix}workers:lease"

    @cached_property
    def guard(self) -> str:
        """Hash that remembers the last heartbeat of anyone, to tell a dead fleet from an outage."""
        return f"{self.prefix}guard"

    @cached_property
    def awaited(self) -> str:
        """Set of workers that have not said yet what they hold since Redis came back; gone most of the time."""
        return f"{self.prefix}workers:awaited"

    @cached_property
    def counters(self) -> str:
        """Hash of running totals, kept by the scripts."""
        return f"{self.prefix}counters"

    @cached_property
    def active_queues(self) -> str:
        """Sorted set of recently active queues."""
        return f"{self.prefix}active:queues"

    @cached_property
    def active_workers(self) -> str:
        """Sorted set of recently active workers."""
        return f"{self.prefix}active:workers"

    @cached_property
    def monitor_stream(self) -> str:
        """Stream of monitoring events."""
        return f"{self.prefix}monitor:events"

    @cached_property
    def cron_last(self) -> str:
        """Hash of the last tick at which each cron entry fired anywhere in the fleet."""
        return f"{self.prefix}cron:last"

    @cached_property
    def cron_tables(self) -> str:
        """Sorted set of the groups that have a ``cron_table_key``, scored by its end in ms."""
        return f"{self.prefix}cron:tables"

    @cached_property
    def notify_channel(self) -> str:
        """Channel on which operators and live views hear that a queue has changed."""
        return f"{self.prefix}notify"

    @cached_property
    def pauses(self) -> str:
        """Hash of what is paused or disabled: target (``queue:…``, ``function:…``, ``pool:…``) to JSON."""
        return f"{self.prefix}pauses"

    @cached_property
    def limits(self) -> str:
        """Hash of limits that applications declare: target to JSON."""
        return f"{self.prefix}limits"

    @cached_property
    def limit_overrides(self) -> str:
        """Hash of limits that people have set over those."""
        return f"{self.prefix}limits:override"

    @cached_property
    def parked(self) -> str:
        """Sorted set of the scopes that have a ``parked_key``, scored by when to look at them again in ms."""
        return f"{self.prefix}parked"

    @cached_property
    def recent(self) -> str:
        """List of the last thousand jobs that ended (up to a hundred more), the newest first."""
        return f"{self.prefix}recent"

    @cached_property
    def audit(self) -> str:
        """Stream of what people did to queues, functions and jobs; the last ten thousand entries or so."""
        return f"{self.prefix}audit"

    @cached_property
    def pools(self) -> str:
        """Hash of the pools that an operator sizes: ``namespace/name`` to JSON."""
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
