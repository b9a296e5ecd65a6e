"""What a fleet should be: leases, drains, the outage guard and death, on top of `queue_model`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from queue_model import Expiring, ModelQueue
from rrq.broker.messages import ClaimCode, LeaseState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rrq.broker.messages import ClaimedJob, WorkerIdentity


_ENDED = ("COMPLETED", "FAILED", "CANCELLED")
_LONGEST_WAIT_MS = 3_600_000
_SWEEPS_PAUSE_MS = 3_000


@dataclass
class Guard:
    """What the fleet remembers to tell its own death from an outage of Redis."""

    server: int | None = None
    """Which start of the server the last beat came to."""
    last_beat_ms: int | None = None
    reap_not_before_ms: int = 0
    claim_not_before_ms: int = 0
    restarted_ms: int | None = None
    """What was not due by then nobody can hold; None where the clock was set back as well."""
    awaited: set[str] = field(default_factory=set)
    """Workers that have not said yet what they hold since Redis came back."""
    awaited_until_ms: int = 0
    silent_since_ms: int | None = None
    """The last beat before the silence for which reaping was put off; 0 when nobody had ever beaten."""
    last_sweep_ms: int = 0


@dataclass(kw_only=True)
class ModelFleet(ModelQueue):
    """The queue with the workers that serve it."""

    server: int = 1
    leases: dict[str, int] = field(default_factory=dict)
    """When the lease of each worker ends; one that ended stays until somebody reaps."""
    records: dict[str, Expiring] = field(default_factory=dict)
    """The incarnation that is registered under each worker id."""
    health: dict[str, Expiring] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    """When the lease of a worker was to end, by somebody who knew why."""
    pods: dict[str, str] = field(default_factory=dict)
    drains: dict[str, Expiring] = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)

    def pass_time(self, milliseconds: int) -> None:
        super().pass_time(milliseconds)
        for expiring in (self.records, self.health, self.drains):
            for key in [key for key, entry in expiring.items() if entry.expires_ms <= self.now_ms]:
                del expiring[key]
        self._forget_announced()
        if self.guard.awaited_until_ms <= self.now_ms:
            self.guard.awaited.clear()

    def _forget_announced(self) -> None:
        """What was announced is written into the record of the worker."""
        self.announced = {worker: ends for worker, ends in self.announced.items() if worker in self.records}

    def _announce(self, worker_id: str) -> None:
        if worker_id in self.records and worker_id in self.leases:
            self.announced[worker_id] = self.leases[worker_id]

    def is_registered(self, worker: WorkerIdentity) -> bool:
        record = self.records.get(worker.worker_id)
        return record is not None and record.value == worker.incarnation

    def is_alive(self, worker: WorkerIdentity) -> bool:
        """Whether this process may still believe that its jobs are its own."""
        return self.is_registered(worker) and self.leases.get(worker.worker_id, 0) > self.now_ms

    def has_lease(self, worker_id: str) -> bool:
        return self.leases.get(worker_id, 0) > self.now_ms

    def pod_of(self, worker_id: str) -> str:
        return self.pods[worker_id] if worker_id in self.records else ""

    def has_busy_neighbour(self, worker_id: str) -> bool:
        pod_uid = self.pod_of(worker_id)
        return any(
            other != worker_id and self.pod_of(other) == pod_uid and self.held.get(other)
            for other in self.leases
        )

    def count_orphans(self) -> Counter[str | None]:
        """Return how many jobs of each queue are in hand of workers whose lease has ended."""
        held = [
            (worker_id, self.jobs.get(job_id))
            for worker_id, ends_ms in self.leases.items()
            if ends_ms <= self.now_ms
            for job_id in self.held.get(worker_id, ())
        ]
        return Counter(
            job.claimed_from
            for worker_id, job in held
            if job is not None and job.owner == worker_id and job.status not in _ENDED
        )

    def set_drain(self, pod_uid: str, seconds: int) -> None:
        self.drains[pod_uid] = Expiring("1", self.now_ms + seconds * 1000)

    # Signs of life

    def beat(self, worker: WorkerIdentity, *, is_registration: bool = False) -> LeaseState:
        """Renew a lease, or take one for a new process."""
        self._watch_for_outage()
        self.drop_expired_letters(100)
        worker_id = worker.worker_id
        if is_registration:
            if not self._register(worker):
                return LeaseState.TAKEN
        elif not self.is_registered(worker) or worker_id not in self.leases:
            return LeaseState.REAPED
        self.leases[worker_id] = self.now_ms + self.rules.lease_ms
        self.pods[worker_id] = worker.pod_uid
        self.records[worker_id] = Expiring(worker.incarnation, self.now_ms + 20 * self.rules.lease_ms)
        self.health[worker_id] = Expiring("", self.now_ms + self.rules.health_ms)
        return LeaseState.ALIVE

    def _watch_for_outage(self) -> None:
        guard = self.guard
        self._follow_clock()
        has_restarted = guard.server is not None and guard.server != self.server
        if has_restarted:
            self._put_off_reaping()
        else:
            self._wait_out_silence()
        if has_restarted or (self._beats_have_stopped() and self._fell_silent_while_waiting()):
            self._await_owners()
        if guard.reap_not_before_ms > self.now_ms + max(self.rules.lease_ms, _LONGEST_WAIT_MS):
            # A sweep put it off before the clock was set back, to later than any beat.
            self._put_off_reaping()
        guard.last_beat_ms, guard.server = self.now_ms, self.server

    def _put_off_reaping(self) -> None:
        self.guard.reap_not_before_ms = self.now_ms + self.rules.lease_ms
        self.guard.silent_since_ms = self.guard.last_beat_ms or 0

    def _wait_out_silence(self) -> None:
        """Give the living one lease to renew, once for each silence that is swept all along."""
        guard = self.guard
        is_waited_out = (
            guard.silent_since_ms == (guard.last_beat_ms or 0)
            and 0 <= self.now_ms - guard.last_sweep_ms <= max(self.rules.lease_ms, _SWEEPS_PAUSE_MS)
            and guard.reap_not_before_ms <= self.now_ms + max(self.rules.lease_ms, _LONGEST_WAIT_MS)
        )
        if self._beats_have_stopped() and not is_waited_out:
            self._put_off_reaping()

    def _fell_silent_while_waiting(self) -> bool:
        guard = self.guard
        return guard.last_beat_ms is not None and guard.claim_not_before_ms > guard.last_beat_ms

    def _await_owners(self) -> None:
        """Nobody claims what was due before those who may hold it have told so, or two renewals later."""
        guard = self.guard
        guard.awaited = set(self.leases)
        if guard.awaited:
            guard.claim_not_before_ms = guard.awaited_until_ms = self.now_ms + 2 * self.rules.renewal_ms
            was_set_back = guard.last_beat_ms is not None and guard.last_beat_ms > self.now_ms
            guard.restarted_ms = None if was_set_back else self.now_ms

    def _await_no_more(self, worker_id: str) -> None:
        guard = self.guard
        if worker_id in guard.awaited:
            guard.awaited.discard(worker_id)
            if not guard.awaited:
                guard.claim_not_before_ms = 0
                guard.restarted_ms = None

    def _follow_clock(self) -> None:
        """A clock that was set back takes with it when leases end, parked jobs are looked at, and waiting is over."""
        guard = self.guard
        set_back_ms = (guard.last_beat_ms or self.now_ms) - self.now_ms
        if set_back_ms > 0:
            self.leases = {worker: ends_ms - set_back_ms for worker, ends_ms in self.leases.items()}
            self.looks = {scope: look_ms - set_back_ms for scope, look_ms in self.looks.items()}
            if guard.claim_not_before_ms > self.now_ms:
                guard.claim_not_before_ms -= set_back_ms

    def _beats_have_stopped(self) -> bool:
        if self.guard.last_beat_ms is None:
            return True
        return not 0 <= self.now_ms - self.guard.last_beat_ms <= self.rules.lease_ms / 2

    def _register(self, worker: WorkerIdentity) -> bool:
        worker_id = worker.worker_id
        if not self.is_registered(worker):
            if worker_id in self.records and self.leases.get(worker_id, 0) > self.now_ms:
                return False
            for job_id in list(self.held.get(worker_id, ())):
                self.give_back(job_id, worker_id)
            self.let_others_in()
        return True

    def deregister(self, worker: WorkerIdentity) -> int:
        """Say goodbye; returns how many jobs are still in hand, for which the lease stays."""
        worker_id = worker.worker_id
        if worker_id in self.records and not self.is_registered(worker):
            return 0
        self.health.pop(worker_id, None)
        in_hand = len(self.held.get(worker_id, ()))
        if in_hand:
            self._announce(worker_id)
        else:
            self.leases.pop(worker_id, None)
            self.records.pop(worker_id, None)
            self._forget_announced()
            self._await_no_more(worker_id)
        return in_hand

    def shorten(self, worker_ids: Sequence[str]) -> int:
        ends_ms = self.now_ms + self.rules.renewal_ms
        found = [worker_id for worker_id in worker_ids if self.leases.get(worker_id, 0) > ends_ms]
        self.leases.update(dict.fromkeys(found, ends_ms))
        for worker_id in worker_ids:
            self._announce(worker_id)
        return len(found)

    # Claims

    def claim(
        self,
        worker: WorkerIdentity,
        token_base: str,
        queues: Sequence[str],
        count: int,
        only: Sequence[str] = (),
    ) -> tuple[ClaimCode, list[str]]:
        """Answer a claim; refused without a living lease or in a draining pod.

        Just after a restart only what has fallen due since is given.
        """
        self.make_room_for = []
        if not self.is_alive(worker):
            return ClaimCode.LEASE_LOST, []
        if worker.pod_uid in self.drains:
            return ClaimCode.DRAINING, []
        if self.now_ms < self.guard.claim_not_before_ms:
            if only or self.is_controlled() or self.guard.restarted_ms is None:
                return ClaimCode.TOO_EARLY, []
            due_after_ms = self.guard.restarted_ms
            return ClaimCode.TOO_EARLY, self.take(
                worker.worker_id, token_base, queues, count, due_after_ms=due_after_ms, pod_uid=worker.pod_uid
            )
        taken = self.take(worker.worker_id, token_base, queues, count, only, pod_uid=worker.pod_uid)
        return ClaimCode.ANSWERED, taken

    def is_stale(self, holder: str, job_id: str) -> bool:
        return holder not in self.leases and holder not in self.health and super().is_stale(holder, job_id)

    def reconcile(self, worker: WorkerIdentity, held: Sequence[ClaimedJob]) -> frozenset[int] | None:
        """Agree on what a worker holds; positions of what it holds no more, or None without a lease."""
        worker_id = worker.worker_id
        if worker_id not in self.leases or not self.is_registered(worker):
            return None
        known, lost = set(), set()
        in_hand: dict[str, str] = {}
        for position, claimed in enumerate(held):
            job_id = claimed.job_id.decode()
            job = self.jobs.get(job_id)
            if job is not None and job.token in (claimed.token, claimed.token + ".over"):
                known.add(job_id)
                if job.token == claimed.token and (job.status, job.owner) == ("ACTIVE", worker_id):
                    in_hand[job_id] = claimed.token
            elif job is not None and claimed.token_before.decode() == f"{in_hand.get(job_id)}.over":
                # Redis has forgotten that the attempt before this one failed.
                job.retries += 1
                job.token = in_hand[job_id] = claimed.token
                job.claimed_from, job.claimed_due_ms = claimed.queue_key, float(claimed.due_score)
            elif (
                job is not None
                and job.token == claimed.token_before.decode()
                and claimed.queue_key in (job.queued_in, job.parked_in and job.claimed_from)
                and job.due_ms == float(claimed.due_score)
                and job_id not in self.locks
            ):
                # Redis has forgotten the claim.
                self.hold(job_id, worker_id, claimed.token, claimed.queue_key, float(claimed.due_score))
                known.add(job_id)
                in_hand[job_id] = claimed.token
            else:
                lost.add(position)
        for job_id in self.held.get(worker_id, set()) - known:
            self.give_back(job_id, worker_id)
        self.let_others_in()
        self._await_no_more(worker_id)
        return frozenset(lost)

    # Death

    def certify_death(self, worker: WorkerIdentity, *, is_crash: bool) -> int:
        """Reap a process that is proven dead; returns how many jobs are due again."""
        blame = "crash" if is_crash else ""
        returned = self._reap(worker.worker_id, blame) if self.is_registered(worker) else 0
        self.let_others_in()
        return returned

    def sweep(self) -> int:
        """Reap whose lease has ended, unless Redis was away; returns how many jobs are due again."""
        self._wait_out_silence()
        self.guard.last_sweep_ms = self.now_ms
        if self.now_ms < self.guard.reap_not_before_ms:
            return 0
        ended = sorted(
            (ends_ms, worker_id) for worker_id, ends_ms in self.leases.items() if ends_ms <= self.now_ms
        )
        returned = sum(
            self._reap(worker_id, "" if self._is_end_explained(worker_id) else "loss")
            for _, worker_id in ended
        )
        self.let_others_in()
        return returned

    def _is_end_explained(self, worker_id: str) -> bool:
        """Whether it was announced and not taken back by a renewal, or the pod was to claim no more."""
        if worker_id not in self.records:
            return False
        return self.announced.get(worker_id) == self.leases[worker_id] or self.pods[worker_id] in self.drains

    def _reap(self, worker_id: str, blame: str) -> int:
        in_hand = list(self.held.get(worker_id, ()))
        returned = sum(
            self.give_back(job_id, worker_id, blame=blame, was_alone=len(in_hand) == 1) for job_id in in_hand
        )
        for book in (self.leases, self.records, self.health):
            book.pop(worker_id, None)
        self._forget_announced()
        self._await_no_more(worker_id)
        self.counters["reaped"] += returned
        return returned
