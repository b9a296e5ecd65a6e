"""Something between a client and the API server that refuses calls, cuts watches, and writes down what it saw.

It speaks plain HTTP to the client and signs in by itself. Like `fake_node` it lives in a thread of its own,
because a test may block while others call.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from kubernetes_client import open_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from kubernetes.aio.client import Configuration

WRITES = ("POST", "PUT", "PATCH", "DELETE")
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}


class FaultyApi:
    """For the length of an `async with` block; `kubeconfig` leads to it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = folder / "faulty.kubeconfig"
        self.calls: list[tuple[str, str]] = []
        self.refused = 0
        self._upstream = kubeconfig
        self._rule: Callable[[str, str], int | None] = lambda method, path: None
        self._watches: set[web.StreamResponse] = set()
        self._started: Future[int] = Future()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="faulty-api")

    @property
    def writes(self) -> list[str]:
        """The writes so far, but for the Lease of the leader, which is renewed all the time."""
        return [
            f"{method} {path}" for method, path in self.calls if method in WRITES and "/leases" not in path
        ]

    def refuse(self, rule: Callable[[str, str], int | None]) -> None:
        """Answer calls with the status that the rule returns for method and path; None lets one through."""
        self._rule = rule

    def refuse_writes(self, status: int) -> None:
        """Answer every write with this status, but let leaders renew their Lease."""
        self.refuse(lambda method, path: status if method in WRITES and "/leases" not in path else None)

    def relent(self) -> None:
        self.refuse(lambda method, path: None)

    async def cut_watches(self) -> int:
        """Close every open watch in the middle of its answer; returns how many there were."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._cut(), self._loop))

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: asyncio.run(self._live())
        )
        self._ended.add_done_callback(self._give_up)
        port = await asyncio.wrap_future(self._started)
        cluster = {"name": "tests", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "nobody"}}],
            "current-context": "tests",
        }
        self.kubeconfig.write_text(json.dumps(config))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        await self._ended
        self._thread.shutdown()

    def _give_up(self, ended: asyncio.Future[None]) -> None:
        """Tell whoever waits for the start what kept it from starting."""
        if not self._started.done():
            self._started.set_exception(ended.exception() or RuntimeError("it ended before it started"))

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with await open_client(self._upstream) as client:
            configuration = client.configuration
            self._address = str(configuration.host)
            connector = aiohttp.TCPConnector(ssl=_build_context(configuration), limit=0)
            async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
                application = web.Application(client_max_size=16 * 1024 * 1024)
                application.router.add_route("*", "/{path:.*}", self._forward)
                runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
                await runner.setup()
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self._started.set_result(runner.addresses[0][1])
                await self._leave.wait()
                await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.method, request.path))
        status = self._rule(request.method, request.path)
        if status is not None:
            self.refused += 1
            said = {"kind": "Status", "code": status, "message": "refused by the test", "status": "Failure"}
            return web.json_response(said | {"reason": _REASONS.get(status, "Unknown")}, status=status)
        kept = ("Content-Type", "Accept", "User-Agent")
        try:
            async with self._session.request(
                request.method,
                self._address + request.path_qs,
                data=await request.read() or None,  # an empty body would get a content type
                headers={name: request.headers[name] for name in kept if name in request.headers},
                timeout=aiohttp.ClientTimeout(total=None),
            ) as answer:
                return await self._pass_on(request, answer)
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=repr(error))

    async def _pass_on(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(
            status=answer.status, headers={"Content-Type": answer.headers.get("Content-Type", "text/plain")}
        )
        await response.prepare(request)
        is_watch = "watch" in request.query
        if is_watch:
            self._watches.add(response)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass  # cut by the test, or the client has left
        finally:
            self._watches.discard(response)
        return response

    async def _cut(self) -> int:
        watches = list(self._watches)
        for watch in watches:
            transport = watch._req.transport if watch._req is not None else None
            if transport is not None:
                transport.abort()
        return len(watches)


def _build_context(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
