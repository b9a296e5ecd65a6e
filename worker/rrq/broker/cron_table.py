"""The cron table of a fleet as Redis stores it, so that ticks come even while no worker runs: pure.

Workers write it and operators read it with the calls of ``cron_calls.py``; ``engine/cron_scheduler.py`` decides when.
There is one table per list of queues, because the processes of one application have that in common. The reason, and
which process may replace a table, is in docs/decisions/0007-cron-table-in-redis.md.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, Final

from pydantic import ValidationError

from rrq.cron import CronJob

__all__ = [
    "MOST_ENTRIES",
    "CronTable",
    "NewCronTable",
    "PublishCode",
    "build_cron_table",
    "cron_group",
    "parse_cron_table",
]

# Longer than a month: an entry of the first of each month starts a pool that publishes again.
KEEP: Final = timedelta(days=35)
# An empty table only has to outlive the worker processes of the deployment before.
_KEEP_EMPTY: Final = timedelta(hours=1)
# Operators read all tables every few seconds.
_LARGEST_TABLE_BYTES: Final = 256 * 1024
#: Entries that a reader takes from all tables together. It looks at each of them every second; a table of ours has room
#: for 1,300.
MOST_ENTRIES: Final = 2000
_FIELDS: Final = tuple(name for name in CronJob.model_fields if name != "next_run_time")


class PublishCode(IntEnum):
    """What Redis made of a table."""

    NOTHING_TO_WITHDRAW = -1
    OUTDATED = 0
    PUBLISHED = 1


@dataclass(frozen=True)
class NewCronTable:
    """A table as a worker publishes it. An empty ``text`` withdraws the table of the group."""

    group: str
    text: str
    keep_seconds: int
    left_out: tuple[str, ...] = ()
    """Functions of entries for which there was no room."""


@dataclass(frozen=True)
class CronTable:
    """What the newest worker of a group would enqueue, with the defaults of its settings written out."""

    queues: tuple[str, ...]
    """Short names, sorted."""
    published_at_ms: int
    """When the publishing process started, by the clock of Redis."""
    renewed_at_ms: int
    entries: tuple[CronJob, ...]


def cron_group(queue_names: Iterable[str]) -> str:
    """Return the name of the group of workers that serve these queues (short names, in any order)."""
    return hashlib.sha256(json.dumps(sorted(set(queue_names))).encode()).hexdigest()[:32]


def build_cron_table(queue_names: Sequence[str], entries: Sequence[CronJob], now: datetime) -> NewCronTable:
    """Return the table of these entries, whose arguments JSON can express and which miss no option."""
    texts: list[str] = []
    left_out: list[str] = []
    room = _LARGEST_TABLE_BYTES
    for entry in entries:
        text = json.dumps({name: getattr(entry, name) for name in _FIELDS})
        if len(text) <= room:
            texts.append(text)
            room -= len(text)
        else:
            left_out.append(entry.function_name)
    queues = sorted(set(queue_names))
    table = f'{{"queues": {json.dumps(queues)}, "entries": [{", ".join(texts)}]}}' if texts else ""
    keep = KEEP + _longest_wait(entries, now) if texts else _KEEP_EMPTY
    return NewCronTable(cron_group(queues), table, int(keep.total_seconds()), tuple(left_out))


def _longest_wait(entries: Iterable[CronJob], now: datetime) -> timedelta:
    """An entry of once a year must find its table in a year, though no worker ran in between."""
    waits = [timedelta(0)]
    for entry in entries:
        next_run = entry.next_after(now)
        if next_run is not None:
            waits.append(next_run - now)
    return max(waits)


def parse_cron_table(
    text: str | bytes, published_at_ms: int, renewed_at_ms: int, most_entries: int = MOST_ENTRIES
) -> tuple[CronTable, list[str]]:
    """Return the table and what is wrong with entries that had to be left out of it.

    Raises ValueError when nothing of it can be read.
    """
    # The names of the queues come on top of the entries.
    if len(text) > 2 * _LARGEST_TABLE_BYTES:
        raise ValueError(f"it has more than {2 * _LARGEST_TABLE_BYTES} bytes")
    try:
        table = json.loads(text)
        names, stored = table["queues"], table["entries"]
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"it is no object with queues and entries: {error!r}") from error
    has_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not has_names or not isinstance(stored, list):
        raise ValueError("its queues are no list of names, or its entries no list")
    entries: list[CronJob] = []
    problems: list[str] = []
    if len(stored) > most_entries:
        problems.append(
            f"{len(stored) - most_entries} entries left out: all cron tables may have {MOST_ENTRIES} entries together"
        )
    for number, entry in enumerate(stored[:most_entries]):
        try:
            entries.append(_parse_entry(entry))
        except ValueError as error:
            problems.append(f"entry {number}: {error}")
    return CronTable(tuple(names), published_at_ms, renewed_at_ms, tuple(entries)), problems


def _parse_entry(entry: Any) -> CronJob:
    try:
        # next_run_time is for the reader to work out, whatever stands here.
        return CronJob.model_validate({name: entry[name] for name in _FIELDS if name in entry})
    except ValidationError as error:
        # Without the input: arguments of jobs have no place in logs.
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise ValueError("; ".join(f"{detail['loc']}: {detail['msg']}" for detail in details)) from None
    except TypeError:
        raise ValueError("it is no object") from None
