"""Limits on the size of one reply of Redis: the parser that ``connection.py`` gives to every connection.

hiredis and redis-py have no limits. They keep what a server sends until the reply is complete, and allocate as many
values as an array announces before the first of them has arrived. A server that never ends its reply, or announces a
billion values, would take all memory of the process that asked.
"""

import re
from typing import Any

from redis._parsers import _AsyncHiredisParser
from redis._parsers.socket import SERVER_CLOSED_CONNECTION_ERROR
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

from rrq.runtime.masking import clean_foreign_text

__all__ = ["BoundedParser", "ReplyTooLarge"]

# The header of an array or of another collection, and what may be the beginning of one at the end of a piece.
# hiredis takes no number with more digits.
_HEADER = re.compile(rb"[*%~>|](\d{1,20})\r\n")
_UNFINISHED_HEADER = re.compile(rb"[*%~>|]\d{0,20}\r?$")


class ReplyTooLarge(InvalidResponse):
    """Redis sent more than this process accepts in one reply. The connection cannot be used any more."""


class BoundedParser(_AsyncHiredisParser):
    """Reads replies of at most ``most_bytes``, and of at most ``most_values`` if that is given.

    Values are counted as headers announce them. A text may look like a header, so workers, whose replies contain the
    arguments of jobs, go without the second limit.
    """

    def __init__(self, socket_read_size: int, *, most_bytes: int, most_values: int | None) -> None:
        # Before 8.0 redis-py passed on what the address says as text.
        super().__init__(int(socket_read_size))
        self._most_bytes = most_bytes
        self._most_values = most_values
        self._received_bytes = self._announced_values = 0
        self._unfinished = b""

    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)  # type: ignore[no-untyped-call]  # redis-py leaves it without types
        # redis-py opens a connection again with the same parser.
        self._received_bytes = self._announced_values = 0
        self._unfinished = b""

    async def read_from_socket(self) -> bool:
        stream, reader = self._stream, self._reader
        # redis-py clears both when it has hung up.
        piece = b"" if stream is None or reader is None else await stream.read(self._read_size)
        if not piece or reader is None:
            raise RedisConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
        self._received_bytes += len(piece)
        if self._received_bytes > self._most_bytes:
            raise ReplyTooLarge(
                f"Redis sent a reply of more than {self._most_bytes} bytes, the limit redis_max_reply_bytes."
            )
        # Before the parser sees it: it makes room as soon as it has read a header.
        if self._most_values is not None:
            self._count_values(piece, self._most_values)
        reader.feed(piece)
        return True

    def _count_values(self, piece: bytes, most_values: int) -> None:
        piece = self._unfinished + piece
        self._announced_values += sum(map(int, _HEADER.findall(piece)))
        if self._announced_values > most_values:
            raise ReplyTooLarge(
                f"Redis announced a reply of more than {most_values} values, the limit redis_max_reply_values."
            )
        unfinished = _UNFINISHED_HEADER.search(piece, max(0, len(piece) - 22))
        self._unfinished = unfinished[0] if unfinished else b""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        reply = await super().read_response(*args, **options)
        # What has arrived of the next reply already, at most a piece, counted for this one.
        self._received_bytes = self._announced_values = 0
        return reply

    async def handle_push_response(self, response: Any, **options: Any) -> Any:
        # redis-py reads on after each push, deeper in the stack. Without RESP3 no Redis sends any.
        if self._most_values is not None:
            raise ReplyTooLarge("Redis pushed a message that this process has not asked for.")
        return await super().handle_push_response(response, **options)  # type: ignore[no-untyped-call]  # redis-py leaves it without types

    @classmethod
    def parse_error(cls, response: str) -> ResponseError:
        # Cleaned here, because every message, log line and condition quotes it later.
        text = clean_foreign_text(response)
        try:
            error: ResponseError = super().parse_error(text)  # type: ignore[no-untyped-call]  # redis-py leaves it without types
        except ValueError:
            # A redirect whose address makes no sense, for example.
            return ResponseError(text)
        return error
