"""``rrq monitor``: queues, workers, pods and dead letters, live on a terminal or once as text or JSON."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rrq.broker.connection import REDIS_ERRORS
from rrq.broker.messages import QueueObservation
from rrq.broker.redis_advice import describe_redis_trouble
from rrq.commands.formatting import (
    NOTHING,
    Table,
    format_duration,
    format_ms,
    format_time,
    printable,
    shorten,
)
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import build_rich_table, is_terminal, print_json, print_line, print_table, show_live
from rrq.commands.redis_access import run_on_store
from rrq.inspect.dead_letters import DeadLetter
from rrq.inspect.overview import Overview, OverviewReader, PodSummary, SeenWorker, WorkerKind
from rrq.settings_loading import load_settings
from rrq.store import JobStore

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

_ERROR_LENGTH = 60
# Each table has a line above it, a title and its column names; boxes would take twice as many.
_LINES_AROUND_ROWS = 3
# The first line of the screen, which a narrow window folds.
_HEADER_LINES = 2
# Columns up to this width, such as a status or a number, are the last to be cut.
_SHORT_COLUMN = 12


@click.command()
@click.option(
    "--refresh",
    "refresh_seconds",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
@click.option("--queues", "queue_names", multiple=True, help="Only this queue; may be repeated.")
@settings_option
@json_option
def monitor(
    refresh_seconds: float, queue_names: tuple[str, ...], settings_path: str | None, as_json: bool
) -> None:
    """Show a live monitoring dashboard of queues, workers, pods and dead letters.

    Ctrl-C ends it. Into a pipe or a file, and with --json, it prints one snapshot and ends.
    """
    settings = load_settings(settings_path)
    store = JobStore(settings)
    if not as_json and is_terminal():
        asyncio.run(_show_live(store, queue_names, refresh_seconds))
        return
    overview = run_on_store(
        store,
        lambda store: OverviewReader(store, queue_names).run_once(),
        lambda error: describe_redis_trouble(settings.redis_dsn, error),
    )
    if as_json:
        print_json(_to_json(overview))
    else:
        _print_once(overview)


def _print_once(overview: Overview) -> None:
    print_line(_build_header(overview))
    for table in _build_tables(overview):
        print_line()
        print_table(table)


async def _show_live(store: JobStore, queue_names: Collection[str], refresh_seconds: float) -> None:
    try:
        await show_live(_LiveReader(store, queue_names).run_once, _build_screen, refresh_seconds)
    finally:
        await store.aclose()


class _LiveReader:
    """Reads for the screen; keeps the last overview while Redis does not answer."""

    def __init__(self, store: JobStore, queue_names: Collection[str]) -> None:
        self._dsn = store.settings.redis_dsn
        self._reader = OverviewReader(store, queue_names)
        self._overview: Overview | None = None
        self._failing_since: datetime | None = None

    async def run_once(self) -> tuple[Overview | None, str]:
        """Return the last overview, and why there is no newer one ('' when it is new)."""
        try:
            self._overview, self._failing_since = await self._reader.run_once(), None
        except REDIS_ERRORS as error:
            self._failing_since = self._failing_since or datetime.now(UTC)
            trouble = describe_redis_trouble(self._dsn, error)
            return self._overview, f"No update since {self._failing_since:%H:%M:%S}Z, trying again. {trouble}"
        return self._overview, ""


def _build_screen(seen: tuple[Overview | None, str], height: int) -> "RenderableType":
    """Return what to draw; trouble comes first, and the last overview stays below it, dimmed."""
    from rich.console import Group
    from rich.text import Text

    overview, trouble = seen
    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(printable(trouble), style="bold red"))
    if overview is not None:
        style = "dim" if trouble else "bold"
        parts.append(Text(_build_header(overview), style=style))
        for table, rows in _share_out(_build_tables(overview), height):
            parts += [Text(), _fit(table, rows)]
    return Group(*parts)


def _share_out(tables: list[Table], height: int) -> list[tuple[Table, int]]:
    """Divide the lines of the screen: short tables get what they need, long ones share the rest."""
    left = max(len(tables), height - _HEADER_LINES - _LINES_AROUND_ROWS * len(tables))
    shares: dict[str, int] = {}
    by_length = sorted(tables, key=lambda table: len(table.rows))
    for number, table in enumerate(by_length):
        share = max(1, left // (len(by_length) - number))
        shares[table.title] = min(len(table.rows), share)
        left -= shares[table.title]
    return [(table, shares[table.title]) for table in tables]


def _fit(table: Table, most_rows: int) -> "RichTable":
    hidden = len(table.rows) - most_rows
    title = table.title if hidden <= 0 else f"{table.title} ({hidden} more not shown)"
    drawn = build_rich_table(Table(title, table.columns, table.rows[:most_rows]), one_line=True)
    drawn.box, drawn.pad_edge = None, False
    for number, column in enumerate(drawn.columns):
        longest = max(len(row[number]) for row in (table.columns, *table.rows))
        # Columns that may wrap are the first to become narrower; their cells are cut all the same.
        column.no_wrap = longest <= _SHORT_COLUMN
    return drawn


def _build_header(overview: Overview) -> str:
    living = [worker for worker in overview.workers if worker.kind is not WorkerKind.LOST]
    due = sum(queue.due for queue in overview.queues.values())
    return (
        f"RRQ at {format_time(overview.now)}: {due} jobs due, "
        f"{sum(worker.busy for worker in living)} running on {len(living)} workers, "
        f"{overview.dead_letters} dead letters"
    )


def _build_tables(overview: Overview) -> list[Table]:
    """Return queues, workers, pods and dead letters, each complete."""
    return [
        Table(
            "Queues",
            ("Queue", "Due", "Scheduled", "Oldest Due", "Next Due"),
            [_queue_row(name, queue) for name, queue in _order_queues(overview)],
        ),
        Table(
            "Workers",
            ("Worker", "Status", "Busy", "Lease", "Pod", "Queues"),
            [_worker_row(worker) for worker in overview.workers],
        ),
        Table(
            "Pods",
            ("Pod", "Workers", "Busy", "Capacity", "Draining"),
            [_pod_row(pod) for pod in overview.pods],
        ),
        Table(
            f"Dead Letters: {overview.dead_letters}",
            ("Job ID", "Function", "Failed At", "Error"),
            [_dead_letter_row(letter) for letter in overview.newest_dead_letters],
        ),
    ]


def _to_json(overview: Overview) -> dict[str, Any]:
    return {
        "at": overview.now.isoformat(),
        "queues": {
            name: {
                "due": queue.due,
                "scheduled": queue.due_soon + queue.later,
                "oldest_due_age_seconds": queue.oldest_due_age_seconds,
                "next_due_ms": queue.next_due_ms,
            }
            for name, queue in _order_queues(overview)
        },
        "workers": [_worker_json(worker) for worker in overview.workers],
        "pods": [
            {
                "pod_uid": pod.pod_uid or None,
                "workers": pod.workers,
                "busy": pod.busy,
                "capacity": pod.capacity,
                "draining": pod.is_draining,
            }
            for pod in overview.pods
        ],
        "dead_letters": {
            "total": overview.dead_letters,
            "newest": [
                {"job_id": letter.job_id, "job": letter.job.to_json() if letter.job else None}
                for letter in overview.newest_dead_letters
            ],
        },
    }


def _order_queues(overview: Overview) -> list[tuple[str, QueueObservation]]:
    return sorted(overview.queues.items(), key=lambda entry: (-entry[1].due, entry[0]))


def _queue_row(name: str, queue: QueueObservation) -> tuple[str, ...]:
    return (
        name,
        str(queue.due),
        str(queue.due_soon + queue.later),
        format_duration(queue.oldest_due_age_seconds),
        NOTHING if queue.next_due_ms is None else format_ms(queue.next_due_ms),
    )


def _worker_row(worker: SeenWorker) -> tuple[str, ...]:
    lease = NOTHING if worker.lease_seconds is None else f"{worker.lease_seconds:.0f}s"
    return (
        worker.worker_id,
        "draining" if worker.is_draining else worker.status,
        f"{worker.busy}/{worker.capacity}",
        "RRQ 0.7" if worker.kind is WorkerKind.LEGACY else lease,
        worker.pod_uid or NOTHING,
        ", ".join(worker.queues) or NOTHING,
    )


def _worker_json(worker: SeenWorker) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "kind": worker.kind.value,
        "status": worker.status,
        "busy": worker.busy,
        "capacity": worker.capacity,
        "draining": worker.is_draining,
        "lease_seconds": worker.lease_seconds,
        "pod_uid": worker.pod_uid or None,
        "queues": worker.queues,
    }


def _pod_row(pod: PodSummary) -> tuple[str, ...]:
    counts = (pod.workers, pod.busy, pod.capacity)
    return (pod.pod_uid or "(no pod)", *map(str, counts), "draining" if pod.is_draining else NOTHING)


def _dead_letter_row(letter: DeadLetter) -> tuple[str, ...]:
    job = letter.job
    if job is None:
        return (letter.job_id, NOTHING, NOTHING, "(the job has expired)")
    error = shorten(job.described_error, _ERROR_LENGTH)
    return (letter.job_id, job.function_name or NOTHING, format_time(job.completed_at), error)
