"""What every call to Redis needs: the settings, the names of the keys, and the connections."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rrq.broker.connection import close_redis, open_redis
from rrq.broker.durability import DurableConnection
from rrq.broker.keys import Keys
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["RedisAccess", "to_ms"]


class RedisAccess:
    """The connections to one Redis. Building it opens none and needs no event loop."""

    def __init__(self, settings: RRQSettings) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        #: An ordinary client (bytes in, bytes out) that applications may use, too.
        self.redis: Redis = open_redis(settings)
        self.connection = PipelinedConnection(settings, self.redis)
        #: Blocks in Redis while a worker is idle, so it needs a socket of its own.
        self.blocking_connection = PipelinedConnection(settings, self.redis)
        self._durable_connection = DurableConnection(settings, self.redis)

    async def aclose(self) -> None:
        """Close all connections. Repeated calls are harmless."""
        await self.connection.aclose()
        await self.blocking_connection.aclose()
        await self._durable_connection.aclose()
        await close_redis(self.redis)

    async def read_time(self) -> datetime:
        """Return what the clock of Redis says, in UTC."""
        seconds, microseconds = await self.connection.call("TIME")
        return datetime.fromtimestamp(int(seconds) + int(microseconds) / 1_000_000, UTC)

    async def _read_now_ms(self) -> int:
        seconds, microseconds = await self.connection.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000


def to_ms(seconds: float) -> int:
    return int(seconds * 1000)
