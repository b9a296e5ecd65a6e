"""Groups dead letters by function and error, with everything variable in the error left out. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rrq.broker.keys import Keys
from rrq.dashboard.job_views import build_job_row
from rrq.dashboard.values import Json, ListedJob, first_line, to_ms
from rrq.inspect.counts import error_pattern
from rrq.jobs.stored_job import StoredJob

_MOST_GROUPS: Final = 200


@dataclass
class DeadGroup:
    """Dead letters of one function with the same error."""

    group_id: str
    function: str
    pattern: str
    job_ids: list[str] = field(default_factory=list)
    queues: Counter[str] = field(default_factory=Counter)
    first: datetime | None = None
    last: datetime | None = None
    example: str = ""

    def add(self, job: StoredJob, queue: str) -> None:
        if not self.job_ids:
            self.example = first_line(job.described_error) or ""
        self.job_ids.append(job.job_id)
        self.queues[queue] += 1
        ended = job.completed_at
        if ended is not None:
            self.first = ended if self.first is None else min(self.first, ended)
            self.last = ended if self.last is None else max(self.last, ended)


def group_id_of(job: StoredJob) -> str:
    name = f"{job.function_name or ''}\0{error_pattern(job)}"
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]


def group_dead_letters(jobs: Iterable[StoredJob], keys: Keys) -> list[DeadGroup]:
    """Return the groups, the largest first; ids within a group in the order of the list, newest first."""
    groups: dict[str, DeadGroup] = {}
    for job in jobs:
        group_id = group_id_of(job)
        if group_id not in groups:
            groups[group_id] = DeadGroup(group_id, job.function_name or "(no function)", error_pattern(job))
        groups[group_id].add(job, keys.queue_name(job.queue_name) if job.queue_name else "(no queue)")
    return sorted(groups.values(), key=lambda group: (-len(group.job_ids), group.function, group.pattern))


def build_dead_letters(jobs: Sequence[StoredJob], total: int, keys: Keys) -> Json:
    groups = group_dead_letters(jobs, keys)
    return {
        "total": total,
        "looked_at": len(jobs),
        "group_count": len(groups),
        "groups": [_build_group(group) for group in groups[:_MOST_GROUPS]],
    }


def _build_group(group: DeadGroup) -> Json:
    return {
        "id": group.group_id,
        "function": group.function,
        "pattern": group.pattern,
        "count": len(group.job_ids),
        "queues": dict(group.queues.most_common(5)),
        "first_ms": to_ms(group.first),
        "last_ms": to_ms(group.last),
        "example": group.example,
    }


def build_group_page(
    jobs: Sequence[StoredJob], group_id: str, offset: int, limit: int, keys: Keys, now: datetime
) -> Json | None:
    """Return one group with a page of its jobs; None for an unknown group."""
    group = next((group for group in group_dead_letters(jobs, keys) if group.group_id == group_id), None)
    if group is None:
        return None
    by_id = {job.job_id: job for job in jobs}
    shown = group.job_ids[offset : offset + limit]
    return {
        **_build_group(group),
        "jobs": [build_job_row(ListedJob(job_id, by_id[job_id]), keys, now) for job_id in shown],
        "next_offset": offset + limit if offset + limit < len(group.job_ids) else None,
    }
