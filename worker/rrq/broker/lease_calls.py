"""Workers and their leases: heartbeats, reaping, reconciling, leaving, drain flags.

One method per script, which packs its arguments and reads its answer. What a lease, a certificate and a suspect are is
told in docs/architecture.md.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rrq.broker.access import RedisAccess, to_ms
from rrq.broker.messages import (
    Beat,
    BeatReply,
    ClaimedJob,
    DeathCertificate,
    LeaseState,
    ReapReport,
    Reconciliation,
    Renewal,
    WorkerIdentity,
)
from rrq.jobs.codec import decode_all

__all__ = ["LeaseCalls"]

#: Jobs that one sweep gives back before Redis serves other clients again.
_JOBS_PER_REAP = 500


class LeaseCalls(RedisAccess):
    """The atomic steps in the life of a worker."""

    async def renew_leases(self, beats: Iterable[Beat]) -> Renewal:
        """Send the heartbeat of one or many workers."""
        keys, settings = self.keys, self.settings
        args: list[Any] = [
            keys.prefix,
            to_ms(settings.worker_lease_seconds),
            to_ms(settings.lease_renewal_seconds),
            *self._list_dead_letter_arguments(),
            *(settings.worker_crash_limit, settings.worker_lost_limit),
        ]
        for beat in beats:
            args += (
                beat.worker.worker_id,
                beat.worker.incarnation,
                int(beat.is_registration),
                beat.worker.pod_uid,
                beat.capacity,
                json.dumps(beat.health, default=str),
                beat.health_ttl_seconds,
                json.dumps(list(beat.queues)),
                json.dumps(list(beat.functions)) if beat.is_registration else "",
            )

        def read(reply: Any) -> Renewal:
            now_ms, next_end_ms, *replies = reply
            return Renewal(
                now_ms,
                None if next_end_ms < 0 else next_end_ms,
                tuple(
                    BeatReply(LeaseState(state), bool(draining), count, tuple(decode_all(cancel)))
                    for state, draining, count, *cancel in replies
                ),
            )

        script_keys = [
            *(keys.leases, keys.guard, keys.active_workers),
            *(keys.active_queues, keys.monitor_stream, keys.counters),
        ]
        return await self.connection.run("renew_leases", script_keys, args, read=read)

    async def reap_workers(self, certificate: DeathCertificate | None = None) -> ReapReport:
        """Give back the jobs of workers whose lease ended, or of the one that is proven dead."""
        keys, settings = self.keys, self.settings
        args: list[Any] = [
            keys.prefix,
            to_ms(settings.worker_lease_seconds),
            _JOBS_PER_REAP,
            *self._list_dead_letter_arguments(),
            *(settings.worker_crash_limit, settings.worker_lost_limit),
        ]
        if certificate is not None:
            cause = "" if certificate.is_explained else "unknown"
            if certificate.cause is not None:
                cause = json.dumps(certificate.cause)
            args += (certificate.worker.worker_id, certificate.worker.incarnation, cause)

        def read(reply: Any) -> ReapReport:
            returned, buried, workers, more, put_off_ms = reply
            return ReapReport(returned, buried, workers, bool(more), None if put_off_ms < 0 else put_off_ms)

        script_keys = [keys.leases, keys.guard, keys.active_workers, keys.counters]
        return await self.connection.run("reap_workers", script_keys, args, read=read)

    async def reconcile_worker(self, worker: WorkerIdentity, claimed: Sequence[ClaimedJob]) -> Reconciliation:
        """Make Redis and the worker agree on which jobs the worker has claimed."""
        settings = self.settings
        args: list[Any] = [
            *(self.keys.prefix, worker.worker_id, worker.incarnation),
            *(settings.default_job_timeout_seconds, settings.default_lock_timeout_extension_seconds),
            *self._list_dead_letter_arguments(),
        ]
        for job in claimed:
            args += (job.job_id, job.token, job.token_before, job.queue_key, job.due_score)

        def read(reply: Any) -> Reconciliation:
            code, given_back, set_up_again, *lost = reply
            return Reconciliation(code == 0, given_back, set_up_again, frozenset(n - 1 for n in lost))

        return await self.connection.run("reconcile_worker", self._list_keys_of(worker), args, read=read)

    async def deregister_worker(self, worker: WorkerIdentity) -> int:
        """Remove a worker that ends; returns how many jobs it still has."""
        args = [self.keys.prefix, worker.worker_id, worker.incarnation]
        keys = [*self._list_keys_of(worker), self.keys.active_workers]
        return max(0, await self.connection.run("deregister_worker", keys, args, read=int))

    async def shorten_leases(self, worker_ids: Sequence[str]) -> int:
        """Hint that these workers may be gone; a renewal voids it. Returns how many leases became shorter."""
        args = [self.keys.prefix, to_ms(self.settings.lease_renewal_seconds), *worker_ids]
        return await self.connection.run("shorten_leases", [self.keys.leases], args, read=int)

    async def set_drain(self, pod_uid: str, ttl_seconds: float = 30) -> None:
        """Keep the workers of a pod from claiming, until the time is up or the flag is cleared."""
        await self.connection.call("SET", self.keys.drain_key(pod_uid), "1", "PX", to_ms(ttl_seconds))

    async def clear_drain(self, pod_uid: str) -> None:
        """Let the workers of a pod claim again."""
        await self.connection.call("DEL", self.keys.drain_key(pod_uid))

    async def wait_for_control(self, worker_ids: Iterable[str], timeout_seconds: float) -> bool:
        """Block until one of these workers is asked to cancel a job; False when the time is up."""
        lists = [self.keys.control_key(worker_id) for worker_id in worker_ids]
        return await self.connection.wait_on_lists(lists, timeout_seconds)

    def _list_keys_of(self, worker: WorkerIdentity) -> list[str]:
        keys, worker_id = self.keys, worker.worker_id
        return [keys.leases, keys.active_jobs_key(worker_id), keys.worker_key(worker_id)]

    def _list_dead_letter_arguments(self) -> tuple[str, int]:
        """Return the list for jobs that cannot be given back, and for how many seconds it keeps them."""
        settings = self.settings
        return self.keys.dlq_key(settings.default_dlq_name), settings.default_dlq_result_ttl_seconds
