"""Tests of typed_jobs.py, as an application would write them.

With `pip install 'rrq-kubernetes[embedded]' pytest-asyncio`, and `asyncio_mode = "auto"` in the configuration of pytest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from examples.typed_jobs import app, charge_card, render_receipt
from rrq.exc import RedisUnavailable
from rrq.testing import JobBench, RunOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def bench() -> AsyncIterator[JobBench]:
    async with JobBench(app) as bench:
        yield bench


def test_the_function_itself() -> None:
    assert render_receipt({}, 7, cents=1250) == "order 7: 12.50 EUR"


async def test_a_charge_sends_a_receipt(bench: JobBench) -> None:
    charged = await charge_card.enqueue(7, cents=1250)
    charge, receipt = await bench.run_due()
    assert (receipt.function_name, receipt.queue) == ("render_receipt", "mail")
    assert receipt.result == "order 7: 12.50 EUR"
    assert await charged.result() == receipt.job_id == charge.result


async def test_a_busy_bank_is_retried_a_minute_later(bench: JobBench) -> None:
    await charge_card.enqueue(10, cents=1250)
    [charge] = await bench.run_due()
    assert (charge.outcome, charge.error) == (RunOutcome.RETRY, "the bank is busy")

    await bench.travel(timedelta(minutes=1))
    assert [run.outcome for run in await bench.run_due()] == [RunOutcome.DONE, RunOutcome.DONE]


async def test_a_lost_reply_charges_no_order_twice(bench: JobBench) -> None:
    charge = charge_card.with_options(job_id="charge-7")
    bench.cut_reply("enqueue_jobs")
    with pytest.raises(RedisUnavailable):
        await charge.enqueue(7, cents=1250)
    await charge.enqueue(7, cents=1250)
    bench.cut_reply("finish_jobs")
    await bench.run_due()
    assert [run.function_name for run in bench.runs] == ["charge_card", "render_receipt"]


async def test_a_killed_worker_loses_no_receipt(bench: JobBench) -> None:
    await charge_card.enqueue(7, cents=1250)
    await bench.kill_worker()
    await bench.restart_redis()
    assert [run.outcome for run in await bench.run_due()] == [RunOutcome.DONE, RunOutcome.DONE]
