"""When those parts of a status are written that are not urgent. Pure: the time comes in.

The pools of an operator share these writes, so that the load on the API server does not grow with their number. What a
person waits for is not paced: ``reporting.py`` writes it at once.
"""

#: One pool has its figures renewed every 15 s, a hundred busy ones every 77 s.
FIGURE_WRITES_PER_SECOND = 1.3
#: For conditions that come and go with the work. Together fewer than two a second.
TURN_WRITES_PER_SECOND = 0.4


class Slots:
    """Gives each pool a time of its own, in the order in which they ask."""

    def __init__(self, per_second: float) -> None:
        self._gap_seconds = 1 / per_second
        self._next_at = 0.0

    def reserve(self, earliest: float) -> float:
        """Return the time of the next free slot that is not before ``earliest``."""
        at = max(earliest, self._next_at)
        self._next_at = at + self._gap_seconds
        return at
