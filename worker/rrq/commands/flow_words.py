"""Pauses, limits and what waits for them, in words, tables and JSON: pure."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rrq.commands.formatting import NOTHING, format_time
from rrq.commands.output import Table
from rrq.flow import FlowState, Limit, Pause, PauseState

_PAUSE_COLUMNS = ("Target", "State", "By", "Since", "Reason")
_LIMIT_COLUMNS = ("Target", "Limit", "Set By", "Running", "Waiting")
_PARKED_COLUMNS = ("Waiting For", "Jobs")


def describe_limit(limit: Limit) -> str:
    """Return a limit as people say it: ``5 at once, 10 per 60 s in bursts of 20``."""
    tenant = f"per {limit.key or 'key'}"
    parts = []
    if limit.concurrency is not None:
        parts.append(f"{limit.concurrency} at once")
    if limit.per_key is not None:
        parts.append(f"{limit.per_key} at once {tenant}")
    if limit.rate is not None:
        whose = f" {tenant}" if limit.is_rate_per_key else ""
        bursts = "" if limit.burst is None else f" in bursts of {_number(limit.burst)}"
        parts.append(f"{_number(limit.rate)} per {_number(limit.per_seconds)} s{whose}{bursts}")
    return ", ".join(parts) or NOTHING


def describe_pause(target: str, pause: Pause) -> str:
    """Return one sentence that says what stands still, by whom and why."""
    by = f" by {pause.by}" if pause.by else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{target} is {pause.state}{by} since {format_time(pause.at)}{reason}"


def describe_hold(target: str, state: PauseState) -> str:
    """Return what it means that something has just been paused or disabled."""
    if state == "disabled":
        return f"{target} is disabled: nobody starts a job of it, and new ones are refused"
    meanings = {
        "queue": "nobody starts a job of it",
        "function": "nobody starts a job of it; new ones are still taken",
        "pool": "its workers start no job",
    }
    return f"{target} is paused: {meanings[target.partition(':')[0]]}"


def describe_scope(scope: str) -> str:
    """Return what a scope counts: ``f:send`` is the function send, ``k:send:acme`` its key acme."""
    kind, _, name = scope.partition(":")
    if kind == "k":
        function, _, key = name.partition(":")
        return f"function:{function} for key {key!r}"
    return f"function:{name}"


def describe_wait(state: FlowState, queue: str, function: str, parked_in: str | None) -> str | None:
    """Return what keeps a waiting job from starting; None when nothing is known to."""
    for target in (f"queue:{queue}", f"function:{function}"):
        if target in state.pauses:
            return describe_pause(target, state.pauses[target])
    if parked_in is None:
        return None
    limit = state.limits.get(f"function:{function}")
    words = "" if limit is None else f" ({describe_limit(limit)})"
    # A function's name may have colons in it, so it is the job that says where the key begins.
    key = parked_in.removeprefix(f"k:{function}:")
    whose = f" for key {key!r}" if key != parked_in else ""
    return f"limit of {parked_in if not whose else f'f:{function}'}{whose}{words}"


def build_pause_table(state: FlowState) -> Table:
    rows = [
        (target, pause.state, pause.by or NOTHING, format_time(pause.at), pause.reason or NOTHING)
        for target, pause in sorted(state.pauses.items())
    ]
    return Table("Paused", _PAUSE_COLUMNS, rows)


def build_limit_table(state: FlowState) -> Table:
    return Table(
        "Limits", _LIMIT_COLUMNS, [row for target in sorted(state.limits) for row in _rows(state, target)]
    )


def _rows(state: FlowState, target: str) -> Iterator[tuple[str, ...]]:
    limit = state.limits[target]
    running = str(state.slots.get(_scope(target), 0)) if limit.concurrency is not None else NOTHING
    is_overridden = target in state.overridden
    yield (
        target,
        describe_limit(limit),
        "hand" if is_overridden else "application",
        running,
        str(count_waiting(state, target)),
    )
    if is_overridden and target in state.declared:
        yield target, describe_limit(state.declared[target]), "application, overridden", NOTHING, NOTHING


def build_parked_table(state: FlowState) -> Table:
    rows = [(describe_scope(scope), str(jobs)) for scope, jobs in sorted(state.blocked.items())]
    return Table("Waiting Jobs", _PARKED_COLUMNS, rows)


def count_waiting(state: FlowState, target: str) -> int:
    """Return how many jobs are parked for a function, whichever of its keys they have."""
    own, keyed = _scope(target), f"k:{target.partition(':')[2]}:"
    return sum(jobs for scope, jobs in state.blocked.items() if scope == own or scope.startswith(keyed))


def pause_json(target: str, pause: Pause) -> dict[str, Any]:
    return {
        "target": target,
        "state": pause.state,
        "by": pause.by,
        "at": pause.at.isoformat(),
        "reason": pause.reason,
    }


def limit_json(state: FlowState, target: str) -> dict[str, Any]:
    declared = state.declared.get(target)
    return {
        "target": target,
        "limit": asdict(state.limits[target]),
        "declared": None if declared is None else asdict(declared),
        "overridden": target in state.overridden,
        "running": state.slots.get(_scope(target), 0),
        "waiting": count_waiting(state, target),
    }


def flow_json(state: FlowState) -> dict[str, Any]:
    return {
        "pauses": [pause_json(target, pause) for target, pause in sorted(state.pauses.items())],
        "limits": [limit_json(state, target) for target in sorted(state.limits)],
        "parked": dict(sorted(state.blocked.items())),
    }


def _scope(target: str) -> str:
    kind, _, name = target.partition(":")
    return f"{kind[:1]}:{name}"


def _number(value: float) -> str:
    # What a foreign hand left in Redis need not be a number.
    return f"{value:g}" if isinstance(value, int | float) else str(value)
