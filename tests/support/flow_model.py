"""What flow control should do: pauses, limits, slots and parking, in plain Python.

`ModelFlow` knows who may start and who comes next. Jobs, queues and locks themselves are in `queue_model`, which
stands on this.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queue_model import ModelJob
    from rrq.flow import Limit

T = TypeVar("T")

_LOOK_AGAIN_MS, _LOOK_SOON_MS = 30_000, 1_000
_EAGERLY = 100


def short_name(queue: str) -> str:
    return queue.removeprefix("rrq:queue:")


@dataclass(kw_only=True)
class ModelFlow:
    """Who may start, who holds a slot, and who is parked until when."""

    now_ms: int
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    pauses: dict[str, str] = field(default_factory=dict)
    """Target to `paused` or `disabled`."""
    declared: dict[str, Limit] = field(default_factory=dict)
    overrides: dict[str, Limit] = field(default_factory=dict)
    slots: dict[str, set[str]] = field(default_factory=dict)
    looks: dict[str, float] = field(default_factory=dict)
    """Scope to the time of the next look at who is parked there; may be left over when nobody is."""
    starts: dict[str, list[int]] = field(default_factory=dict)
    """When jobs started in each scope that has a rate."""
    freed: Counter[str] = field(default_factory=Counter)
    """Slots given back in this call, whose next have not been let in yet."""
    pretended: Counter[str] = field(default_factory=Counter)
    """What an `admit_jobs` takes to be started already."""

    # What people say

    @property
    def limits(self) -> dict[str, Limit]:
        return self.declared | self.overrides

    def is_controlled(self) -> bool:
        return bool(self.pauses or self.declared or self.overrides or self.looks)

    def is_held(self, target: str) -> bool:
        return target in self.pauses

    def is_disabled(self, function: str) -> bool:
        return self.pauses.get(f"function:{function}") == "disabled"

    def set_pause(self, target: str, state: str | None) -> bool:
        return self._set_control(self.pauses, target, state)

    def set_limit(self, target: str, limit: Limit | None) -> bool:
        return self._set_control(self.overrides, target, limit)

    def _set_control(self, book: dict[str, T], target: str, value: T | None) -> bool:
        if value is not None:
            book[target] = value
        elif book.pop(target, None) is None:
            return False
        kind, _, name = target.partition(":")
        if kind == "function":
            for scope in {f"f:{name}"} & {job.parked_in for job in self.jobs.values()} | self.looks.keys():
                if scope == f"f:{name}" or scope.startswith(f"k:{name}:"):
                    self.looks[scope] = 0
            self.admit_parked()
        return True

    def publish_limits(self, limits: dict[str, Limit]) -> int:
        """Declare limits, all by the same application; those it no longer declares are gone."""
        changed = sum(self.declared.get(target) != limits.get(target) for target in self.declared | limits)
        self.declared = dict(limits)
        if changed:
            self.looks = dict.fromkeys(self.looks, 0)
        return changed

    # Who may start

    def scopes_of(self, job: ModelJob) -> list[tuple[str, int]]:
        """The scopes in which a job takes a slot, that of its key first, and how many each has."""
        limit = self.limits.get(f"function:{job.function}")
        if limit is None:
            return []
        found = [(f"k:{job.function}:{job.key}", limit.per_key), (f"f:{job.function}", limit.concurrency)]
        return [(scope, most) for scope, most in found if most is not None]

    def free(self, scope: str, most: int) -> int:
        return most - len(self.slots.get(scope, ())) - self.pretended[scope]

    def rate_room(self, function: str) -> tuple[float, float]:
        """How many more may start now by the rate of their function, and when the next may if none does."""
        limit = self.limits.get(f"function:{function}")
        if limit is None or limit.rate is None:
            return inf, self.now_ms
        span_ms, scope = int(limit.per_seconds * 1000), f"f:{function}"
        # What is noted further ahead was noted before the clock was set back.
        counted = [ms for ms in self.starts.get(scope, ()) if -span_ms < ms - self.now_ms <= span_ms]
        ready_ms = min([*counted, self.now_ms]) + span_ms + 1
        return limit.rate - len(counted) - self.pretended[f"rate {scope}"], ready_ms

    def blocked_by(self, job: ModelJob) -> tuple[str, float] | None:
        """The scope that keeps a job from starting, and when to look again."""
        own = f"f:{job.function}"
        if self.is_held(f"function:{job.function}"):
            return own, self.now_ms + _LOOK_AGAIN_MS
        for scope, most in self.scopes_of(job):
            if self.free(scope, most) <= 0:
                return scope, self.now_ms + _LOOK_AGAIN_MS
        starts, ready_ms = self.rate_room(job.function)
        return (own, ready_ms) if starts < 1 else None

    def queue_room(self, queue: str) -> float:
        target = f"queue:{short_name(queue)}"
        if self.is_held(target):
            return 0
        limit = self.limits.get(target)
        if limit is None or limit.concurrency is None:
            return inf
        return max(0, self.free(f"q:{short_name(queue)}", limit.concurrency))

    def occupy(self, job_id: str, queue: str) -> None:
        """Take the slots of a job that starts, free or not."""
        job, limit = self.jobs[job_id], self.limits.get(f"queue:{short_name(queue)}")
        taken = [scope for scope, _ in self.scopes_of(job)]
        if limit is not None and limit.concurrency is not None:
            taken.append(f"q:{short_name(queue)}")
        for scope in taken:
            self.slots.setdefault(scope, set()).add(job_id)
        if taken:
            job.slots = taken

    def note_start(self, function: str) -> None:
        limit = self.limits.get(f"function:{function}")
        if limit is not None and limit.rate is not None:
            span_ms, scope = int(limit.per_seconds * 1000), f"f:{function}"
            noted = [*self.starts.get(scope, ()), self.now_ms]
            self.starts[scope] = [ms for ms in noted if -span_ms < ms - self.now_ms <= span_ms]

    # Who waits

    def parked(self, scope: str) -> list[str]:
        """Who waits in a scope, in the order in which they are let in."""
        found = [(job.due_ms, job_id) for job_id, job in self.jobs.items() if job.parked_in == scope]
        return [job_id for _, job_id in sorted(found)]

    def park(self, job_id: str, queue: str, scope: str, look_ms: float) -> bool:
        """Take a queued job out of the way; tells whether another one came back in its place."""
        job = self.jobs[job_id]
        job.queued_in, job.parked_in, job.claimed_from, job.expires_ms = None, scope, queue, None
        self.looks[scope] = min(self.looks.get(scope, inf), look_ms)
        own = f"f:{job.function}"
        return scope != own and self._let_next_in(own, 1)

    def _let_in(self, scope: str, most: float) -> int:
        chosen = self.parked(scope)[: int(min(most, 1000))]
        for job_id in chosen:
            job = self.jobs[job_id]
            job.parked_in, job.queued_in = None, job.claimed_from or job.home
        if not self.parked(scope):
            self.looks.pop(scope, None)
        return len(chosen)

    def _scope_room(self, scope: str) -> tuple[float, float, bool]:
        kind, function = scope.split(":")[:2]
        if self.is_held(f"function:{function}"):
            return 0, self.now_ms + _LOOK_AGAIN_MS, False
        limit = self.limits.get(f"function:{function}")
        most = None if limit is None else limit.concurrency if kind == "f" else limit.per_key
        room: float = inf if most is None else self.free(scope, most)
        look_ms: float = self.now_ms + (_LOOK_AGAIN_MS if room <= 0 else 0)
        is_rated = limit is not None and limit.rate is not None and kind == "f"
        starts, ready_ms = self.rate_room(function) if is_rated else (inf, 0.0)
        return (starts, ready_ms, True) if starts < room else (room, look_ms, is_rated)

    def _let_next_in(self, scope: str, number: int) -> bool:
        if not self.parked(scope):
            return False
        count = self._let_in(scope, max(0, min(self._scope_room(scope)[0], number)))
        if self.parked(scope):
            self.looks.setdefault(scope, self.now_ms + _LOOK_AGAIN_MS)
        return count > 0

    def admit_parked(self) -> None:
        """Look at every scope whose time has come."""
        due = sorted((look_ms, scope) for scope, look_ms in self.looks.items() if look_ms <= self.now_ms)
        for _, scope in due:
            room, look_ms, is_rated = self._scope_room(scope)
            if 0 < room < inf and not is_rated:
                room, look_ms = max(room, _EAGERLY), self.now_ms + _LOOK_SOON_MS
            self._let_in(scope, max(0, room))
            if scope in self.looks:
                self.looks[scope] = look_ms if look_ms > self.now_ms else self.now_ms + _LOOK_AGAIN_MS

    def admit_jobs(self, queues: Iterable[str]) -> tuple[int, bool]:
        """Park what is due and may not start, as claims do on their way; how many, and whether others came back."""
        if not self.is_controlled():
            return 0, False
        self.admit_parked()
        parked, came_back = 0, False
        for queue in queues:
            for job_id in list(self.due_in(queue)):
                blocked = self.blocked_by(self.jobs[job_id])
                if blocked is not None:
                    came_back |= self.park(job_id, queue, *blocked)
                    parked += 1
                else:
                    job = self.jobs[job_id]
                    self.pretended.update(scope for scope, _ in self.scopes_of(job))
                    self.pretended[f"rate f:{job.function}"] += 1
        self.pretended.clear()
        return parked, came_back

    def due_in(self, queue: str, due_after_ms: float = -inf) -> Iterator[str]:
        """What is due in a queue, in its order; only what was not due by then already."""
        found = ((job.due_ms, job_id) for job_id, job in self.jobs.items() if job.queued_in == queue)
        return (job_id for due_ms, job_id in sorted(found) if due_after_ms < due_ms <= self.now_ms)

    # The end of a start

    def free_up(self, job_id: str, scopes: Iterable[str]) -> None:
        """Give back the slots of a job that ends or goes back; who comes next is seen to when all have."""
        for scope in scopes:
            if job_id in self.slots.get(scope, ()):
                self.slots[scope].discard(job_id)
                self.freed[scope] += 1

    def let_others_in(self) -> None:
        for scope, number in self.freed.items():
            if not scope.startswith("q:"):
                self._let_next_in(scope, number)
        self.freed.clear()
