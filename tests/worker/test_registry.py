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


def test_a_registered_handler_is_found_by_name() -> None:
    registry = JobRegistry()
    registry.register("send", handle)

    assert registry.get_handler("send") is handle
    assert registry.get_handler("other") is None


def test_an_empty_registry_is_truthy() -> None:
    assert JobRegistry()


def test_registries_share_nothing() -> None:
    JobRegistry().register("send", handle)

    assert JobRegistry().get_registered_functions() == []


@pytest.mark.parametrize("not_callable", [None, 1, "handle"])
def test_something_not_callable_is_refused(not_callable: Any) -> None:
    kind = type(not_callable).__name__
    with pytest.raises(
        ValueError, match=rf"^Handler for 'send' must be a callable\. This is a {kind}: pass "
    ):
        JobRegistry().register("send", not_callable)


def test_name_and_function_in_the_wrong_order_are_refused() -> None:
    swapped: Any = handle
    with pytest.raises(ValueError, match=r"^The name of a handler is text, not function\. Write register\("):
        JobRegistry().register(swapped, handle)


def test_a_taken_name_is_refused_and_keeps_its_handler() -> None:
    registry = JobRegistry()
    registry.register("send", handle)

    with pytest.raises(ValueError, match="already registered"):
        registry.register("send", handle_plainly)
    assert registry.get_handler("send") is handle


def test_a_handler_can_be_replaced_on_request() -> None:
    registry = JobRegistry()
    registry.register("send", handle)
    registry.register("send", handle_plainly, replace=True)

    assert registry.get_handler("send") is handle_plainly
    assert not registry.is_async("send")


def test_names_come_in_the_order_of_registration() -> None:
    registry = JobRegistry()
    for name in ("b", "a", "c"):
        registry.register(name, handle)
    registry.register("a", handle_plainly, replace=True)

    assert registry.get_registered_functions() == ["b", "a", "c"]


def test_unregistering_twice_is_harmless() -> None:
    registry = JobRegistry()
    registry.register("send", handle)
    registry.unregister("send")
    registry.unregister("send")

    assert registry.get_handler("send") is None
    assert not registry.is_async("send")


def test_a_cleared_registry_is_empty() -> None:
    registry = JobRegistry()
    registry.register("send", handle)
    registry.clear()

    assert registry.get_registered_functions() == []
    assert not registry.is_async("send")


@pytest.mark.parametrize(
    "handler",
    [
        handle,
        AsyncCallable(),
        AsyncCallable().method,
        functools.partial(handle, {}),
        functools.partial(functools.partial(handle), {}),
        functools.partial(AsyncCallable(), {}),
    ],
)
def test_an_async_handler_is_recognised(handler: Any) -> None:
    registry = JobRegistry()
    registry.register("send", handler)

    assert is_async_handler(handler)
    assert registry.is_async("send")


@pytest.mark.parametrize(
    "handler",
    [
        handle_plainly,
        PlainCallable(),
        AsyncCallable,
        AsyncCallable().plain_method,
        functools.partial(handle_plainly, {}),
        functools.partial(PlainCallable()),
        lambda context: handle(context),
        print,
    ],
)
def test_a_plain_handler_is_recognised(handler: Any) -> None:
    registry = JobRegistry()
    registry.register("send", handler)

    assert not is_async_handler(handler)
    assert not registry.is_async("send")
