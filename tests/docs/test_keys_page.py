"""docs/reference/keys.md matches a real Redis: names of keys, types, and whether they expire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import keys_page
import reference
from queue_steps import ask, dead, done, new_job, now_ms, start_worker, unknown_function
from rrq.broker.cron_table import build_cron_table
from rrq.cron import CronJob
from rrq.flow import Limit, PoolReport
from rrq.jobs.options import JobOptions
from rrq.jobs.request import encode_options

if TYPE_CHECKING:
    from rrq.store import JobStore

POOL = PoolReport("shop/emails", "Deployment", ("default",), 1, 1, 1, 0, 0, 0, "Idle", "idle", 1)
#: A message is not stored, and only a restarted Redis awaits workers (tests/worker/broker/test_reap_script.py).
NEVER_SEEN = {"rrq:notify", "rrq:workers:awaited"}
#: It may expire before a busy machine looks; the test below checks that the page has it.
SELDOM_SEEN = {"rrq:notified:rrq:queue:<queue>"}
#: Lifetimes on the page in words, and in seconds for a fresh key.
TIMES_SECONDS = {
    "rrq:cancel:<worker_id>": ("a day", 86_400),
    "rrq:control:<worker_id>": ("a minute", 60),
    "rrq:drain:<pod_uid>": ("30 seconds", 30),
    "rrq:wake:rrq:queue:<queue>": ("five seconds", 5),
    "rrq:workers:info:<worker_id>": ("twenty leases", 20 * 15),
    "rrq:debounce:<key>": ("a day", 86_400),
    "rrq:batch:<batch_id>:pending": ("30 days", 30 * 86_400),
    "rrq:stats:<minute>": ("a day and an hour", 25 * 3_600),
    "rrq:pool:<pool>:decisions": ("a week", 7 * 86_400),
    "rrq:cron:table:<group>": ("35 days", 35 * 86_400 + 60),
    "rrq:dashboard:ended:<role>": ("13 hours", 13 * 3_600),
    "last_process:<unique_key>": ("a minute", 60),
}
#: How long a loaded machine may take from writing a key to reading its lifetime.
LATE_SECONDS = 60
#: One script, because keys expire between two calls.
LOOK = """
local seen = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  seen[#seen + 1] = {key, redis.call('TYPE', key).ok, redis.call('PTTL', key)}
end
return seen
"""
_EXPIRES = re.compile(r"^for (?!ever)|at most|else for|as long as")


@dataclass(frozen=True)
class Seen:
    key: str
    type: str
    remaining_ms: int

    @property
    def expires(self) -> bool:
        return self.remaining_ms >= 0


def find_pattern(key: str) -> str:
    """Return the most specific row of the table that matches a key."""
    patterns = [facts.pattern for facts in keys_page.list_keys()]
    fitting = [
        pattern for pattern in patterns if re.fullmatch(re.sub(r"<\w+>", ".+", re.escape(pattern)), key)
    ]
    assert fitting, f"{key} is not on the page of keys"
    return max(fitting, key=lambda pattern: len(re.sub(r"<\w+>", "", pattern)))


async def look(store: JobStore) -> set[Seen]:
    return {
        Seen(key.decode(), kind.decode(), remaining_ms)
        for key, kind, remaining_ms in await ask(store, "EVAL", LOOK, 0)
    }


async def live_a_little(store: JobStore) -> set[Seen]:
    """Use every part of the store once, and return all keys that it wrote."""
    seen: set[Seen] = set()
    worker = await start_worker(store, "w", pod_uid="pod")
    await worker.claim(wait_ms=60_000)
    await store.set_drain("other-pod")
    await store.set_last_process_time("k", await store.read_time())
    await store.publish_pools([POOL], decided={POOL.pool})
    entries = [CronJob(function_name="tick", schedule="* * * * *")]
    await store.publish_cron_table(build_cron_table(["default"], entries, datetime.now(UTC)), None, 100)
    await store.fire_cron("digest", await now_ms(store) - 1, new_job("tick"), "c.1")
    names = ["tick", "done", "dead", "kept", "unknown"]
    await store.enqueue_jobs([new_job(name, unique_key=f"of-{name}") for name in names[1:]], "e.1")
    # First, because the wake-up token lives for five seconds only.
    seen |= await look(store)
    for name in names:
        await store.watch_job(name, wants_event=True)
    claimed = {job.job_id.decode(): job for job in await worker.take(len(names))}
    assert set(claimed) == set(names)
    await store.cancel_job("kept")
    seen |= await look(store)
    await worker.finish(done(claimed["done"]), dead(claimed["dead"]), unknown_function(claimed["unknown"]))
    seen |= await look(store)
    await store.enqueue_jobs([new_job("suspect")], "e.2")
    await ask(store, "HSET", store.keys.job_key("suspect"), "suspect", "1")
    await (await start_worker(store, "v", pod_uid="pod")).take_one()

    await store.set_limit("function:greet", Limit(concurrency=0), "ada")
    # A minute, because the record of starts lives for at most twice that.
    await store.set_limit("queue:default", Limit(concurrency=9, rate=9, per_seconds=60), "ada")
    await store.publish_limits("app", {"function:other": Limit(rate=1, per_seconds=60)})
    await store.set_pause("queue:elsewhere", "paused", "ada")
    await store.open_batch("b", 1, "", 60)
    now_seconds = await now_ms(store) / 1000
    await store.add_ended_session("admin", "s", int(now_seconds) + 3600, now_seconds)
    first, last = JobOptions(idempotency_key="i", batch_id="b"), JobOptions(debounce_key="d")
    free = new_job("free", function_name="other", options=encode_options(first))
    await store.enqueue_jobs([new_job("parked", options=encode_options(last)), free], "e.3")
    await worker.take(2)
    return seen | await look(store)


async def test_keys_in_redis_are_those_of_the_page_with_their_types_and_lifetimes(store: JobStore) -> None:
    facts = {key.pattern: key for key in keys_page.list_keys()}
    seen = {(one, find_pattern(one.key)) for one in await live_a_little(store)}
    assert {
        (one.key, one.type) for one, pattern in seen if keys_page.TYPES[facts[pattern].type] != one.type
    } == set()
    assert facts.keys() - {pattern for _, pattern in seen} - SELDOM_SEEN == NEVER_SEEN
    longest_ms: dict[str, int] = {}
    for one, pattern in seen:
        longest_ms[pattern] = max(longest_ms.get(pattern, -1), one.remaining_ms)
        # The lifetime of a job depends on its status.
        if pattern != "rrq:job:<job_id>":
            lifetime = facts[pattern].lifetime
            assert one.expires == bool(_EXPIRES.search(lifetime)), (one.key, lifetime)
    for pattern, (words, seconds) in TIMES_SECONDS.items():
        assert words in facts[pattern].lifetime
        assert seconds - LATE_SECONDS <= longest_ms[pattern] / 1_000 <= seconds, pattern


def test_every_key_that_a_script_builds_is_on_the_page() -> None:
    starts = {
        start
        for path in (reference.ROOT / "worker" / "rrq" / "broker" / "lua").rglob("*.lua")
        for start in re.findall(r"\bprefix \.\. '([\w:]+)'", path.read_text())
    }
    assert len(starts) > 20
    patterns = [key.pattern for key in keys_page.list_keys()]
    unknown = {start for start in starts if not any(p.startswith(f"rrq:{start}") for p in patterns)}
    # The others start with a full name, such as that of the default queue.
    for start in unknown:
        find_pattern(f"rrq:{start}…")
