"""What running handlers needs: deadlines for all of them, and threads for plain functions.

What an outcome means for the job is decided in ``outcomes.py``.
"""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from queue import SimpleQueue
from typing import Any

#: A handler that was cancelled may clean up for this long before it is given up.
IGNORED_AFTER_SECONDS = 10.0


class Deadlines:
    """Cancels tasks that run too long, with one timer for all of them.

    A timer per job costs more than running a no-op. Here a job costs a dictionary entry, and the
    timer is touched only by a deadline that comes before the one it waits for.
    """

    def __init__(self, on_ignored: Callable[[asyncio.Task[Any]], None]) -> None:
        self._at: dict[asyncio.Task[Any], float] = {}
        self._expired: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = inf
        #: Called once for a task that still runs a while after it was cancelled.
        self._on_ignored = on_ignored

    def watch(self, task: asyncio.Task[Any], timeout_seconds: float) -> None:
        """Cancel ``task`` unless it is forgotten within the time."""
        loop = task.get_loop()
        at = self._at[task] = loop.time() + timeout_seconds
        if at < self._next_look:
            self._wait_until(loop, at)

    def has_expired(self, task: asyncio.Task[Any]) -> bool:
        """Tell whether the task was cancelled by this watch and not forgotten since."""
        return task in self._expired

    def forget(self, task: asyncio.Task[Any]) -> bool:
        """Stop watching; True when the task was cancelled by this watch and by nobody else.

        The cancellation is taken back, as ``asyncio.timeout`` does, so that the task can go on.
        """
        self._at.pop(task, None)
        if not self._expired or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def _wait_until(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._look, loop)
        self._next_look = at

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next_look = None, inf
        now = loop.time()
        for task in [task for task, at in self._at.items() if at <= now]:
            if task in self._expired:
                del self._at[task]
                self._on_ignored(task)
            else:
                self._at[task] = now + IGNORED_AFTER_SECONDS
                self._expired.add(task)
                task.cancel()
        if self._at:
            self._wait_until(loop, min(self._at.values()))


class HandlerThreads:
    """Daemon threads for handlers that are plain functions, started when first needed.

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

        A thread cannot be stopped: whoever waits for it may be cancelled, the call goes on.
        """
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        # An idle thread is spoken for at once, so that two calls never count on the same one.
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
