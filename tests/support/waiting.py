"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
# For a page of a process: a thread of its own answers at once; slower is only a machine on which nothing gets its turn.
ANSWER_SECONDS = 15.0


@overload
async def eventually(
    predicate: Callable[[], Awaitable[T]],
    timeout_seconds: float = ...,
    message: str = ...,
    *,
    interval_seconds: float = ...,
) -> T: ...
@overload
async def eventually(
    predicate: Callable[[], T],
    timeout_seconds: float = ...,
    message: str = ...,
    *,
    interval_seconds: float = ...,
) -> T: ...
async def eventually(
    predicate: Callable[[], Any],
    timeout_seconds: float = 30.0,
    message: str = "the condition never became true",
    *,
    interval_seconds: float = 0.02,
) -> Any:
    """Call `predicate` until it returns something true, and return that.

    An AssertionError inside the predicate means "not yet". At the deadline the test fails with `message`
    and the last thing seen, so that a red run can be understood without running it again.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            answer = predicate()
            value = await answer if inspect.isawaitable(answer) else answer
            if value:
                return value
            last_seen = repr(value)
        except AssertionError as not_yet:
            last_seen = f"AssertionError: {not_yet}"
        if time.monotonic() >= deadline:
            raise AssertionError(f"{message} (waited {timeout_seconds} s; last seen: {last_seen})")
        await asyncio.sleep(interval_seconds)
