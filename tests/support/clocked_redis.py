"""A real Redis whose clock a test sets: the server of the model test.

The scripts read their time from a key instead of from TIME, and what a lock has left to live in steps that are longer
than any example takes, because Redis counts that by its own clock; nothing else of them is changed. Expiries, which Redis counts by its own clock, are moved with it: a jump by a minute takes a minute from
every expiry, a jump backwards adds to it, as a jump of the server's clock would. Between the jumps time
stands still. libfaketime would do the same without touching a line, but only where it is installed, and
could not make time stand still for scripts without doing so for the server's own timers.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from queue_model import GRID_MS
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.broker.scripts import build_script
from rrq.embedded import EmbeddedRedis
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path
    from typing import Self, TypeVar

    from rrq.broker.scripts import Script
    from rrq.settings import RRQSettings

    T = TypeVar("T")

_CLOCK = "model:now_us"
_READ_TIME = "redis.call('TIME')"
_READ_CLOCK = f"{{0, redis.call('GET', '{_CLOCK}')}}"
_READ_LEFT = "redis.call('TTL', lock)"
_READ_LEFT_ON_GRID = f"(math.ceil(redis.call('PTTL', lock) / {GRID_MS}) * {GRID_MS // 1000})"
_LARGE_LOG_BYTES = 4_000_000
# What every value is made of is read by the type of its key; a stream by its length.
_LOOK = f"""
local reads = {{string = {{'GET'}}, hash = {{'HGETALL'}}, zset = {{'ZRANGE', 0, -1, 'WITHSCORES'}},
  list = {{'LRANGE', 0, -1}}, set = {{'SMEMBERS'}}, stream = {{'XLEN'}}}}
local rows = {{}}
for _, key in ipairs(redis.call('KEYS', 'rrq:*')) do
  local left_ms = redis.call('PTTL', key)
  -- These two last for seconds of real time, whatever the clock of the test says.
  if left_ms > 0 and not (string.find(key, 'rrq:notified:', 1, true) or string.find(key, 'rrq:wake:', 1, true)) then
    left_ms = math.ceil(left_ms / {GRID_MS}) * {GRID_MS} - tonumber(ARGV[1])
    redis.call('PEXPIRE', key, left_ms)
  end
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' then
    local command = reads[kind]
    rows[#rows + 1] = {{key, left_ms, kind, redis.call(command[1], key, unpack(command, 2))}}
  end
end
return rows
"""
_LOOK_SCRIPT = build_script("look", _LOOK)


class Row(NamedTuple):
    """One key: the milliseconds it has left (-1 for ever), and its value.

    A hash is a dict of text, a sorted set a dict of its scores, a list and a set are of text.
    """

    left_ms: int
    value: Any


class ClockedRedis:
    """One server with an event loop to call it from; for one test, emptied for each of its examples."""

    def __init__(
        self, make_settings: Callable[[str], RRQSettings], alter: Callable[[Script], Script]
    ) -> None:
        # Written to the file before each answer, which outlives kill -9; a power cut is not played here.
        self._server = EmbeddedRedis(extra_args=("--appendonly", "yes", "--appendfsync", "no"))
        self._make_settings = make_settings
        self._alter = alter
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        self._server.start()
        self.store = JobStore(self._make_settings(self._server.dsn))
        self._connection = self.store.connection = _ClockedConnection(self.store, self._alter)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.store.aclose())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        self._server.stop()

    @property
    def scripts_run(self) -> set[str]:
        """The names of all scripts that were called at least once."""
        return set(self._connection.altered)

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(step)

    def empty(self, now_ms: int) -> None:
        """Begin an example: nothing stored, the clock at `now_ms`."""
        if sum(path.stat().st_size for path in self._log_files()) > _LARGE_LOG_BYTES:
            # Only to keep restarts quick: the log of all examples would be read each time.
            self.do(self.store.connection.aclose())
            self._server.kill()
            self._remove_log()
            self._server.start()
        self.do(self.store.connection.call("FLUSHALL"))
        self.set_clock(now_ms)

    def set_clock(self, now_ms: int) -> None:
        self.do(self.store.connection.call("SET", _CLOCK, now_ms * 1000))

    def look(self, passed_ms: int = 0) -> dict[str, Row]:
        """Read everything, after moving all expiries by the time that has passed."""
        rows = self.do(
            PipelinedConnection.run_script(self.store.connection, _LOOK_SCRIPT, [], [passed_ms], read=list)
        )
        return {key.decode(): Row(left_ms, _tidy(kind, value)) for key, left_ms, kind, value in rows}

    def keep_copy(self, folder: Path) -> None:
        """Copy what is on disk, for a restart that forgets what came later."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._server.folder, folder)

    def restart(self, copy: Path | None = None) -> None:
        """Kill the server and start it again, on what is on disk or on an earlier copy of it."""
        self.do(self.store.connection.aclose())
        self._server.kill()
        if copy is not None:
            self._remove_log()
            shutil.copytree(copy, self._server.folder, dirs_exist_ok=True)
        self._server.start()

    def _log_files(self) -> list[Path]:
        # Redis 7 keeps them in a folder of their own, Redis 6 one file.
        return [path for path in self._server.folder.rglob("appendonly*") if path.is_file()]

    def _remove_log(self) -> None:
        for path in self._log_files():
            path.unlink()


class _ClockedConnection(PipelinedConnection):
    """Runs each script with the clock of the test, and as changed by the test."""

    def __init__(self, store: JobStore, alter: Callable[[Script], Script]) -> None:
        super().__init__(store.settings, store.redis)
        self._alter = alter
        self.altered: dict[str, Script] = {}

    async def run_script(self, script: Script, keys: Any, args: Any, **options: Any) -> Any:
        altered = self.altered.get(script.name)
        if altered is None:
            source = self._alter(script).source
            assert source.count(_READ_TIME) == 1, f"{script.name} reads the time in a way of its own"
            assert source.count("TTL'") == source.count(_READ_LEFT), f"{script.name} reads another expiry"
            source = source.replace(_READ_TIME, _READ_CLOCK).replace(_READ_LEFT, _READ_LEFT_ON_GRID)
            altered = build_script(script.name, source)
            self.altered[script.name] = altered
        return await super().run_script(altered, keys, args, **options)


def _tidy(kind: bytes, value: Any) -> Any:
    # Redis lists the members of hashes and sets in an order of its own, which changes by itself.
    match kind:
        case b"hash":
            return dict(_pairs(value))
        case b"zset":
            return {member: float(score) for member, score in _pairs(value)}
        case b"list":
            return [entry.decode() for entry in value]
        case b"set":
            return {entry.decode() for entry in value}
        case b"string":
            return value.decode()
        case _:
            return value


def _pairs(flat: list[bytes]) -> Iterator[tuple[str, str]]:
    texts = [part.decode() for part in flat]
    return zip(texts[::2], texts[1::2], strict=True)
