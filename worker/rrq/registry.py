"""Which function runs a job: names to handlers, as the application registered them.

No global state: each worker gets the registry of its settings. ``engine/executor.py`` calls the handler, with its
timeout and its thread if it needs one.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["Handler", "JobRegistry", "is_async_handler"]

# A context first and then whatever the producer sent: no narrower type fits all handlers.
Handler = Callable[..., Any]


def is_async_handler(handler: Handler) -> bool:
    """Whether a call of ``handler`` returns a coroutine at once, so that it needs no thread.

    Looks into ``functools.partial`` and at objects with an async ``__call__``. False for a plain function that returns
    an awaitable: only a call would show that, and its body may block.
    """
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.iscoroutinefunction(handler):
        return True
    # Looked up on the type, as the interpreter does when it calls an object.
    return inspect.iscoroutinefunction(type(handler).__call__)


class JobRegistry:
    """The handlers of one application.

    Without ``__len__``, so that an empty registry is truthy: callers write ``if not settings.job_registry`` to learn
    whether there is one.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        # Inspecting costs microseconds and a registered handler never changes: once is enough.
        self._async_names: set[str] = set()

    def register(self, name: str, handler: Handler, replace: bool = False) -> None:
        """Make ``handler`` run the jobs called ``name``.

        Raises ValueError when it is not callable, or when the name is taken and ``replace`` is
        false.
        """
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004  applications of RRQ 0.7 catch this one
                f"The name of a handler is text, not {type(name).__name__}. "
                "Write register('send_email', send_email): first the name, then the function."
            )
        if not callable(handler):
            raise ValueError(  # noqa: TRY004  applications of RRQ 0.7 catch this one
                f"Handler for '{name}' must be a callable. This is a {type(handler).__name__}: "
                "pass the function itself, without calling it."
            )
        if name in self._handlers and not replace:
            raise ValueError(
                f"Handler for '{name}' is already registered. "
                "Choose another name, or pass replace=True to replace it."
            )
        self._handlers[name] = handler
        if is_async_handler(handler):
            self._async_names.add(name)
        else:
            self._async_names.discard(name)

    def unregister(self, name: str) -> None:
        """Remove the handler; an unknown name is no error, so that clean-up can run twice."""
        self._handlers.pop(name, None)
        self._async_names.discard(name)

    def get_handler(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def is_async(self, name: str) -> bool:
        """Whether the handler of this name is a coroutine function; false when the name is unknown."""
        return name in self._async_names

    def get_registered_functions(self) -> list[str]:
        """Return the names in the order in which they were first registered."""
        return list(self._handlers)

    def clear(self) -> None:
        self._handlers.clear()
        self._async_names.clear()
