"""Registering handlers, and telling which of them need a thread."""

import functools
from typing import Any

import pytest

from rrq.registry import JobRegistry, is_async_handler


async def handle(context: dict[str, Any]) -> None: ...


def handle_plainly(context: dict[str, Any]) -> None: ...


class AsyncCallable:
    async def __call__(self, context: dict[str, Any]) -> None: ...

    async def method(self, context: dict[str, Any]) -> None: ...

    def plain_method(self, context: dict[str, Any]) -> None: ...


class PlainCallable:
    def __call__(self, context: dict[str, Any]) -> None: ...


def test_handlers_are_found_by_name_in_the_order_of_registration() -> None:
    registry = JobRegistry()
    assert registry, "an empty registry is one too"
    for name in ("b", "a", "c"):
        registry.register(name, handle)
    assert registry.get_handler("a") is handle
    assert registry.get_handler("other") is None

    with pytest.raises(ValueError, match="already registered"):
        registry.register("a", handle_plainly)
    assert registry.get_handler("a") is handle
    registry.register("a", handle_plainly, replace=True)
    assert registry.get_handler("a") is handle_plainly
    assert not registry.is_async("a")
    assert registry.get_registered_functions() == ["b", "a", "c"]

    for _ in range(2):
        registry.unregister("b")
    assert registry.get_handler("b") is None
    registry.clear()
    assert registry.get_registered_functions() == []
    assert not registry.is_async("c")


def test_what_is_no_handler_is_refused() -> None:
    for kind, not_callable in (("NoneType", None), ("int", 1), ("str", "handle")):
        words = rf"^Handler for 'send' must be a callable\. This is a {kind}: pass "
        with pytest.raises(ValueError, match=words):
            JobRegistry().register("send", not_callable)  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match=r"^The name of a handler is text, not function\. Write register\("):
        JobRegistry().register(handle, handle)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (handle, True),
        (AsyncCallable(), True),
        (AsyncCallable().method, True),
        (functools.partial(functools.partial(handle), {}), True),
        (functools.partial(AsyncCallable(), {}), True),
        (handle_plainly, False),
        (PlainCallable(), False),
        (AsyncCallable, False),
        (AsyncCallable().plain_method, False),
        (functools.partial(PlainCallable()), False),
        (lambda context: handle(context), False),
        (print, False),
    ],
)
def test_handlers_that_need_a_thread_are_told_from_those_that_do_not(handler: Any, is_async: bool) -> None:
    registry = JobRegistry()
    registry.register("send", handler)
    assert is_async_handler(handler) is registry.is_async("send") is is_async
