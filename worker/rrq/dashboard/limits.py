"""How much of the server one client may use. Pure.

At the limit for all clients the newest request is admitted, and the client that uses the most loses one, so that no client
can lock out another.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Below the usual limit of 1,024 open files, so that Redis and new connections still find one.
MOST_CONNECTIONS: Final = 600
MOST_CONNECTIONS_PER_PEER: Final = 128
MOST_REQUESTS_PER_CLIENT: Final = 64
MOST_STREAMS: Final = 400
MOST_STREAMS_PER_SESSION: Final = 32

MOST_WRONG_TOKENS: Final = 10
WRONG_TOKEN_SECONDS: Final = 60.0
_MOST_GUESSERS: Final = 10_000


class Quota(Generic[T]):
    """Bounds the number of items, for all owners together and for each owner.

    ``rank_of`` decides which item leaves first: the one with the lowest rank, among equals the oldest. An item without a
    rank stays.
    """

    def __init__(self, most: int, most_per_owner: int, rank_of: Callable[[T], int | None]) -> None:
        self._most = most
        self._most_per_owner = most_per_owner
        self._rank_of = rank_of
        self._items: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def take(self, owner: str, item: T, *, may_have_all: bool = False) -> T | None:
        """Add an item; return the item that must leave for it, which is the new one if no other may leave."""
        own = self._items.setdefault(owner, {})
        own[item] = None
        owners: list[str] = []
        if len(own) > self._most_per_owner and not may_have_all:
            owners = [owner]
        elif len(self) > self._most:
            owners = sorted(self._items, key=lambda name: -len(self._items[name]))
        if not owners:
            return None
        leaving = next((found for name in owners if (found := self._choose(name, item)) is not None), None)
        if leaving is None:
            self.free(owner, item)
            return item
        self.free(*leaving)
        return leaving[1]

    def free(self, owner: str, item: T) -> None:
        """Remove an item, if it is still there."""
        own = self._items.get(owner, {})
        own.pop(item, None)
        if not own:
            self._items.pop(owner, None)

    def _choose(self, owner: str, newcomer: T) -> tuple[str, T] | None:
        ranks = [(rank, item) for item in self._items[owner] if (rank := self._rank_of(item)) is not None]
        others = [(rank, item) for rank, item in ranks if item is not newcomer]
        return (owner, min(others, key=lambda entry: entry[0])[1]) if others else None


class WrongTokens:
    """Counts the recent wrong tokens of each client, so that a client blocks only itself."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    def is_blocked(self, client: str, now_seconds: float) -> bool:
        times = self._times.get(client)
        if times is None:
            return False
        return len(times) == MOST_WRONG_TOKENS and now_seconds - times[0] < WRONG_TOKEN_SECONDS

    def add(self, client: str, now_seconds: float) -> None:
        times = self._times.pop(client, None) or deque(maxlen=MOST_WRONG_TOKENS)
        times.append(now_seconds)
        self._times[client] = times
        if len(self._times) > _MOST_GUESSERS:
            # The client whose last wrong token is the oldest.
            del self._times[next(iter(self._times))]
