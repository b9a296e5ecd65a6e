"""What the listings show, as tables and as JSON: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from rrq.commands.formatting import NOTHING, format_duration
from rrq.commands.output import Table
from rrq_operator.plugin.pools import SeenPool

TOP_COLUMNS = ("Pool", "Type", "Queues", "Due", "Oldest", "Busy", "Ready", "Reason", "Decision")
_QUEUE_COLUMNS = ("Queue", "Pool", "Due", "Soon", "Later", "Oldest", "Busy", "Orphaned")


@dataclass(frozen=True)
class QueueFigures:
    """How one queue looks; None is for what is not known, and for no oldest job."""

    due: int | None = None
    due_soon: int | None = None
    later: int | None = None
    oldest_seconds: float | None = None
    busy: int | None = None
    orphaned: int | None = None


@dataclass(frozen=True)
class PoolFigures:
    """The queues of a pool by Redis; or, where that could not be read, none and the reason."""

    queues: Mapping[str, QueueFigures] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class PoolLine:
    """One pool of the overview."""

    pool: SeenPool
    total: QueueFigures
    is_live: bool
    """Whether the figures are those of Redis now, not those that the operator wrote a while ago."""


def build_line(pool: SeenPool, figures: PoolFigures, now: datetime) -> PoolLine:
    """Return a pool with the figures of Redis, else with those of its status."""
    if not figures.trouble:
        return PoolLine(pool, add_up(figures.queues.values()), is_live=True)
    status = pool.status
    oldest = status.oldest_due_time
    age = None if oldest is None else max(0.0, (now - oldest).total_seconds())
    return PoolLine(
        pool,
        QueueFigures(status.due, status.due_soon, status.later, age, status.busy, status.orphaned),
        is_live=False,
    )


def add_up(queues: Iterable[QueueFigures]) -> QueueFigures:
    """Return the queues as one; a sum with an unknown part is unknown."""
    parts = list(queues)
    ages = [part.oldest_seconds for part in parts if part.oldest_seconds is not None]
    return QueueFigures(
        _sum(part.due for part in parts),
        _sum(part.due_soon for part in parts),
        _sum(part.later for part in parts),
        max(ages, default=None),
        _sum(part.busy for part in parts),
        _sum(part.orphaned for part in parts),
    )


def build_top_table(lines: Sequence[PoolLine], *, with_namespace: bool) -> Table:
    return Table("Pools", TOP_COLUMNS, [_top_row(line, with_namespace) for line in lines])


def build_queue_table(rows: Sequence[tuple[SeenPool, str, QueueFigures]], *, with_namespace: bool) -> Table:
    return Table("Queues", _QUEUE_COLUMNS, [_queue_row(*row, with_namespace) for row in rows])


def describe_sources(figures: Iterable[PoolFigures]) -> list[str]:
    """Return a note for each reason why figures are those of the status, once."""
    troubles = dict.fromkeys(entry.trouble for entry in figures if entry.trouble)
    return [f"Note: some figures are those of the status, marked by *: {trouble}" for trouble in troubles]


def top_json(line: PoolLine) -> dict[str, Any]:
    pool, status = line.pool, line.pool.status
    decision = status.last_decision
    return {
        "namespace": pool.namespace,
        "pool": pool.name,
        "type": pool.type,
        "queues": list(pool.queues),
        "paused": pool.is_paused,
        "source": "redis" if line.is_live else "status",
        **asdict(line.total),
        "ready": status.ready_replicas,
        "desired": status.desired_replicas,
        "reason": status.reason,
        "decision": None if decision is None else decision.words,
    }


def queue_json(pool: SeenPool, queue: str, figures: QueueFigures) -> dict[str, Any]:
    return {"queue": queue, "namespace": pool.namespace, "pool": pool.name, **asdict(figures)}


def _top_row(line: PoolLine, with_namespace: bool) -> tuple[str, ...]:
    pool, status, total = line.pool, line.pool.status, line.total
    mark = "" if line.is_live else "*"
    decision = status.last_decision
    return (
        pool.title if with_namespace else pool.name,
        pool.type,
        ",".join(pool.queues),
        _number(total.due, mark),
        _age(total.oldest_seconds, mark),
        _number(total.busy, mark),
        f"{_number(status.ready_replicas)}/{_number(status.desired_replicas)}",
        "InvalidSpec" if pool.fault else status.reason or NOTHING,
        (None if decision is None else decision.words) or NOTHING,
    )


def _queue_row(pool: SeenPool, queue: str, figures: QueueFigures, with_namespace: bool) -> tuple[str, ...]:
    return (
        queue,
        pool.title if with_namespace else pool.name,
        _number(figures.due),
        _number(figures.due_soon),
        _number(figures.later),
        format_duration(figures.oldest_seconds),
        _number(figures.busy),
        _number(figures.orphaned),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _number(value: int | None, mark: str = "") -> str:
    return NOTHING if value is None else f"{value}{mark}"


def _age(seconds: float | None, mark: str) -> str:
    return NOTHING if seconds is None else f"{format_duration(seconds)}{mark}"
