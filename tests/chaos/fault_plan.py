"""Which faults a run injects, when and to whom: drawn from the seed alone, so that a run can be had again.

Pure. What a kind of fault really does is in `*_faults.py`; a plan names it, its moment, its victim (a rank among
those who are there then) and its size (a share of what the kind allows).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EARLY_SHARE = 0.45
WHOLE_RUN = 1.0
# Places in the order stand for moments; quiet spells after heavy faults move what comes behind them.
EARLIER = 0.8
# From here on Redis and its clock are left alone, and this is what is measured then.
CALM_FROM_SHARE = 0.65
MEASURED = "pod killed"
# By how much of itself the time that a fault is given may be longer or shorter.
JITTER = 0.3


class PlanDoesNotFit(ValueError):
    """More faults were asked for than the time has room for."""


@dataclass(frozen=True)
class Kind:
    """One way to fail.

    `is_outage`       for everybody who uses that Redis, and therefore capped
    `busy_leases`     how long nothing else begins after it, in leases, and
    `busy_seconds`    in seconds on top: what heavy faults do is judged before the next one blurs it
    `costs_leases`    how long worker processes are missing or held up because of it, all of them together, in leases, and
    `costs_seconds`   in seconds on top: a restart is some two, a job that kills its process is three of them
    `latest_share`    of the run after which it is not begun, for what takes long to show
    """

    name: str
    family: str
    weight: int = 2
    is_outage: bool = False
    busy_leases: float = 0.0
    busy_seconds: float = 0.3
    costs_leases: float = 0.0
    costs_seconds: float = 1.0
    latest_share: float = WHOLE_RUN

    @property
    def blurs_leases(self) -> bool:
        """Whether leases are not swept for a while because of it; the Redis of a fail-over is not the measured one."""
        return (self.is_outage and self.family == "redis") or self.name.startswith("clock of Redis")


# Weights are chosen so that faults which keep a process away for longer than a lease are rare enough: at half load a
# fleet can spare half of itself, and what is to be judged is the backlog of one fault, not of a dozen. A pause of Redis
# leaves as much as comes in meanwhile, which is worked off in that time again, or in half as much more where earlier
# faults have left the fleet with less.
KINDS: tuple[Kind, ...] = (
    Kind("child killed", "process", weight=40, costs_seconds=2.0),
    Kind("supervisor killed", "process", weight=6, busy_seconds=1.0, costs_seconds=6.0),
    Kind("pod killed", "process", weight=6, busy_seconds=1.5, costs_seconds=6.0),
    Kind("child stopped past its lease", "process", weight=4, costs_leases=1.5),
    Kind("child stopped within its lease", "process", weight=8, costs_leases=0.25),
    Kind("handler exits", "handler", weight=5, costs_seconds=8.0, latest_share=EARLY_SHARE + 0.2),
    Kind("handler exhausts memory", "handler", weight=4, costs_seconds=8.0, latest_share=EARLY_SHARE + 0.2),
    # Six times, until the job is dead-lettered, the two processes of a pod are missing for two seconds.
    Kind("container out of memory", "handler", weight=1, costs_seconds=24.0, latest_share=EARLY_SHARE),
    Kind("handler blocks the loop", "handler", weight=2, costs_leases=1.3),
    Kind(
        "handler hangs", "handler", weight=1, costs_leases=2.0, costs_seconds=30.0, latest_share=EARLY_SHARE
    ),
    Kind("handler ignores cancellation", "handler", weight=2, costs_seconds=5.0, latest_share=EARLY_SHARE),
    Kind("connections killed", "redis", weight=10),
    Kind("scripts flushed", "redis", weight=10),
    Kind("Redis shut down", "redis", is_outage=True, busy_leases=0.4, busy_seconds=2.5),
    Kind("Redis killed", "redis", is_outage=True, busy_leases=0.4, busy_seconds=2.5),
    Kind("Redis paused past the lease", "redis", is_outage=True, busy_leases=3.3, busy_seconds=1.0),
    Kind("Redis read-only", "redis", is_outage=True, busy_leases=0.4, busy_seconds=2.5),
    Kind("Redis loading", "redis", is_outage=True, busy_leases=0.4, busy_seconds=4.0),
    Kind("Redis out of memory", "redis", is_outage=True, busy_leases=0.4, busy_seconds=2.0),
    Kind("network slow", "network", weight=8, costs_seconds=2.0),
    Kind("network cut", "network", weight=8, costs_seconds=2.0),
    Kind("replies cut", "network", weight=12, costs_seconds=2.0),
    Kind("network silent within the lease", "network", weight=4, costs_leases=0.9),
    Kind("network silent past the lease", "network", weight=1, costs_leases=3.7),
    Kind("clock of a pod jumps", "clock", weight=6),
    Kind("clock of the producers jumps", "clock", weight=2),
    Kind("clock of Redis jumps forward", "clock", weight=2, busy_seconds=1.0),
    # Redis ends a blocking command by its wall clock: a beat that waits behind one comes later by the jump, and a stop
    # right after it finds a lease that has less left than two thirds.
    Kind("clock of Redis jumps back", "clock", weight=2, busy_leases=1.0, busy_seconds=1.5),
    Kind("fail-over", "fail-over", is_outage=True),
    # These have a Redis and processes of their own: they take nothing from the fleet but processor time.
    Kind("fleet killed at zero", "zero", weight=1),
    Kind("burst run killed", "zero", weight=1),
)
BY_NAME = {kind.name: kind for kind in KINDS}
# What half a minute has no time for, or what needs programs that do not come with Python packages.
ONLY_IN_LONG_RUNS = frozenset({"container out of memory", "handler hangs"}) | frozenset(
    {"Redis read-only", "Redis loading", "Redis out of memory"}
)
QUICK_KINDS = tuple(
    kind
    for kind in KINDS
    if kind.family not in ("clock", "fail-over", "zero") and kind.name not in ONLY_IN_LONG_RUNS
)
# In half a minute the quiet spells after heavy faults are shorter, and their times are not all measured.
QUICK_QUIET_SHARE = 0.6


@dataclass(frozen=True)
class PlannedFault:
    """One fault to come. `rank` and `size` lie in [0, 1)."""

    number: int
    at_seconds: float
    kind: str
    rank: float
    size: float

    def pick(self, count: int) -> int:
        """Return which of `count` victims is meant."""
        return min(count - 1, int(self.rank * count))

    def between(self, least: float, most: float) -> float:
        """Return the size within the bounds of the kind."""
        return least + (most - least) * self.size


def draw_plan(
    seed: int, seconds: float, faults: int, lease_seconds: float, most_outages: int, *, is_quick: bool = False
) -> list[PlannedFault]:
    """Return the faults of a run in the order of their moments; a quick run has fewer kinds.

    Every kind comes at least once where there is room for all of them; outages never exceed their cap.
    """
    draw = random.Random(seed)
    kinds = _order(_draw_kinds(draw, QUICK_KINDS if is_quick else KINDS, faults, most_outages), draw)
    quiet_share = QUICK_QUIET_SHARE if is_quick else 1.0
    busy = [quiet_share * (kind.busy_seconds + kind.busy_leases * lease_seconds) for kind in kinds]
    spare = seconds - sum(busy)
    if spare < 0:
        raise PlanDoesNotFit(
            f"{faults} faults need {sum(busy):.0f} s to be told apart, and the load lasts {seconds:.0f} s. "
            "Ask for fewer faults or a longer run."
        )
    # The rest of the time is shared out by what each fault takes from the fleet. Moments drawn from the whole run would
    # gather here and there, and the backlog of such a cluster says how much was asked of the fleet, not what it can do.
    costs = [kind.costs_seconds + kind.costs_leases * lease_seconds for kind in kinds]
    shares = [cost * draw.uniform(1 - JITTER, 1 + JITTER) for cost in costs]
    planned, at = [], 0.0
    for number, (kind, busy_seconds, share) in enumerate(zip(kinds, busy, shares, strict=True), 1):
        planned.append(
            PlannedFault(number, round(at, 3), kind.name, round(draw.random(), 6), round(draw.random(), 6))
        )
        at += busy_seconds + spare * share / sum(shares)
    return planned


def _draw_kinds(draw: random.Random, kinds: Sequence[Kind], faults: int, most_outages: int) -> list[Kind]:
    outages = [kind for kind in kinds if kind.is_outage]
    others = [kind for kind in kinds if not kind.is_outage]
    # Each at least once where there is room: at most a quarter are outages, or they would be all there is.
    outage_count = min(most_outages, faults // 4)
    chosen = draw.sample(outages, min(outage_count, len(outages)))
    chosen += draw.choices(outages, k=max(0, outage_count - len(chosen)))
    once = draw.sample(others, min(len(others), faults - len(chosen)))
    rest = faults - len(chosen) - len(once)
    return [*chosen, *once, *draw.choices(others, [kind.weight for kind in others], k=rest)]


def _leave_calm(ordered: list[Kind]) -> list[Kind]:
    """Move what blurs a dead pod out of the last third, and every third pod to the end of it.

    The time until the jobs of a pod are given back can be taken only while Redis and its clock are left alone for a few
    leases, and without such a spell the bar on it would never be held against anything.
    """
    calm_from = round(len(ordered) * CALM_FROM_SHARE)
    before, calm = ordered[:calm_from], ordered[calm_from:]
    blurring = [kind for kind in calm if kind.blurs_leases]
    before, calm = _spread_into(before, blurring), [kind for kind in calm if not kind.blurs_leases]
    pods = [kind for kind in before if kind.name == MEASURED]
    # Those that end up here anyhow count; at least one is always there.
    missing = max(0, -(-ordered.count(BY_NAME[MEASURED]) // 3) - calm.count(BY_NAME[MEASURED]))
    for pod in pods[:missing]:
        before.remove(pod)
        calm.append(pod)
    half = len(calm) // 2
    quiet = [kind for kind in calm if kind.name != MEASURED]
    moved = [kind for kind in calm if kind.name == MEASURED]
    return [*before, *quiet[:half], *_spread_into(quiet[half:], moved)]


def _spread_into(ordered: list[Kind], more: list[Kind]) -> list[Kind]:
    """Return both, those of `more` at even distances."""
    result = list(ordered)
    for number, kind in enumerate(more):
        result.insert((number + 1) * (len(ordered) + len(more)) // (len(more) + 1), kind)
    return result


def _order(kinds: list[Kind], draw: random.Random) -> list[Kind]:
    """Shuffle, with whatever takes long to show in its share of the run."""
    late_enough = [kind for kind in kinds if kind.latest_share == WHOLE_RUN]
    draw.shuffle(late_enough)
    early = [kind for kind in kinds if kind.latest_share < WHOLE_RUN]
    draw.shuffle(early)
    ordered = _leave_calm(late_enough)
    for kind in early:
        ordered.insert(draw.randrange(1 + int(len(ordered) * kind.latest_share * EARLIER)), kind)
    return ordered
