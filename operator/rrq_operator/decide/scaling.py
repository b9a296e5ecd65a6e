"""How many replicas a pool needs, and why. Pure: the caller brings observation, memory and time.

Growing is never delayed: a backlog hurts users, an idle pod only costs money. Shrinking waits until the smaller
size has been enough for the whole window, so that noise cannot make a pool flap. Which pods go, and when they
may, is decided in ``shrinking.py``.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from rrq_operator.api.spec import PoolSpec

#: What is left of older measurements of speed after a second in which jobs ended.
_RATE_FADE = 0.9
#: After a longer gap between two rounds (another leader, a stalled loop) it is unknown what was needed meanwhile.
LONGEST_SILENCE_SECONDS = 10.0
#: How long a pool above maxReplicas waits for Redis. With Redis its pods drain before they go; without, no pod can be
#: flagged. The workers themselves count Redis as lost after the same time.
UNREADABLE_PATIENCE_SECONDS = 30.0


class Reason(StrEnum):
    """Why a pool has its size: stable words for conditions, metrics and ``kubectl get``."""

    BACKLOG = "Backlog"
    ORPHANED = "Orphaned"
    """Nothing else is due, but there are jobs of workers whose lease has ended."""
    LATENCY = "LatencyTarget"
    DUE_SOON = "DueSoon"
    RUNNING = "JobsRunning"
    IDLE = "Idle"
    COOLING_DOWN = "CoolingDown"
    SHRINKING = "Shrinking"
    BLOCKED = "Blocked"
    """Jobs are due, but a pause or a limit lets none of them start."""
    PAUSED = "Paused"
    """The pool is paused in Redis: its workers start nothing."""
    FROZEN = "Frozen"
    """The spec says that the size is to stay; workers work on."""
    QUEUE_UNREADABLE = "QueueUnreadable"


@dataclass(frozen=True)
class ScalingPolicy:
    """What the manifest says about size."""

    min_replicas: int
    max_replicas: int
    idle_replicas: int
    jobs_per_replica: int
    target_latency_seconds: int | None = None
    headroom_replicas: int = 0
    window_seconds: int = 60
    step_replicas: int | None = None
    is_frozen: bool = False


def build_policy(spec: PoolSpec) -> ScalingPolicy:
    sizing = spec.sizing
    idle = sizing.min_replicas if sizing.idle_replicas is None else sizing.idle_replicas
    return ScalingPolicy(
        # What kubectl scale asks for is a floor under everything else.
        min_replicas=max(sizing.min_replicas, spec.replicas),
        max_replicas=sizing.max_replicas,
        idle_replicas=max(idle, spec.replicas),
        jobs_per_replica=spec.jobs_per_replica,
        target_latency_seconds=sizing.target_latency_seconds,
        headroom_replicas=sizing.headroom_replicas,
        window_seconds=sizing.scale_down.window_seconds,
        step_replicas=sizing.scale_down.step_replicas,
        is_frozen=sizing.paused,
    )


@dataclass(frozen=True)
class Workload:
    """What the queues of a pool hold, and what its workers do, at one moment."""

    due: int
    """Those that may start now."""
    due_soon: int
    busy: int
    soon_seconds: float = 0.0
    """How far ahead ``due_soon`` looks: the time a pod of this pool needs to start."""
    finished: int = 0
    """Jobs that ended since the observation before."""
    elapsed_seconds: float = 0.0
    working_replicas: int = 0
    """Replicas whose workers were there all the time to finish them."""
    free_slots: int = 0
    """Jobs that workers could start at once."""
    blocked: int = 0
    """Jobs that are due as well and may not start: they need no replica."""
    is_paused: bool = False
    """Whether the pool is paused in Redis."""
    orphaned: int = 0
    """Jobs of workers whose lease has ended: they do not run until a sweep makes them due again."""

    @property
    def demand(self) -> int:
        return self.busy + self.due + self.due_soon + self.orphaned

    @property
    def is_saturated(self) -> bool:
        """Whether work is left when every free slot is taken. One job that was just enqueued is no sign of it."""
        return self.due > self.free_slots


@dataclass(frozen=True)
class ScalingMemory:
    """What a decision has to know of those before it."""

    enough: tuple[tuple[float, int], ...] = ()
    """Sizes that were needed, with the time each was last needed: sizes fall, times rise."""
    finished: float = 0.0
    """Jobs that ended at full speed, older ones faded."""
    replica_seconds: float = 0.0
    """The time that replicas took for them, faded alike."""
    was_saturated: bool = False
    requested: int | None = None
    shrunk_at: float | None = None
    step_floor: int | None = None
    """Where the current step down ends: pods leave one by one, and all of them are one step."""
    unreadable_since: float | None = None

    @property
    def jobs_per_second_per_replica(self) -> float | None:
        return self.finished / self.replica_seconds if self.finished and self.replica_seconds else None


@dataclass(frozen=True)
class ScalingDecision:
    """The size to ask for. Less than what is asked for now means: scale down to it, with care."""

    replicas: int
    reason: Reason
    words: str
    wanted: int
    """What the work alone asks for, before limits and windows."""
    is_limited: bool = False
    """Whether the work asks for more than maxReplicas."""


def decide_replicas(
    policy: ScalingPolicy,
    workload: Workload | None,
    requested: int,
    memory: ScalingMemory,
    now_seconds: float,
) -> tuple[ScalingDecision, ScalingMemory]:
    """Return how many replicas there should be, and what to remember for the next time.

    ``workload`` None means that the queues could not be read: unknown is not zero, so the size stays, within the limits
    that the user has set.
    """
    memory = _remember_requested(memory, requested, now_seconds)
    if workload is None:
        return _decide_unread(policy, requested, memory, now_seconds)
    memory = replace(_remember_rate(memory, workload), unreadable_since=None)
    need = _decide_need(policy, workload, memory.jobs_per_second_per_replica)
    silence_seconds = max(policy.window_seconds, LONGEST_SILENCE_SECONDS)
    is_first = not memory.enough or now_seconds > memory.enough[-1][0] + silence_seconds
    memory = _remember_need(
        memory,
        max(requested, need.replicas) if is_first else need.replicas,
        now_seconds,
        policy.window_seconds,
    )
    if policy.is_frozen:
        words = f"{need.words}; the size is frozen at {requested}"
        return replace(need, replicas=requested, reason=Reason.FROZEN, words=words), memory
    if need.replicas >= requested:
        return need, memory
    return _decide_shrinking(policy, need, requested, memory, now_seconds)


def _decide_unread(
    policy: ScalingPolicy, requested: int, memory: ScalingMemory, now_seconds: float
) -> tuple[ScalingDecision, ScalingMemory]:
    """Keep the size, but never below the smallest that the spec allows nor above maxReplicas.

    A lowered maxReplicas applies without Redis as well: fewer connections may be just what that Redis needs to answer
    again. Kubernetes then chooses the pods, and each lets its jobs end within its grace period.
    """
    since = now_seconds if memory.unreadable_since is None else memory.unreadable_since
    # The window starts anew afterwards: what was needed meanwhile is unknown.
    memory = _remember_need(memory, requested, now_seconds, policy.window_seconds)
    memory = replace(memory, was_saturated=False, unreadable_since=since)
    words = "the queues cannot be read"
    kept = ScalingDecision(
        requested, Reason.QUEUE_UNREADABLE, f"{words}, so the size stays at {requested}", requested
    )
    # Whether there is work is unknown; a pool above its idle size had some.
    was_idle = requested <= policy.idle_replicas
    highest = policy.max_replicas
    lowest = min(policy.idle_replicas if was_idle else policy.min_replicas, highest)
    if policy.is_frozen or lowest <= requested <= highest:
        return kept, memory
    if requested < lowest:
        return replace(kept, replicas=lowest, words=f"{words}; at least {lowest} by the spec"), memory
    words = f"{words}; maxReplicas allows {highest}"
    if now_seconds < since + UNREADABLE_PATIENCE_SECONDS:
        words += f"; the pool scales down when they can be read, at the latest after {UNREADABLE_PATIENCE_SECONDS:.0f} s"
        return replace(kept, words=words), memory
    limited = replace(kept, replicas=highest, words=words)
    return _decide_shrinking(policy, limited, requested, memory, now_seconds)


def _decide_need(policy: ScalingPolicy, workload: Workload, rate: float | None) -> ScalingDecision:
    """Return the size that the work of this moment asks for."""
    demand = workload.demand
    by_depth = ceil(demand / policy.jobs_per_replica)
    by_latency = _replicas_for_latency(policy, workload, rate)
    wanted = max(by_depth, by_latency)
    if demand > 0 and not workload.is_paused:
        wanted += policy.headroom_replicas
    lowest = policy.min_replicas if demand > 0 else policy.idle_replicas
    # maxReplicas wins over everything: it is what the budget or the database behind the jobs bears.
    replicas = min(max(wanted, lowest), policy.max_replicas)
    return ScalingDecision(
        replicas,
        _name_reason(workload, by_depth, by_latency),
        _describe_need(policy, workload, by_depth, by_latency, wanted, replicas),
        wanted,
        is_limited=wanted > policy.max_replicas,
    )


def _replicas_for_latency(policy: ScalingPolicy, workload: Workload, rate: float | None) -> int:
    """Return the replicas at which the last due job starts in time; 0 where no target or no speed is known."""
    if policy.target_latency_seconds is None or not rate or not workload.due:
        return 0
    return ceil(workload.due / (rate * policy.target_latency_seconds))


def _name_reason(workload: Workload, by_depth: int, by_latency: int) -> Reason:
    if workload.is_paused:
        return Reason.PAUSED
    if workload.due and by_latency > by_depth:
        return Reason.LATENCY
    if workload.due:
        return Reason.BACKLOG
    if workload.orphaned:
        return Reason.ORPHANED
    if workload.due_soon:
        return Reason.DUE_SOON
    if workload.busy:
        return Reason.RUNNING
    return Reason.BLOCKED if workload.blocked else Reason.IDLE


def _describe_need(
    policy: ScalingPolicy, workload: Workload, by_depth: int, by_latency: int, wanted: int, replicas: int
) -> str:
    if workload.is_paused:
        words = f"paused: {workload.busy} running, {workload.blocked} due wait until the pool is resumed"
    elif not workload.demand and workload.blocked:
        words = f"nothing is running; {workload.blocked} due are blocked by a pause or a limit"
    elif not workload.demand:
        words = "nothing is running or due"
    else:
        soon = f" + {workload.due_soon} due within {workload.soon_seconds:.0f} s" if workload.due_soon else ""
        orphaned = f" + {workload.orphaned} orphaned" if workload.orphaned else ""
        words = (
            f"{workload.busy} running + {workload.due} due{orphaned}{soon}, {policy.jobs_per_replica} per replica: "
            f"{by_depth} needed"
        )
        if workload.blocked:
            words += f", {workload.blocked} more due are blocked by a pause or a limit"
    if by_latency > by_depth:
        words += f", {by_latency} to start the last within {policy.target_latency_seconds} s"
    if workload.demand and policy.headroom_replicas and not workload.is_paused:
        words += f", {policy.headroom_replicas} spare"
    if wanted > replicas:
        return f"{words}; maxReplicas allows {replicas}"
    if wanted < replicas:
        return f"{words}; at least {replicas} by the spec"
    return words


def _decide_shrinking(
    policy: ScalingPolicy, need: ScalingDecision, requested: int, memory: ScalingMemory, now_seconds: float
) -> tuple[ScalingDecision, ScalingMemory]:
    # What is beyond the limit has no window: a person lowered maxReplicas and means it.
    target = min(max(size for _, size in memory.enough), policy.max_replicas)
    if target >= requested:
        # No countdown: words go into the status, which is written whenever they change.
        words = (
            f"{need.words}; the size stays at {requested} until it has not been needed for "
            f"{policy.window_seconds} s"
        )
        return replace(
            need, replicas=requested, reason=_while(need, Reason.COOLING_DOWN), words=words
        ), memory
    if policy.step_replicas is not None:
        is_step_done = memory.step_floor is not None and requested <= memory.step_floor
        if is_step_done and now_seconds < (memory.shrunk_at or 0.0) + policy.window_seconds:
            words = f"{need.words}; the last step down was less than {policy.window_seconds} s ago"
            reason = _while(need, Reason.COOLING_DOWN)
            return replace(need, replicas=requested, reason=reason, words=words), memory
        if is_step_done or memory.step_floor is None:
            memory = replace(memory, step_floor=requested - policy.step_replicas)
        target = max(target, memory.step_floor or 0)
    words = f"{need.words}; shrinking from {requested} to {target}"
    return replace(need, replicas=target, reason=_while(need, Reason.SHRINKING), words=words), memory


def _while(need: ScalingDecision, reason: Reason) -> Reason:
    """Return the reason of a pool that is becoming smaller; what keeps it from working matters more to a reader."""
    return need.reason if need.reason in (Reason.PAUSED, Reason.QUEUE_UNREADABLE) else reason


def _remember_need(
    memory: ScalingMemory, needed: int, now_seconds: float, window_seconds: int
) -> ScalingMemory:
    """Add one need to the window and drop what is too old or has been outgrown.

    Only sizes above all later ones can be the largest of any later window, so the memory stays small.
    """
    kept = [(at, size) for at, size in memory.enough if at + window_seconds > now_seconds and size > needed]
    return replace(memory, enough=(*kept, (now_seconds, needed)))


def _remember_requested(memory: ScalingMemory, requested: int, now_seconds: float) -> ScalingMemory:
    before = requested if memory.requested is None else memory.requested
    return replace(
        memory,
        requested=requested,
        shrunk_at=now_seconds if requested < before else memory.shrunk_at,
        step_floor=None if requested > before else memory.step_floor,
    )


def _remember_rate(memory: ScalingMemory, workload: Workload) -> ScalingMemory:
    """Measure how fast a replica is when it has enough to do.

    Time in which nothing ended counts too, or pools with long jobs would look faster than they are; but it
    fades nothing, or they would forget their speed between two jobs.
    """
    # At both ends: workers that waited for work meanwhile do not show how fast they are.
    was_saturated = memory.was_saturated and workload.is_saturated
    memory = replace(memory, was_saturated=workload.is_saturated)
    if not was_saturated:
        return memory
    fade = _RATE_FADE ** min(1.0, workload.elapsed_seconds) if workload.finished else 1.0
    return replace(
        memory,
        finished=memory.finished * fade + workload.finished,
        replica_seconds=memory.replica_seconds * fade + workload.elapsed_seconds * workload.working_replicas,
    )
