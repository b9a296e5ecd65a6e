"""The live streams of the open pages: one per page, fed by the samples of ``feed.py``."""

import asyncio
import contextlib
import logging
from typing import Final

from aiohttp import web

from rrq.dashboard.callers import Callers
from rrq.dashboard.connections import Connection, Stage, find_connection
from rrq.dashboard.feed import Feed
from rrq.dashboard.limits import MOST_STREAMS, MOST_STREAMS_PER_SESSION, Quota
from rrq.dashboard.responses import SECURITY_HEADERS, encode_event

logger = logging.getLogger(__name__)

#: A page that reads nothing for this time has been closed.
_WRITE_SECONDS: Final = 15.0


class LiveStreams:
    """Streams events to any number of pages until ``ending`` is set."""

    def __init__(self, feed: Feed, callers: Callers, ending: asyncio.Event) -> None:
        self._feed = feed
        self._callers = callers
        self._ending = ending
        self._quota = Quota[Connection](MOST_STREAMS, MOST_STREAMS_PER_SESSION, lambda _: 0)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        connection, owner = find_connection(request), self._callers.name_owner(request)
        leaving = self._quota.take(owner, connection, client=self._callers.find_client(request))
        if leaving is not None:
            # Its page connects again after a moment; the newest stream is never refused in favour of older ones.
            leaving.abort()
        try:
            with connection.at(Stage.STREAMING):
                return await self._stream(request)
        finally:
            self._quota.free(owner, connection)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**SECURITY_HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        # Otherwise nginx collects events until its buffer is full.
        response.headers["X-Accel-Buffering"] = "no"
        await response.prepare(request)
        ended = asyncio.ensure_future(self._ending.wait())
        try:
            async with contextlib.aclosing(self._feed.watch()) as messages:
                # Checked before each message, because a session may end while its page stays open.
                while await self._callers.find(request) is not None:
                    following = asyncio.ensure_future(anext(messages))
                    await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        following.cancel()
                        await asyncio.wait({following})
                        break
                    async with asyncio.timeout(_WRITE_SECONDS):
                        await response.write(encode_event(following.result()))
        except (ConnectionResetError, TimeoutError):
            logger.debug("a page was closed")
        finally:
            ended.cancel()
        return response
