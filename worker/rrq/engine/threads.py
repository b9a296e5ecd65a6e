"""Threads for handlers that are plain functions, so that they do not block the event loop."""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class HandlerThreads:
    """Daemon threads, started when first needed.

    Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, so that one handler
    which never returns would keep a drained worker from ending.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Run ``call`` in a thread with the context variables of the caller.

        A thread cannot be stopped: when the caller stops waiting for it, the call goes on.
        """
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        # An idle thread is reserved at once, so that two calls never count on the same one.
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._serve, name="rrq-handler", daemon=True).start()
        self._work.put((future, functools.partial(context.run, call)))
        return future

    def _serve(self) -> None:
        while True:
            future, call = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except StopIteration as error:
                    # asyncio cannot carry it, and would leave its caller waiting for ever.
                    future.set_exception(RuntimeError(f"Handler raised StopIteration: {error}"))
                except BaseException as error:  # noqa: BLE001  whatever a handler raises is its outcome
                    future.set_exception(error)
            del future, call
            self._idle.release()


async def wait_for_thread(thread: Future[Any]) -> Any:
    """Return what a plain function returned; if that is an awaitable, what it gives."""
    result = await asyncio.wrap_future(thread)
    return await result if inspect.isawaitable(result) else result
