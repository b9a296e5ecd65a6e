"""What a pool of the cluster says of itself: its status and its events, each written only when it has changed.

What a person waits for is written at once: the status of a condition, a size, a fault. Figures of a busy queue change all
the time and wait for a slot among all pools; metrics and ``kubectl rrq top`` have the current ones. Which change is which
is decided in ``decide/status.py``.
"""

import asyncio
import hashlib
import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from rrq.broker.messages import Observation
from rrq.flow import PoolReport
from rrq_operator.api.pool_status import Condition, LastDecision, PoolStatus
from rrq_operator.api.spec import API_VERSION, KIND, Pool, RedisSource
from rrq_operator.cluster.cluster_cache import PoolRecord
from rrq_operator.cluster.kube import (
    KubeConflict,
    KubeError,
    KubeMissing,
    KubeRefused,
    events_path,
    pools_path,
)
from rrq_operator.control.metrics import PoolReading
from rrq_operator.control.pool_group import GroupPool, Round
from rrq_operator.control.services import Services
from rrq_operator.decide.empty_queues import NEW_POOL_SECONDS, EmptyQueues
from rrq_operator.decide.manifests import MANAGER, Manifest
from rrq_operator.decide.objects import PodObject, PoolKey
from rrq_operator.decide.publishing import build_report
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.status import (
    Fault,
    PoolSnapshot,
    build_status_manifest,
    find_news,
    has_restless_change,
    is_bad,
    is_urgent,
    remember_told,
)
from rrq_operator.decide.status_pacing import Slots

if TYPE_CHECKING:
    from rrq_operator.cluster.redis_sources import SecretVersion

logger = logging.getLogger(__name__)

#: How often figures are written, and conditions that follow the work. The latter have slots of their own, at once while few
#: pools ask.
_FIGURES_SECONDS = 15.0
_RESTLESS_SECONDS = 15.0
_RETRY_SECONDS = 2.0
_MOST_MESSAGES = 20
#: The same event is written once in this time.
_SAME_EVENT_SECONDS = 60.0
_MOST_EVENTS_REMEMBERED = 5_000
_LONGEST_EVENT = 1000


class ReportingPool(GroupPool):
    """A pool of the cluster: it finds itself in the cluster cache, and reports on itself."""

    def __init__(self, record: PoolRecord, services: Services) -> None:
        super().__init__(services.actions)
        self.uid = record.uid
        self.reporter = PoolReporter(record, services)
        #: The Redis of the spec that the leader has resolved.
        self.source: RedisSource | None = None
        #: None while it is not known.
        self.secret_version: SecretVersion | None = None
        self._key = record.key
        self._services = services
        self._round: Round | None = None

    def find_pool(self) -> Pool | None:
        return self._services.cluster_cache.find_pool(self._key, self.uid, self.source)

    @property
    def pod_uids(self) -> Collection[str]:
        return self._services.cluster_cache.pods.get(self._key, {}).keys()

    def build_report(self, now_ms: int) -> PoolReport | None:
        if self._round is None:
            return None
        return build_report(self._round.pool, self.queue_names, self.reporter.latest, self._round.seen)

    def start_writing(self) -> None:
        self.reporter.start_writing()

    def _take_snapshot(
        self,
        this_round: Round,
        pods: Sequence[PodObject],
        object_fault: Fault | None,
        scale_fault: Fault | None = None,
    ) -> PoolSnapshot:
        """Return everything that this round has found out about the pool."""
        return PoolSnapshot(
            pool=this_round.pool,
            queues=None if this_round.seen is None else this_round.seen.queues,
            queue_fault=this_round.queue_fault,
            object_fault=object_fault,
            scale_fault=scale_fault,
            pods=pods,
            now=time(),
            is_paused=this_round.is_paused,
            written=self.reporter.written,
            latest=self.reporter.latest,
        )

    def _note_status(self, this_round: Round, status: PoolStatus) -> None:
        self._round = this_round
        self._services.metrics.readings[self._key] = PoolReading(status, this_round.seen)
        self.reporter.note(status)
        if this_round.seen is not None:
            self.reporter.look_for_empty_queues(self.queue_names, this_round.seen)


class PoolReporter:
    """Status and events of one pool. The loops only note what happened; it is written beside whatever they do."""

    def __init__(self, record: PoolRecord, services: Services) -> None:
        self._key = record.key
        self._uid = record.uid
        self._created_at = record.created_at
        self._services = services
        self._events = EventWriter(services, record.key, record.uid)
        self._empty_queues = EmptyQueues()
        #: The status that the API server has.
        self.written = record.status
        #: The status that it should have.
        self.latest = record.status
        #: Whether a write without an answer may have taken effect: the API server may have another status than `written`.
        self._is_unsure = False
        self._is_correction_urgent = False
        self._told: Sequence[Condition] = record.status.conditions or ()
        self._retry_news_at = 0.0
        self._is_paused = _is_pause(record.status.last_decision)
        self._figures = _Pace(services.figure_slots, _FIGURES_SECONDS)
        self._restless = _Pace(services.restless_slots, _RESTLESS_SECONDS)
        #: The write that is under way, or was last.
        self.task: asyncio.Task[None] | None = None

    def say(self, reason: str, words: str, *, is_warning: bool = False) -> None:
        """Have an event written soon."""
        self._events.say(Message(reason, words, is_warning))

    def note(self, status: PoolStatus) -> None:
        """Take in what the pool looks like now."""
        self.latest = status
        if status.last_decision is not None:
            self._note_pause(status.last_decision)
        self._reserve_slots()

    def look_for_empty_queues(self, names: Sequence[str], seen: Observation) -> None:
        """Warn of queues of a new pool that stay empty."""
        if time() - self._created_at > NEW_POOL_SECONDS:
            return
        for name in self._empty_queues.find_unseen(names, seen.queues, monotonic()):
            words = (
                f"Queue {name!r} has held no job since the pool was made. If jobs are enqueued, check "
                "that producers use the same queue name, Redis database and key prefix."
            )
            self.say("QueueNeverSeen", words, is_warning=True)

    @property
    def has_news(self) -> bool:
        """Whether there is something to write now."""
        now = monotonic()
        if self._events.is_due(now) or self._is_urgent or (self._find_news() and now >= self._retry_news_at):
            return True
        return (self._has_changed and self._figures.is_due(now)) or (
            has_restless_change(self.written, self.latest) and self._restless.is_due(now)
        )

    def start_writing(self) -> None:
        """Write what there is to write, unless a write is under way."""
        if (self.task is None or self.task.done()) and self.has_news:
            self.task = asyncio.create_task(self._write_in_turn(), name="rrq-report")

    async def _write_in_turn(self) -> None:
        try:
            async with self._services.reports:
                await self.write()
        # The rounds of the pool must go on without its status and events.
        except Exception:
            logger.exception("report failed", extra={"namespace": self._key[0], "resource": self._key[1]})

    async def write(self) -> None:
        """Write status and events. A failure is logged, and the next round retries."""
        await self._events.flush()
        # The rounds go on while this is written.
        latest, news = self.latest, self._find_news()
        if self._has_changed and not await self._write_status(latest):
            return
        told = [await self._events.write(Message(one.reason, one.message, is_bad(one))) for one in news]
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
        self._figures.written_at = monotonic()
        if is_restless:
            self._restless.written_at = monotonic()
        return True

    def _note_pause(self, decision: LastDecision) -> None:
        """Have an event written when the pool was paused in Redis, and when it was resumed."""
        if decision.reason in (Reason.FROZEN, Reason.QUEUE_UNREADABLE):
            return  # neither shows whether the pool is paused
        was_paused, self._is_paused = self._is_paused, _is_pause(decision)
        if self._is_paused and not was_paused:
            self.say("Paused", "the pool was paused in Redis: its workers start nothing until it is resumed")
        elif was_paused and not self._is_paused:
            self.say("Resumed", "the pool is no longer paused in Redis")

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
        if not self._has_changed:
            self._drop_past_slots()
        elif not self._is_urgent:
            self._figures.reserve()
            if has_restless_change(self.written, self.latest):
                self._restless.reserve()

    def _drop_past_slots(self) -> None:
        for pace in (self._figures, self._restless):
            if pace.is_due(monotonic()):
                pace.slot = None


class _Pace:
    """How often one kind of change is written: not before its interval is over, and in a slot among all pools."""

    def __init__(self, slots: Slots, interval_seconds: float) -> None:
        self._slots = slots
        self._interval_seconds = interval_seconds
        self.written_at = float("-inf")
        self.slot: float | None = None

    def is_due(self, now: float) -> bool:
        return self.slot is not None and self.slot <= now

    def reserve(self) -> None:
        if self.slot is None:
            now = monotonic()
            self.slot = self._slots.reserve(max(now, self.written_at + self._interval_seconds), now)


class Message(NamedTuple):
    """What an event says."""

    reason: str
    words: str
    is_warning: bool


class EventWriter:
    """Writes the events of one pool, which ``kubectl describe`` lists. The same event again is counted, not repeated."""

    def __init__(self, services: Services, key: PoolKey, uid: str) -> None:
        self._kube = services.kube
        self._key = key
        self._uid = uid
        self._told = services.told_events
        self._messages: list[Message] = []
        self._next_at = 0.0

    def say(self, message: Message) -> None:
        """Have an event written by the next `flush`."""
        if message not in self._messages:
            self._messages = [*self._messages, message][-_MOST_MESSAGES:]

    def is_due(self, now: float) -> bool:
        return bool(self._messages) and now >= self._next_at

    async def flush(self) -> None:
        """Write the events in order; those that cannot be written now are kept, the latest of them."""
        messages, self._messages = self._messages, []
        for position, message in enumerate(messages):
            if not await self.write(message):
                said_meanwhile = [other for other in self._messages if other not in messages[position:]]
                self._messages = [*messages[position:], *said_meanwhile][-_MOST_MESSAGES:]
                self._next_at = monotonic() + _RETRY_SECONDS
                return

    async def write(self, message: Message) -> bool:
        """Write an event, or count it when it was written before; returns whether people can read it now.

        A failure is only logged: the next round does not depend on events.
        """
        namespace, pool = self._key
        message = message._replace(words=message.words[:_LONGEST_EVENT])
        digest = hashlib.sha256(f"{self._uid}\0{message.reason}\0{message.words}".encode()).hexdigest()[:16]
        at, count = self._told.get(digest, (0.0, 0))
        if count and monotonic() - at < _SAME_EVENT_SECONDS:
            return True
        log = logger.warning if message.is_warning else logger.info
        log(message.words, extra={"namespace": namespace, "resource": pool, "reason": message.reason})
        try:
            count = await self._send(self._build(f"{pool}.{digest}", message), count)
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

    def _build(self, name: str, message: Message) -> Manifest:
        namespace, pool = self._key
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        about = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": pool,
            "uid": self._uid,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "type": "Warning" if message.is_warning else "Normal",
            "reason": message.reason,
            "message": message.words,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _is_pause(decision: LastDecision | None) -> bool:
    return decision is not None and decision.reason == Reason.PAUSED
