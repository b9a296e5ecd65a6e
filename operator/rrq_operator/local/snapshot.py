"""What local mode shows of a pool at one moment: values only."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from rrq.broker.messages import Observation, WorkerObservation

HISTORY_SECONDS = 60
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Sample:
    """How a pool stood in one second of its history; None where the queues could not be read."""

    depth: int | None
    replicas: int


@dataclass(frozen=True)
class LocalSnapshot:
    name: str
    replicas: int
    ready: int
    desired: int
    leaving: int
    """Replicas that are ending."""
    due: int | None
    """None while the queues cannot be read, as for all that is read from Redis."""
    later: int | None
    busy: int | None
    done: int
    """Attempts that ended since local mode started; a job that is retried has several."""
    words: str
    reason: str = ""
    """Why it has its size, in one word."""
    blocked: int | None = None
    """Of those due, how many may not start."""
    is_paused: bool = False
    slowest_start_seconds: float = 0.0
    """From asking for a replica to its being ready, of the slowest so far."""
    history: tuple[Sample, ...] = ()

    @property
    def is_at_rest(self) -> bool:
        return self.due == self.busy == self.replicas == self.leaving == self.desired == 0


class EndedAttempts:
    """Counts the attempts that have ended, over the coming and going of workers.

    What a worker ended after it was last seen is missed: a burst may be a few short, a drained replica is not.
    """

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}

    def add(self, workers: Iterable[WorkerObservation]) -> None:
        for worker in workers:
            self._ended[worker.incarnation] = max(worker.ended, self._ended.get(worker.incarnation, 0))

    @property
    def total(self) -> int:
        return sum(self._ended.values())


class History:
    """The last minute, one sample a second."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=HISTORY_SECONDS)
        self._next_at = 0.0

    def add(self, sample: Sample, now: float) -> None:
        if now >= self._next_at:
            self._samples.append(sample)
            self._next_at = now + 1

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)


def count_later(seen: Observation | None, queues: Sequence[str]) -> int | None:
    """Return how many jobs are not due yet; None while one of the queues cannot be read."""
    if seen is None or any(name not in seen.queues for name in queues):
        return None
    return sum(seen.queues[name].due_soon + seen.queues[name].later for name in queues)


def draw_chart(values: Sequence[int | None]) -> str:
    """Return one block per value, scaled to the largest; a gap where nothing is known."""
    largest = max((value for value in values if value is not None), default=0)
    return "".join(" " if value is None else _BLOCKS[_height(value, largest)] for value in values)


def _height(value: int, largest: int) -> int:
    # Rounded up: a single job beside thousands is still something.
    return ceil(value / largest * (len(_BLOCKS) - 1)) if largest else 0
