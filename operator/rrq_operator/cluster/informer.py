"""Keeps the objects of one kind up to date: a list, then a watch from there, for ever.

The server sends only objects with the operator's label, and only a small value of each is kept. A watch that is cut
continues where it ended; one that fell too far behind starts with a new list, which also shows what vanished meanwhile.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, TypeVar

from rrq_operator.cluster.kube import Kube, KubeError, KubeExpired, KubeUnavailable
from rrq_operator.decide.manifests import Manifest

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
#: A list now and then corrects whatever a watch may have missed.
_LIST_INTERVAL_SECONDS = 600.0
_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 3.0


class Informer(Generic[Item]):
    """One kind of object in one namespace, or in all of them."""

    def __init__(
        self,
        kube: Kube,
        path: str,
        parse: Callable[[Any], Item],
        on_change: Callable[[Item | None, Item | None], None],
        *,
        selector: str = "",
    ) -> None:
        self._kube = kube
        self._path = path
        self._selector = selector
        self._parse = parse
        self._on_change = on_change
        self._items: dict[str, Item] = {}
        self._listed_at: float | None = None
        self._version = ""
        self._waiting: list[asyncio.Future[None]] = []
        self._watching: asyncio.Timeout | None = None
        #: Set when all objects have been seen at least once.
        self.synced = asyncio.Event()
        #: When the API server was last heard of, by the monotonic clock.
        self.heard_at = monotonic()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        retry_seconds = _FIRST_RETRY_SECONDS
        while True:
            asked_at = monotonic()
            try:
                if not self._version or self._waiting or self._needs_list():
                    self._version = await self._list()
                await self._watch()
                retry_seconds = _FIRST_RETRY_SECONDS
            except KubeExpired:
                self._version = ""
            except KubeError as error:
                if self.heard_at > asked_at:
                    retry_seconds = _FIRST_RETRY_SECONDS  # it answered before this failure
                logger.warning("watch interrupted", extra={"path": self._path, "error": str(error)})
                if not isinstance(error, KubeUnavailable):
                    self.heard_at = monotonic()  # a refusal is an answer as well
                await asyncio.sleep(retry_seconds * random.uniform(0.5, 1.0))
                retry_seconds = min(_LONGEST_RETRY_SECONDS, retry_seconds * 2)

    async def refresh(self) -> None:
        """Return when all objects were listed anew: a watch may lag or be dead without any sign."""
        listed = asyncio.get_running_loop().create_future()
        self._waiting.append(listed)
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.reschedule(0.0)
        await listed

    def _needs_list(self) -> bool:
        return self._listed_at is None or monotonic() - self._listed_at > _LIST_INTERVAL_SECONDS

    async def _list(self) -> str:
        # A caller that comes while a list is under way waits for the next one.
        waiting = list(self._waiting)
        items, version = await self._kube.list_all(self._path, selector=self._selector)
        listed = {item["metadata"]["uid"]: item for item in items}
        for uid in set(self._items) - set(listed):
            self._set(uid, None)
        for uid, raw in listed.items():
            self._set(uid, raw)
        self._listed_at = self.heard_at = monotonic()
        self.synced.set()
        self._waiting = [one for one in self._waiting if one not in waiting]
        for one in waiting:
            if not one.done():
                one.set_result(None)
        return version

    async def _watch(self) -> None:
        """Follow the changes after the version that was seen last, also of a watch that was cut."""
        if self._waiting:
            return
        with contextlib.suppress(TimeoutError):  # `refresh` wants a list
            async with asyncio.timeout(None) as self._watching:
                try:
                    await self._follow()
                finally:
                    self._watching = None

    async def _follow(self) -> None:
        async with self._kube.watch(self._path, self._version, selector=self._selector) as events:
            async for event in events:
                self.heard_at = monotonic()
                item = event["object"]
                self._version = item["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._set(item["metadata"]["uid"], None if event["type"] == "DELETED" else item)

    def _set(self, uid: str, raw: Manifest | None) -> None:
        before = self._items.pop(uid, None)
        item: Item | None = None
        if raw is not None:
            try:
                item = self._items[uid] = self._parse(raw)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
                # One object that cannot be parsed must not hide all others.
                logger.exception(
                    "object ignored: it cannot be parsed", extra={"path": self._path, "uid": uid}
                )
        if before != item:
            self._on_change(before, item)
