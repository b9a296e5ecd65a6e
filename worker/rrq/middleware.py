"""Middleware: what an application wraps around all its handlers, as the layers of an onion.

::

    async def timing(ctx: JobContext, call_next: CallNext) -> Any:
        started_at = monotonic()
        result = await call_next()
        logger.info("job took", extra={"function": ctx.job.function_name, "seconds": monotonic() - started_at})
        return result

    settings = RRQSettings(middleware=[timing])

The first in the list is the outermost. A layer may change the result, swallow an exception, raise one of its own
(``RetryJob`` included), call the rest again or not at all; whatever leaves the outermost layer is the outcome of
the attempt. The timeout of the job covers all layers, and a cancellation passes through them. When a handler
is called, and in which thread, is decided in ``engine/outcomes.py``.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rrq.registry import is_async_handler

__all__ = ["CallNext", "Middleware", "check_middleware", "run_through"]

CallNext = Callable[[], Awaitable[Any]]
#: Called with the ``JobContext`` that the handler gets, this very object: what a layer puts in, the handler finds. Not
#: named here, because the context knows the store, the store the settings, and the settings these.
Middleware = Callable[[Any, CallNext], Awaitable[Any]]


def check_middleware(layer: Middleware) -> Middleware:
    """Return the layer; ValueError when it is not a coroutine function, which would fail with every job."""
    if not is_async_handler(layer):
        raise ValueError(f"Middleware must be an async function, and {layer!r} is none. Write 'async def'.")
    return layer


async def run_through(layers: Sequence[Middleware], context: Any, call: CallNext) -> Any:
    """Return what comes out of the layers around ``call``."""
    for layer in reversed(layers):
        call = functools.partial(layer, context, call)
    return await call()
