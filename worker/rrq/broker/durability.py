"""Acknowledge a job only once it is safe: on a replica, or on the disk of Redis.

Redis answers as soon as a job is in its memory. A crash or fail-over may lose what it answered in its last moments.
With ``settings.durability`` a producer waits a little longer: for one replica ("replica") or for the disk ("fsync").

WAIT and WAITAOF cover what their own connection wrote, and block the calls behind them. So calls that have to be safe
have a connection of their own, and all that Redis answers during one wait shares the next: a thousand producers at once
cost a few waits, not a thousand.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.exc import NotDurable, SettingsError
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis


T = TypeVar("T")


class DurableConnection:
    """Runs scripts like a ``PipelinedConnection``, and returns only when what they wrote is safe."""

    def __init__(self, settings: RRQSettings, redis: "Redis") -> None:
        self._settings = settings
        self._connection = PipelinedConnection(settings, redis)
        self._connection.on_connect = self._count_socket
        # Sockets are numbered, because a wait covers only what was written on its own socket.
        self._socket_number = 0
        self._examined_socket = 0
        self._has_waitaof = False
        self._examining: asyncio.Lock | None = None
        self._examining_loop: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wait: asyncio.Task[int] | None = None
        self._next_wait: asyncio.Task[int] | None = None

    async def run(
        self, name: str, keys: Sequence[Any], args: Sequence[Any], *, read: Callable[[Any], T]
    ) -> T:
        """Run the script ``lua/<name>.lua``, wait until its writes are safe, and return what ``read`` makes of its answer.

        Raises NotDurable when the writes were made and not confirmed in time, SettingsError before
        anything is written when this server can never confirm.
        """
        await self._connection.ensure_open()
        await self._examine_server()
        # Redis reads the script only after a wait that is under way.
        answer = await self._connection.run(
            name, keys, args, timeout_seconds=self._longest_seconds, read=read
        )
        written_on = self._socket_number
        if await self._join_next_wait() != written_on:
            raise _lost()
        return answer

    async def aclose(self) -> None:
        await self._connection.aclose()

    def _count_socket(self) -> None:
        self._socket_number += 1

    async def _join_next_wait(self) -> int:
        """Take part in the wait that starts after this moment; returns the number of its socket."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._wait, self._next_wait = loop, None, None
        if self._next_wait is None:
            self._next_wait = loop.create_task(self._wait_after(self._wait), name="rrq-durability")
            # All callers may have been cancelled meanwhile; asyncio would then complain of the error.
            self._next_wait.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: the others go on waiting when one of them is cancelled.
        return await asyncio.shield(self._next_wait)

    async def _wait_after(self, previous: asyncio.Task[int] | None) -> int:
        if previous is not None:
            await asyncio.wait([previous])
        self._wait, self._next_wait = self._next_wait, None
        socket_number = self._socket_number
        if not self._connection.is_open:
            raise _lost()
        await self._examine_server()
        if not self._connection.is_open or self._socket_number != socket_number:
            raise _lost()
        # Nothing yields between the check and the write, so the wait goes out on this socket.
        try:
            is_safe = await self._confirm()
        except ResponseError as refusal:
            raise await self._leave(refusal) from refusal
        if not is_safe:
            raise NotDurable(self._settings.durability, self._settings.durability_wait_seconds)
        return socket_number

    async def _confirm(self) -> bool:
        wait_ms = int(self._settings.durability_wait_seconds * 1000)
        if self._settings.durability == "replica":
            return bool(await self._call("WAIT", 1, wait_ms, read=int) >= 1)
        if not self._has_waitaof:
            return True  # examined: this server writes to the disk before it answers
        return bool(await self._call("WAITAOF", 1, 0, wait_ms, read=lambda reply: int(reply[0])) >= 1)

    @property
    def _longest_seconds(self) -> float:
        return self._settings.durability_wait_seconds + self._settings.redis_socket_timeout_seconds

    async def _call(self, *command: Any, read: Callable[[Any], Any] | None = None) -> Any:
        return await self._connection.call(*command, timeout_seconds=self._longest_seconds, read=read)

    async def _examine_server(self) -> None:
        """Check, once per socket, that this server can confirm writes."""
        if self._examined_socket == self._socket_number:
            return
        loop = asyncio.get_running_loop()
        if self._examining is None or self._examining_loop is not loop:
            self._examining, self._examining_loop = asyncio.Lock(), loop
        # One check at a time: a thousand producers on a new socket would all ask the same.
        async with self._examining:
            socket_number = self._socket_number
            if self._examined_socket == socket_number:
                return
            if self._settings.durability == "fsync":
                self._has_waitaof = await self._can_wait_for_disk()
                if not self._has_waitaof:
                    await self._expect_disk_before_answer()
            else:
                await self._expect_waits_for_replicas()
            self._examined_socket = socket_number

    async def _expect_waits_for_replicas(self) -> None:
        try:
            await self._call("WAIT", 0, 1)  # for no replica, which is answered at once
        except NoPermissionError as refusal:
            raise SettingsError(
                f"This Redis refuses durability 'replica': {refusal}. Give its user the right to WAIT (+wait), or "
                "choose durability 'server'."
            ) from refusal
        except ResponseError as refusal:
            raise await self._leave(refusal) from refusal

    async def _can_wait_for_disk(self) -> bool:
        try:
            await self._call("WAITAOF", 1, 0, 1)
        except ResponseError as refusal:
            if "unknown command" in str(refusal).lower():
                return False  # before Redis 7.2
            if not isinstance(refusal, NoPermissionError) and "appendonly is disabled" not in str(refusal):
                raise await self._leave(refusal) from refusal
            raise SettingsError(
                f"This Redis refuses durability 'fsync': {refusal}. Turn its append-only file on (appendonly yes), "
                "allow its user to wait for it (+waitaof), or choose durability 'replica' or 'server'."
            ) from refusal
        return True

    async def _leave(self, refusal: ResponseError) -> RedisConnectionError:
        """Close the connection to a server that confirms no writes, such as a replica after a fail-over; the next call reconnects."""
        await self._connection.aclose()
        return RedisConnectionError(f"Redis refused to confirm the write: {refusal}")

    async def _expect_disk_before_answer(self) -> None:
        try:
            found = await self._call("CONFIG", "GET", "append*")
        except ResponseError as refusal:
            raise SettingsError(
                "durability 'fsync' needs Redis 7.2, which has WAITAOF, or appendfsync always. This one is "
                f"older and does not say how it is configured ({refusal}). Choose durability 'replica' or 'server'."
            ) from refusal
        options = dict(zip(found[::2], found[1::2], strict=True))
        if options.get(b"appendonly") != b"yes" or options.get(b"appendfsync") != b"always":
            raise SettingsError(
                "durability 'fsync' needs Redis 7.2, which has WAITAOF, or appendonly yes with appendfsync "
                "always. This Redis is older and configured otherwise. Change it, or choose durability "
                "'replica' or 'server'."
            )


def _lost() -> RedisConnectionError:
    return RedisConnectionError("The connection was lost before the jobs were confirmed.")
