"""Writes what a pool says of itself: its status and its events, each only when it has changed.

What a person waits for is written at once: the status of a condition, a size, a fault. Figures of a busy queue change all
the time and wait for a slot among all pools; metrics and ``kubectl rrq top`` have the current ones. Which change is which
is decided in ``decide/status.py``.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic, time
from typing import NamedTuple

from rrq.broker.messages import Observation
from rrq_operator.api.pool_status import Condition, LastDecision, PoolStatus
from rrq_operator.api.spec import API_VERSION, KIND
from rrq_operator.cluster.cluster_cache import PoolRecord
from rrq_operator.cluster.kube import (
    KubeConflict,
    KubeError,
    KubeMissing,
    KubeRefused,
    KubeUnavailable,
    events_path,
    pools_path,
)
from rrq_operator.control.metrics import PoolReading
from rrq_operator.control.services import Services
from rrq_operator.decide.manifests import MANAGER, Manifest
from rrq_operator.decide.objects import PoolKey
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.status import (
    Fault,
    build_status_manifest,
    find_news,
    has_restless_change,
    is_bad,
    is_urgent,
    remember_told,
)

logger = logging.getLogger(__name__)

_FIGURES_SECONDS = 15.0
#: For conditions that follow the work. They have slots of their own, at once while few pools ask, and at most one per pool
#: in this time.
_RESTLESS_SECONDS = 15.0
_RETRY_SECONDS = 2.0
_MOST_MESSAGES = 20
_WARN_OF_UNSEEN_QUEUE_SECONDS = 120.0
#: A queue of an older pool may rightly be empty when an operator starts to look.
_NEW_POOL_SECONDS = 3600.0
#: The same event is written once in this time.
_SAME_EVENT_SECONDS = 60.0
_MOST_EVENTS_REMEMBERED = 5_000
_LONGEST_EVENT = 1000


def describe_fault(error: KubeError) -> Fault:
    """Return a refusal of the API server as it goes into a condition."""
    if isinstance(error, KubeUnavailable):
        return Fault("APIUnavailable", f"the Kubernetes API did not answer, the operator retries: {error}")
    reason = error.reason if error.reason.isalnum() and not error.reason.isdigit() else "Refused"
    return Fault(reason, str(error))


class _Message(NamedTuple):
    """An event to be written."""

    reason: str
    words: str
    is_warning: bool


class PoolReporter:
    """Status and events of one pool. The loops only note what happened; it is written beside whatever they do."""

    def __init__(self, record: PoolRecord, services: Services) -> None:
        self._key = record.key
        self._uid = record.uid
        self._services = services
        self._events = EventWriter(services, record.key, record.uid)
        self._empty_queues = EmptyQueues(record.created_at)
        #: The status that the API server has.
        self.written = record.status
        #: The status that it should have.
        self.latest = record.status
        #: Whether a write without an answer may have taken effect: the API server may have another status than `written`.
        self._is_unsure = False
        self._is_correction_urgent = False
        self._told: Sequence[Condition] = record.status.conditions or ()
        self._is_paused = _is_pause(record.status.last_decision)
        self._written_at = self._restless_written_at = float("-inf")
        self._figures_at: float | None = None
        self._restless_at: float | None = None
        self._messages: list[_Message] = []
        self._next_message_at = self._retry_news_at = 0.0
        #: The write that is under way, or was last.
        self.task: asyncio.Task[None] | None = None

    def say(self, reason: str, words: str, *, is_warning: bool = False) -> None:
        """Have an event written soon."""
        message = _Message(reason, words, is_warning)
        if message not in self._messages:
            self._messages = [*self._messages, message][-_MOST_MESSAGES:]

    def note(
        self, status: PoolStatus, seen: Observation | None = None, queue_names: Sequence[str] = ()
    ) -> None:
        """Take in what the pool looks like now; ``seen`` None means that its queues could not be read."""
        self.latest = status
        self._services.metrics.readings[self._key] = PoolReading(status, seen)
        if status.last_decision is not None:
            self._note_pause(status.last_decision)
        for name in self._empty_queues.find_unseen(queue_names, seen):
            words = (
                f"Queue {name!r} has held no job since the pool was made. If jobs are enqueued, check "
                "that producers use the same queue name, Redis database and key prefix."
            )
            self.say("QueueNeverSeen", words, is_warning=True)
        self._reserve_slots()

    @property
    def has_news(self) -> bool:
        """Whether there is something to write now."""
        now = monotonic()
        if self._messages and now >= self._next_message_at:
            return True
        if self._is_urgent or (self._find_news() and now >= self._retry_news_at):
            return True
        return (self._has_changed and _has_come(self._figures_at, now)) or (
            has_restless_change(self.written, self.latest) and _has_come(self._restless_at, now)
        )

    def start_writing(self) -> None:
        """Write what there is to write, unless a write is under way."""
        if (self.task is None or self.task.done()) and self.has_news:
            self.task = asyncio.create_task(self._write_in_turn(), name="rrq-report")

    async def _write_in_turn(self) -> None:
        try:
            async with self._services.reports:
                await self.write()
        except Exception:
            logger.exception("report failed", extra={"namespace": self._key[0], "resource": self._key[1]})

    async def write(self) -> None:
        """Write status and events. A failure is logged, and the next round retries."""
        await self._write_messages()
        # The rounds go on while this is written.
        latest, news = self.latest, self._find_news()
        if self._has_changed and not await self._write_status(latest):
            return
        told = [await self._events.write(one.reason, one.message, is_warning=is_bad(one)) for one in news]
        if all(told):
            self._told = remember_told(self._told, latest.conditions or ())
        else:
            self._retry_news_at = monotonic() + _RETRY_SECONDS

    async def _write_status(self, status: PoolStatus) -> bool:
        namespace, name = self._key
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": self._uid},
            "status": build_status_manifest(status),
        }
        is_restless, was_urgent = has_restless_change(self.written, status), self._is_urgent
        self._drop_past_slots()
        try:
            await self._services.kube.apply(f"{pools_path(namespace)}/{name}/status", manifest)
        except KubeMissing:
            return False  # deleted meanwhile
        except KubeError as error:
            self._services.metrics.api_errors.labels(error.reason or "Other").inc()
            logger.warning("status not written", extra={"resource": name, "error": str(error)})
            if not isinstance(error, KubeConflict | KubeRefused):
                self._is_unsure = True
                self._is_correction_urgent |= was_urgent
            return False
        self.written = status
        self._is_unsure = self._is_correction_urgent = False
        self._written_at = monotonic()
        if is_restless:
            self._restless_written_at = self._written_at
        return True

    async def _write_messages(self) -> None:
        """Write the events in order; those that cannot be written now are kept, the latest of them."""
        messages, self._messages = self._messages, []
        for position, message in enumerate(messages):
            if not await self._events.write(message.reason, message.words, is_warning=message.is_warning):
                said_meanwhile = [other for other in self._messages if other not in messages[position:]]
                self._messages = [*messages[position:], *said_meanwhile][-_MOST_MESSAGES:]
                self._next_message_at = monotonic() + _RETRY_SECONDS
                return

    def _note_pause(self, decision: LastDecision) -> None:
        """Have an event written when the pool was paused in Redis, and when it was resumed."""
        if decision.reason in (Reason.FROZEN, Reason.QUEUE_UNREADABLE):
            return  # neither shows whether the pool is paused
        was_paused, self._is_paused = self._is_paused, _is_pause(decision)
        if self._is_paused and not was_paused:
            self.say("Paused", "the pool was paused in Redis: its workers start nothing until it is resumed")
        elif was_paused and not self._is_paused:
            self.say("Resumed", "the pool is no longer paused in Redis")

    # What is written when

    @property
    def _has_changed(self) -> bool:
        return self._is_unsure or self.written != self.latest

    @property
    def _is_urgent(self) -> bool:
        return self._is_correction_urgent or is_urgent(self.written, self.latest)

    def _find_news(self) -> list[Condition]:
        return find_news(self._told, self.latest.conditions or ())

    def _reserve_slots(self) -> None:
        """Reserve times for what is not urgent. A slot stays when something urgent is written before it comes."""
        now = monotonic()
        if not self._has_changed:
            self._drop_past_slots()
            return
        if self._is_urgent:
            return  # all of it is written at once
        if self._figures_at is None:
            earliest = max(now, self._written_at + _FIGURES_SECONDS)
            self._figures_at = self._services.figure_slots.reserve(earliest, now)
        if self._restless_at is None and has_restless_change(self.written, self.latest):
            earliest = max(now, self._restless_written_at + _RESTLESS_SECONDS)
            self._restless_at = self._services.restless_slots.reserve(earliest, now)

    def _drop_past_slots(self) -> None:
        now = monotonic()
        if _has_come(self._figures_at, now):
            self._figures_at = None
        if _has_come(self._restless_at, now):
            self._restless_at = None


class EmptyQueues:
    """Finds queues of a new pool that stay empty: perhaps their names are mistyped."""

    def __init__(self, created_at: float) -> None:
        self._created_at = created_at
        self._empty_since: dict[str, float] = {}

    def find_unseen(self, names: Sequence[str], seen: Observation | None) -> list[str]:
        """Return the queues to warn of, each once."""
        if seen is None or time() - self._created_at > _NEW_POOL_SECONDS:
            return []
        now, unseen = monotonic(), []
        for name in names:
            queue = seen.queues.get(name)
            if queue is None:
                continue
            if queue.due or queue.due_soon or queue.later:
                self._empty_since[name] = float("inf")
            elif now - self._empty_since.setdefault(name, now) > _WARN_OF_UNSEEN_QUEUE_SECONDS:
                self._empty_since[name] = float("inf")
                unseen.append(name)
        return unseen


class EventWriter:
    """Writes the events of one pool, which ``kubectl describe`` lists. The same event again is counted, not repeated."""

    def __init__(self, services: Services, key: PoolKey, uid: str) -> None:
        self._kube = services.kube
        self._key = key
        self._uid = uid
        self._told = services.told_events

    async def write(self, reason: str, message: str, *, is_warning: bool = False) -> bool:
        """Write an event, or count it when it was written before; returns whether people can read it now.

        A failure is logged and no more: events are a courtesy.
        """
        namespace, pool = self._key
        message = message[:_LONGEST_EVENT]
        digest = hashlib.sha256(f"{self._uid}\0{reason}\0{message}".encode()).hexdigest()[:16]
        at, count = self._told.get(digest, (0.0, 0))
        if count and monotonic() - at < _SAME_EVENT_SECONDS:
            return True
        log = logger.warning if is_warning else logger.info
        log(message, extra={"namespace": namespace, "resource": pool, "reason": reason})
        event = self._build(f"{pool}.{digest}", reason, message, is_warning=is_warning)
        try:
            count = await self._send(event, count)
        except KubeError as error:
            logger.warning("event not written", extra={"resource": pool, "error": str(error)})
            return False
        if len(self._told) >= _MOST_EVENTS_REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told.pop(digest, None)
        self._told[digest] = monotonic(), count
        return True

    async def _send(self, event: Manifest, count: int) -> int:
        """Write an event that was written ``count`` times from here; returns how often it was written by now."""
        path = events_path(self._key[0])
        own_path = f"{path}/{event['metadata']['name']}"
        try:
            if not count:
                await self._kube.create(path, event)
                return 1
        except KubeConflict:
            # Written before this operator started; it goes on counting.
            count = int((await self._kube.read(own_path)).get("count") or 1)
        try:
            again = {"count": count + 1, "lastTimestamp": event["lastTimestamp"]}
            await self._kube.merge(own_path, again)
            return count + 1
        except KubeMissing:  # events expire after an hour
            await self._kube.create(path, event)
            return 1

    def _build(self, name: str, reason: str, message: str, *, is_warning: bool) -> Manifest:
        namespace, pool = self._key
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": namespace,
                "name": pool,
                "uid": self._uid,
            },
            "type": "Warning" if is_warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _is_pause(decision: LastDecision | None) -> bool:
    return decision is not None and decision.reason == Reason.PAUSED


def _has_come(slot: float | None, now: float) -> bool:
    return slot is not None and slot <= now
