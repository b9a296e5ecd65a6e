"""App: one application, its job functions and the client that enqueues them, checked by mypy.

It only puts together what exists without it: ``app.registry`` is an ordinary ``JobRegistry``, ``app.settings`` the
``RRQSettings`` that ``rrq worker run --settings module.settings`` takes, ``app.client`` an ``RRQClient``. An
application of RRQ 0.7 passes its settings and may use both ways.
"""

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from rrq.client import RRQClient
from rrq.context import JobContext
from rrq.job_function import AsyncJobFunction, JobFunction, PlainJobFunction
from rrq.jobs.options import FUNCTION_OPTIONS, FunctionOptions, JobOptions, check_names, merge_options
from rrq.middleware import CallNext, check_middleware
from rrq.registry import JobRegistry, is_async_handler
from rrq.settings import RRQSettings

__all__ = ["App", "JobDecorator"]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Callable[[JobContext, CallNext], Awaitable[Any]])


class App:
    """One application. Building it opens no connection and needs no event loop.

    The settings are kept, not copied, and get a registry if they have none. The client is opened when it is first
    needed and closed by ``await app.aclose()`` or at the end of ``async with app``; used again, it opens anew.
    """

    def __init__(self, settings: RRQSettings | None = None) -> None:
        self.settings = RRQSettings() if settings is None else settings
        if self.settings.job_registry is None:
            self.settings.job_registry = JobRegistry()
        self.registry: JobRegistry = self.settings.job_registry
        self._own_client: RRQClient | None = None
        self._bound_client: RRQClient | None = None

    @property
    def client(self) -> RRQClient:
        """The client that the jobs of this application are enqueued with."""
        if self._bound_client is not None:
            return self._bound_client
        if self._own_client is None:
            self._own_client = RRQClient(self.settings)
        return self._own_client

    def job(self, name: str | None = None, **options: Unpack[FunctionOptions]) -> "JobDecorator":
        """Register a function under ``name``, by default its own, with options for all its jobs.

        Its first parameter is the context, a dict; what follows are the arguments of its jobs. It may be a
        coroutine function or a plain function. Raises ValueError when the name is taken.
        """
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{name!r} is no name for a job. Write @app.job() with its parentheses.")
        check_names("App.job()", options, FUNCTION_OPTIONS)
        return JobDecorator(self, name, merge_options({}, options))

    def middleware(self, layer: M) -> M:
        """Wrap an async function around all handlers, inside the layers added before; a decorator."""
        check_middleware(layer)
        self.settings.middleware.append(layer)
        return layer

    @contextlib.contextmanager
    def bind(self, client: RRQClient) -> Iterator[None]:
        """Enqueue with another client within a block, for example in a test."""
        before, self._bound_client = self._bound_client, client
        try:
            yield
        finally:
            self._bound_client = before

    async def aclose(self) -> None:
        """Close the client, if one was opened here."""
        client, self._own_client = self._own_client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class JobDecorator:
    """What ``app.job()`` returns: turns one function into a job function."""

    def __init__(self, app: App, name: str | None, options: JobOptions) -> None:
        self._app = app
        self._name = name
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function matches both, and the first is right
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]
    ) -> AsyncJobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R]) -> PlainJobFunction[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> JobFunction[..., Any]:
        name = self._name or getattr(function, "__name__", None)
        if name is None:
            raise ValueError(f"{function!r} has no name of its own. Give one: app.job('send_email')(…).")
        # The bare function, as applications of RRQ 0.7 register it.
        self._app.registry.register(name, function)
        kind = AsyncJobFunction if is_async_handler(function) else PlainJobFunction
        return kind(function, name, self._options, lambda: self._app.client)
