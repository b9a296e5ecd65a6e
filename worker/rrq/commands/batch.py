"""``rrq batch``: jobs that were queued together."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from rrq.commands.formatting import NOTHING
from rrq.commands.options import json_option
from rrq.commands.output import print_json, print_panel
from rrq.commands.redis_access import RunOnStore, store_option
from rrq.commands.refusal import Refusal
from rrq.store import JobStore


@dataclass(frozen=True)
class _Batch:
    """What Redis stores of a batch; None where that cannot be read."""

    batch_id: str
    total: int | None
    pending: int | None
    failed: int | None
    is_open: bool
    ended: str | None
    callback: str | None


@click.group()
def batch() -> None:
    """Inspect batches: jobs that were queued together."""


@batch.command("show")
@click.argument("batch_id", metavar="ID")
@store_option
@json_option
def batch_show(batch_id: str, run: RunOnStore, as_json: bool) -> None:
    """Show how many jobs of a batch have ended, and what runs after the last one."""
    found = run(lambda store: _read(store, batch_id))
    if as_json:
        print_json(
            {
                "batch_id": found.batch_id,
                "total": found.total,
                "pending": found.pending,
                "failed": found.failed,
                "open": found.is_open,
                "ended": found.ended,
                "callback": found.callback,
            }
        )
    else:
        print_panel("Batch", _describe(found))


async def _read(store: JobStore, batch_id: str) -> _Batch:
    fields = await store.read_batch(batch_id)
    if fields is None:
        raise Refusal(
            f"Batch '{batch_id}' not found. Its id is Batch.batch_id, which enqueue_batch returned. A batch expires a week "
            "after its last job has ended; RRQ_REDIS_DSN or --settings may name another Redis."
        )
    return _parse(batch_id, fields)


def _parse(batch_id: str, fields: Mapping[str, str]) -> _Batch:
    total, pending, failed = (_count(fields.get(name)) for name in ("total", "pending", "failed"))
    callback = _function_of(fields.get("callback"))
    return _Batch(batch_id, total, pending, failed, fields.get("open") == "1", fields.get("ended"), callback)


def _describe(found: _Batch) -> Iterator[tuple[str, str]]:
    yield "Batch ID", found.batch_id
    if found.ended:
        yield "State", f"ended at {found.ended}"
    else:
        yield "State", "its jobs are still being enqueued" if found.is_open else "in progress"
    yield "Jobs", _number(found.total)
    yield "Not Ended", _number(found.pending)
    yield "Failed or Cancelled", _number(found.failed)
    yield "Callback", found.callback or NOTHING


def _function_of(callback: str | None) -> str | None:
    """Return the function of the stored callback job, which is its second entry."""
    try:
        stored: Any = json.loads(callback or "null")
    except (ValueError, RecursionError):
        return None
    return str(stored[1]) if isinstance(stored, list) and len(stored) > 1 else None


def _count(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _number(value: int | None) -> str:
    return NOTHING if value is None else str(value)
