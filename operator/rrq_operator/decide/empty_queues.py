"""Which queues of a new pool stay empty: perhaps their names are mistyped. Pure: the time comes in."""

from collections.abc import Mapping, Sequence

from rrq.broker.messages import QueueObservation

#: A queue of an older pool may rightly be empty when an operator starts to look.
NEW_POOL_SECONDS = 3600.0
_WARN_SECONDS = 120.0


class EmptyQueues:
    """Remembers since when the queues of one pool have been empty."""

    def __init__(self) -> None:
        self._empty_since: dict[str, float] = {}

    def find_unseen(
        self, names: Sequence[str], queues: Mapping[str, QueueObservation], now: float
    ) -> list[str]:
        """Return the queues to warn of, each once."""
        unseen = []
        for name in names:
            queue = queues.get(name)
            if queue is None:
                continue
            if queue.due or queue.due_soon or queue.later:
                self._empty_since[name] = float("inf")
            elif now - self._empty_since.setdefault(name, now) > _WARN_SECONDS:
                self._empty_since[name] = float("inf")
                unseen.append(name)
        return unseen
