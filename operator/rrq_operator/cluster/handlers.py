"""kopf watches the pools here and hands each change to the loop of the operator. Nothing is decided or written here.

kopf has a thread and an event loop of its own: when it stops, it cancels every task of its loop, and a handler that
blocks would block all others. Only ``on.event`` is used: the other kinds of handlers put a finalizer on the pool, and
deleting the pool would hang while no operator runs.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from time import monotonic
from typing import Any, cast

import kopf

from rrq_operator.api.spec import GROUP, PLURAL, VERSION
from rrq_operator.decide.manifests import MANAGER

logger = logging.getLogger(__name__)

#: Short, because kopf waits through one of these after the API server is back.
_BACKOFFS_SECONDS = (0.2, 0.5, 1.0)
_LONGEST_BACKOFF_SECONDS = 2.0
_RESTART_SECONDS = 1.0
#: A pool that kopf cannot parse ends it again and again; each start lists all pools.
_LONGEST_RESTART_SECONDS = 10.0
#: A run of this length was a healthy one.
_WELL_SECONDS = 60.0
_STOP_SECONDS = 5.0

#: Called with the kind of change (None for what was there already) and the whole object.
OnPool = Callable[[str | None, dict[str, Any]], None]


class _EndlessBackoffs:
    """Delays that never run out. After a last one, kopf would end a watch in an outage of some seconds."""

    def __iter__(self) -> Iterator[float]:
        return chain(_BACKOFFS_SECONDS, repeat(_LONGEST_BACKOFF_SECONDS))


def build_registry(on_pool: OnPool) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**given) or kopf.login_via_client(**given)

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.networking.error_backoffs = _EndlessBackoffs()
        settings.networking.request_timeout = 10.0
        settings.posting.enabled = False
        # Whether the resource exists is asked before we start; watching for new ones needs rights on all of them.
        settings.scanning.disabled = True
        # The second counts from the start, not from the last event: a dead watch is found by opening it often.
        settings.watching.server_timeout = 90
        settings.watching.client_timeout = 100
        settings.watching.reconnect_backoff = 0.2

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    def pool_changed(event: Any, **_: Any) -> None:
        on_pool(event["type"], dict(event["object"]))

    return registry


class PoolWatch:
    """Runs kopf in a thread and hands its events to the loop that started it."""

    def __init__(
        self, on_pool: OnPool, namespace: str | None, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_pool = on_pool
        #: Called when kopf has failed, so that a list shows what kopf has missed.
        self._on_lost = on_lost
        self._namespace = namespace
        self._stop = threading.Event()
        self._end: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="rrq-kopf", daemon=True)

    def start(self) -> None:
        # One line per event at INFO would drown what matters.
        logging.getLogger("kopf").setLevel(logging.WARNING)
        # kopf warns that it handles no signals in a thread, which is intended.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    async def stop(self) -> None:
        self._stop.set()
        if self._end is not None:
            self._end()
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    def hand_over(self, kind: str | None, body: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._on_pool, kind, body)

    def _run(self) -> None:
        restart_seconds = _RESTART_SECONDS
        while not self._stop.is_set():
            started_at = monotonic()
            try:
                asyncio.run(self._watch())
            # The watch of the pools must survive whatever kopf raises; the lists go on meanwhile.
            except Exception as error:
                # For instance a call was forbidden, or a pool nests too deep to be parsed (a trace that is long and says
                # nothing).
                is_too_deep = isinstance(error, RecursionError)
                logger.error(
                    "kopf failed and is restarted", extra={"error": repr(error)}, exc_info=not is_too_deep
                )
                with contextlib.suppress(RuntimeError):  # the operator has ended meanwhile
                    self._loop.call_soon_threadsafe(self._on_lost)
            if monotonic() - started_at > _WELL_SECONDS:
                restart_seconds = _RESTART_SECONDS
            self._stop.wait(restart_seconds)
            restart_seconds = min(_LONGEST_RESTART_SECONDS, restart_seconds * 2)

    async def _watch(self) -> None:
        # A flag of this loop: for a flag of threads kopf would wait in a thread that nothing can end, and would never
        # return when a watch has failed.
        stop_flag, loop = asyncio.Event(), asyncio.get_running_loop()
        self._end = partial(_set_threadsafe, loop, stop_flag)
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=build_registry(self.hand_over),
            standalone=True,
            # For peering, which is off. Left out, kopf asks for the name of the user, and in an image it has none.
            identity=cast(Any, MANAGER),
            stop_flag=stop_flag,
            **({"clusterwide": True} if self._namespace is None else {"namespaces": [self._namespace]}),
        )


def _set_threadsafe(loop: asyncio.AbstractEventLoop, flag: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
        loop.call_soon_threadsafe(flag.set)
