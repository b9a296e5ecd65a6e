"""Writes what a pool says of itself: status, events and metrics, each only when it has changed.

What a person waits for is written at once: the status of a condition, a size, a fault. Figures of a busy queue change all
the time and wait for a slot among all pools; metrics and ``kubectl rrq top`` have them of now.
"""

import logging
from collections.abc import Sequence
from time import monotonic, time
from typing import NamedTuple

from rrq.flow import PoolReport
from rrq_operator.api.spec import API_VERSION, KIND
from rrq_operator.cluster.kube import KubeConflict, KubeError, KubeMissing, KubeRefused, pools_path
from rrq_operator.control.services import Round, Services
from rrq_operator.decide.objects import PoolKey, format_time
from rrq_operator.decide.scaling import Reason
from rrq_operator.decide.status import (
    DRAINING,
    QUEUE_REACHABLE,
    QUIET_REASONS,
    READY,
    SCALING_LIMITED,
    Condition,
    Status,
    date_conditions,
    parse_conditions,
)

logger = logging.getLogger(__name__)

_FIGURES_SECONDS = 15.0
#: These follow the work: at a load just around a limit they turn every second. They have slots of their own, at once while
#: few pools ask, and at most one per pool in this time.
_RESTLESS = (SCALING_LIMITED, DRAINING)
_TURN_SECONDS = 15.0
_RETRY_SECONDS = 2.0
_MOST_MESSAGES = 20
_WARN_OF_UNSEEN_QUEUE_SECONDS = 120.0
#: A queue of an older pool may rightly be empty when an operator starts to look.
_NEW_POOL_SECONDS = 3600.0
#: What may wait for the next time that figures are written.
_FIGURES = (
    "due",
    "held",
    "orphaned",
    "dueSoon",
    "later",
    "busy",
    "oldestDueTime",
    "startupSeconds",
    "lastDecision",
    # What is wrong is a condition as well; the rest is the reason of the last decision.
    "reason",
)


class Message(NamedTuple):
    """An event to be written."""

    reason: str
    words: str
    is_warning: bool


class Reporter:
    """The outside of one pool. Whoever acts only says what happened; it is written later, beside the acting."""

    def __init__(self, key: PoolKey, services: Services) -> None:
        self._key = key
        self._services = services
        self._written: Status | None = None
        self._wanted: Status | None = None
        self._conditions: tuple[Condition, ...] = ()
        self._written_conditions: tuple[Condition, ...] = ()
        #: Whether a write without an answer may have taken effect: the API server may not have what was written last.
        self._is_unsure = False
        self._is_correction_urgent = False
        self._told: tuple[Condition, ...] = ()
        self._written_at = float("-inf")
        self._figures_at: float | None = None
        self._retry_news_at = 0.0
        self._turn_written_at = float("-inf")
        self._turn_at: float | None = None
        self._uid = ""
        self._generation = 0
        self._decided_at = format_time(time())
        #: What dashboards are told of the pool; None while Redis cannot be read.
        self.card: PoolReport | None = None
        self._is_on_hold = False
        self._empty_since: dict[str, float] = {}
        self._messages: list[Message] = []
        self._next_message_at = 0.0

    def say(self, reason: str, words: str, *, is_warning: bool = False) -> None:
        """Have an event written soon."""
        message = Message(reason, words, is_warning)
        if message not in self._messages:
            self._messages = [*self._messages, message][-_MOST_MESSAGES:]

    def note(self, this_round: Round, status: Status, conditions: Sequence[Condition]) -> None:
        """Take in what the pool looks like now."""
        record = this_round.record
        self._uid, self._generation = record.uid, record.generation
        if self._written is None:
            # After a restart: what the API server has is what was written last.
            self._written = {name: value for name, value in record.status.items() if name != "conditions"}
            last = self._written.get("lastDecision", {})
            self._decided_at = last.get("time", self._decided_at)
            self._is_on_hold = last.get("reason") == Reason.ON_HOLD
            self._told = self._written_conditions = parse_conditions(record.status)
        self._conditions = tuple(conditions)
        before = (self._wanted or self._written).get("lastDecision", {})
        decision = status.get("lastDecision")
        if decision is not None:
            if any(before.get(name) != decision.get(name) for name in ("reason", "replicas")):
                self._decided_at = format_time(time())
            status["lastDecision"] = decision | {"time": self._decided_at}
            self._tell_of_hold(decision["reason"])
        self._wanted = status
        self._reserve_slots()
        self.card = _build_card(this_round, status)
        self._export(this_round, status)
        self._services.metrics.set_conditions(self._key, conditions)
        self._look_for_unseen_queues(this_round)

    @property
    def has_news(self) -> bool:
        """Whether there is something to write now."""
        now = monotonic()
        if self._messages and now >= self._next_message_at:
            return True
        if self._is_urgent() or (self._news() and now >= self._retry_news_at):
            return True
        return (self._has_changed() and _has_come(self._figures_at, now)) or (
            self._has_turned() and _has_come(self._turn_at, now)
        )

    async def write(self) -> None:
        """Write status and events. Trouble is logged and tried again: the pool itself is not concerned."""
        await self._write_messages()
        services, (namespace, name) = self._services, self._key
        # The pool goes on being looked at while this is written.
        wanted, conditions = dict(self._wanted or {}), self._conditions
        news = self._news()
        if self._has_changed():
            record = services.cluster_cache.pools.get(self._key)
            known = record.status.get("conditions") or () if record is not None else ()
            dated = date_conditions(conditions, known, self._generation, time())
            manifest = {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": name, "namespace": namespace, "uid": self._uid},
                "status": wanted | {"conditions": dated},
            }
            has_turned, is_urgent = self._has_turned(), self._is_urgent()
            self._drop_past_slots()
            try:
                await services.kube.apply(f"{pools_path(namespace)}/{name}/status", manifest)
            except KubeMissing:
                return  # deleted meanwhile
            except KubeError as error:
                services.metrics.api_errors.labels(error.reason or "Other").inc()
                logger.warning("status not written", extra={"resource": name, "error": str(error)})
                if not isinstance(error, KubeConflict | KubeRefused):
                    self._is_unsure = True
                    self._is_correction_urgent |= is_urgent
                return
            self._written, self._written_conditions = wanted, conditions
            self._is_unsure = self._is_correction_urgent = False
            self._written_at = monotonic()
            if has_turned:
                self._turn_written_at = self._written_at
        told = [await self._tell(condition.reason, condition.message, condition.is_bad) for condition in news]
        if all(told):
            self._told = self._remember_told(conditions)
        else:
            self._retry_news_at = monotonic() + _RETRY_SECONDS

    async def _write_messages(self) -> None:
        """Write what was said, in order; what cannot be written now is kept, the latest of it."""
        messages, self._messages = self._messages, []
        for position, message in enumerate(messages):
            if not await self._tell(*message):
                said_meanwhile = [other for other in self._messages if other not in messages[position:]]
                self._messages = [*messages[position:], *said_meanwhile][-_MOST_MESSAGES:]
                self._next_message_at = monotonic() + _RETRY_SECONDS
                return

    async def _tell(self, reason: str, words: str, is_warning: bool) -> bool:
        """Write an event; returns whether it can be read now."""
        return await self._services.events.tell(
            self._key, self._uid, reason, words, time(), is_warning=is_warning
        )

    def _tell_of_hold(self, reason: str) -> None:
        """Have an event written when the pool was paused in Redis, and when it goes on."""
        if reason in (Reason.PAUSED, Reason.QUEUE_UNREADABLE):
            return  # neither tells
        is_on_hold = reason == Reason.ON_HOLD
        if is_on_hold and not self._is_on_hold:
            self.say("OnHold", "the pool was paused in Redis: its workers start nothing until it is resumed")
        elif self._is_on_hold and not is_on_hold:
            self.say("Resumed", "the pool is no longer paused in Redis")
        self._is_on_hold = is_on_hold

    def _look_for_unseen_queues(self, this_round: Round) -> None:
        """Warn once of a queue of a new pool that stays empty: perhaps its name is mistyped."""
        now = monotonic()
        if time() - this_round.record.created_at > _NEW_POOL_SECONDS:
            return
        for name in this_round.queue_names:
            queue = this_round.seen.queues.get(name) if this_round.seen is not None else None
            if queue is None:
                continue
            if queue.due or queue.due_soon or queue.later:
                self._empty_since[name] = float("inf")
            since = self._empty_since.setdefault(name, now)
            if now - since > _WARN_OF_UNSEEN_QUEUE_SECONDS:
                self._empty_since[name] = float("inf")
                self.say(
                    "QueueNeverSeen",
                    f"Queue {name!r} has held no job since the pool was made. If jobs are enqueued, check "
                    "that producers use the same queue name, Redis database and key prefix.",
                    is_warning=True,
                )

    def _reserve_slots(self) -> None:
        """Have times for writing what is not urgent. A slot stays when something urgent is written before it comes."""
        now = monotonic()
        if not self._has_changed():
            self._drop_past_slots()
            return
        if self._figures_at is None:
            earliest = max(now, self._written_at + _FIGURES_SECONDS)
            self._figures_at = self._services.figure_slots.reserve(earliest, now)
        if self._turn_at is None and self._has_turned():
            earliest = max(now, self._turn_written_at + _TURN_SECONDS)
            self._turn_at = self._services.turn_slots.reserve(earliest, now)

    def _drop_past_slots(self) -> None:
        now = monotonic()
        if _has_come(self._figures_at, now):
            self._figures_at = None
        if _has_come(self._turn_at, now):
            self._turn_at = None

    def _has_turned(self) -> bool:
        """Whether a condition that follows the work is not as it was written."""
        before = {entry.type: entry.status for entry in self._written_conditions}
        return any(
            entry.type in _RESTLESS and entry.status != before.get(entry.type, entry.status)
            for entry in self._conditions
        )

    def _has_changed(self) -> bool:
        return (
            self._is_unsure or self._written != self._wanted or self._written_conditions != self._conditions
        )

    def _is_urgent(self) -> bool:
        """Whether more than figures has changed, or may have to be corrected."""
        if self._is_correction_urgent:
            return True
        before = {entry.type: entry for entry in self._written_conditions}
        if before.keys() != {entry.type for entry in self._conditions}:
            return True
        for entry in self._conditions:
            if entry.status != before[entry.type].status and entry.type not in _RESTLESS:
                return True
            if entry.is_bad and entry.reason != before[entry.type].reason:
                return True
        written, wanted = self._written or {}, self._wanted or {}
        return any(
            written.get(name) != wanted.get(name) for name in {*written, *wanted} if name not in _FIGURES
        )

    def _news(self) -> list[Condition]:
        """Return the conditions worth an event: turned bad, or good again after it was told that they are bad.

        One trouble often turns several conditions; it is told of once.
        """
        told = {entry.type: entry for entry in self._told}
        known = {entry.reason for entry in self._told if entry.is_bad}
        news = []
        for condition in self._conditions:
            before = told.get(condition.type)
            if condition.is_bad:
                if condition.reason not in (*known, *_QUIET_REASONS):
                    known.add(condition.reason)
                    news.append(condition)
            elif (
                condition.type in (READY, QUEUE_REACHABLE)
                and condition.status
                and before is not None
                and before.is_bad
                and before.reason not in _QUIET_REASONS
            ):
                news.append(condition)
        return news

    def _remember_told(self, conditions: Sequence[Condition]) -> tuple[Condition, ...]:
        """Return what people know by now: a trouble that was told of stays so until it is really over."""
        before = {entry.type: entry for entry in self._told if entry.is_bad}
        return tuple(
            before.get(entry.type, entry) if entry.is_bad and entry.reason in _QUIET_REASONS else entry
            for entry in conditions
        )

    def _export(self, this_round: Round, status: Status) -> None:
        seen = this_round.seen
        # What somebody holds back waits for that person, and says nothing about whether the pool keeps up.
        is_held = bool(status.get("due")) and status.get("held") == status.get("due")
        ages = (
            [
                0.0 if is_held or queue.held >= queue.due else queue.oldest_due_age_seconds or 0.0
                for queue in seen.queues.values()
            ]
            if seen is not None
            else []
        )
        self._services.metrics.set_pool(
            self._key,
            {
                "due": status.get("due"),
                "held": status.get("held"),
                "orphaned": status.get("orphaned"),
                "scheduled": None
                if "later" not in status
                else status.get("dueSoon", 0) + status.get("later", 0),
                "oldest": max(ages) if ages else None,
                "busy": status.get("busy"),
                "desired": status.get("desiredReplicas"),
                "ready": status.get("readyReplicas"),
            },
        )


def _has_come(slot: float | None, now: float) -> bool:
    return slot is not None and slot <= now


def _build_card(this_round: Round, status: Status) -> PoolReport | None:
    pool, seen = this_round.record.pool, this_round.seen
    if pool is None or seen is None:
        return None
    return PoolReport(
        pool=pool.qualified_name,
        type=pool.spec.type,
        queues=this_round.queue_names,
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        desired=status.get("desiredReplicas", 0),
        due=status.get("due"),
        held=status.get("held"),
        busy=sum(worker.busy for worker in seen.workers.values()),
        reason=str(status.get("reason", "")),
        words=status.get("lastDecision", {}).get("words", ""),
        at_ms=seen.now_ms,
        is_paused=this_round.is_on_hold(pool),
    )


#: Told of by another condition, or wanted.
_QUIET_REASONS = (*QUIET_REASONS, Reason.PAUSED, Reason.ON_HOLD, Reason.QUEUE_UNREADABLE)
