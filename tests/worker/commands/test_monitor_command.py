"""`rrq monitor`: queues, workers, pods and dead letters, live in a terminal and once in a pipe."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing
from typing import TYPE_CHECKING

from commandline import CommandLine, terminal
from fleet import running_worker
from queue_steps import ask, end_lease, start_worker
from rrq.client import RRQClient
from rrq.settings import RRQSettings
from running import run_burst
from waiting import eventually

if TYPE_CHECKING:
    from commandline import Terminal
    from rrq.embedded import EmbeddedRedis
    from rrq.registry import JobRegistry
    from rrq.store import JobStore


async def test_a_snapshot_shows_everything(
    cli: CommandLine, client: RRQClient, quick: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    await client.enqueue("fail", "no such order", _job_id="dead-1")
    await run_burst(quick, registry)
    await client.enqueue("add", _queue_name="mail")
    await client.enqueue("add", _queue_name="mail", _defer_by=100)
    await start_worker(store, "worker-a", pod_uid="pod-1")
    await start_worker(store, "worker-b", pod_uid="pod-1")
    await start_worker(store, "worker-c", pod_uid="pod-2")
    await store.set_drain("pod-2")
    await store.set_worker_health("old-1", {"status": "running", "active_jobs": 2, "queues": ["mail"]}, 60)
    shown = await cli.ok("monitor")
    assert "1 jobs due, 2 running on 4 workers, 1 dead letters" in shown.splitlines()[0]
    for line in ("Queues", "Workers", "Pods", "Dead Letters: 1"):
        assert f"\n\n{line}\n" in shown
    assert "RRQ 0.7" in shown
    assert "no such order" in shown
    seen = await cli.json("monitor")
    assert seen["queues"]["mail"]["due"] == 1
    assert seen["queues"]["mail"]["scheduled"] == 1
    assert seen["queues"]["default"]["due"] == 0
    workers = {worker["worker_id"]: worker for worker in seen["workers"]}
    assert workers["worker-a"]["capacity"] == 10
    assert workers["worker-c"]["draining"] is True
    assert (workers["old-1"]["kind"], workers["old-1"]["busy"]) == ("rrq-0.7", 2)
    pods = {pod["pod_uid"]: pod for pod in seen["pods"]}
    assert (pods["pod-1"]["workers"], pods["pod-1"]["capacity"], pods["pod-1"]["draining"]) == (2, 20, False)
    assert pods["pod-2"]["draining"] is True
    assert pods[None]["workers"] == 1
    assert seen["dead_letters"]["newest"][0]["job"]["last_error"] == "no such order"


async def test_a_snapshot_shows_served_or_chosen_queues(
    cli: CommandLine, client: RRQClient, store: JobStore
) -> None:
    assert "0 jobs due, 0 running on 0 workers, 0 dead letters" in await cli.ok("monitor")
    assert list((await cli.json("monitor"))["queues"]) == ["default"]
    await store.register_active_queue("rrq:queue:served")
    await ask(store, "ZADD", store.keys.active_queues, 1, "rrq:queue:long-ago")
    assert set((await cli.json("monitor"))["queues"]) == {"default", "served"}
    await client.enqueue("add", _queue_name="three")
    seen = await cli.json("monitor", "--queues", "one", "--queues", "rrq:queue:two")
    assert set(seen["queues"]) == {"one", "two"}


async def test_lost_workers_and_expired_dead_letters_are_shown(cli: CommandLine, store: JobStore) -> None:
    await start_worker(store, "worker-a")
    await end_lease(store, "worker-a")
    for number in range(12):
        await store.redis.lpush("rrq:dlq:default", f"gone-{number}")
    seen = await cli.json("monitor")
    assert [(worker["kind"], worker["status"]) for worker in seen["workers"]] == [("lost", "lost")]
    assert seen["pods"] == []
    assert len(seen["dead_letters"]["newest"]) == 10
    assert "(the job has expired)" in await cli.ok("monitor")


async def shows(screen: Terminal, text: str, timeout_seconds: float = 60.0) -> None:
    await eventually(lambda: text in screen.text, timeout_seconds, f"{text!r} was not shown")


async def test_in_a_terminal_it_is_live_and_follows_the_size_of_the_window_until_ctrl_c(
    cli: CommandLine, client: RRQClient, settings: RRQSettings, registry: JobRegistry, store: JobStore
) -> None:
    settings.worker_shutdown_grace_period_seconds = 0.1
    with terminal(cli.environment, "monitor", "--refresh", "0.1", rows=60, columns=140) as screen:
        await shows(screen, "0 jobs due, 0 running on 0 workers")
        await client.enqueue("hold")
        await shows(screen, "1 jobs due")
        async with running_worker(settings, registry) as worker:
            await shows(screen, "1 running on 1 workers")
            await shows(screen, worker.worker_id[:12])

        for number in range(30):
            await start_worker(store, f"worker-{number:02d}", pod_uid=f"pod-{number:02d}-{'x' * 60}")
        screen.forget()
        await eventually(lambda: 70 < _widest(screen) <= 140)
        screen.resize(30, 70)
        # The terminal may still show an update for the old size: forget until one fits.
        await eventually(lambda: _fits(screen, 70), message="the tables did not become narrower")
        await shows(screen, "more not shown")
        assert _widest(screen) <= 70
        screen.press_ctrl_c()
        assert await asyncio.to_thread(screen.wait) == 0
    assert "Traceback" not in screen.text
    assert "\x1b[?1049l" in screen.raw, "the terminal was left on its other screen"
    assert "\x1b[?25h" in screen.raw, "the cursor stayed hidden"


def _fits(screen: Terminal, columns: int) -> bool:
    if _widest(screen) > columns:
        screen.forget()
    return 0 < _widest(screen) <= columns


def _widest(screen: Terminal) -> int:
    return max((len(line) for line in screen.text.splitlines()), default=0)


async def test_it_starts_before_redis_and_survives_its_crash_and_its_silence(
    own_redis: EmbeddedRedis,
) -> None:
    own_redis.kill()
    # A command that Redis leaves without an answer would hold up a signal for so long.
    environment = {"RRQ_REDIS_DSN": own_redis.dsn, "RRQ_REDIS_SOCKET_TIMEOUT_SECONDS": "90"}
    with terminal(environment, "monitor", "--refresh", "0.1", columns=200) as screen:
        await shows(screen, "No update since")
        own_redis.start()
        async with aclosing(RRQClient(RRQSettings(redis_dsn=own_redis.dsn))) as client:
            await client.enqueue("add", _queue_name="mail")
        await shows(screen, "1 jobs due")

        own_redis.kill()
        screen.forget()
        await shows(screen, "could not be reached")
        assert "1 jobs due" in screen.text
        own_redis.start()
        screen.forget()
        await shows(screen, "0 jobs due")

        own_redis.pause()
        # With nothing new to show, it stands still in the middle of a command.
        await eventually(lambda: _stands_still(screen), message="it still draws")
        screen.signal(signal.SIGTERM)
        assert await asyncio.to_thread(screen.wait, 30.0) == 0
    own_redis.resume()


async def _stands_still(screen: Terminal) -> bool:
    screen.forget()
    await asyncio.sleep(0.5)
    return not screen.raw


async def test_a_refresh_without_pause_is_a_usage_error(cli: CommandLine) -> None:
    assert (await cli.run("monitor", "--refresh", "0")).exit_code == 2


async def test_tables_have_boxes_on_a_terminal_and_job_data_no_markup(
    cli: CommandLine, client: RRQClient
) -> None:
    await client.enqueue("[bold]add[/bold]")
    with terminal(cli.environment, "job", "list") as screen:
        assert await asyncio.to_thread(screen.wait) == 0
    assert "[bold]add[/bold]" in screen.text
    assert "─" in screen.text
