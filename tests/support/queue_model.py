"""What the queue should be: the job state machine in plain Python, without Redis, clock or network.

`ModelQueue` answers each step of the protocol as the scripts should, and says in which one place every job
is. It is written from the promises (a claim locks, an outcome is fenced by its token, a crash is blamed
fairly), not for speed. Who may start at all is in `flow_model`. Workers and leases, which decide when jobs
move by themselves, are in `ModelFleet` in the module `fleet_model`.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from flow_model import ModelFlow
from queue_steps import NewJob
from rrq.broker.messages import CancelCode, CronVerdict, EnqueueCode, Outcome, OutcomeKind, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from rrq.flow import JobFilter

# Expiries are kept on this grid, so that the real time a test takes does not show in them.
GRID_MS = 10_000
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
_UNSTORED_TTL_SECONDS = 86_400
_RESERVED_MS, _MOST_RESERVED_MS = 30_000, 3_600_000
_NEIGHBOURS = 100
_FIRST_DELAY_MS, _LONGEST_DELAY_MS = 1000, 60_000


def on_grid(duration_ms: float) -> int:
    """Round a duration up to the grid."""
    return -int(-duration_ms // GRID_MS) * GRID_MS


@dataclass(frozen=True)
class Rules:
    """The settings that decide anything here."""

    lease_ms: int
    renewal_ms: int
    lock_ms: int
    health_ms: int
    unique_seconds: int
    dead_letter_seconds: int
    crash_limit: int
    lost_limit: int


@dataclass
class ModelJob:
    """One job id in its present life; enqueueing the id again begins another."""

    life: int
    token: str
    home: str
    function: str = ""
    key: str = ""
    """What tells it apart from others of its function, for a limit per key."""
    status: str = "PENDING"
    queued_in: str | None = None
    parked_in: str | None = None
    """The scope that it waits for, out of its queue."""
    slots: list[str] = field(default_factory=list)
    chain: list[NewJob] = field(default_factory=list)
    batch: str = ""
    due_ms: float = 0
    retries: int = 0
    result_ttl_seconds: int = 0
    unique_key: str = ""
    owner: str | None = None
    claimed_from: str | None = None
    claimed_due_ms: float | None = None
    is_to_be_cancelled: bool = False
    suspicion: str = ""
    """Why it runs alone: crashes ("1") or losses of its worker ("lost")."""
    crashes: int = 0
    losses: int = 0
    unknown_since_ms: int | None = None
    """When it first met a worker without its function."""
    reserved_by: str = ""
    reserved_until_ms: int = 0
    reserved_since_ms: int = 0
    expires_ms: int | None = None

    @property
    def is_suspect(self) -> bool:
        return bool(self.suspicion)

    def is_waiting(self) -> bool:
        return self.queued_in is not None or self.parked_in is not None

    def place(self) -> str:
        """The one place where this life is."""
        if self.queued_in is not None:
            return f"queued in {self.queued_in}"
        if self.parked_in is not None:
            return f"parked in {self.parked_in}"
        return f"held by {self.owner}" if self.status == "ACTIVE" else self.status


@dataclass
class Expiring:
    """A value that goes by itself."""

    value: str
    expires_ms: int


@dataclass
class Place(Expiring):
    """The place for suspects of a pod; the value is the token of the attempt that took it last."""

    had_company: bool = False


@dataclass
class ModelBatch:
    """Jobs whose common end queues another one."""

    callback: NewJob
    token: str
    pending: set[str] = field(default_factory=set)
    failed: int = 0
    is_open: bool = True
    has_ended: bool = False


@dataclass
class Claiming:
    """One claim, while it is answered."""

    worker_id: str
    token_base: str
    wanted: int
    is_named: bool
    due_after_ms: float
    pod_uid: str
    taken: list[str] = field(default_factory=list)

    def is_full(self) -> bool:
        return len(self.taken) >= self.wanted


@dataclass(kw_only=True)
class ModelQueue(ModelFlow):
    """Jobs, queues, locks and dead letters, and the steps that change them."""

    rules: Rules
    held: dict[str, set[str]] = field(default_factory=dict)
    """What each worker has down as in hand, also of a life that is over."""
    locks: dict[str, Expiring] = field(default_factory=dict)
    unique_locks: dict[str, Expiring] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    """By pod, which suspect one of its processes has claimed last."""
    dead_letters: list[str] = field(default_factory=list)
    """Oldest first. An id enqueued again leaves its entry behind."""
    batches: dict[str, ModelBatch] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    cron_ticks: dict[str, int] = field(default_factory=dict)
    cron_seen: dict[str, int] = field(default_factory=dict)
    """When an entry was first seen; its first tick takes the place of that."""
    make_room_for: list[str] = field(default_factory=list)
    """Suspects that the worker of the last claim is to come back for with empty hands."""
    lives: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """Lives by how they ended, `replaced` for an id that was enqueued again before its end."""

    def copy(self) -> Self:
        return deepcopy(self)

    def pass_time(self, milliseconds: int) -> None:
        """Move the clock, either way, and drop what has expired."""
        self.now_ms += milliseconds
        expiring: dict[str, Any]
        for expiring in (self.locks, self.unique_locks, self.places):
            for key in [key for key, entry in expiring.items() if entry.expires_ms <= self.now_ms]:
                del expiring[key]
        for job_id, job in list(self.jobs.items()):
            if job.expires_ms is not None and job.expires_ms <= self.now_ms:
                del self.jobs[job_id]

    def queue(self, name: str) -> dict[str, float]:
        """The ids in a queue with their due times."""
        return {job_id: job.due_ms for job_id, job in self.jobs.items() if job.queued_in == name}

    # Producers

    def produce(self, new: NewJob, token: str) -> float:
        """As a producer asks for it: refused for a function that takes no new jobs."""
        return EnqueueCode.DISABLED if self.is_disabled(new.function_name) else self.enqueue(new, token)

    def enqueue(self, new: NewJob, token: str) -> float:
        """Begin a new life of an id; returns when it is due."""
        due_ms = self.now_ms if not new.due else float(new.due[1:])
        if new.due.startswith("+"):
            due_ms += self.now_ms
        if new.unique_key:
            due_ms = self._due_behind_unique(new, due_ms)
        before = self.jobs.get(new.job_id)
        if before is not None and before.status not in ENDED:
            self.ended["replaced"] += 1
        self.lives += 1
        options = json.loads(new.options or "{}")
        job = self.jobs[new.job_id] = ModelJob(
            self.lives,
            token,
            new.queue_name,
            function=new.function_name,
            key=json.loads(new.kwargs_json).get("tenant", ""),
            queued_in=new.queue_name,
            due_ms=due_ms,
            result_ttl_seconds=int(new.result_ttl_seconds),
            unique_key=new.unique_key,
            chain=[parse_kept_job(kept) for kept in options.get("next", ())],
            batch=options.get("batch_id", ""),
        )
        if before is not None:
            if before.unique_key != job.unique_key:
                self._release_unique(new.job_id, before.unique_key)
            if before.batch != job.batch:
                self._leave_batch(new.job_id, before.batch, has_failed=True)
            if before.slots:
                self.free_up(new.job_id, before.slots)
                self.let_others_in()
        if job.batch:
            self.batches[job.batch].pending.add(new.job_id)
        return due_ms

    def _due_behind_unique(self, new: NewJob, due_ms: float) -> float:
        lock = self.unique_locks.get(new.unique_key)
        if lock is None:
            seconds = max(self.rules.unique_seconds, int((due_ms - self.now_ms) // 1000) + 1)
            self.unique_locks[new.unique_key] = Expiring(new.job_id, self.now_ms + on_grid(seconds * 1000))
            return due_ms
        return due_ms if lock.value == new.job_id else max(due_ms, lock.expires_ms)

    def note_cron_entry(self, digest: str) -> int:
        if digest in self.cron_ticks:
            return self.cron_ticks[digest]
        return self.cron_seen.setdefault(digest, self.now_ms)

    def fire_cron(self, digest: str, tick_ms: int, new: NewJob, token: str) -> CronVerdict:
        if tick_ms <= self.cron_ticks.get(digest, -1):
            return CronVerdict.ALREADY_FIRED
        if tick_ms > self.now_ms:
            return CronVerdict.AHEAD
        self.cron_ticks[digest] = tick_ms
        if new.unique_key in self.unique_locks:
            return CronVerdict.LOCKED
        if self.is_disabled(new.function_name):
            return CronVerdict.DISABLED
        self.enqueue(new, token)
        return CronVerdict.FIRED

    def cancel(self, job_id: str) -> CancelCode:
        job = self.jobs.get(job_id)
        if job is None:
            return CancelCode.NOT_FOUND
        if job.is_waiting():
            self._cancel_waiting(job_id)
            return CancelCode.CANCELLED
        if job.status == "ACTIVE":
            job.is_to_be_cancelled = True
            return CancelCode.TOLD
        return CancelCode.ENDED

    def _cancel_waiting(self, job_id: str) -> None:
        job = self.jobs[job_id]
        job.queued_in = job.parked_in = None
        job.token += ".cancelled"
        self._end(job_id, "CANCELLED", job.result_ttl_seconds)

    def cancel_where(self, chosen: JobFilter) -> int:
        """Cancel what waits for a queue, in it or parked."""
        fitting = [
            job_id
            for job_id, job in self.jobs.items()
            if chosen.function in (None, job.function)
            and (job.queued_in or (job.parked_in and job.claimed_from)) == chosen.queue
        ]
        for job_id in fitting:
            self._cancel_waiting(job_id)
        return len(fitting)

    def delete_dead_letter(self, job_id: str) -> int:
        if job_id not in self.dead_letters:
            return 0
        self.dead_letters.remove(job_id)
        if job_id in self.jobs and self.jobs[job_id].status == "FAILED":
            del self.jobs[job_id]
        return 1

    def edit_dead_letter(self, job_id: str, key: str) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.status != "FAILED" or job_id not in self.dead_letters:
            return False
        job.key = key
        return True

    def requeue_dead_letters(self, queue: str, most: int) -> int:
        """Give up to `most` dead jobs a fresh start, oldest first; an id with a newer life is none."""
        queued = taken = 0
        while queued < most and taken < most and self.dead_letters:
            job_id = self.dead_letters.pop(0)
            taken += 1
            job = self.jobs.get(job_id)
            if job is not None and job.status == "FAILED":
                self.lives += 1
                self.jobs[job_id] = ModelJob(
                    self.lives,
                    job.token + ".requeued",
                    queue,
                    function=job.function,
                    key=job.key,
                    chain=job.chain,
                    batch=job.batch,
                    queued_in=queue,
                    due_ms=self.now_ms,
                    result_ttl_seconds=job.result_ttl_seconds,
                    unique_key=job.unique_key,
                )
                queued += 1
        return queued

    # Batches

    def close_batch(self, batch_id: str) -> int:
        """All are queued; returns how many have not ended."""
        batch = self.batches[batch_id]
        batch.is_open = False
        self._end_batch(batch)
        return len(batch.pending)

    def _leave_batch(self, job_id: str, batch_id: str, *, has_failed: bool) -> None:
        batch = self.batches.get(batch_id)
        if batch is not None and job_id in batch.pending:
            batch.pending.remove(job_id)
            batch.failed += has_failed
            self._end_batch(batch)

    def _end_batch(self, batch: ModelBatch) -> None:
        if not (batch.pending or batch.is_open or batch.has_ended):
            batch.has_ended = True
            self.enqueue(batch.callback, batch.token)

    # Claiming

    def take(
        self,
        worker_id: str,
        token_base: str,
        queues: Iterable[str],
        count: int,
        only: Sequence[str] = (),
        due_after_ms: float = -inf,
        pod_uid: str = "",
    ) -> list[str]:
        """Hand jobs to a worker, those due or those named, as far as pauses and limits let them start."""
        claiming = Claiming(worker_id, token_base, count, bool(only), due_after_ms, pod_uid)
        self.make_room_for = []
        self.admit_parked()
        for name in queues:
            if only:
                for job_id in only:
                    if self.queue_room(name) > len(claiming.taken) and job_id in self.queue(name):
                        self._try_to_take(claiming, job_id, name)
            elif (room := self.queue_room(name)) > 0:
                if not claiming.is_full():
                    self._take_due(claiming, name, room)
                if claiming.is_full():
                    break
        return claiming.taken

    def _take_due(self, claiming: Claiming, name: str, room: float) -> None:
        """Go through a queue page by page: who is let in on the way may come to stand before what was seen."""
        most, left = len(claiming.taken) + room, 0
        is_over = False
        while not is_over and len(claiming.taken) < min(claiming.wanted, most):
            size = int(min(claiming.wanted, most)) - len(claiming.taken)
            page = list(islice(self.due_in(name, claiming.due_after_ms), left, left + size))
            is_over = len(page) < size
            for job_id in page:
                if len(claiming.taken) >= min(claiming.wanted, most):
                    break
                verdict = self._try_to_take(claiming, job_id, name)
                left += verdict == "left"
                is_over = is_over and verdict != "passed on"
        if self.make_room_for:
            for neighbour in list(islice(self.due_in(name, claiming.due_after_ms), left, left + _NEIGHBOURS)):
                if self.jobs[neighbour].is_suspect:
                    self._reserve(neighbour, claiming.worker_id)

    def _try_to_take(self, claiming: Claiming, job_id: str, name: str) -> str:
        """Park a job, leave it, or lock it first and take it; suspects go only to empty hands."""
        job, worker_id = self.jobs[job_id], claiming.worker_id
        if claiming.is_full():
            return "left"
        blocked = self.blocked_by(job)
        if blocked is not None:
            return "passed on" if self.park(job_id, name, *blocked) else "parked"
        if job.is_suspect and (job.due_ms > self.now_ms or self._is_place_taken(claiming.pod_uid, worker_id)):
            return "left"
        if job.is_suspect and (claiming.taken or self.held.get(worker_id)):
            if claiming.is_named:
                self.make_room_for.append(job_id)
            elif self._reserve(job_id, worker_id):
                claiming.wanted = len(claiming.taken)
            return "left"
        if job_id in self.locks and not self.is_stale(self.locks[job_id].value, job_id):
            return "left"
        claiming.taken.append(job_id)
        self.note_start(job.function)
        self.hold(job_id, worker_id, f"{claiming.token_base}.{len(claiming.taken)}", name, job.due_ms)
        if job.is_suspect:
            self.places[claiming.pod_uid] = Place(job.token, self.now_ms + self.rules.lock_ms)
            job.reserved_by, job.reserved_until_ms, job.reserved_since_ms = "", 0, 0
            claiming.wanted = len(claiming.taken)
        return "taken"

    def is_stale(self, holder: str, job_id: str) -> bool:
        """Whether a lock may be taken over; what a holder still shows of itself, the fleet knows."""
        return job_id not in self.held.get(holder, ())

    def _is_place_taken(self, pod_uid: str, worker_id: str) -> bool:
        """Whether another worker of the pod runs a suspect."""
        place = self.places.get(pod_uid)
        return place is not None and any(
            job.status == "ACTIVE" and job.token == place.value and job.owner != worker_id
            for job in self.jobs.values()
        )

    def pod_of(self, worker_id: str) -> str:
        """The pod that a worker is registered for; the fleet knows."""
        raise NotImplementedError

    def has_busy_neighbour(self, worker_id: str) -> bool:
        """Whether another worker of the same pod, alive or not reaped yet, has jobs in hand; the fleet knows."""
        raise NotImplementedError

    def has_lease(self, worker_id: str) -> bool:
        """Whether a worker counts as alive; the fleet knows."""
        raise NotImplementedError

    def _reserve(self, job_id: str, worker_id: str) -> bool:
        """Ask a busy worker to come back for a suspect, unless another was asked to and still has time."""
        job = self.jobs[job_id]
        is_chain = job.reserved_by and job.reserved_since_ms <= self.now_ms
        since_ms = job.reserved_since_ms if is_chain else self.now_ms
        patience_ms = max(_RESERVED_MS, min(self.now_ms - since_ms, _MOST_RESERVED_MS))
        is_reserved = (
            self.now_ms < job.reserved_until_ms <= self.now_ms + patience_ms
            and job.reserved_by
            and self.has_lease(job.reserved_by)
        )
        if is_reserved and job.reserved_by != worker_id:
            return False
        if not is_reserved:
            job.reserved_by = worker_id
            job.reserved_until_ms, job.reserved_since_ms = self.now_ms + patience_ms, since_ms
        self.make_room_for.append(job_id)
        return True

    def hold(self, job_id: str, worker_id: str, token: str, queue: str, due_ms: float) -> None:
        """Take a queued job in hand."""
        job = self.jobs[job_id]
        self.locks[job_id] = Expiring(worker_id, self.now_ms + self.rules.lock_ms)
        self.held.setdefault(worker_id, set()).add(job_id)
        job.status, job.queued_in, job.parked_in = "ACTIVE", None, None
        job.owner, job.token = worker_id, token
        job.claimed_from, job.claimed_due_ms = queue, due_ms
        self.occupy(job_id, queue)

    # Outcomes

    def finish(self, worker_id: str, outcomes: Iterable[Outcome]) -> list[Verdict]:
        """Store outcomes, each if its attempt still owns the job; then others may come into the free places."""
        verdicts = [self._finish_one(worker_id, outcome) for outcome in outcomes]
        self.let_others_in()
        return verdicts

    def _finish_one(self, worker_id: str, outcome: Outcome) -> Verdict:
        job_id = _text(outcome.job_id)
        job = self.jobs.get(job_id)
        if job is not None and job.token == outcome.token + ".over":
            return Verdict.ALREADY_APPLIED
        if job is None or job.token != outcome.token or job.is_waiting():
            # Waiting under its own token: an engine without tokens has put it back.
            if job is None or job.status != "ACTIVE" or job.owner != worker_id:
                self.let_go(worker_id, job_id)
            return Verdict.FENCED
        if outcome.kind is OutcomeKind.BACK:
            was_given_back = self.give_back(job_id, worker_id)
            return Verdict.STORED if was_given_back else Verdict.CANCELLED_INSTEAD
        if outcome.kind is OutcomeKind.UNKNOWN_FUNCTION:
            was_put_off = self._put_off(job_id, worker_id, outcome.number)
            return Verdict.STORED if was_put_off else Verdict.CANCELLED_INSTEAD
        self.let_go(worker_id, job_id)
        self._free_slots_of(job_id)
        kind, ttl_seconds = outcome.kind, int(outcome.number)
        if job.is_to_be_cancelled and kind is not OutcomeKind.CANCELLED:
            ttl_seconds = ttl_seconds if kind is OutcomeKind.DONE else _UNSTORED_TTL_SECONDS
            kind = OutcomeKind.CANCELLED
        job.token += ".over"
        self.counters[kind.value] += 1
        match kind:
            case OutcomeKind.DONE:
                self._end(job_id, "COMPLETED", ttl_seconds)
                self._follow_up(job, outcome.token)
            case OutcomeKind.CANCELLED:
                self._end(job_id, "CANCELLED", ttl_seconds)
            case OutcomeKind.DEAD:
                job.retries += 1
                self._bury(job_id, ttl_seconds)
            case OutcomeKind.RETRY:
                self.queue_retry(job_id, outcome.key, self.now_ms + outcome.number)
                job.owner = job.claimed_from = job.claimed_due_ms = None
        return Verdict.STORED if kind is outcome.kind else Verdict.CANCELLED_INSTEAD

    def _put_off(self, job_id: str, worker_id: str, jitter: float) -> bool:
        """Give a job back for later: by a quarter of the time that it has waited for a worker with its function."""
        since_ms = self.jobs[job_id].unknown_since_ms if job_id in self.jobs else None
        if not self.give_back(job_id, worker_id):
            return False
        job = self.jobs[job_id]
        job.unknown_since_ms = self.now_ms if since_ms is None or since_ms > self.now_ms else since_ms
        waited_ms = self.now_ms - job.unknown_since_ms
        job.due_ms = self.now_ms + int(max(_FIRST_DELAY_MS, min(waited_ms / 4, _LONGEST_DELAY_MS)) * jitter)
        return True

    def _follow_up(self, job: ModelJob, token: str) -> None:
        if job.chain:
            follower, *rest = job.chain
            job.chain = []
            self.enqueue(follower, token + ".next")
            self.jobs[follower.job_id].chain = rest

    def _free_slots_of(self, job_id: str) -> None:
        job = self.jobs[job_id]
        self.free_up(job_id, job.slots)
        job.slots = []

    def retry_without_token(self, job_id: str, queue: str, due_ms: float) -> None:
        """As engines do that know no tokens: queued again, while whoever ran it still has it down."""
        self._free_slots_of(job_id)
        self.let_others_in()
        self.queue_retry(job_id, queue, due_ms)

    def queue_retry(self, job_id: str, queue: str, due_ms: float) -> None:
        job = self.jobs[job_id]
        job.retries += 1
        if job.losses and job.suspicion == "lost":
            job.suspicion = ""
        job.losses, job.unknown_since_ms = 0, None
        job.status, job.queued_in, job.due_ms, job.expires_ms = "RETRYING", queue, due_ms, None

    def give_back(self, job_id: str, worker_id: str, *, blame: str = "", was_alone: bool = False) -> bool:
        """Make a held job due again where and when it was, uncounted; tells whether it is.

        `blame`: for a "crash", for a "loss" of its worker, or for nothing.
        """
        self.held.get(worker_id, set()).discard(job_id)
        job, lock = self.jobs.get(job_id), self.locks.get(job_id)
        if lock is not None and lock.value != worker_id:
            return False
        self.locks.pop(job_id, None)
        if job is None or job.owner != worker_id or job.status in ENDED or job.is_waiting():
            return False
        self._free_slots_of(job_id)
        due_ms = self.now_ms if job.claimed_due_ms is None else job.claimed_due_ms
        place = self.places.get(self.pod_of(worker_id))
        if place is not None and place.value != job.token:
            place.had_company |= blame == "loss" and self._is_place_taken(self.pod_of(worker_id), worker_id)
            place = None
        job.token += ".back"
        job.owner = job.claimed_due_ms = None
        if job.is_to_be_cancelled:
            self._end(job_id, "CANCELLED", job.result_ttl_seconds)
            return False
        was_alone = was_alone and (place is not None or not job.is_suspect)
        had_company = place is None or place.had_company or self.has_busy_neighbour(worker_id)
        if self._is_guilty(job, blame, was_alone=was_alone, had_company=had_company):
            self.counters["dead"] += 1
            self._bury(job_id, self.rules.dead_letter_seconds)
            return False
        job.status, job.queued_in, job.due_ms = "PENDING", job.claimed_from or job.home, due_ms
        job.unknown_since_ms = None
        return True

    def _is_guilty(self, job: ModelJob, blame: str, *, was_alone: bool, had_company: bool) -> bool:
        if blame == "crash":
            job.suspicion = "1"
            job.crashes += was_alone
            return was_alone and job.crashes >= self.rules.crash_limit
        if blame == "loss":
            job.losses += 1
            if job.losses >= self.rules.lost_limit:
                job.suspicion = job.suspicion or "lost"
            return was_alone and job.losses > self.rules.lost_limit * (2 if had_company else 1)
        return False

    def let_go(self, worker_id: str, job_id: str) -> None:
        """Drop what a worker holds of a job: its entry, and the lock if it is the worker's."""
        self.held.get(worker_id, set()).discard(job_id)
        lock = self.locks.get(job_id)
        if lock is not None and lock.value == worker_id:
            del self.locks[job_id]

    def _bury(self, job_id: str, ttl_seconds: int) -> None:
        self.dead_letters.append(job_id)
        self.drop_expired_letters(2)
        self._end(job_id, "FAILED", ttl_seconds)

    def drop_expired_letters(self, most: int) -> None:
        """Drop so many of the oldest entries, as far as their jobs have expired."""
        while most and self.dead_letters and self.dead_letters[0] not in self.jobs:
            self.dead_letters.pop(0)
            most -= 1

    def _end(self, job_id: str, status: str, ttl_seconds: int) -> None:
        job = self.jobs[job_id]
        job.status, job.expires_ms = status, self.now_ms + ttl_seconds * 1000
        self.ended[status] += 1
        self._release_unique(job_id, job.unique_key)
        self._leave_batch(job_id, job.batch, has_failed=status != "COMPLETED")

    def _release_unique(self, job_id: str, unique_key: str) -> None:
        lock = self.unique_locks.get(unique_key)
        if lock is not None and lock.value == job_id:
            del self.unique_locks[unique_key]


def parse_kept_job(kept: Sequence[str]) -> NewJob:
    """The job that `keep_job` made this of."""
    return NewJob(*kept[:4], *kept[5:14])  # type: ignore[arg-type]  # numbers are text there, and read as such


def _text(job_id: str | bytes) -> str:
    return job_id.decode() if isinstance(job_id, bytes) else job_id
