"""What the listings show, as tables, JSON and screens: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rrq.commands.formatting import NOTHING, Table, format_duration, format_time, printable
from rrq.commands.output import build_rich_table
from rrq.runtime.masking import mask_secrets
from rrq_operator.decide.status import INVALID_SPEC_REASON
from rrq_operator.plugin.pools import SeenPool

if TYPE_CHECKING:
    from rich.console import RenderableType

TOP_COLUMNS = ("Pool", "Type", "Queues", "Due", "Oldest", "Busy", "Ready", "Reason", "Decision")
_QUEUE_COLUMNS = ("Queue", "Pool", "Due", "Soon", "Later", "Oldest", "Busy", "Orphaned")


@dataclass(frozen=True)
class QueueFigures:
    """The numbers of one queue; None where unknown, and where there is no oldest job."""

    due: int | None = None
    due_soon: int | None = None
    later: int | None = None
    oldest_seconds: float | None = None
    busy: int | None = None
    orphaned: int | None = None


@dataclass(frozen=True)
class PoolFigures:
    """The queues of a pool as read from Redis; none, and the reason, when Redis could not be read."""

    queues: Mapping[str, QueueFigures] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class PoolLine:
    """One pool of the overview."""

    pool: SeenPool
    total: QueueFigures
    is_live: bool
    """Whether the figures come from Redis now, not from the status that the operator wrote earlier."""


@dataclass(frozen=True)
class TopSnapshot:
    """All that ``kubectl rrq top`` shows at one moment."""

    at: datetime
    lines: tuple[PoolLine, ...]
    notes: tuple[str, ...]
    with_namespace: bool

    def build_table(self) -> Table:
        return build_top_table(self.lines, with_namespace=self.with_namespace)


def build_screen(seen: tuple[TopSnapshot, str], _: int) -> "RenderableType":
    """Return what to draw; trouble comes first, and the last snapshot stays below it."""
    from rich.console import Group
    from rich.text import Text

    snapshot, trouble = seen
    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(printable(mask_secrets(trouble)), style="bold red"))
    parts.append(Text(f"At {format_time(snapshot.at)}; Ctrl-C ends", style="dim"))
    parts.append(build_rich_table(snapshot.build_table()))
    parts += (Text(printable(note), style="yellow") for note in snapshot.notes)
    return Group(*parts)


def build_line(pool: SeenPool, figures: PoolFigures, now: datetime) -> PoolLine:
    """Return a pool with the figures from Redis, else with those from its status."""
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
    """Return one note for each reason why figures come from the status."""
    troubles = dict.fromkeys(entry.trouble for entry in figures if entry.trouble)
    return [f"Note: figures marked by * come from the status of the pool: {trouble}" for trouble in troubles]


def top_json(line: PoolLine) -> dict[str, Any]:
    pool, status = line.pool, line.pool.status
    decision = status.last_decision
    return {
        "namespace": pool.namespace,
        "pool": pool.name,
        "type": pool.type,
        "queues": list(pool.queues),
        "frozen": pool.is_frozen,
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
        INVALID_SPEC_REASON if pool.fault else status.reason or NOTHING,
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
