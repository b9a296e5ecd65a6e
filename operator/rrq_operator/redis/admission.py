"""Looks at queues so that only jobs that may start ask for pods.

What a limit or a pause of its function keeps from starting is put aside by the claim that meets it, and comes back when
its time has come. A pool at zero has nobody who claims; so whoever sizes it has Redis do the same before it counts.
While nothing is paused or limited, this is one observation and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rrq.broker.messages import Admission, Observation
from rrq.broker.observe_calls import ADMITTED_PER_CALL

#: Due jobs that one call looks at, in all its queues together: a few milliseconds of Redis.
_ENTRIES_PER_CALL = 2 * ADMITTED_PER_CALL
#: The rest is left for the next round, or everybody else would wait for it.
_MOST_CALLS = 20


class Queues(Protocol):
    """The queues of one Redis."""

    async def observe(self, horizons_seconds: Mapping[str, float]) -> Observation: ...
    async def admit(self, queues: Sequence[str]) -> Admission: ...


@dataclass(frozen=True)
class _Sorted:
    has_changed: bool = False
    unfinished: Mapping[str, int] = field(default_factory=dict)


class SortedLook:
    """Observes the queues of one Redis, with jobs that may not start put aside."""

    def __init__(
        self,
        queues: Queues,
        troubles: tuple[type[Exception], ...],
        on_trouble: Callable[[Exception], None],
    ) -> None:
        """``on_trouble`` hears of jobs that could not be put aside: they are counted as if they might start."""
        self._queues = queues
        self._troubles = troubles
        self._on_trouble = on_trouble
        self._turn = 0
        self._looked_at: dict[str, int] = {}

    async def look(self, horizons_seconds: Mapping[str, float]) -> Observation:
        """Return the queues (by short name, each with its horizon) and all living workers."""
        seen = await self._queues.observe(horizons_seconds)
        if not seen.is_controlled:
            self._looked_at.clear()
            return seen
        try:
            done = await self._sort(seen)
        except self._troubles as error:
            self._on_trouble(error)
            return seen
        if done.has_changed:
            seen = await self._queues.observe(horizons_seconds)
        return hold_back(seen, done.unfinished)

    async def _sort(self, seen: Observation) -> _Sorted:
        # Those that waited longest first: where there is too much for one round, everybody gets a turn.
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


def hold_back(seen: Observation, unfinished: Mapping[str, int]) -> Observation:
    """Return the observation with what could not be looked at yet counted as held.

    Jobs are put aside from the front. Where so many were that a round did not see their end, what is behind them is
    most likely more of the same; whoever asked for pods for it would have them idle a moment later.
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
