"""The HTTP server of the dashboard: routes, limits around each request, and errors as JSON.

``callers.py`` says who may do what, ``pages.py`` reads what is shown, ``streams.py`` sends it live, ``actions.py`` changes
things.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from rrq.dashboard.actions import Actions, OrderRefused
from rrq.dashboard.assets import load_assets
from rrq.dashboard.bodies import ORDER_BYTES, read_order
from rrq.dashboard.callers import SIGN_IN_FIRST, Callers
from rrq.dashboard.connections import Connection, find_connection
from rrq.dashboard.ended_sessions import EndedSessions
from rrq.dashboard.feed import TROUBLE, Feed
from rrq.dashboard.job_views import ValueRules
from rrq.dashboard.limits import MOST_CONNECTIONS, MOST_REQUESTS_PER_CLIENT, Quota
from rrq.dashboard.pages import Answer, Pages
from rrq.dashboard.policy import AccessPolicy, Denial, decide_host
from rrq.dashboard.responses import SECURITY_HEADERS, answer_json, refuse
from rrq.dashboard.snapshot import SnapshotReader
from rrq.dashboard.streams import LiveStreams
from rrq.store import JobStore

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class DashboardOptions:
    policy: AccessPolicy
    secret: bytes
    """Random; servers with the same secret accept each other's sessions."""
    hides_values: bool
    describe_trouble: Callable[[BaseException], str]


class Dashboard:
    """One server for one Redis."""

    def __init__(self, store: JobStore, options: DashboardOptions) -> None:
        self._policy = options.policy
        self._describe = options.describe_trouble
        self._ending = asyncio.Event()
        self._feed = Feed(SnapshotReader(store).run_once, options.describe_trouble)
        self._callers = Callers(
            options.policy, options.secret, EndedSessions(store), hides_values=options.hides_values
        )
        self._pages = Pages(store, self._feed, ValueRules(options.hides_values))
        self._streams = LiveStreams(self._feed, self._callers, self._ending)
        self._actions = Actions(store, hides_values=options.hides_values)
        self._assets = load_assets()
        self._requests = Quota[Connection](
            MOST_CONNECTIONS, MOST_REQUESTS_PER_CLIENT, lambda connection: connection.stage.value
        )

    def build_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.cleanup_ctx.append(self._run_feed)
        app.on_shutdown.append(self._end_streams)
        get, post = app.router.add_get, app.router.add_post
        get("/", self._page)
        get("/static/{path:.+}", self._static)
        get("/livez", self._livez)
        get("/api/session", self._callers.show_session)
        post("/api/sign-in", self._callers.sign_in)
        post("/api/sign-out", self._callers.sign_out)
        get("/api/live", self._for_viewers(self._streams.answer))
        for path, answer in self._pages.by_path().items():
            get(f"/api/{path}", self._for_viewers(_as_json(answer)))
        post("/api/actions/{name}", self._act)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with find_connection(request).answering(), self._admit(request) as denial:
                response = refuse(denial) if denial is not None else await self._answer(request, handler)
        except ConnectionResetError:
            # The client disconnected, or a quota closed its connection. Raised, each would log a traceback.
            response = answer_json({"error": "The connection was lost."}, HTTPStatus.SERVICE_UNAVAILABLE)
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    @contextlib.contextmanager
    def _admit(self, request: web.Request) -> Iterator[Denial | None]:
        """Count a request against its client while it is answered; yields why it is refused, if it is."""
        if request.path == "/livez":
            yield None
            return
        connection, owner = find_connection(request), self._callers.name_owner(request)
        # Before the first await, after which any number of requests could have started.
        leaving = self._requests.take(owner, connection, client=self._callers.find_client(request))
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
            return answer_json({"error": error.reason}, HTTPStatus(error.status))
        except OrderRefused as error:
            return answer_json({"error": str(error)}, HTTPStatus.CONFLICT)
        except TROUBLE as error:
            if isinstance(error, ConnectionResetError):
                raise  # the browser disconnected
            trouble = {"error": self._describe(error), "is_trouble": True}
            return answer_json(trouble, HTTPStatus.SERVICE_UNAVAILABLE)

    def _for_viewers(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if await self._callers.find(request) is None:
                return refuse(SIGN_IN_FIRST)
            return await handler(request)

        return answer

    # Served before the user signs in: the page itself has no data.
    async def _page(self, request: web.Request) -> web.StreamResponse:
        return self._send_asset(request, "index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return self._send_asset(request, request.match_info["path"])

    def _send_asset(self, request: web.Request, name: str) -> web.StreamResponse:
        asset = self._assets.get(name)
        if asset is None:
            raise web.HTTPNotFound(reason="There is no such page.")
        # Browsers ask each time, so that none mixes old and new files after an upgrade.
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == asset.etag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(
            body=asset.body, content_type=asset.content_type, charset="utf-8", headers=headers
        )

    async def _livez(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="the dashboard answers\n")

    async def _act(self, request: web.Request) -> web.StreamResponse:
        caller = await self._callers.find_writer(request)
        if isinstance(caller, Denial):
            return refuse(caller)
        name = request.match_info["name"]
        done = await self._actions.run(name, await read_order(request, ORDER_BYTES), caller.actor)
        self._pages.forget_all()
        logger.info("action", extra={"action": name, "actor": caller.actor, "affected": done.affected})
        return answer_json({"affected": done.affected, "words": done.words})

    async def _run_feed(self, _: web.Application) -> AsyncIterator[None]:
        feed = asyncio.create_task(self._feed.run(self._ending))
        yield
        self._ending.set()
        feed.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feed

    async def _end_streams(self, _: web.Application) -> None:
        # Otherwise open pages would delay the end of the server until its shutdown timeout.
        self._ending.set()


def _as_json(answer: Answer) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer_json(await answer(request))

    return handle
