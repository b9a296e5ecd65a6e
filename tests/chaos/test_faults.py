"""Faults do what they claim: Redis really refuses, forgets, loads or says nothing, and is itself again afterwards."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

import chaos_environment
import redis_faults
from chaos_config import ChaosConfig
from chaos_main import PATIENCE_SECONDS, MainPart, open_control, open_patient
from fault_plan import KINDS, PlannedFault
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import ModuleType

    from evidence import Injected

CONFIG = ChaosConfig(1, 10.0, 1, 1, lease_seconds=1.5, pods=0)
KEY, VALUE = "chaos:kept", b"value"
# Redis loads by itself, and for nobody's sake longer: beyond the time for which this process may stand still.
LOADING_SECONDS = 6.0


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Any]:
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


async def inject(
    environment: Any, held: HeldSleep, kind: str, error: type[Exception], *command: str
) -> Injected:
    """Inject a fault and wait until the command fails as it should; returns what was injected."""
    task: asyncio.Future[Injected | None] = asyncio.ensure_future(
        chaos_environment.FAULTS[kind](environment, fault(kind))
    )
    # No answer within this is what a silent Redis is known by; one that loads answers a few times a second.
    probe = open_control(
        environment.main.server.port, 0.3 if error is RedisTimeoutError else PATIENCE_SECONDS
    )

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
    assert await environment.main.patient.get(KEY) == VALUE
    assert await environment.main.patient.set("chaos:after", "1")
    return injected


def test_every_kind_that_a_plan_may_draw_can_be_injected() -> None:
    assert set(chaos_environment.FAULTS) == {kind.name for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "error", "command"),
    [
        ("Redis read-only", ReadOnlyError, ("SET", "chaos:x", "1")),
        ("Redis out of memory", OutOfMemoryError, ("SET", "chaos:x", "1")),
        pytest.param("Redis loading", BusyLoadingError, ("GET", KEY), marks=pytest.mark.slow),
        ("Redis shut down", RedisConnectionError, ("PING",)),
        ("Redis killed", RedisConnectionError, ("PING",)),
        ("Redis paused past the lease", RedisTimeoutError, ("PING",)),
    ],
)
async def test_redis_really_fails_and_is_itself_again(
    environment: Any,
    held: HeldSleep,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    error: type[Exception],
    command: tuple[str, ...],
) -> None:
    if kind == "Redis loading":
        held.is_over.set()  # it sleeps only until its file is written anew, which is before it loads
        monkeypatch.setattr(redis_faults, "LOADING_SECONDS", LOADING_SECONDS)
    pid = environment.main.server.pid
    injected = await inject(environment, held, kind, error, *command)
    is_new = kind in ("Redis loading", "Redis shut down", "Redis killed")
    assert (environment.main.server.pid != pid) == is_new
    # Only a killed one may have lost something, and the judge is told since when.
    assert (injected.loses is not None) == (kind == "Redis killed")
    if kind == "Redis paused past the lease":
        assert injected.ended_at - injected.begun_at > CONFIG.lease_seconds


async def test_scripts_are_flushed_and_every_connection_but_our_own_is_killed(environment: Any) -> None:
    sha = await environment.main.patient.script_load("return 1")
    await redis_faults.flush_scripts(environment, fault("scripts flushed"))
    assert await environment.main.patient.script_exists(sha) == [False]
    other = open_patient(environment.main.server.port)
    before = await other.client_id()
    await redis_faults.kill_connections(environment, fault("connections killed"))
    # The client opens another by itself, and Redis gives it another number.
    after = await other.client_id()
    await other.aclose()
    assert after != before
