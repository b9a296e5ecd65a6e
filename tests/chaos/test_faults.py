"""Faults do what they claim: Redis really refuses, forgets, loads or says nothing, and is itself again afterwards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import astuple
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

import chaos_sentinel
import chaos_world
import clock_faults
import network_faults
import redis_faults
from chaos_clock import FakeClock, NoFakeClock, find_library
from chaos_config import ChaosConfig
from chaos_main import PATIENCE_SECONDS, MainPart, open_control, open_patient
from chaos_network import Network
from chaos_redis import ChaosRedis, find_server_for_fake_clock
from chaos_sentinel import MASTER_NAME, SentinelPart
from fault_plan import KINDS, PlannedFault
from injected import MAIN, SENTINEL
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import ModuleType

    from injected import Injected

CONFIG = ChaosConfig(1, 10.0, 1, 1, lease_seconds=1.5, pods=0)
KEY, VALUE = "chaos:kept", b"value"
# Redis loads by itself, and for nobody's sake longer: beyond the time for which this process may stand still.
LOADING_SECONDS = 6.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Any]:
    """A main part without pods: its Redis, with one key that every fault has to leave alone."""
    main = MainPart(CONFIG, tmp_path, None)
    try:
        await main.start()
        await main.patient.set(KEY, VALUE)
        yield SimpleNamespace(main=main, config=CONFIG)
    finally:
        await main.close()


def fault(kind: str) -> PlannedFault:
    return PlannedFault(1, 0.0, kind, rank=0.5, size=0.5)


class HeldSleep:
    """What a module sleeps for lasts until `is_over` is set, too: no fault ends before somebody has seen it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self.is_asleep, self.is_over = asyncio.Event(), asyncio.Event()
        held = SimpleNamespace(**vars(asyncio) | {"sleep": self._sleep})
        monkeypatch.setattr(module, "asyncio", held)

    async def _sleep(self, seconds: float) -> None:
        self.is_asleep.set()
        await asyncio.sleep(seconds)
        await self.is_over.wait()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldSleep:
    return HeldSleep(monkeypatch, redis_faults)


async def inject(world: Any, held: HeldSleep, kind: str, error: type[Exception], *command: str) -> Injected:
    """Inject a fault and wait until the command fails as it should; returns what was injected."""
    task: asyncio.Future[Injected | None] = asyncio.ensure_future(
        chaos_world.FAULTS[kind](world, fault(kind))
    )
    # No answer within this is what a silent Redis is known by; one that loads answers a few times a second.
    probe = open_control(world.main.server.port, 0.3 if error is RedisTimeoutError else PATIENCE_SECONDS)

    async def fails() -> bool:
        if task.done():
            # It failed to be injected, or was over before anybody had noticed.
            raise AssertionError(f"{kind}: {task.result()}")
        try:
            await probe.execute_command(*command)
        except error:
            return True
        except (RedisConnectionError, RedisTimeoutError):
            return False
        return False

    try:
        await eventually(fails, 60.0, f"{kind} was never seen", interval_seconds=0.005)
        held.is_over.set()
        injected = await task
    finally:
        task.cancel()
        await probe.aclose()
    assert injected is not None
    assert injected.is_outage
    # Everything is as before: what was there is there, and writes are taken.
    assert await world.main.patient.get(KEY) == VALUE
    assert await world.main.patient.set("chaos:after", "1")
    return injected


def test_every_kind_that_a_plan_may_draw_can_be_injected() -> None:
    assert set(chaos_world.FAULTS) == {kind.name for kind in KINDS}


async def test_a_read_only_redis_refuses_writes_and_keeps_what_it_has(world: Any, held: HeldSleep) -> None:
    await inject(world, held, "Redis read-only", ReadOnlyError, "SET", "chaos:x", "1")


async def test_a_redis_out_of_memory_refuses_what_needs_more_of_it(world: Any, held: HeldSleep) -> None:
    await inject(world, held, "Redis out of memory", OutOfMemoryError, "SET", "chaos:x", "1")


@pytest.mark.slow
async def test_a_loading_redis_says_so_and_has_everything_afterwards(
    world: Any, held: HeldSleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.is_over.set()  # it sleeps only until its file is written anew, which is before it loads
    monkeypatch.setattr(redis_faults, "LOADING_SECONDS", LOADING_SECONDS)
    await inject(world, held, "Redis loading", BusyLoadingError, "GET", KEY)
    assert not [key async for key in world.main.patient.scan_iter("chaos:filler:*")]


@pytest.mark.parametrize("kind", ["Redis shut down", "Redis killed"])
async def test_a_redis_that_ended_is_back_with_its_data_on_the_same_port(
    world: Any, held: HeldSleep, kind: str
) -> None:
    pid = world.main.server.pid
    injected = await inject(world, held, kind, RedisConnectionError, "PING")
    assert world.main.server.pid != pid
    # Only a killed one may have lost something, and the judge is told since when.
    assert (injected.loses is not None) == (kind == "Redis killed")


@pytest.mark.parametrize(("pending", "lost_seconds"), [(0, 0.0), (1, redis_faults.MOST_LOST_SECONDS)])
async def test_a_killed_redis_may_have_lost_only_what_an_fsync_kept_from_being_written(
    pending: int, lost_seconds: float
) -> None:
    async def info(_: str) -> dict[str, int]:
        return {"aof_pending_bio_fsync": pending}

    main: Any = SimpleNamespace(patient=SimpleNamespace(info=info))
    before = time.monotonic()
    since = await redis_faults._read_lost_since(main)
    assert before - lost_seconds <= since <= time.monotonic() - lost_seconds


async def test_a_paused_redis_gives_no_answer_for_longer_than_a_lease(world: Any, held: HeldSleep) -> None:
    injected = await inject(world, held, "Redis paused past the lease", RedisTimeoutError, "PING")
    assert injected.ended_at - injected.begun_at > CONFIG.lease_seconds


async def test_flushed_scripts_are_gone(world: Any) -> None:
    sha = await world.main.patient.script_load("return 1")
    await redis_faults.flush_scripts(world, fault("scripts flushed"))
    assert await world.main.patient.script_exists(sha) == [False]


async def test_killed_connections_are_all_but_our_own(world: Any) -> None:
    other = open_patient(world.main.server.port)
    before = await other.client_id()
    await redis_faults.kill_connections(world, fault("connections killed"))
    # The client opens another by itself, and Redis gives it another number.
    after = await other.client_id()
    await other.aclose()
    assert after != before


@pytest.mark.slow
async def test_a_fail_over_forgets_what_the_replica_had_not_heard_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = SentinelPart(CONFIG, tmp_path)
    try:
        await part.start_servers()
        lag = HeldSleep(monkeypatch, chaos_sentinel)
        control = open_patient(part.master.port)
        await control.set("before", "1")
        assert await control.wait(1, 0) == 1
        task = asyncio.create_task(part.fail_over(lag_seconds=1.0))
        # The filler that keeps the replica busy has been written and deleted: from here on it hears nothing.
        await asyncio.wait_for(lag.is_asleep.wait(), PATIENCE_SECONDS)
        await control.set("within", "1")
        await control.aclose()
        lag.is_over.set()
        moments = astuple(await task)
        assert list(moments) == sorted(moments)
        await part.restore_replica()
        control = open_patient(part.master.port)
        assert await control.mget("before", "within") == [b"1", None]
        await control.aclose()
    finally:
        await part.close()


@pytest.mark.slow
async def test_a_fail_over_that_nobody_asked_for_is_told_and_the_new_master_is_known(tmp_path: Path) -> None:
    part = SentinelPart(CONFIG, tmp_path)
    try:
        await part.start_servers()
        await part.look_again()
        assert part.complaints == []
        old, new = part.master, part.replica
        sentinel = open_patient(int(part.dsn.rsplit(":", 1)[1].split("/")[0]))

        async def is_under_way() -> bool:
            try:
                await sentinel.execute_command("SENTINEL", "FAILOVER", MASTER_NAME)
            except ResponseError as refused:
                # Until the replica has told Sentinel how it is, there is none that is good enough.
                return "INPROG" in str(refused)
            return True

        await eventually(is_under_way, 60.0, "Sentinel does not fail over", interval_seconds=0.1)
        await sentinel.aclose()
        await part._is_master(new)
        await part.look_again()
        assert (part.master, part.replica) == (new, old)
        assert ["by itself" in complaint for complaint in part.complaints] == [True]
    finally:
        await part.close()


@pytest.mark.slow
async def test_a_pod_behind_sentinel_has_a_network_of_its_own_which_alone_is_cut(tmp_path: Path) -> None:
    part = SentinelPart(CONFIG, tmp_path)
    try:
        await part.start_servers()
        assert part._sentinel is not None
        sentinel_port, ports = part._sentinel.port, (part.master.port, part.replica.port)
        network = await Network(sentinel_port, *ports).start()
        network.announce(sentinel_port, ports)
        dsn = part.dsn.replace(f":{sentinel_port}/", f":{network.port_to(sentinel_port)}/")
        # Longer than anybody stands still on a busy machine; a silent network is what outlasts it.
        options: Any = {"redis_socket_timeout_seconds": 5, "redis_connect_timeout_seconds": 5}
        behind = JobStore(RRQSettings(redis_dsn=dsn, **options))
        beside = JobStore(RRQSettings(redis_dsn=part.dsn, **options))
        try:
            assert await behind.wire.call("SET", "through", "1")
            network.silence(True)
            with pytest.raises(RedisTimeoutError):
                await behind.wire.call("GET", "through")
            assert await beside.wire.call("GET", "through") == b"1"
            network.silence(False)
            assert await behind.wire.call("GET", "through") == b"1"
        finally:
            await behind.aclose()
            await beside.aclose()
            await network.stop()
    finally:
        await part.close()


def test_the_network_of_every_pod_and_of_the_producers_may_fail() -> None:
    networks = [Network() for _ in range(5)]
    pods = [SimpleNamespace(network=network, children=lambda: [7]) for network in networks[:3]]
    main = SimpleNamespace(places=pods, producer_network=networks[3], producers=SimpleNamespace(pids={8}))
    place = SimpleNamespace(network=networks[4], children=lambda: [9])
    world: Any = SimpleNamespace(main=main, sentinel=SimpleNamespace(place=place))
    picked = [
        network_faults._pick(world, PlannedFault(1, 0.0, "network cut", rank=rank / 10, size=0.5))
        for rank in range(10)
    ]
    assert [victim.network for victim in picked[::2]] == networks
    assert [(victim.part, set(victim.hit)) for victim in picked[6::2]] == [(MAIN, {8}), (SENTINEL, {9})]


def test_the_clocks_of_all_but_one_pod_may_jump(tmp_path: Path) -> None:
    clocks = [FakeClock(tmp_path / "library", tmp_path / f"{number}.clock") for number in range(4)]
    places = [SimpleNamespace(clock=clock) for clock in (*clocks[:2], None)]
    main = SimpleNamespace(places=places, producer_clock=clocks[3])
    world: Any = SimpleNamespace(main=main, sentinel=SimpleNamespace(place=SimpleNamespace(clock=clocks[2])))
    for rank in (0.1, 0.4, 0.8):
        asyncio.run(clock_faults.jump_pod(world, PlannedFault(1, 0.0, "clock of a pod jumps", rank, 0.9)))
    asyncio.run(clock_faults.jump_producers(world, PlannedFault(1, 0.0, "", 0.5, 0.1)))
    assert [clock.offset_seconds > 0 for clock in clocks] == [True, True, True, False]
    assert clocks[3].offset_seconds < -3600


@pytest.fixture
def clock(tmp_path: Path) -> FakeClock:
    try:
        return FakeClock(find_library(), tmp_path / "clock")
    except NoFakeClock as reason:
        pytest.skip(str(reason))


def test_the_wall_clock_of_a_process_jumps_and_its_monotonic_clock_does_not(clock: FakeClock) -> None:
    clock.jump(-3600.0)
    code = "import time; print(time.time(), time.monotonic())"
    before = time.time(), time.monotonic()
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | clock.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    wall, monotonic = map(float, told.stdout.split())
    assert wall == pytest.approx(before[0] - 3600, abs=60)
    assert monotonic == pytest.approx(before[1], abs=60)


def test_the_clock_of_a_running_redis_jumps_both_ways(clock: FakeClock) -> None:
    if find_server_for_fake_clock() is None:
        pytest.skip("every server here is built with jemalloc, which libfaketime cannot be loaded into")

    async def offset_seconds(port: int) -> float:
        control = open_patient(port)
        try:
            return float((await control.time())[0] - time.time())
        finally:
            await control.aclose()

    with ChaosRedis(clock) as server:
        assert asyncio.run(offset_seconds(server.port)) == pytest.approx(0, abs=30)
        clock.jump(7200.0)
        assert asyncio.run(offset_seconds(server.port)) == pytest.approx(7200, abs=30)
        clock.jump(-14400.0)
        assert asyncio.run(offset_seconds(server.port)) == pytest.approx(-7200, abs=30)
