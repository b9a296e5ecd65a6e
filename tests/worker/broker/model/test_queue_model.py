"""The scripts beside a model of them, in thousands of orders that nobody would think of.

By default the same two hundred examples every time, so that a red run is about the change and not about luck.
`MODEL_EXAMPLES=5000 pytest tests/worker/broker/model` draws as many new ones (10 min); what it finds is shrunk and
kept in `.hypothesis`, from where the next run takes it first. It also breaks the scripts, one promise at a time, to
see that the model notices: do that after a change of the model.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from clocked_redis import ClockedRedis
from paired_fleet import PairedFleet
from paired_queue import QUEUES, Wish, build_settings
from queue_machine import QueueMachine
from rrq.broker.messages import OutcomeKind
from rrq.broker.scripts import load_script
from rrq.flow import JobFilter, Limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrq.broker.scripts import Script

LUA = files("rrq.broker") / "lua"
STEPS = 30
EXAMPLES = 200
PORTIONS = 4  # side by side, each with examples of its own
GIVEN_EXAMPLES = os.environ.get("MODEL_EXAMPLES")

# Each takes away one promise of one script; a model that does not miss it is worth nothing.
BROKEN_SCRIPTS = {
    "a late result is stored": ("finish_jobs", "elseif seen[1] ~= token then", "elseif false then"),
    "a claim ignores the lock": (
        "claim_jobs",
        "if not take_lock(id, ttl_ms) then return 'left' end",
        "take_lock(id, ttl_ms)",
    ),
    "a claimed job stays queued": (
        "claim_jobs",
        "if #gone > 0 then redis.call('ZREM', KEYS[q], unpack(gone)) end",
        "",
    ),
    "an ended job stays in hand": (
        "finish_jobs",
        "if #ended > 0 then redis.call('ZREM', active, unpack(ended)) end",
        "",
    ),
    "an outage ends every lease": (
        "reap_workers",
        "wait_out_silence(guard, state, state.lease_ms)",
        "",
    ),
    "a fleet without anybody left is never reaped": (
        "reap_workers",
        "if not is_waited_out then put_off_reaping(guard, state, lease_ms) end",
        "put_off_reaping(guard, state, lease_ms)",
    ),
    "a forgotten claim is not set up again": (
        "reconcile_worker",
        "and claim_again(",
        "and false and claim_again(",
    ),
    "what may be in hand is given away after a restart": (
        "claim_jobs",
        "code, lowest = 3, '(' .. digits(restarted_ms)",
        "code = 3",
    ),
    "a crash in company is blamed": (
        "reap_workers",
        "local was_alone = other_jobs == 0 and",
        "local was_alone =",
    ),
    "a loss in company is blamed": ("reap_workers", "or other_jobs > 0 or not had_place", "or not had_place"),
    "a job that takes its worker along is tried for ever": (
        "reap_workers",
        "if losses == limit or",
        "if true or",
    ),
    "an announced end is blamed": ("reap_workers", "lease_end and seen[1] == lease_end", "false"),
    "a job without its function comes back at once": (
        "finish_jobs",
        "now_ms + math.floor(delay_ms)",
        "now_ms",
    ),
    "losses are counted beyond a failure": (
        "finish_jobs",
        "local retries = count_attempt(job)\n  forget_troubles(job)",
        "local retries = count_attempt(job)",
    ),
    "two suspects run in one pod": (
        "claim_jobs",
        "if suspects().is_place_taken(pod_uid, worker_id) then return false end",
        "",
    ),
    "a loss out of the place for suspects is blamed": (
        "reap_workers",
        "or other_jobs > 0 or not had_place",
        "or other_jobs > 0",
    ),
    "a loss in company of the rest of the pod is blamed": (
        "reap_workers",
        "if had_company and losses <= 2 * limit then return false end",
        "",
    ),
    "who lost jobs before the suspect is forgotten": (
        "reap_workers",
        "if not had_place then suspects().note_company(pod_uid, worker_id) end",
        "",
    ),
    "jobs are taken that a suspect would have to wait for": ("claim_jobs", "wanted = #jobs\n    end", "end"),
    "an expiry outlives its job": (
        "enqueue_jobs",
        "redis.call('PERSIST', job)\n    redis.call('DEL', prefix .. 'events:job:'",
        "redis.call('DEL', prefix .. 'events:job:'",
    ),
    "a limit is ignored": ("claim_jobs", "if free_slots(scope, scopes.most[i]) <= 0 then", "if false then"),
    "a rate is ignored": ("claim_jobs", "if starts < 1 then return", "if false then return"),
    "a pause is ignored": ("claim_jobs", "return pauses[target] ~= nil", "return false"),
    "a slot is not given back": ("finish_jobs", "if slots then give_up_slots(id, job, slots) end", ""),
    "a dead worker keeps its slots": (
        "reap_workers",
        "if seen[11] then give_up_slots(id, job, seen[11]) end",
        "",
    ),
    "nobody comes in when one has ended": ("finish_jobs", "is one.\nunblock_others()", "is one."),
    "a parked job is forgotten": ("finish_jobs", "redis.call('ZADD', queue, 'NX', score, id)", ""),
    "a parked job stays queued": ("claim_jobs", "redis.call('ZREM', queue, id)\n  local own", "local own"),
    "nobody looks at what is parked": (
        "claim_jobs",
        "call_or_repair('ZADD', PARKED, 'LT', digits(look_ms), scope)",
        "",
    ),
    "what is parked outlives its limit": ("set_control", "  flow().admit_parked(100, MOST_LET_IN)\n", ""),
    "a parked job cannot be cancelled": ("cancel_job", "prefix .. 'parked:' .. seen[9]", "''"),
    "a parked job is forgotten with its claim": (
        "reconcile_worker",
        "and seen[4] and seen[5] == queue",
        "and false",
    ),
    "an id used again stays parked": (
        "enqueue_jobs",
        "if seen[2] then redis.pcall('ZREM', prefix .. 'parked:' .. seen[2], id) end",
        "",
    ),
    "an id used again keeps its slot": (
        "enqueue_jobs",
        "if seen[1] then flow().vacate(id, job, seen[1]) end",
        "",
    ),
    "an id used again keeps its batch waiting": (
        "enqueue_jobs",
        "if seen[3] and seen[3] ~= batch_id then batch().leave_batch(id, job, true) end",
        "",
    ),
    "an id used again keeps its unique key": (
        "enqueue_jobs",
        "if seen[4] and seen[4] ~= unique_key then batch().release_unique(seen[4], id) end",
        "",
    ),
    "a clock set back keeps jobs parked": (
        "renew_leases",
        "redis.call('ZADD', prefix .. 'parked', digits(tonumber(looks[i + 1]) - set_back_ms), looks[i])",
        "",
    ),
    "a chain ends with its first job": ("finish_jobs", "batch().follow_up(id, chain, result, token)\n", ""),
    "a batch never ends": ("finish_jobs", "  end_batch(batch)\nend", "end"),
}


@pytest.mark.timeout(0 if GIVEN_EXAMPLES else 300)  # making a failure small may take minutes
@pytest.mark.parametrize("number", range(PORTIONS))
def test_every_script_does_what_the_model_says(number: int) -> None:
    _run_examples(lambda script: script, number)


def test_the_model_plays_every_script() -> None:
    """Each step once, in an order that makes sense; random ones reach most scripts, and which is chance."""
    queue = QUEUES[0]
    with ClockedRedis(build_settings, lambda script: script) as redis:
        fleet = PairedFleet(redis)
        steps: tuple[Callable[[], object], ...] = (
            lambda: fleet.start_process("a"),
            lambda: fleet.enqueue(
                [Wish(number, queue, unique_key="u" * (number == 0)) for number in range(4)]
            ),
            lambda: fleet.enqueue_batch([Wish(4, queue), Wish(5, queue, function="wave")], queue),
            lambda: fleet.set_limit("function:wave", Limit(concurrency=1)),
            lambda: fleet.publish_limits({"function:greet": Limit(concurrency=3)}),
            fleet.admit_jobs,
            lambda: fleet.watch(0, wants_event=True),
            lambda: fleet.observe(60),
            lambda: fleet.publish_cron_table("g", "{}"),
            fleet.note_cron_entry,
            lambda: fleet.fire_cron(0, queue, ""),
            lambda: fleet.cancel("j3"),
            lambda: fleet.cancel_where(JobFilter(queue, "wave")),
            lambda: fleet.claim(0, QUEUES, 10),
            lambda: fleet.leave_trace(0, 0),
            lambda: fleet.note_progress(0, 0),
            lambda: fleet.retry_as_engines_without_tokens_do(0, 2),
            lambda: fleet.finish(0, [(0, OutcomeKind.DEAD), (1, OutcomeKind.DONE)], 0, is_cut=False),
            lambda: fleet.release_unique(0, "u"),
            lambda: fleet.see_to_a_dead_letter("j0", is_deleted=False),
            lambda: fleet.requeue_dead_letters(queue, 1),
            lambda: fleet.see_to_a_dead_letter("j0", is_deleted=True),
            lambda: fleet.reconcile(0),
            lambda: fleet.shorten_leases(["a"]),
            fleet.sweep,
            lambda: fleet.deregister(0),
        )
        for step in steps:
            step()
            fleet.check()
        every_script = {
            path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua")
        }
        # What an operator says of its pools is for people to look at; nothing that happens to jobs rests on it.
        assert redis.scripts_run == every_script - {"publish_pools"}


def test_each_promise_that_can_be_broken_is_still_in_its_script() -> None:
    for name, promise, _ in BROKEN_SCRIPTS.values():
        assert load_script(name).source.count(promise) == 1, f"{name} no longer reads like {promise!r}"


@pytest.mark.skipif(
    not GIVEN_EXAMPLES, reason="MODEL_EXAMPLES asks for it: it tries the model, not the scripts"
)
@pytest.mark.parametrize("broken", BROKEN_SCRIPTS if GIVEN_EXAMPLES else [""])
def test_the_model_notices_that(broken: str) -> None:
    name, promise, nothing = BROKEN_SCRIPTS[broken]

    def break_script(script: Script) -> Script:
        if script.name != name:
            return script
        return replace(script, source=script.source.replace(promise, nothing))

    with pytest.raises(AssertionError):
        _run_examples(break_script)


def _run_examples(alter: Callable[[Script], Script], portion: int | None = None) -> None:
    """Run one portion of the examples, or ten times as many as all of them, of which a failure is enough."""
    shrinks = portion is not None
    examples = settings(
        max_examples=int(GIVEN_EXAMPLES or EXAMPLES) // PORTIONS if shrinks else 10 * EXAMPLES,
        stateful_step_count=STEPS,
        derandomize=GIVEN_EXAMPLES is None or not shrinks,
        database=settings.get_profile("default").database if GIVEN_EXAMPLES and shrinks else None,
        phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if shrinks else [])],
        report_multiple_bugs=False,
    )
    with ClockedRedis(build_settings, alter) as redis:
        machine: Any = lambda: QueueMachine(redis)
        if GIVEN_EXAMPLES is None:
            machine = seed(portion)(machine)
        run_state_machine_as_test(machine, settings=examples)
