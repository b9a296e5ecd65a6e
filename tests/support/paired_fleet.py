"""What worker processes do, taken twice as in `paired_queue`, and what happens to them and to Redis."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import queue_steps
from paired_queue import DEAD_LETTER_SECONDS, PODS, QUEUES, RESULT_SECONDS, RULES, PairedQueue, Wish
from queue_reading import find_overruns, read_rows
from queue_steps import SteppedWorker
from rrq.broker.messages import (
    ClaimCode,
    ClaimedJob,
    DeathCertificate,
    LeaseState,
    Outcome,
    OutcomeKind,
    Verdict,
)
from rrq.flow import Limit
from rrq.job import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clocked_redis import ClockedRedis
    from fleet_model import ModelFleet


@dataclass
class Attempt:
    """A claim as the process that made it remembers it."""

    claimed: ClaimedJob
    life: int
    sent: Outcome | None = None
    """An outcome whose answer never came; it can only be sent again."""
    is_lost: bool = False
    """The process knows that it is not its own any more; it may be a thread that goes on regardless."""
    is_forgotten: bool = False
    """Redis knows nothing of it until the process has reconciled."""

    @property
    def job_id(self) -> str:
        return self.claimed.job_id.decode()


@dataclass
class Process:
    """A worker process: what it believes to hold, and what it has lately reported."""

    worker: SteppedWorker
    attempts: list[Attempt] = field(default_factory=list)
    reported: list[tuple[ClaimedJob, Outcome]] = field(default_factory=list)

    def lose_all(self) -> None:
        for attempt in self.attempts:
            attempt.is_lost = True


class PairedFleet(PairedQueue):
    """A fleet of three worker ids, of which any number of processes may believe to be one."""

    def __init__(self, redis: ClockedRedis) -> None:
        super().__init__(redis)
        self.processes: list[Process] = []
        self.crashed: list[SteppedWorker] = []
        self.copy: tuple[Path, ModelFleet] | None = None
        self.restarts = 0

    def close(self) -> None:
        if self.copy is not None:
            shutil.rmtree(self.copy[0].parent)

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        yield from self._shared()

    def _shared(self) -> Iterator[str]:
        owners: dict[tuple[str, int], Process] = {}
        for process in self.processes:
            if self.model.is_alive(process.worker.identity):
                for attempt in process.attempts:
                    if not (attempt.is_lost or attempt.is_forgotten or attempt.sent):
                        first = owners.setdefault((attempt.job_id, attempt.life), process)
                        if first is not process:
                            yield f"{attempt.job_id} is run by {first.worker} and by {process.worker}"

    # Worker processes

    def start_process(self, worker_id: str) -> None:
        """Also beside one of the same id, which may only be paused, and comes back."""
        worker = SteppedWorker(self.store, worker_id, PODS[worker_id], QUEUES)
        reply = self.redis.do(worker.register())
        assert reply.state is self.model.beat(worker.identity, is_registration=True)
        if reply.state is LeaseState.ALIVE:
            self.processes.append(Process(worker))

    def beat(self, numbers: Iterable[int]) -> None:
        """One call for all of them, as a supervisor makes it."""
        processes = [self.processes[who] for who in numbers]
        if not processes:
            return
        beats = [process.worker.build_beat() for process in processes]
        replies = self.redis.do(self.store.renew_leases(beats)).replies
        for process, reply in zip(processes, replies, strict=True):
            state = self.model.beat(process.worker.identity)
            assert reply.state is state
            if state is LeaseState.ALIVE:
                assert reply.active_count == len(self.model.held.get(process.worker.worker_id, ()))
                assert reply.is_draining == (process.worker.pod_uid in self.model.drains)
            else:
                process.lose_all()

    def register_again(self, who: int) -> None:
        process = self._process(who)
        worker = process.worker
        if not self.model.is_registered(worker.identity):
            process.lose_all()
        reply = self.redis.do(worker.register())
        assert reply.state is self.model.beat(worker.identity, is_registration=True)
        if reply.state is LeaseState.TAKEN:
            process.lose_all()

    def claim(
        self,
        who: int,
        queues: tuple[str, ...],
        count: int,
        *,
        only: Sequence[str] = (),
        is_cut: bool = False,
    ) -> None:
        """Ask for jobs; when the answer is cut off, Redis knows of claims that the process does not."""
        process = self._process(who)
        worker = process.worker
        worker.queues = queues
        answer = self.redis.do(worker.claim(count, wait_ms=5000, job_ids=only))
        token_base = answer.jobs[0].token.rpartition(".")[0] if answer.jobs else ""
        code, job_ids = self.model.claim(worker.identity, token_base, queues, count, only)
        assert (answer.code, queue_steps.ids(answer.jobs)) == (code, job_ids)
        assert answer.make_room_for == self.model.make_room_for
        assert not answer.missing
        assert not answer.unreadable
        if code is ClaimCode.LEASE_LOST:
            process.lose_all()
        if job_ids and self.model.limits:
            overruns = list(find_overruns(read_rows(self.redis.look()), job_ids))
            assert not overruns, "\n".join(overruns)
        if not is_cut:
            process.attempts += [
                Attempt(claimed, self.model.jobs[claimed.job_id.decode()].life) for claimed in answer.jobs
            ]

    def finish(self, who: int, kinds: list[tuple[int, OutcomeKind]], delay_ms: int, is_cut: bool) -> None:
        """Report a batch; with a cut answer the process can only send the same again."""
        process = self._busy(who)
        chosen = {number % len(process.attempts): kind for number, kind in kinds}
        attempts = [process.attempts[number] for number in chosen]
        outcomes = [
            attempt.sent or self._outcome(attempt, kind, delay_ms)
            for attempt, kind in zip(attempts, chosen.values(), strict=True)
        ]
        if is_cut:
            self._report(process.worker.worker_id, outcomes)
        else:
            self._report_all(process, attempts, outcomes)
        for attempt, outcome in zip(attempts, outcomes, strict=True):
            attempt.sent = outcome

    def _report_all(self, process: Process, attempts: list[Attempt], outcomes: list[Outcome]) -> None:
        self._report(process.worker.worker_id, outcomes)
        for attempt, outcome in zip(attempts, outcomes, strict=True):
            process.attempts.remove(attempt)
            process.reported.append((attempt.claimed, outcome))

    def finish_all(self, who: int) -> None:
        """Have all that one process has in hand be done."""
        process = self._process(who)
        for attempt in list(process.attempts):
            self.rows = self.redis.look()
            self._report_all(
                process, [attempt], [attempt.sent or self._outcome(attempt, OutcomeKind.DONE, 0)]
            )

    def leave_trace(self, who: int, which: int) -> None:
        attempt = self.attempt(who, which)
        was_left = self.redis.do(self.store.leave_trace(attempt.job_id, attempt.claimed.token, "{}"))
        job = self.model.jobs.get(attempt.job_id)
        assert was_left == (job is not None and job.token == attempt.claimed.token)
        if not was_left:
            self._expect_no_change()

    def note_progress(self, who: int, which: int) -> None:
        attempt = self.attempt(who, which)
        was_kept = self.redis.do(
            self.store.note_progress(attempt.job_id, attempt.claimed.token, "progress", "{}")
        )
        job = self.model.jobs.get(attempt.job_id)
        assert was_kept == (job is not None and job.token == attempt.claimed.token)
        if not was_kept:
            self._expect_no_change()

    def retry_as_engines_without_tokens_do(self, who: int, which: int) -> None:
        """Queue the job first and drop the lock second, as RRQ 0.7 does; only its owner would."""
        process = self._busy(who)
        attempt = self.attempt(who, which)
        job = self.model.jobs.get(attempt.job_id)
        if job is None or job.token != attempt.claimed.token or job.status != "ACTIVE":
            return
        worker_id, queue = process.worker.worker_id, attempt.claimed.queue_key
        due_ms = self.model.now_ms
        retry = self.store.atomic_retry_job(attempt.job_id, queue, due_ms, "boom", JobStatus.RETRYING)
        assert self.redis.do(retry) == job.retries + 1
        self.model.retry_without_token(attempt.job_id, queue, due_ms)
        self.redis.do(self.store.release_job_lock(attempt.job_id, worker_id))
        lock = self.model.locks.get(attempt.job_id)
        if lock is not None and lock.value == worker_id:
            self.model.let_go(worker_id, attempt.job_id)
        process.attempts.remove(attempt)

    def reconcile(self, who: int) -> None:
        """Agree with Redis as after a reconnect, then send again what was lately reported."""
        process = self._process(who)
        attempts = [attempt for attempt in process.attempts if not attempt.is_lost and attempt.sent is None]
        held = [claimed for claimed, _ in process.reported] + [attempt.claimed for attempt in attempts]
        answer = self.redis.do(self.store.reconcile_worker(process.worker.identity, held))
        lost = self.model.reconcile(process.worker.identity, held)
        assert answer.lease_lost == (lost is None)
        if lost is None:
            process.lose_all()
            return
        assert answer.lost == lost
        for position, attempt in enumerate(attempts, len(process.reported)):
            attempt.is_lost = position in lost
            attempt.is_forgotten = False
        again = [outcome for position, (_, outcome) in enumerate(process.reported) if position not in lost]
        if again:
            self.rows = self.redis.look()
            self._report(process.worker.worker_id, again)

    def deregister(self, who: int) -> None:
        process = self._process(who)
        in_hand = self.redis.do(self.store.deregister_worker(process.worker.identity))
        assert in_hand == self.model.deregister(process.worker.identity)
        process.lose_all()

    # Drains, death and time

    def drain(self, pod_uid: str, is_set: bool) -> None:
        if is_set:
            self.redis.do(self.store.set_drain(pod_uid, 30))
            self.model.set_drain(pod_uid, 30)
        else:
            self.redis.do(self.store.clear_drain(pod_uid))
            self.model.drains.pop(pod_uid, None)

    def crash(self, who: int) -> None:
        process = self._process(who)
        self.processes.remove(process)
        self.crashed.append(process.worker)

    def certify_death(self, who: int, *, has_cause: bool) -> None:
        worker = self.crashed[who % len(self.crashed)]
        certificate = DeathCertificate(worker.identity, {"signal": 9} if has_cause else None)
        report = self.redis.do(self.store.reap_workers(certificate))
        buried = self.model.counters["dead"]
        assert report.returned == self.model.certify_death(worker.identity, is_crash=has_cause)
        assert report.buried == self.model.counters["dead"] - buried

    def die_of_a_job(self, who: int, queues: tuple[str, ...]) -> None:
        """Take one more job and die of it with all that is in hand; another process takes the place."""
        worker_id = self._process(who).worker.worker_id
        self.claim(who, queues, 1)
        self.crash(who)
        self.certify_death(len(self.crashed) - 1, has_cause=True)
        self.start_process(worker_id)

    def be_lost_twice(self, who: int, queue: str, how: set[str]) -> None:
        """Fall silent with a job until others have it, and do so once more."""
        self.enqueue([Wish(4, queue, "@1"), Wish(5, queue)])
        number = who % len(self.processes)
        process = self.processes[number]
        self._take_by_name(number, queue, "j4")
        self.pause(4, [number])
        if "fails between" in how:
            self._take_by_name(number, queue, "j4")
            for attempt in process.attempts[-1:]:
                self.rows = self.redis.look()
                outcome = attempt.sent or self._outcome(attempt, OutcomeKind.RETRY, 0)
                self._report_all(process, [attempt], [outcome])
        self._take_by_name(number, queue, "j4")
        lost = [number]
        if "in company" in how:
            self._take_by_name(number, queue, "j5")
        if "with its pod" in how:
            for neighbour in self._neighbours(process):
                self._take_by_name(neighbour, queue, "j5")
                lost.append(neighbour)
        if "late" in how:
            # Past the processing lock, and the place for suspects with it.
            self.jump(310_000, range(len(self.processes)))
        if "announced" in how:
            self.shorten_leases([process.worker.worker_id])
        self.pause(4, lost)

    def _neighbours(self, process: Process) -> list[int]:
        """The processes of the same pod."""
        worker = process.worker
        return [
            number
            for number, other in enumerate(self.processes)
            if other.worker.pod_uid == worker.pod_uid and other.worker.worker_id != worker.worker_id
        ]

    def _take_by_name(self, number: int, queue: str, job_id: str) -> None:
        self.register_again(number)
        self.claim(number, (queue,), 1, only=[job_id])

    def meet_a_suspect(self, who: int, queue: str) -> None:
        """Be busy when a job comes up that another process has died of: the moment at which room is made."""
        self.enqueue([Wish(4, queue, "@1")])
        victim_id = self._process(who + 1).worker.worker_id
        self.claim(who + 1, (queue,), 1, only=["j4"])
        self.crash(who + 1)
        self.certify_death(len(self.crashed) - 1, has_cause=True)
        self.start_process(victim_id)
        if self.processes:
            self.enqueue([Wish(5, queue)])
            self.claim(who, (queue,), 1, only=["j5"])
            self.claim(who, (queue,), 2)

    def meet_two_suspects(self, who: int, queue: str) -> None:
        """Die of two jobs at once; then all others come for them."""
        self.enqueue([Wish(4, queue, "@1"), Wish(5, queue, "@1")])
        victim_id = self._process(who).worker.worker_id
        self.claim(who, (queue,), 2, only=["j4", "j5"])
        self.crash(who)
        self.certify_death(len(self.crashed) - 1, has_cause=True)
        self.start_process(victim_id)
        for number in range(len(self.processes)):
            self.claim(number, (queue,), 1)

    def meet_a_limit(self, who: int, queue: str, limit: Limit) -> None:
        """Claim more jobs of one function than may run at once."""
        self.set_limit("function:greet", limit)
        self.enqueue([Wish(number, queue) for number in range(6)])
        self.claim(who, (queue,), 6)

    def sweep(self) -> None:
        report = self.redis.do(self.store.reap_workers())
        buried = self.model.counters["dead"]
        assert report.returned == self.model.sweep()
        assert report.buried == self.model.counters["dead"] - buried

    def shorten_leases(self, worker_ids: list[str]) -> None:
        assert self.redis.do(self.store.shorten_leases(worker_ids)) == self.model.shorten(worker_ids)

    def jump(self, milliseconds: int, awake: Iterable[int]) -> None:
        """The clock of Redis jumps, or everybody sleeps; some wake up before anybody can sweep."""
        self.pass_time(milliseconds)
        self.beat(self._numbers(awake))

    def pause(self, renewals: int, asleep: Iterable[int]) -> None:
        """Time passes; some processes are stopped, the others beat and sweep as they should."""
        awake = sorted(set(range(len(self.processes))) - set(self._numbers(asleep)))
        for _ in range(renewals):
            self.pass_time(RULES.renewal_ms)
            self.beat(awake)
            self.sweep()

    # Redis itself

    def keep_copy(self) -> None:
        """Remember this moment for a restart that forgets everything after it."""
        self.close()
        folder = Path(tempfile.mkdtemp(prefix="rrq-model-")) / "copy"
        self.redis.keep_copy(folder)
        self.copy = folder, self.model.copy()

    def restart_redis(self, *, forgets: bool, awake: Iterable[int]) -> None:
        """Kill Redis and start it again, on an earlier copy if it forgets; some processes reconnect at once."""
        assert self.copy is not None
        now_ms = self.model.now_ms
        if forgets:
            folder, model = self.copy
            self.redis.restart(folder)
            self.model = model.copy()
        else:
            self.redis.restart()
        self.restarts += 1
        self.model.server = 1 + self.restarts
        self.pass_time(now_ms - self.model.now_ms)
        for process in self.processes:
            for attempt in process.attempts:
                job = self.model.jobs.get(attempt.job_id)
                attempt.is_forgotten = job is None or job.token != attempt.claimed.token
        for who in self._numbers(awake):
            self.beat([who])
            self.reconcile(who)

    def forget_what_was_let_in(self, who: int, queue: str) -> None:
        """Run a job that waited for a slot, on a Redis that then goes back to when it waited."""
        self.meet_a_limit(who, queue, Limit(concurrency=1))
        self.keep_copy()
        self.finish_all(who)
        self.claim(who, (queue,), 6)
        self.restart_redis(forgets=True, awake=[who])

    # Who is who

    def is_busy(self) -> bool:
        return any(process.attempts for process in self.processes)

    def number_of(self, who: int) -> int:
        """The position among all processes of one that has jobs in hand."""
        return self.processes.index(self._busy(who))

    def attempt(self, who: int, which: int) -> Attempt:
        """An attempt in the hands of a process that has some."""
        attempts = self._busy(who).attempts
        return attempts[which % len(attempts)]

    def _process(self, who: int) -> Process:
        return self.processes[who % len(self.processes)]

    def _busy(self, who: int) -> Process:
        busy = [process for process in self.processes if process.attempts]
        return busy[who % len(busy)]

    def _numbers(self, numbers: Iterable[int]) -> list[int]:
        return sorted({who % len(self.processes) for who in numbers}) if self.processes else []

    # What the steps are made of

    def _outcome(self, attempt: Attempt, kind: OutcomeKind, delay_ms: int) -> Outcome:
        claimed = attempt.claimed
        match kind:
            case OutcomeKind.DONE:
                return queue_steps.done(claimed, "result", RESULT_SECONDS)
            case OutcomeKind.RETRY:
                return queue_steps.retry(claimed, delay_ms=delay_ms, queue=claimed.queue_key)
            case OutcomeKind.DEAD:
                return queue_steps.dead(claimed, ttl=DEAD_LETTER_SECONDS)
            case OutcomeKind.CANCELLED:
                return queue_steps.cancelled(claimed, RESULT_SECONDS)
            case OutcomeKind.BACK:
                return queue_steps.back(claimed)
            case OutcomeKind.UNKNOWN_FUNCTION:
                return queue_steps.unknown_function(claimed, jitter=1.25)

    def _report(self, worker_id: str, outcomes: list[Outcome]) -> None:
        verdicts = self.redis.do(self.store.finish_jobs(worker_id, outcomes))
        assert verdicts == self.model.finish(worker_id, outcomes)
        if set(verdicts) <= {Verdict.FENCED, Verdict.ALREADY_APPLIED}:
            # What is left of the attempt itself may go: its lock and its entry.
            own = {f"rrq:active:jobs:{worker_id}"}
            own |= {f"rrq:lock:job:{_text(outcome.job_id)}" for outcome in outcomes}
            self._expect_no_change(own)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
