"""Reads the body of a request as JSON, within a limit of bytes and time."""

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from rrq.dashboard.connections import Stage, find_connection

#: A token and a name.
SIGN_IN_BYTES: Final = 4 * 1024
#: The arguments of a job that an admin edits.
ORDER_BYTES: Final = 1024 * 1024
_BODY_SECONDS: Final = 10.0


async def read_order(request: web.Request, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object that a page sent. Raises an HTTPException that says what is wrong with it."""
    # A form on another site can send text, but for JSON the browser asks this server first.
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="Send JSON.")
    body = await _read_body(request, most_bytes)
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(reason="The body is not JSON.") from None
    if not isinstance(order, dict):
        raise web.HTTPBadRequest(reason="The body is not a JSON object.")
    return order


async def _read_body(request: web.Request, most_bytes: int) -> bytes:
    if (request.content_length or 0) > most_bytes:
        raise _too_large(most_bytes, request.content_length or 0)
    body = bytearray()
    connection = find_connection(request)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            with connection.at(Stage.READING):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > most_bytes:
                        raise _too_large(most_bytes, len(body))
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(reason="The body does not match its headers.") from None
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            reason="The rest of the request did not arrive in time. Send it again."
        ) from None
    return bytes(body)


def _too_large(most_bytes: int, actual_bytes: int) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(
        most_bytes, actual_bytes, reason=f"The body has more than {most_bytes} bytes. Send less."
    )
