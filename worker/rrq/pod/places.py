"""The places of a pod: the child in each, how its predecessors ended, and which child to replace next."""

from collections.abc import Sequence

from rrq.pod.child_process import ChildProcess
from rrq.pod.restarts import restart_delay_seconds

# Children that need recycling must not wait for ever until a retiring child has finished a long job.
_LONG_RETIREMENT_SECONDS = 60.0


class Place:
    """One place for a child; its number stays the same over all children that take it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: ChildProcess | None = None
        #: Starts in a row that failed.
        self.failures = 0
        self.start_at = 0.0
        self.restart_reason: str | None = None
        self.has_been_up = False

    def is_settled(self, now: float) -> bool:
        """Whether its child is up. A retiring child counts as up once its last jobs take long."""
        child = self.child
        if child is None or not child.is_registered:
            return False
        return child.asked is None or now - child.retired_at > _LONG_RETIREMENT_SECONDS

    def start_later(self, failures: int, now: float) -> None:
        """Set the number of failures, and when the next child may start."""
        self.failures = failures
        self.start_at = now + restart_delay_seconds(failures)


def choose_to_retire(
    places: Sequence[Place], reload_at: float, now: float
) -> tuple[ChildProcess, str] | None:
    """Return one child to replace and the reason, but no second one before its successor is up."""
    children = [place.child for place in places if place.child is not None]
    # A place whose children only crash must not keep the others from being recycled.
    if all(place.failures or place.is_settled(now) for place in places):
        for child in children:
            if child.has_outgrown_memory() or child.has_run_its_jobs():
                return child, "recycled"
    # New code that does not start must not end the children that still run the old code.
    if all(place.is_settled(now) for place in places):
        for child in children:
            if child.started_at < reload_at and child.asked is None:
                return child, "reload"
    return None
