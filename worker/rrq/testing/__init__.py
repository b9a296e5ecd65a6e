"""A test kit for applications: run jobs inside a test, move the clock of Redis, and cause faults.

::

    import pytest
    from rrq.testing import JobBench, RunOutcome
    from shop.jobs import app, charge_card

    @pytest.fixture
    async def bench():
        async with JobBench(app) as bench:
            yield bench

    async def test_a_busy_bank_is_asked_again(bench):
        handle = await charge_card.enqueue(order=10)
        [first] = await bench.run_due()
        assert first.outcome is RunOutcome.RETRY
        await bench.travel(60)
        await bench.run_due()
        assert await handle.result() == "order 10 paid"

(With pytest-asyncio and ``asyncio_mode = "auto"``.)

A bench uses the real queue: it starts a private Redis or Valkey (on the PATH, or of
``pip install 'rrq-kubernetes[embedded]'``), and its worker claims and finishes jobs with the scripts of production, in the event
loop of the test.
Faults: ``kill_worker()``, ``cut_reply(script)``, ``restart_redis()``.

Limits:

- ``travel`` moves the clock of Redis only. ``time.time()`` and ``datetime.now()`` in handlers show the time of the machine,
  which also counts the timeout of a job; ``await bench.now()`` returns the time of the bench. ``defer_until`` is absolute, so
  compute it from there.
- A client that a handler builds by itself, instead of ``ctx["rrq_client"]`` or the App, uses the time of the machine.
- Between two calls of ``travel`` the clock runs as always.
- A job in hand keeps running during ``travel``; its lock in Redis may expire, which does it no harm.
- A killed worker runs the ``finally`` blocks of its handlers, as kill -9 would not, and a plain function goes on in its
  thread until it returns, without a report. What a handler did to other systems before is done in both cases.
- One process: what depends on several, or on uvloop, needs a test with real workers.
"""

from rrq.testing.bench import BenchError, CutScript, JobBench
from rrq.testing.bench_worker import JobRun, RunOutcome

__all__ = ["BenchError", "CutScript", "JobBench", "JobRun", "RunOutcome"]
