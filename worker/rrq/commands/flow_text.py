"""Pauses, limits and the jobs that they block, as text, tables and JSON: pure."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rrq.commands.formatting import NOTHING, Table, format_time
from rrq.flow import FlowState, Limit, Pause, PauseState

_PAUSE_COLUMNS = ("Target", "State", "By", "Since", "Reason")
_LIMIT_COLUMNS = ("Target", "Limit", "Set By", "Running", "Blocked")
_BLOCKED_COLUMNS = ("Blocked By", "Jobs")


def describe_limit(limit: Limit) -> str:
    """Return a limit as text: ``5 at once, 10 per 60 s in bursts of 20``."""
    tenant = f"per {limit.key or 'key'}"
    parts = []
    if limit.concurrency is not None:
        parts.append(f"{limit.concurrency} at once")
    if limit.per_key is not None:
        parts.append(f"{limit.per_key} at once {tenant}")
    if limit.rate is not None:
        per_key = f" {tenant}" if limit.is_rate_per_key else ""
        bursts = "" if limit.burst is None else f" in bursts of {_number(limit.burst)}"
        parts.append(f"{_number(limit.rate)} per {_number(limit.per_seconds)} s{per_key}{bursts}")
    return ", ".join(parts) or NOTHING


def describe_pause(target: str, pause: Pause) -> str:
    """Return one sentence: what is paused, by whom, since when and why."""
    by = f" by {pause.by}" if pause.by else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{target} is {pause.state}{by} since {format_time(pause.at)}{reason}"


def describe_pause_effect(target: str, state: PauseState) -> str:
    """Return what it means that a target has just been paused or disabled."""
    if state == "disabled":
        return f"{target} is disabled: workers start no job of it, and producers cannot enqueue new ones"
    effects = {
        "queue": "workers start no job of it",
        "function": "workers start no job of it; producers may still enqueue new ones",
        "pool": "its workers start no job",
    }
    return f"{target} is paused: {effects[target.partition(':')[0]]}"


def describe_scope(scope: str) -> str:
    """Return what a scope stands for: ``f:send`` is the function send, ``k:send:acme`` its key acme."""
    kind, _, name = scope.partition(":")
    if kind == "k":
        function, _, key = name.partition(":")
        return f"function:{function} for key {key!r}"
    return f"function:{name}"


def describe_block(state: FlowState, queue: str, function: str, blocked_in: str | None) -> str | None:
    """Return the pause or limit that blocks a queued job; None when nothing does."""
    for target in (f"queue:{queue}", f"function:{function}"):
        if target in state.pauses:
            return describe_pause(target, state.pauses[target])
    if blocked_in is None:
        return None
    limit = state.limits.get(f"function:{function}")
    words = "" if limit is None else f" ({describe_limit(limit)})"
    # The name of a function may have colons, so only the job shows where the key begins.
    key = blocked_in.removeprefix(f"k:{function}:")
    scope = blocked_in if key == blocked_in else f"f:{function} for key {key!r}"
    return f"limit of {scope}{words}"


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
        str(count_blocked(state, target)),
    )
    if is_overridden and target in state.declared:
        yield target, describe_limit(state.declared[target]), "application, overridden", NOTHING, NOTHING


def build_blocked_table(state: FlowState) -> Table:
    rows = [(describe_scope(scope), str(jobs)) for scope, jobs in sorted(state.blocked.items())]
    return Table("Blocked Jobs", _BLOCKED_COLUMNS, rows)


def count_blocked(state: FlowState, target: str) -> int:
    """Return how many jobs of a function a pause or a limit blocks, whichever of its keys they have."""
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
        "blocked": count_blocked(state, target),
    }


def flow_json(state: FlowState) -> dict[str, Any]:
    return {
        "pauses": [pause_json(target, pause) for target, pause in sorted(state.pauses.items())],
        "limits": [limit_json(state, target) for target in sorted(state.limits)],
        "blocked": dict(sorted(state.blocked.items())),
    }


def _scope(target: str) -> str:
    kind, _, name = target.partition(":")
    return f"{kind[:1]}:{name}"


def _number(value: float) -> str:
    # Another program may have stored something else in Redis.
    return f"{value:g}" if isinstance(value, int | float) else str(value)
