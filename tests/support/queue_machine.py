"""In which order steps are taken: whatever hypothesis likes.

Ids, queues and workers are few, so that steps meet. Claims and outcomes are offered more often than the
rest, because most steps only tell something about a job that is in somebody's hands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paired_fleet import PairedFleet
from paired_queue import PODS, QUEUES, START_MS, Wish
from rrq.broker.messages import OutcomeKind
from rrq.flow import JobFilter, Limit

if TYPE_CHECKING:
    from clocked_redis import ClockedRedis
    from rrq.flow import PauseState

_numbers = st.integers(0, 5)
_queue = st.sampled_from(QUEUES)
_queue_orders = st.sampled_from([QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]])
_new_jobs = st.lists(
    st.builds(
        Wish,
        _numbers,
        _queue,
        st.sampled_from(["", "", "", "", "+30000", "+600000", "@5000", f"@{START_MS + 90_000}"]),
        st.sampled_from(["", "", "u", "v"]),
        st.sampled_from(["greet", "greet", "wave"]),
        st.sampled_from([(), (), (), (), (0,), (2, 3)]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda wish: wish.number,
)
_functions = st.sampled_from(["function:greet", "function:greet", "function:wave"])
_targets = st.sampled_from(["function:greet", "function:wave", "queue:x"])
_limits = st.sampled_from(
    [
        *(Limit(concurrency=0), Limit(concurrency=1), Limit(concurrency=2)),
        *(Limit(key="tenant", per_key=1), *[Limit(key="tenant", concurrency=2, per_key=1)] * 2),
        *(Limit(rate=2, per_seconds=60), Limit(concurrency=1, rate=1, per_seconds=60)),
    ]
)
_outcomes = st.lists(
    st.tuples(
        _numbers,
        st.sampled_from([OutcomeKind.RETRY, OutcomeKind.DEAD, *OutcomeKind]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda outcome: outcome[0],
)
_ways_to_be_lost = st.sets(
    st.sampled_from(["fails between", "in company", "with its pod", "late", "announced"])
)
_rarely = st.integers(0, 3).map(lambda number: number == 3)
# Past a lease, past a lock, past the record of a worker, past a result, past a dead letter; and backwards.
_jumps = st.sampled_from([10_000, 60_000, 310_000, 1_300_000, 4_000_000, 8_000_000, -20_000, -3_600_000])

_has_processes = precondition(lambda self: self.queue.processes)
_is_busy = precondition(lambda self: self.queue.is_busy())
_may_restart = precondition(lambda self: self.queue.restarts < self.most_restarts)


class QueueMachine(RuleBasedStateMachine):
    """One example. A restart takes as long as all other steps of an example, so it has one."""

    most_restarts = 1

    def __init__(self, redis: ClockedRedis) -> None:
        super().__init__()
        self.queue = PairedFleet(redis)

    def teardown(self) -> None:
        self.queue.close()

    @invariant()
    def every_promise_holds(self) -> None:
        self.queue.check()

    @initialize(jobs=_new_jobs, limit=st.none() | _limits)
    def begin(self, jobs: list[Wish], limit: Limit | None) -> None:
        for worker_id in PODS:
            self.queue.start_process(worker_id)
        if limit is not None:
            self.queue.set_limit("function:greet", limit)
        self.queue.enqueue(jobs)
        self.queue.keep_copy()

    @rule(jobs=_new_jobs)
    def enqueue(self, jobs: list[Wish]) -> None:
        self.queue.enqueue(jobs)

    @rule(jobs=_new_jobs)
    def enqueue_more(self, jobs: list[Wish]) -> None:
        self.queue.enqueue(jobs)

    @rule(jobs=_new_jobs, queue=_queue)
    def enqueue_batch(self, jobs: list[Wish], queue: str) -> None:
        self.queue.enqueue_batch(jobs, queue)

    @rule(what=_targets, state=st.sampled_from(["paused", "paused", "disabled"]))
    def hold(self, what: str, state: PauseState) -> None:
        self.queue.set_pause(what, "paused" if what.startswith("queue:") else state)

    @rule(what=_targets)
    def resume(self, what: str) -> None:
        self.queue.set_pause(what, None)

    @rule(what=_functions, limit=_limits)
    def limit(self, what: str, limit: Limit) -> None:
        self.queue.set_limit(what, limit)

    @rule(what=_targets, concurrency=st.none() | st.integers(1, 2))
    def limit_or_not(self, what: str, concurrency: int | None) -> None:
        self.queue.set_limit(what, None if concurrency is None else Limit(concurrency=concurrency))

    @rule(job=_numbers)
    def cancel(self, job: int) -> None:
        self.queue.cancel(f"j{job}")

    @_is_busy
    @rule(who=_numbers, which=_numbers)
    def cancel_running(self, who: int, which: int) -> None:
        self.queue.cancel(self.queue.attempt(who, which).job_id)

    @rule(queue=_queue, most=st.integers(1, 3))
    def requeue_dead_letters(self, queue: str, most: int) -> None:
        self.queue.requeue_dead_letters(queue, most)

    @_has_processes
    @rule(who=_numbers, queues=_queue_orders, count=st.integers(1, 4), is_cut=_rarely)
    def claim(self, who: int, queues: tuple[str, ...], count: int, is_cut: bool) -> None:
        self.queue.claim(who, queues, count, is_cut=is_cut)

    @_has_processes
    @rule(who=_numbers)
    def claim_one(self, who: int) -> None:
        self.queue.claim(who, QUEUES, 1)

    @_has_processes
    @rule(who=_numbers)
    def claim_all(self, who: int) -> None:
        self.queue.claim(who, QUEUES, 10)

    @_has_processes
    @rule(who=_numbers, queues=_queue_orders, jobs=st.lists(_numbers, min_size=1, max_size=3, unique=True))
    def claim_by_name(self, who: int, queues: tuple[str, ...], jobs: list[int]) -> None:
        self.queue.claim(who, queues, 1, only=[f"j{job}" for job in jobs])

    @_is_busy
    @rule(who=_numbers, outcomes=_outcomes, delay_ms=st.sampled_from([0, 30_000]), is_cut=_rarely)
    def finish(self, who: int, outcomes: list[tuple[int, OutcomeKind]], delay_ms: int, is_cut: bool) -> None:
        self.queue.finish(who, outcomes, delay_ms, is_cut)

    @_is_busy
    @rule(who=_numbers, which=_numbers)
    def finish_one(self, who: int, which: int) -> None:
        self.queue.finish(who, [(which, OutcomeKind.DONE)], 0, is_cut=False)

    @_is_busy
    @rule(who=_numbers, which=_numbers)
    def fail_one(self, who: int, which: int) -> None:
        self.queue.finish(who, [(which, OutcomeKind.DEAD)], 0, is_cut=False)

    @_is_busy
    @rule(who=_numbers, which=_numbers, is_retry=st.booleans())
    def touch(self, who: int, which: int, is_retry: bool) -> None:
        if is_retry:
            self.queue.retry_as_engines_without_tokens_do(who, which)
        else:
            self.queue.leave_trace(who, which)
            self.queue.note_progress(who, which)

    @_has_processes
    @rule(who=_numbers)
    def reconcile(self, who: int) -> None:
        self.queue.reconcile(who)

    @rule(worker_id=st.sampled_from(list(PODS)))
    def start_process(self, worker_id: str) -> None:
        self.queue.start_process(worker_id)

    @_has_processes
    @rule(who=_numbers)
    def register_again(self, who: int) -> None:
        self.queue.register_again(who)

    @_has_processes
    @rule(who=_numbers, is_crash=st.booleans())
    def end_process(self, who: int, is_crash: bool) -> None:
        if is_crash:
            self.queue.crash(who)
        else:
            self.queue.deregister(who)

    @precondition(lambda self: self.queue.crashed)
    @rule(who=_numbers, has_cause=st.booleans())
    def certify_death(self, who: int, has_cause: bool) -> None:
        self.queue.certify_death(who, has_cause=has_cause)

    @_has_processes
    @rule(who=_numbers, queues=_queue_orders)
    def die_of_a_job(self, who: int, queues: tuple[str, ...]) -> None:
        self.queue.die_of_a_job(who, queues)

    @_has_processes
    @rule(who=_numbers, queue=_queue)
    def meet_a_suspect(self, who: int, queue: str) -> None:
        self.queue.meet_a_suspect(who, queue)

    @_has_processes
    @rule(who=_numbers, queue=_queue)
    def meet_two_suspects(self, who: int, queue: str) -> None:
        self.queue.meet_two_suspects(who, queue)

    @_has_processes
    @rule(who=_numbers, queue=_queue, how=_ways_to_be_lost)
    def be_lost_twice(self, who: int, queue: str, how: set[str]) -> None:
        self.queue.be_lost_twice(who, queue, how)

    @_has_processes
    @rule(who=_numbers, queue=_queue, limit=_limits)
    def meet_a_limit(self, who: int, queue: str, limit: Limit) -> None:
        self.queue.meet_a_limit(who, queue, limit)

    @_is_busy
    @rule(who=_numbers)
    def finish_together(self, who: int) -> None:
        self.queue.finish(who, [(number, OutcomeKind.DONE) for number in range(6)], 0, is_cut=False)

    @rule()
    def sweep(self) -> None:
        self.queue.sweep()

    @rule(milliseconds=_jumps, awake=st.sets(_numbers))
    def jump(self, milliseconds: int, awake: set[int]) -> None:
        self.queue.jump(milliseconds, awake)

    @_has_processes
    @rule(renewals=st.integers(1, 4), asleep=st.sets(_numbers, max_size=2))
    def pause(self, renewals: int, asleep: set[int]) -> None:
        self.queue.pause(renewals, asleep)

    @_is_busy
    @rule(who=_numbers)
    def pause_past_the_lease(self, who: int) -> None:
        self.queue.pause(4, {self.queue.number_of(who)})

    @rule(pod_uid=st.sampled_from(sorted(set(PODS.values()))), is_set=st.booleans())
    def drain(self, pod_uid: str, is_set: bool) -> None:
        self.queue.drain(pod_uid, is_set)

    @_may_restart
    @rule()
    def keep_copy(self) -> None:
        self.queue.keep_copy()

    @_may_restart
    @rule(forgets=st.booleans(), awake=st.sets(_numbers))
    def restart_redis(self, forgets: bool, awake: set[int]) -> None:
        self.queue.restart_redis(forgets=forgets, awake=awake)

    @_may_restart
    @_has_processes
    @rule(who=_numbers, queue=_queue)
    def forget_what_was_let_in(self, who: int, queue: str) -> None:
        self.queue.forget_what_was_let_in(who, queue)

    @rule(step=st.data())
    def look_on(self, step: st.DataObject) -> None:
        """What changes no job, or hardly ever; each would be a rule if there were not so many."""
        queue, draw = self.queue, step.draw
        match draw(st.integers(0, 12)):
            case 0:
                queue.observe(draw(st.sampled_from([0, 60])))
            case 1:
                queue.watch(draw(_numbers), draw(st.booleans()))
            case 2:
                queue.publish_cron_table(draw(st.sampled_from("gh")), draw(st.sampled_from(["", "{}"])))
            case 3:
                queue.flush_scripts()
            case 4:
                queue.shorten_leases(draw(st.lists(st.sampled_from(list(PODS)), min_size=1, unique=True)))
            case 5:
                queue.release_unique(draw(_numbers), draw(st.sampled_from("uv")))
            case 6 | 7:
                queue.admit_jobs()
            case 8:
                targets = st.lists(_functions, max_size=2, unique=True)
                queue.publish_limits({target: draw(_limits) for target in draw(targets)})
            case 9:
                function = draw(st.sampled_from([None, "greet", "wave"]))
                queue.cancel_where(JobFilter(draw(_queue), function))
            case 10 | 11:
                queue.see_to_a_dead_letter(f"j{draw(_numbers)}", is_deleted=draw(st.booleans()))
            case _:
                queue.fire_cron(draw(st.integers(-1, 3)), draw(_queue), draw(st.sampled_from(["", "u"])))
                queue.note_cron_entry()
