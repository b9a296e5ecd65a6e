"""The HTTP side of the dashboard: routes, headers and streams, nothing else.

Who may do what is decided in ``access.py``, what is shown in ``pages.py``, what is changed in ``actions.py``.
"""

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Final

from aiohttp import web

from rrq.commands.formatting import as_strict_json
from rrq.dashboard.access import (
    ANONYMOUS,
    COOKIE_NAME,
    CSRF_HEADER,
    SECURITY_HEADERS,
    SESSION_SECONDS,
    AccessPolicy,
    Caller,
    Denial,
    Evidence,
    Session,
    WriteEvidence,
    build_csrf_token,
    build_key,
    build_session,
    decide_caller,
    decide_host,
    decide_origin,
    decide_sign_in,
    decide_write,
    find_client,
    name_actor,
    parse_session,
)
from rrq.dashboard.actions import Actions, OrderRefused
from rrq.dashboard.assets import load_assets
from rrq.dashboard.bodies import ORDER_BYTES, SIGN_IN_BYTES, read_order
from rrq.dashboard.connections import Connection, Stage, find_connection
from rrq.dashboard.ended_sessions import EndedSessions
from rrq.dashboard.feed import TROUBLE, Feed
from rrq.dashboard.job_views import ValueRules
from rrq.dashboard.limits import (
    MOST_CONNECTIONS,
    MOST_REQUESTS_PER_CLIENT,
    MOST_STREAMS,
    MOST_STREAMS_PER_SESSION,
    Places,
    WrongTokens,
)
from rrq.dashboard.pages import Answer, Pages
from rrq.dashboard.reading import PictureReader
from rrq.store import JobStore
from rrq.version import __version__

logger = logging.getLogger(__name__)

# While Redis does not answer, the page still has to say so.
_ENDED_SESSIONS_SECONDS: Final = 1.0
#: A page that reads nothing for so long is gone.
_WRITE_SECONDS: Final = 15.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class DashboardOptions:
    policy: AccessPolicy
    secret: bytes
    """Random; servers that have the same one know each other's sessions."""
    hides_values: bool
    describe_trouble: Callable[[BaseException], str]


class Dashboard:
    """One server for one Redis."""

    def __init__(self, store: JobStore, options: DashboardOptions) -> None:
        self._policy = options.policy
        self._key = build_key(options.policy, options.secret)
        self._rules = ValueRules(options.hides_values)
        self._describe = options.describe_trouble
        self._feed = Feed(PictureReader(store).run_once, options.describe_trouble)
        self._pages = Pages(store, self._feed, self._rules)
        self._actions = Actions(store, hides_values=options.hides_values)
        self._assets = load_assets()
        self._ending = asyncio.Event()
        self._ended_sessions = EndedSessions(store)
        self._wrong_tokens = WrongTokens()
        self._requests = Places[Connection](
            MOST_CONNECTIONS, MOST_REQUESTS_PER_CLIENT, lambda held: held.stage.value
        )
        self._streams = Places[Connection](MOST_STREAMS, MOST_STREAMS_PER_SESSION, lambda _: 0)

    def build_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.cleanup_ctx.append(self._run_feed)
        app.on_shutdown.append(self._end_streams)
        get = app.router.add_get
        get("/", self._page)
        get("/static/{path:.+}", self._static)
        get("/livez", self._livez)
        get("/api/session", self._session)
        app.router.add_post("/api/sign-in", self._sign_in)
        app.router.add_post("/api/sign-out", self._sign_out)
        get("/api/live", self._for_viewers(self._live))
        for path, answer in self._pages.by_path().items():
            get(f"/api/{path}", self._for_viewers(_as_json(answer)))
        app.router.add_post("/api/actions/{name}", self._act)
        return app

    # Around every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with find_connection(request).answering(), self._place(request) as denial:
                response = _refuse(denial) if denial is not None else await self._answer(request, handler)
        except ConnectionResetError:
            # Mostly the client went away, or it gave way to others. Raised, each would be a traceback in the log.
            response = _json({"error": "The connection was lost."}, HTTPStatus.SERVICE_UNAVAILABLE)
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    @contextlib.contextmanager
    def _place(self, request: web.Request) -> Iterator[Denial | None]:
        """Count a request against its client while it is answered; yields why it is refused."""
        if request.path == "/livez":
            yield None
            return
        connection, owner = find_connection(request), self._owner_of(request)
        # Before anything is awaited: later, any number would have come in.
        leaving = self._requests.take(owner, connection, client=self._client_of(request))
        if leaving is not None and leaving is not connection:
            leaving.abort()
        try:
            if leaving is connection:
                yield Denial(
                    HTTPStatus.TOO_MANY_REQUESTS, "Too many requests at once. Try again in a moment."
                )
            else:
                yield decide_host(self._policy, request.host)
        finally:
            self._requests.free(owner, connection)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _json({"error": error.reason}, HTTPStatus(error.status))
        except OrderRefused as error:
            return _json({"error": str(error)}, HTTPStatus.CONFLICT)
        except TROUBLE as error:
            if isinstance(error, ConnectionResetError):
                raise  # the browser went away
            return _json({"error": self._describe(error), "is_trouble": True}, HTTPStatus.SERVICE_UNAVAILABLE)

    def _for_viewers(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if await self._find_caller(request) is None:
                return _refuse(Denial(HTTPStatus.UNAUTHORIZED, "Sign in first."))
            return await handler(request)

        return answer

    async def _find_caller(self, request: web.Request, *, is_to_act: bool = False) -> Caller | None:
        """Return who this is, after a look at what was signed out elsewhere.

        To look, what was known before is enough while Redis is away; to act, that raises TROUBLE.
        """
        caller = self._caller(request)
        if caller is None or caller.session is None:
            return caller
        try:
            async with asyncio.timeout(None if is_to_act else _ENDED_SESSIONS_SECONDS):
                await self._ended_sessions.refresh()
        except TROUBLE as error:
            if is_to_act:
                raise
            logger.debug("cannot read ended sessions", extra={"error": str(error)})
        return self._caller(request)

    def _caller(self, request: web.Request) -> Caller | None:
        header = self._policy.proxy_user_header
        evidence = Evidence(
            peer=_peer(request),
            proxy_user=request.headers.get(header) if header else None,
            cookie=request.cookies.get(COOKIE_NAME),
        )
        return decide_caller(self._policy, self._key, evidence, time(), self._ended_sessions)

    def _owner_of(self, request: web.Request) -> str:
        """Return whose limits a request counts against: a session, a user of the proxy, or an address."""
        caller = self._caller(request)
        if caller is None or caller.actor == ANONYMOUS:
            return self._client_of(request)
        return f"session {caller.session.id}" if caller.session is not None else f"user {caller.actor}"

    def _client_of(self, request: web.Request) -> str:
        return find_client(self._policy, _peer(request), request.headers.getall("X-Forwarded-For", []))

    # The page itself: it holds no data, so that it may be had before anybody signs in

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return self._send_asset(request, "index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return self._send_asset(request, request.match_info["path"])

    def _send_asset(self, request: web.Request, name: str) -> web.StreamResponse:
        asset = self._assets.get(name)
        if asset is None:
            raise web.HTTPNotFound(reason="There is no such page.")
        # Asked for each time, so that after an upgrade no browser mixes old and new files.
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == asset.etag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(
            body=asset.body, content_type=asset.content_type, charset="utf-8", headers=headers
        )

    async def _livez(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="the dashboard answers\n")

    # Who is there

    async def _session(self, request: web.Request) -> web.StreamResponse:
        caller = await self._find_caller(request)
        told = {"version": __version__, "takes_tokens": self._policy.takes_tokens}
        if caller is None:
            return _json({**told, "error": "Sign in first."}, HTTPStatus.UNAUTHORIZED)
        return _json(
            {
                **told,
                "actor": caller.actor,
                "role": caller.role.value,
                "has_session": caller.session is not None,
                "hides_values": self._rules.hides_values,
                "csrf_header": CSRF_HEADER,
                "csrf": build_csrf_token(self._key, caller, request.cookies.get(COOKIE_NAME)),
            }
        )

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        denial = decide_origin(_write_evidence(request))
        if denial is not None:
            return _refuse(denial)
        client = self._client_of(request)
        order = await read_order(request, SIGN_IN_BYTES)
        # From here on nothing is awaited, so that parallel guesses are compared and counted one by one.
        now = monotonic()
        if self._wrong_tokens.is_blocked(client, now):
            return _refuse(
                Denial(
                    HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong tokens from this address. Wait a minute."
                )
            )
        role = decide_sign_in(self._policy, str(order.get("token", "")))
        if role is None:
            self._wrong_tokens.add(client, now)
            logger.warning("sign-in refused", extra={"client": client, "peer": _peer(request)})
            return _refuse(Denial(HTTPStatus.FORBIDDEN, "This token is not known here."))
        actor = name_actor(str(order.get("name", "")), role)
        logger.info("signed in", extra={"actor": actor, "role": role.value})
        session = Session(secrets.token_urlsafe(16), actor, role, int(time()) + SESSION_SECONDS)
        response = _json({"role": role.value})
        response.set_cookie(
            COOKIE_NAME,
            build_session(self._key, session),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="Strict",
            # A proxy says how the browser came; at worst a liar keeps its own cookie from plain HTTP.
            secure=request.secure or request.headers.get("X-Forwarded-Proto") == "https",
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        denial = decide_origin(_write_evidence(request))
        if denial is not None:
            return _refuse(denial)
        session = parse_session(self._key, request.cookies.get(COOKIE_NAME, ""), time())
        if session is not None:
            await self._ended_sessions.end(session)
            logger.info("signed out", extra={"actor": session.actor})
        response = _json({})
        response.del_cookie(COOKIE_NAME, httponly=True, samesite="Strict")
        return response

    # Looking: the stream; what is asked for once is in pages.py

    async def _live(self, request: web.Request) -> web.StreamResponse:
        connection, owner = find_connection(request), self._owner_of(request)
        leaving = self._streams.take(owner, connection, client=self._client_of(request))
        if leaving is not None:
            # Its page asks again after a moment; the newest is never refused because of the older ones.
            leaving.abort()
        try:
            with connection.at(Stage.STREAMING):
                return await self._stream(request)
        finally:
            self._streams.free(owner, connection)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**SECURITY_HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        # nginx would hold events back until its buffer is full.
        response.headers["X-Accel-Buffering"] = "no"
        await response.prepare(request)
        ended = asyncio.ensure_future(self._ending.wait())
        try:
            async with contextlib.aclosing(self._feed.watch()) as messages:
                # Somebody who may no longer look is not shown more: a session ends, an open page does not.
                while await self._find_caller(request) is not None:
                    following = asyncio.ensure_future(anext(messages))
                    await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        following.cancel()
                        await asyncio.wait({following})
                        break
                    async with asyncio.timeout(_WRITE_SECONDS):
                        await response.write(_build_event(following.result()))
        except (ConnectionResetError, TimeoutError):
            logger.debug("a page was closed")
        finally:
            ended.cancel()
        return response

    # Acting

    async def _act(self, request: web.Request) -> web.StreamResponse:
        caller, cookie = await self._find_caller(request, is_to_act=True), request.cookies.get(COOKIE_NAME)
        denial = decide_write(self._key, caller, cookie, _write_evidence(request))
        if denial is not None or caller is None:
            return _refuse(denial or Denial(HTTPStatus.UNAUTHORIZED, "Sign in first."))
        name = request.match_info["name"]
        done = await self._actions.run(name, await read_order(request, ORDER_BYTES), caller.actor)
        self._pages.forget_all()
        logger.info("action", extra={"action": name, "actor": caller.actor, "affected": done.affected})
        return _json({"affected": done.affected, "words": done.words})

    # From start to end

    async def _run_feed(self, _: web.Application) -> AsyncIterator[None]:
        feed = asyncio.create_task(self._feed.run(self._ending))
        yield
        self._ending.set()
        feed.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feed

    async def _end_streams(self, _: web.Application) -> None:
        # An open page would hold the server up until its patience ends.
        self._ending.set()


def _as_json(answer: Answer) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return _json(await answer(request))

    return handle


def _write_evidence(request: web.Request) -> WriteEvidence:
    headers = request.headers
    return WriteEvidence(
        request.host, headers.get("Origin"), headers.get("Sec-Fetch-Site"), headers.get(CSRF_HEADER)
    )


def _peer(request: web.Request) -> str:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""


def _build_event(message: tuple[str, dict[str, Any]] | None) -> bytes:
    if message is None:
        return b": still here\n\n"
    name, data = message
    return f"event: {name}\ndata: {json.dumps(as_strict_json(data), separators=(',', ':'))}\n\n".encode()


def _json(data: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    # A score may be infinite, for which JSON has no word and browsers no mercy.
    text = json.dumps(as_strict_json(data), separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")


def _refuse(denial: Denial) -> web.Response:
    return _json({"error": denial.reason}, denial.status)
