"""When those parts of a status are written that are not urgent. Pure: the time comes in.

The pools of an operator share these writes, so that the load on the API server does not grow with their number. What a
person waits for is not paced: ``control/reporting.py`` writes it at once.
"""

from bisect import bisect_left, bisect_right, insort

#: One pool has its figures renewed every 15 s, a hundred busy ones every 77 s.
FIGURE_WRITES_PER_SECOND = 1.3
#: For conditions that come and go with the work. Together fewer than two a second.
RESTLESS_WRITES_PER_SECOND = 0.4


class Slots:
    """Gives each pool a time of its own. One that reserves a late time takes none of the free ones before it."""

    def __init__(self, per_second: float) -> None:
        self._gap_seconds = 1 / per_second
        #: In order, each at least a gap after the one before it.
        self._reserved: list[float] = []

    def reserve(self, earliest: float, now: float) -> float:
        """Return the time of the first free slot that is not before ``earliest``, which is not before ``now``."""
        gap = self._gap_seconds
        del self._reserved[: bisect_left(self._reserved, now - gap)]
        at = earliest
        for taken in self._reserved[bisect_right(self._reserved, earliest - gap) :]:
            if taken >= at + gap:
                break
            at = taken + gap
        insort(self._reserved, at)
        return at
