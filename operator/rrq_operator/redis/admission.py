"""Moves due jobs that may not start out of the count, so that only jobs that may start ask for pods.

The claim that meets a job which a limit or a pause of its function blocks puts it aside, and it comes back when its time
has come. A pool at zero has no worker that claims, so the operator has Redis do the same before it sizes the pool.
While nothing is paused or limited, none of this runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rrq.broker.messages import Admission, Observation
from rrq.broker.observe_calls import ADMITTED_PER_CALL
from rrq_operator.redis.queues import QueueTrouble

#: Due jobs that one call looks at, in all its queues together: a few milliseconds of Redis.
_ENTRIES_PER_CALL = 2 * ADMITTED_PER_CALL
#: The rest is left for the next round, or all other pools would wait for it.
_MOST_CALLS = 20


class AdmittingQueues(Protocol):
    """The queues of one Redis."""

    async def observe(self, horizons_seconds: Mapping[str, float]) -> Observation: ...
    async def admit(self, queues: Sequence[str]) -> Admission: ...


@dataclass(frozen=True)
class _Sorted:
    has_changed: bool = False
    unfinished: Mapping[str, int] = field(default_factory=dict)


class JobAdmission:
    """Puts blocked jobs of one Redis aside, the queues that waited longest first."""

    def __init__(self, queues: AdmittingQueues, on_trouble: Callable[[QueueTrouble], None]) -> None:
        """``on_trouble``: called when jobs could not be put aside; they are then counted as if they might start."""
        self._queues = queues
        self._on_trouble = on_trouble
        self._turn = 0
        self._looked_at: dict[str, int] = {}

    async def set_aside(self, seen: Observation, horizons_seconds: Mapping[str, float]) -> Observation:
        """Return the observation of these queues (by short name, each with its horizon) without blocked jobs."""
        try:
            done = await self._sort(seen)
        except QueueTrouble as trouble:
            self._on_trouble(trouble)
            return seen
        if done.has_changed:
            seen = await self._queues.observe(horizons_seconds)
        return count_unsorted_as_blocked(seen, done.unfinished)

    async def _sort(self, seen: Observation) -> _Sorted:
        # Where there is too much for one round, every queue gets a turn.
        waiting = sorted(find_unsorted(seen), key=lambda name: self._looked_at.get(name, 0))
        has_changed, unfinished = False, dict[str, int]()
        for _ in range(_MOST_CALLS):
            names = take_some(waiting, seen)
            # Also without any queue: jobs whose time has come may be the only ones.
            answer = await self._queues.admit(names)
            self._turn += 1
            self._looked_at |= dict.fromkeys(names, self._turn)
            has_changed = has_changed or bool(answer.blocked or answer.unblocked)
            unfinished = {name: count for name, count in unfinished.items() if name not in names}
            unfinished |= answer.unfinished
            waiting = [*waiting[len(names) :], *answer.unfinished]
            if not waiting:
                break
        return _Sorted(has_changed, unfinished)


def find_unsorted(seen: Observation) -> list[str]:
    """Return the queues with jobs that could start as far as the queue is concerned."""
    return [name for name, queue in seen.queues.items() if queue.due > queue.blocked]


def take_some(names: Sequence[str], seen: Observation) -> list[str]:
    """Return as many of the first queues as one call may look at, at least one."""
    taken: list[str] = []
    entries = 0
    for name in names:
        entries += min(seen.queues[name].due, ADMITTED_PER_CALL)
        if taken and entries > _ENTRIES_PER_CALL:
            break
        taken.append(name)
    return taken


def count_unsorted_as_blocked(seen: Observation, unfinished: Mapping[str, int]) -> Observation:
    """Return the observation with the jobs that could not be looked at yet counted as blocked.

    Jobs are put aside from the front. Where one round did not come to the end of them, what is behind is most likely more
    of the same; pods that were asked for it would be idle a second later.
    """
    if not unfinished:
        return seen
    queues = {
        name: replace(queue, blocked=max(queue.blocked, queue.due - unfinished[name]))
        if name in unfinished
        else queue
        for name, queue in seen.queues.items()
    }
    return replace(seen, queues=queues)
