"""Objects stay up to date while watches are cut, fall behind, or bring nonsense."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from rrq_operator.cluster.informer import Informer
from rrq_operator.cluster.kube import KubeExpired, KubeUnavailable
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def item(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def event(kind: str, uid: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": item(uid, version)}


class ScriptedKube:
    """Answers lists and watches from a script; the last watch stays open."""

    def __init__(self, lists: list[list[dict[str, Any]]], watches: list[list[Any]]) -> None:
        self._lists, self._watches = lists, watches
        self.watched_from: list[str] = []

    async def list_all(self, path: str, *, selector: str) -> tuple[list[dict[str, Any]], str]:
        return self._lists.pop(0), "10"

    @contextlib.asynccontextmanager
    async def watch(self, path: str, version: str, *, selector: str) -> AsyncIterator[AsyncIterator[Any]]:
        self.watched_from.append(version)
        yield self._play(self._watches.pop(0) if self._watches else [None])

    async def _play(self, script: list[Any]) -> AsyncIterator[Any]:
        for entry in script:
            if entry is None:
                await asyncio.Event().wait()
            if isinstance(entry, Exception):
                raise entry
            yield entry


async def follow(kube: ScriptedKube, watches: int) -> list[tuple[str | None, str | None]]:
    """Return the changes that were reported until that many watches were opened."""
    changes: list[tuple[str | None, str | None]] = []

    def parse(raw: dict[str, Any]) -> str:
        return f"{raw['metadata']['uid']}@{int(raw['metadata']['resourceVersion'])}"

    informer: Informer[str] = Informer(
        kube,  # type: ignore[arg-type]  # a stand-in
        "/things",
        parse,
        lambda before, after: changes.append((before, after)),
    )
    task = asyncio.create_task(informer.run())
    await eventually(lambda: len(kube.watched_from) == watches)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert informer.synced.is_set()
    return changes


async def test_a_watch_that_was_cut_goes_on_where_it_ended() -> None:
    cut = [event("ADDED", "b", 11), event("BOOKMARK", "", 15), KubeUnavailable("cut")]
    kube = ScriptedKube([[item("a", 1)]], [cut])
    assert await follow(kube, 2) == [(None, "a@1"), (None, "b@11")]
    assert kube.watched_from == ["10", "15"]


async def test_one_that_fell_behind_lists_and_finds_what_vanished() -> None:
    kube = ScriptedKube([[item("a", 1), item("b", 2)], [item("b", 2), item("c", 3)]], [[KubeExpired("old")]])
    changes = await follow(kube, 2)
    assert changes == [(None, "a@1"), (None, "b@2"), ("a@1", None), (None, "c@3")]
    assert kube.watched_from == ["10", "10"]


async def test_an_object_that_cannot_be_parsed_hides_no_other() -> None:
    nonsense = {"type": "MODIFIED", "object": {"metadata": {"uid": "a", "resourceVersion": "x"}}}
    script = [nonsense, event("ADDED", "b", 12), event("DELETED", "b", 13)]
    kube = ScriptedKube([[item("a", 1)]], [script])
    changes = await follow(kube, 2)
    assert changes == [(None, "a@1"), ("a@1", None), (None, "b@12"), ("b@12", None)]


async def test_a_fresh_list_is_made_on_demand_though_the_watch_is_open() -> None:
    kube = ScriptedKube([[item("a", 1)], [item("b", 2)]], [])
    changes: list[tuple[str | None, str | None]] = []
    informer: Informer[str] = Informer(
        kube,  # type: ignore[arg-type]  # a stand-in
        "/things",
        lambda raw: str(raw["metadata"]["uid"]),
        lambda before, after: changes.append((before, after)),
    )
    task = asyncio.create_task(informer.run())
    await eventually(lambda: len(kube.watched_from) == 1)
    async with asyncio.timeout(30):
        await asyncio.gather(informer.refresh(), informer.refresh())
    assert changes == [(None, "a"), ("a", None), (None, "b")]
    await eventually(lambda: len(kube.watched_from) == 2, message="it watches on")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
