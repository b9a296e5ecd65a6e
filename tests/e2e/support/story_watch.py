"""Every change of some objects, in the order in which the API server made them: what polling would miss."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from story import POOL_LABEL
from waiting import eventually

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pools import PoolDesk


@dataclass(frozen=True)
class Change:
    """One version of an object, and when we heard of it."""

    kind: str  # ADDED, MODIFIED or DELETED
    seen_at: float
    body: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])


class Watch:
    """`changes` grows while the block lasts. One that breaks off in between fails the test: it has missed something."""

    def __init__(self, desk: PoolDesk, kind: str) -> None:
        self.changes: list[Change] = []
        self._kind = kind
        self._command = desk.command("get", kind, "--watch", "--output-watch-events", "--output=json")
        self._desk = desk
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._process: subprocess.Popen[str] | None = None

    async def __aenter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=self._desk.cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader.start()
        # What exists is shown first; until then changes could be missed.
        names = {item["metadata"]["name"] for item in self._desk.read_all(self._kind)}
        await eventually(
            lambda: names <= {change.name for change in self.changes},
            60,
            f"the watch of {self._kind} never showed {sorted(names)}",
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        broke_off = self._process.poll() is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert kind is not None or not broke_off, f"the watch of {self._kind} broke off: run the test again"

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:  # one event each
                if not line.endswith("\n"):
                    break  # kubectl was ended in the middle of it
                event = json.loads(line)
                self.changes.append(Change(event["type"], time.time(), event["object"]))


@dataclass(frozen=True)
class Resize:
    """A Deployment was asked for another number of replicas."""

    name: str
    seen_at: float
    before: int
    after: int


def find_resizes(changes: list[Change]) -> list[Resize]:
    """Every change of `spec.replicas` in the history of Deployments."""
    known: dict[str, int] = {}
    resizes = []
    for change in changes:
        after = change.body["spec"]["replicas"]
        before = known.get(change.uid, after)
        if after != before:
            resizes.append(Resize(change.name, change.seen_at, before, after))
        known[change.uid] = after
    return resizes


def find_living(changes: list[Change], pool: str) -> list[frozenset[str]]:
    """After each change, the pods of a pool that exist and have not ended, also those that are yet to start.

    A pod is shown as ended after its containers have: who is alone here was alone in truth.
    """
    living: frozenset[str] = frozenset()
    history = []
    for change in changes:
        if change.body["metadata"].get("labels", {}).get(POOL_LABEL) != pool:
            continue
        has_ended = change.body["status"].get("phase") in ("Succeeded", "Failed")
        is_gone = has_ended or change.kind == "DELETED"
        living = living - {change.name} if is_gone else living | {change.name}
        history.append(living)
    return history
