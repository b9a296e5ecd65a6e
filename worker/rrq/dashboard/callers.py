"""Who sends the requests: reads the evidence, signs users in and out, and answers what their session is."""

import asyncio
import logging
import secrets
from http import HTTPStatus
from time import monotonic, time
from typing import Final

from aiohttp import web

from rrq.dashboard.access import (
    ANONYMOUS,
    SESSION_SECONDS,
    Caller,
    Evidence,
    Session,
    WriteEvidence,
    build_csrf_token,
    build_key,
    build_session,
    decide_caller,
    decide_origin,
    decide_sign_in,
    decide_write,
    name_actor,
    parse_session,
)
from rrq.dashboard.bodies import SIGN_IN_BYTES, read_order
from rrq.dashboard.ended_sessions import EndedSessions
from rrq.dashboard.feed import TROUBLE
from rrq.dashboard.limits import WrongTokens
from rrq.dashboard.policy import AccessPolicy, Denial, find_client
from rrq.dashboard.responses import answer_json, refuse
from rrq.version import __version__

logger = logging.getLogger(__name__)

_COOKIE_NAME: Final = "rrq_dashboard"
_CSRF_HEADER: Final = "X-RRQ-CSRF"
# The page has to show that Redis does not answer, so it cannot wait for Redis for long.
_ENDED_SESSIONS_SECONDS: Final = 1.0

SIGN_IN_FIRST: Final = Denial(HTTPStatus.UNAUTHORIZED, "Sign in first.")


class Callers:
    """Finds the caller of each request; signing in and out changes who that is."""

    def __init__(
        self, policy: AccessPolicy, secret: bytes, ended_sessions: EndedSessions, *, hides_values: bool
    ) -> None:
        self._policy = policy
        self._key = build_key(policy, secret)
        self._ended_sessions = ended_sessions
        self._hides_values = hides_values
        self._wrong_tokens = WrongTokens()

    async def find(self, request: web.Request, *, is_write: bool = False) -> Caller | None:
        """Return the caller, after reading which sessions ended on other servers.

        For a look, the sessions that are known to have ended are enough while Redis does not answer. For a write, a Redis
        that does not answer raises TROUBLE.
        """
        caller = self._decide(request)
        if caller is None or caller.session is None:
            return caller
        try:
            async with asyncio.timeout(None if is_write else _ENDED_SESSIONS_SECONDS):
                await self._ended_sessions.refresh()
        except TROUBLE as error:
            if is_write:
                raise
            logger.debug("cannot read ended sessions", extra={"error": str(error)})
        return self._decide(request)

    async def find_writer(self, request: web.Request) -> Caller | Denial:
        """Return the caller of a request that changes something, or why it may not."""
        caller = await self.find(request, is_write=True)
        denial = decide_write(self._key, caller, request.cookies.get(_COOKIE_NAME), _write_evidence(request))
        return denial or caller or SIGN_IN_FIRST

    def name_owner(self, request: web.Request) -> str:
        """Return whose limits a request counts against: a session, a user of the proxy, or an address."""
        caller = self._decide(request)
        if caller is None or caller.actor == ANONYMOUS:
            return self.find_client(request)
        return f"session {caller.session.id}" if caller.session is not None else f"user {caller.actor}"

    def _decide(self, request: web.Request) -> Caller | None:
        header = self._policy.proxy_user_header
        evidence = Evidence(
            peer=_peer(request),
            proxy_user=request.headers.get(header) if header else None,
            cookie=request.cookies.get(_COOKIE_NAME),
        )
        return decide_caller(self._policy, self._key, evidence, time(), self._ended_sessions)

    def find_client(self, request: web.Request) -> str:
        """Return the address that a request comes from, seen through trusted proxies."""
        return find_client(self._policy, _peer(request), request.headers.getall("X-Forwarded-For", []))

    async def show_session(self, request: web.Request) -> web.StreamResponse:
        caller = await self.find(request)
        server = {"version": __version__, "takes_tokens": self._policy.takes_tokens}
        if caller is None:
            return answer_json({**server, "error": SIGN_IN_FIRST.reason}, SIGN_IN_FIRST.status)
        return answer_json(
            {
                **server,
                "actor": caller.actor,
                "role": caller.role.value,
                "has_session": caller.session is not None,
                "hides_values": self._hides_values,
                "csrf_header": _CSRF_HEADER,
                "csrf": build_csrf_token(self._key, caller, request.cookies.get(_COOKIE_NAME)),
            }
        )

    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        denial = decide_origin(_write_evidence(request))
        if denial is not None:
            return refuse(denial)
        client = self.find_client(request)
        order = await read_order(request, SIGN_IN_BYTES)
        # Nothing is awaited from here on, so that parallel guesses are compared and counted one by one.
        now = monotonic()
        if self._wrong_tokens.is_blocked(client, now):
            return refuse(
                Denial(
                    HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong tokens from this address. Wait a minute."
                )
            )
        role = decide_sign_in(self._policy, str(order.get("token", "")))
        if role is None:
            self._wrong_tokens.add(client, now)
            logger.warning("sign-in refused", extra={"client": client, "peer": _peer(request)})
            return refuse(Denial(HTTPStatus.FORBIDDEN, "This token is wrong."))
        actor = name_actor(str(order.get("name", "")), role)
        logger.info("signed in", extra={"actor": actor, "role": role.value})
        session = Session(secrets.token_urlsafe(16), actor, role, int(time()) + SESSION_SECONDS)
        response = answer_json({"role": role.value})
        response.set_cookie(
            _COOKIE_NAME,
            build_session(self._key, session),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="Strict",
            # The proxy sets this header; a client that fakes it only keeps its own cookie from plain HTTP.
            secure=request.secure or request.headers.get("X-Forwarded-Proto") == "https",
        )
        return response

    async def sign_out(self, request: web.Request) -> web.StreamResponse:
        denial = decide_origin(_write_evidence(request))
        if denial is not None:
            return refuse(denial)
        session = parse_session(self._key, request.cookies.get(_COOKIE_NAME, ""), time())
        if session is not None:
            await self._ended_sessions.end(session)
            logger.info("signed out", extra={"actor": session.actor})
        response = answer_json({})
        response.del_cookie(_COOKIE_NAME, httponly=True, samesite="Strict")
        return response


def _write_evidence(request: web.Request) -> WriteEvidence:
    headers = request.headers
    return WriteEvidence(
        request.host, headers.get("Origin"), headers.get("Sec-Fetch-Site"), headers.get(_CSRF_HEADER)
    )


def _peer(request: web.Request) -> str:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""
