"""How much of the server one client may use. Pure.

At a limit for all clients the newest gets a place, and the client that holds the most loses one, however many sessions it
has made: so no client can lock out another.
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
    """A bounded number of places, counted by owner, and by the client that each was taken from.

    ``rank_of`` decides which item leaves first: the one with the lowest rank, among equals the oldest. An item without a
    rank stays.
    """

    def __init__(self, most: int, most_per_owner: int, rank_of: Callable[[T], int | None]) -> None:
        self._most = most
        self._most_per_owner = most_per_owner
        self._rank_of = rank_of
        #: By owner each item with its client.
        self._items: dict[str, dict[T, str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def take(self, owner: str, item: T, *, client: str = "", may_have_all: bool = False) -> T | None:
        """Give a place to an item; return the one that gives way, which is the item itself if no other may.

        Without a ``client`` the owner is one.
        """
        own = self._items.setdefault(owner, {})
        own[item] = client or owner
        rivals: list[tuple[str, list[T]]] = []
        if len(own) > self._most_per_owner and not may_have_all:
            rivals = [(owner, list(own))]
        elif len(self) > self._most:
            rivals = self._sort_by_greed()
        if not rivals:
            return None
        for rival, items in rivals:
            leaving = self._choose([other for other in items if other is not item])
            if leaving is not None:
                self.free(rival, leaving)
                return leaving
        self.free(owner, item)
        return item

    def free(self, owner: str, item: T) -> None:
        """Remove an item, if it is still there."""
        own = self._items.get(owner, {})
        own.pop(item, None)
        if not own:
            self._items.pop(owner, None)

    def _sort_by_greed(self) -> list[tuple[str, list[T]]]:
        """Return what each owner holds, the client with the most places first, and of that the owner with the most."""
        shares: dict[str, dict[str, list[T]]] = {}
        for owner, own in self._items.items():
            for item, client in own.items():
                shares.setdefault(client, {}).setdefault(owner, []).append(item)
        clients = sorted(shares.values(), key=lambda owners: -sum(map(len, owners.values())))
        return [
            share for owners in clients for share in sorted(owners.items(), key=lambda share: -len(share[1]))
        ]

    def _choose(self, items: list[T]) -> T | None:
        ranks = [(rank, item) for item in items if (rank := self._rank_of(item)) is not None]
        return min(ranks, key=lambda entry: entry[0])[1] if ranks else None


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
