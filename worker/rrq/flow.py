"""Flow control: pauses, limits, statistics, audit, and reports of pools. Values only.

``lua/shared/flow.lua`` enforces limits; ``broker/control_calls.py`` and ``broker/observe_calls.py`` write and read these
values.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal

from rrq.exc import InvalidLimit

__all__ = [
    "AuditEntry",
    "FlowState",
    "JobFilter",
    "Limit",
    "MinuteStats",
    "Pause",
    "PauseState",
    "PoolDecision",
    "PoolReport",
    "check_target",
]

PauseState = Literal["paused", "disabled"]
_TARGET_KINDS: Final = ("queue", "function", "pool")


def check_target(target: str) -> tuple[str, str]:
    """Return kind and name of ``queue:emails``, ``function:send`` or ``pool:shop/emails``.

    Raises InvalidLimit for anything else.
    """
    kind, colon, name = target.partition(":")
    if not colon or kind not in _TARGET_KINDS or not name:
        raise InvalidLimit(
            f"{target!r} names nothing that can be paused or limited. Write queue:NAME, function:NAME or "
            "pool:NAMESPACE/NAME."
        )
    if kind == "pool" and "/" not in name:
        raise InvalidLimit(f"{target!r} names no pool. Write pool:NAMESPACE/NAME.")
    return kind, name


@dataclass(frozen=True)
class Limit:
    """How much of a function or a queue may run in the whole fleet; None is no limit.

    ``rate`` starts are allowed in any ``per_seconds``; with ``burst`` that many may come at once and the rest evenly.
    ``key`` names the argument that tells tenants apart, for ``per_key`` and, with ``is_rate_per_key``, for the rate; a
    producer may give the key itself with ``_limit_key``. A concurrency of 0 stops them.
    """

    # Read by pydantic where settings come from the environment: an unknown name is refused there, too.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    concurrency: int | None = None
    key: str | None = None
    #: Where the argument stands when it is not given by name, counted from 0 behind the context.
    key_position: int | None = None
    per_key: int | None = None
    rate: float | None = None
    per_seconds: float = 1.0
    burst: float | None = None
    is_rate_per_key: bool = False

    def check(self, target: str) -> None:
        """Raise InvalidLimit for what cannot be kept."""
        kind, _ = check_target(target)
        if kind == "pool":
            raise InvalidLimit(f"{target} cannot have a limit: its size is set in its spec.")
        for name in ("concurrency", "per_key", "rate", "burst"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1_000_000:
                raise InvalidLimit(f"{name} of the limit for {target} must be 0 to 1,000,000, not {value!r}.")
        if not 0.001 <= self.per_seconds <= 86_400 * 31:
            raise InvalidLimit(f"per_seconds of the limit for {target} must be 0.001 to a month.")
        if kind == "queue" and (self.per_key is not None or self.is_rate_per_key):
            raise InvalidLimit(f"The limit for {target} cannot be per key: keys belong to functions.")
        if self.burst is not None and self.rate is None:
            raise InvalidLimit(f"The limit for {target} has a burst but no rate to refill it with.")
        if self.concurrency is None and self.per_key is None and self.rate is None:
            raise InvalidLimit(f"The limit for {target} limits nothing: give concurrency, per_key or rate.")

    def to_json(self, source: str = "") -> str:
        """Return it as the scripts read it."""
        values = {
            name: value for name, value in asdict(self).items() if value is not None and value is not False
        }
        if self.is_rate_per_key:
            values["per_key_rate"] = values.pop("is_rate_per_key")
        return json.dumps(values | ({"source": source} if source else {}))


@dataclass(frozen=True)
class Pause:
    state: PauseState
    by: str
    at: datetime
    reason: str = ""


@dataclass(frozen=True)
class FlowState:
    """What keeps jobs from starting now, by target; and by scope how many are blocked and how many run under a limit."""

    pauses: Mapping[str, Pause] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    """Targets whose limit a person has set over what the application declares."""
    blocked: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    declared: Mapping[str, Limit] = field(default_factory=dict)
    """What applications declare, also where a person has set something else."""


@dataclass(frozen=True)
class JobFilter:
    """Which waiting jobs a call acts on."""

    queue: str
    function: str | None = None
    due_for_seconds: float | None = None
    """Only those that have been due for so long; None for all, due or not."""


@dataclass(frozen=True)
class MinuteStats:
    """What happened in one minute."""

    minute: int
    """Minutes since 1970, UTC."""
    ended: Mapping[str, int]
    """By outcome, all queues together."""
    queues: Mapping[str, Mapping[str, int]]
    """By queue: started, wait_ms (sum), wait_max_ms, retry, dead."""

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.minute * 60, UTC)


@dataclass(frozen=True)
class AuditEntry:
    entry_id: str
    at: datetime
    actor: str
    action: str
    object: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class PoolReport:
    """The state of a pool when its operator last looked. Unknown values are None."""

    pool: str
    """``namespace/name``."""
    type: str
    queues: tuple[str, ...]
    replicas: int
    ready: int
    desired: int
    due: int | None
    blocked: int | None
    """Of those due, how many a pause or a limit blocks."""
    busy: int | None
    reason: str
    words: str
    at_ms: int
    """By the clock of Redis."""
    is_paused: bool = False
    """Whether its workers are paused: ``pool:…`` is among the pauses."""

    def to_json(self) -> str:
        # Dashboards of other versions read the number of blocked jobs as "held".
        values = {"held" if name == "blocked" else name: value for name, value in asdict(self).items()}
        return json.dumps({name: value for name, value in values.items() if name != "pool"})


@dataclass(frozen=True)
class PoolDecision:
    """One decision about the size of a pool."""

    at_ms: int
    replicas: int
    ready: int
    desired: int
    due: int | None
    busy: int | None
    reason: str
    words: str


def parse_pause(text: str) -> Pause | None:
    values = _object(text)
    state = values.get("state")
    if state not in ("paused", "disabled"):
        return None
    return Pause(
        state, str(values.get("by", "")), _moment(values.get("at_ms")), str(values.get("reason", ""))
    )


def parse_limit(text: str) -> Limit | None:
    """Return the limit; None for what no version of RRQ wrote."""
    values = _object(text)
    values["is_rate_per_key"] = values.pop("per_key_rate", False)
    known = {name: values[name] for name in Limit.__dataclass_fields__ if name in values}
    return Limit(**known) if len(known) > 1 else None


def parse_minute(minute: int, fields: Mapping[str, str]) -> MinuteStats:
    ended: dict[str, int] = {}
    queues: dict[str, dict[str, int]] = {}
    for name, text in fields.items():
        queue, _, figure = name.rpartition("|")
        if not text.isdigit():
            continue
        if queue:
            queues.setdefault(queue, {})[figure] = int(text)
        else:
            ended[figure] = int(text)
    return MinuteStats(minute, ended, queues)


def parse_audit(entry_id: str, fields: Mapping[str, str]) -> AuditEntry:
    return AuditEntry(
        entry_id,
        _moment(int(entry_id.partition("-")[0])),
        fields.get("actor", ""),
        fields.get("action", ""),
        fields.get("object", ""),
        _object(fields.get("detail", "")),
    )


def parse_pool_report(pool: str, text: str) -> PoolReport | None:
    """Return the report; None for what no version of RRQ wrote."""
    values = _object(text)
    queues = values.get("queues")
    return (
        PoolReport(
            pool=pool,
            type=str(values.get("type", "")),
            queues=tuple(str(name) for name in queues) if isinstance(queues, list) else (),
            replicas=_count(values.get("replicas")) or 0,
            ready=_count(values.get("ready")) or 0,
            desired=_count(values.get("desired")) or 0,
            due=_count(values.get("due")),
            blocked=_count(values.get("held")),
            busy=_count(values.get("busy")),
            reason=str(values.get("reason", "")),
            words=str(values.get("words", "")),
            at_ms=_count(values.get("at_ms")) or 0,
            is_paused=values.get("is_paused") is True,
        )
        if values
        else None
    )


def parse_pool_decision(fields: Mapping[str, str]) -> PoolDecision:
    def count(name: str) -> int | None:
        text = fields.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 19 else None

    return PoolDecision(
        at_ms=count("at_ms") or 0,
        replicas=count("replicas") or 0,
        ready=count("ready") or 0,
        desired=count("desired") or 0,
        due=count("due"),
        busy=count("busy"),
        reason=fields.get("reason", ""),
        words=fields.get("words", ""),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def _moment(at_ms: object) -> datetime:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC) if isinstance(at_ms, int | float) else _EPOCH
    except (ValueError, OverflowError, OSError):
        return _EPOCH


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
