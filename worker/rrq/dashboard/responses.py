"""Answers of the dashboard: JSON, refusals, events, and the headers that all of them have."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from rrq.dashboard.policy import Denial
from rrq.runtime.escaping import as_strict_json

# The page brings everything it needs: no inline code, nothing from other hosts, and no other site may frame it.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def answer_json(data: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(text=_encode(data), status=status, content_type="application/json")


def refuse(denial: Denial) -> web.Response:
    return answer_json({"error": denial.reason}, denial.status)


def encode_event(message: tuple[str, Mapping[str, Any]] | None) -> bytes:
    """Return an event of a stream; None is a comment, which keeps the connection open."""
    if message is None:
        return b": no news\n\n"
    name, data = message
    return f"event: {name}\ndata: {_encode(data)}\n\n".encode()


def _encode(data: Mapping[str, Any]) -> str:
    # A score may be infinite, which JSON and browsers cannot express.
    return json.dumps(as_strict_json(data), separators=(",", ":"))
