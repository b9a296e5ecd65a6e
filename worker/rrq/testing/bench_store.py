"""The store of a bench: the real scripts on a real Redis, by the clock of the bench; a test may have answers lost."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rrq.broker.connection import RedisCutOff, mask_dsn
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.broker.scripts import Script, build_script
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq.testing.clock import Clock

T = TypeVar("T")

# Expiries are counted by the clock of the server, which a bench cannot set: each key is given that much less time.
# ARGV  1 milliseconds that have passed   2… keys of the living, who renew them in time
_SHORTEN = """
local spared = {}
for i = 2, #ARGV do spared[ARGV[i]] = true end
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left_ms = redis.call('PTTL', key)
  if left_ms > 0 and not spared[key] then redis.call('PEXPIRE', key, left_ms - tonumber(ARGV[1])) end
end
"""
_SHORTEN_SCRIPT = build_script("shorten_expiries", _SHORTEN)


class BenchConnection(PipelinedConnection):
    """A connection that runs scripts at the time of the bench, and may lose an answer or die."""

    def __init__(self, store: JobStore, clock: Clock, lost_replies: Counter[str]) -> None:
        super().__init__(store.settings, store.redis)
        self._clock = clock
        self._lost_replies = lost_replies
        self.is_dead = False

    async def call(
        self,
        *command: Any,
        timeout_seconds: float | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        if self.is_dead:
            raise self._cut_off("this worker was killed")
        if command != ("TIME",):
            return await super().call(*command, timeout_seconds=timeout_seconds, read=read)
        seconds, microseconds = await super().call(*command, timeout_seconds=timeout_seconds)
        time = divmod(int(seconds) * 1_000_000 + int(microseconds) + self._clock.offset_us, 1_000_000)
        return time if read is None else read(time)

    async def run_script(
        self,
        script: Script,
        keys: Sequence[Any],
        args: Sequence[Any],
        *,
        read: Callable[[Any], T],
        timeout_seconds: float | None = None,
    ) -> T:
        shifted = self._clock.shift(script)
        answer = await super().run_script(shifted, keys, args, read=read, timeout_seconds=timeout_seconds)
        if self._lost_replies[script.name]:
            self._lost_replies[script.name] -= 1
            # All other calls that wait for an answer on this socket lose it as well, as in production.
            await self.aclose()
            raise self._cut_off(f"the test cut the answer to {script.name}")
        return answer

    def _cut_off(self, reason: str) -> RedisCutOff:
        return RedisCutOff(mask_dsn(self._settings.redis_dsn), reason)


class BenchStore(JobStore):
    """A store whose scripts run by the clock of the bench; one for producers, one for each worker."""

    def __init__(self, settings: RRQSettings, clock: Clock, lost_replies: Counter[str]) -> None:
        super().__init__(settings)
        self.bench_connection = BenchConnection(self, clock, lost_replies)
        self.connection = self.bench_connection

    async def shorten_expiries(self, passed_seconds: float, spared: Sequence[str]) -> None:
        """Take so much from the time that every key has left, those of the living excepted."""
        # Past the shift, which is for scripts that read the time.
        args = [int(passed_seconds * 1000), *spared]
        await PipelinedConnection.run_script(self.connection, _SHORTEN_SCRIPT, [], args, read=bool)

    async def read_queue_names(self) -> set[str]:
        """Return the names of all queues with something in them. By KEYS, which only a bench can afford."""
        found = await self.connection.call("KEYS", self.keys.queue_key("*"))
        return {self.keys.queue_name(key.decode()) for key in found}
