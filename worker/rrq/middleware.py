"""Middleware: async functions that an application wraps around all its handlers.

::

    async def timing(ctx: JobContext, call_next: CallNext) -> Any:
        started_at = monotonic()
        result = await call_next()
        logger.info("job took", extra={"function": ctx.job.function_name, "seconds": monotonic() - started_at})
        return result

    settings = RRQSettings(middleware=[timing])

The first in the list is the outermost. A layer may change the result, catch an exception, raise one of its own
(``RetryJob`` included), call the rest again or not at all; what the outermost layer returns or raises is the outcome of
the attempt. The timeout of the job covers all layers, and a cancellation passes through them. ``engine/executor.py``
calls the handler, in a thread if it needs one.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rrq.registry import is_async_handler

__all__ = ["CallNext", "Middleware", "check_middleware", "run_through"]

CallNext = Callable[[], Awaitable[Any]]
#: Called with the ``JobContext`` that the handler gets, the same object: what a layer puts in, the handler finds. ``Any``,
#: because the module of the context imports the store, the store the settings, and the settings this module.
Middleware = Callable[[Any, CallNext], Awaitable[Any]]


def check_middleware(layer: Middleware) -> Middleware:
    """Return the layer; ValueError when it is not a coroutine function, because it would fail with every job."""
    if not is_async_handler(layer):
        raise ValueError(f"Middleware must be an async function, and {layer!r} is not. Write 'async def'.")
    return layer


async def run_through(layers: Sequence[Middleware], context: Any, call: CallNext) -> Any:
    """Return what the outermost layer around ``call`` returns."""
    for layer in reversed(layers):
        call = functools.partial(layer, context, call)
    return await call()
