"""``rrq pause``, ``resume``, ``disable``, ``enable``, ``limit``, ``flow`` and ``audit``: control what may start.

The ``show_…`` functions and ``set_limit`` serve ``kubectl rrq`` as well, with the Redis of a pool.
"""

import click

from rrq.commands.flow_text import (
    build_blocked_table,
    build_limit_table,
    build_pause_table,
    describe_limit,
    describe_pause_effect,
    flow_json,
    limit_json,
)
from rrq.commands.formatting import Table, format_time, format_value
from rrq.commands.options import as_option, audit_limit_option, json_option, limit_options
from rrq.commands.output import print_json, print_line, print_note, print_table
from rrq.commands.redis_access import RunOnStore, store_option
from rrq.flow import AuditEntry, Limit, PauseState, check_target
from rrq.inspect.jobs import read_served_queue_names
from rrq.store import JobStore

_target_argument = click.argument("target", metavar="TARGET")
_function_argument = click.argument("function_name", metavar="FUNCTION")
_reason_option = click.option("--reason", default="", help="Why, for everyone who finds it paused.")


@click.command()
@_target_argument
@_reason_option
@as_option
@store_option
@json_option
def pause(target: str, reason: str, actor: str, run: RunOnStore, as_json: bool) -> None:
    """Pause a queue, a function or a pool for the whole fleet.

    TARGET is queue:NAME, function:NAME or pool:NAMESPACE/NAME. Running jobs go on to their end; queued jobs keep their
    place.
    """
    _pause(run, target, "paused", actor, reason, as_json)


@click.command()
@_target_argument
@as_option
@store_option
@json_option
def resume(target: str, actor: str, run: RunOnStore, as_json: bool) -> None:
    """Resume a paused queue, function or pool, and enable a function that was disabled."""
    _resume(run, target, actor, as_json)


@click.command()
@_function_argument
@_reason_option
@as_option
@store_option
@json_option
def disable(function_name: str, reason: str, actor: str, run: RunOnStore, as_json: bool) -> None:
    """Disable a function without a deployment: workers start no job of it, and producers cannot enqueue new ones."""
    _pause(run, _function_target(function_name), "disabled", actor, reason, as_json)


@click.command()
@_function_argument
@as_option
@store_option
@json_option
def enable(function_name: str, actor: str, run: RunOnStore, as_json: bool) -> None:
    """Enable a function again; its queued jobs run."""
    _resume(run, _function_target(function_name), actor, as_json)


def _function_target(name: str) -> str:
    return f"function:{name.removeprefix('function:')}"


def _pause(run: RunOnStore, target: str, state: PauseState, actor: str, reason: str, as_json: bool) -> None:
    async def set_pause(store: JobStore) -> bool:
        await store.set_pause(target, state, actor, reason)
        return await _is_known(store, target)

    is_known = run(set_pause)
    if as_json:
        print_json({"target": target, "state": state})
    else:
        undo = f"resume {target}" if state == "paused" else f"enable {target.removeprefix('function:')}"
        print_line(f"{describe_pause_effect(target, state)}. To undo it: `rrq {undo}`.")
    if not is_known:
        print_note(f"Note: {target} has no jobs and no worker has served it yet. Is that its name?")


async def _is_known(store: JobStore, target: str) -> bool:
    """Return False for a queue that was never used: most likely its name is misspelled."""
    kind, name = check_target(target)
    if kind != "queue" or await store.redis.exists(store.keys.queue_key(name)):
        return True
    return store.keys.queue_name(name) in await read_served_queue_names(store)


def _resume(run: RunOnStore, target: str, actor: str, as_json: bool) -> None:
    was_paused = run(lambda store: store.set_pause(target, None, actor))
    if as_json:
        print_json({"target": target, "state": None, "changed": was_paused})
    else:
        print_resumed(target, was_paused)


def print_resumed(target: str, was_paused: bool) -> None:
    print_line(f"{target} is resumed." if was_paused else f"{target} was not paused.")


@click.group()
def limit() -> None:
    """Limit how many jobs run at once, or start in a period."""


@limit.command("list")
@store_option
@json_option
def limit_list(run: RunOnStore, as_json: bool) -> None:
    """List the limits, the jobs that run under them, and the jobs that they block."""
    show_limits(run, as_json)


def show_limits(run: RunOnStore, as_json: bool) -> None:
    state = run(JobStore.read_flow)
    if as_json:
        print_json([limit_json(state, target) for target in sorted(state.limits)])
    elif not state.limits:
        print_line("No limits")
    else:
        print_table(build_limit_table(state))


@limit.command("set")
@click.argument("target", metavar="TARGET")
@limit_options
@as_option
@store_option
def limit_set(target: str, wanted: Limit, actor: str, run: RunOnStore) -> None:
    """Limit function:NAME or queue:NAME, and override what its application declares.

    \b
    rrq limit set function:send --concurrency 5
    rrq limit set function:send --per-key 1 --key tenant
    rrq limit set queue:mail --rate 100 --per 60 --burst 20

    It holds at once and replaces every part of the limit that was set before; `rrq limit remove` removes it.
    """
    set_limit(run, target, wanted, actor, undo=f"rrq limit remove {target}")


def set_limit(run: RunOnStore, target: str, wanted: Limit, actor: str, *, undo: str) -> None:
    run(lambda store: store.set_limit(target, wanted, actor))
    print_line(f"{target}: {describe_limit(wanted)}. To undo it: `{undo}`.")


@limit.command("remove")
@click.argument("target", metavar="TARGET")
@as_option
@store_option
def limit_remove(target: str, actor: str, run: RunOnStore) -> None:
    """Remove a limit that was set by hand; the limit that the application declares holds again."""
    remove_limit(run, target, actor)


def remove_limit(run: RunOnStore, target: str, actor: str) -> None:
    async def remove(store: JobStore) -> tuple[bool, Limit | None]:
        was_set = await store.set_limit(target, None, actor)
        return was_set, (await store.read_flow()).declared.get(store.normalise_target(target))

    was_set, declared = run(remove)
    now = (
        "no limit holds"
        if declared is None
        else f"the limit of its application holds: {describe_limit(declared)}"
    )
    print_line(f"{target}: {now}." if was_set else f"{target} had no limit set by hand; {now}.")


@click.command()
@store_option
@json_option
def flow(run: RunOnStore, as_json: bool) -> None:
    """Show the pauses with who and why, the limits, and the jobs that they block."""
    show_flow(run, as_json)


def show_flow(run: RunOnStore, as_json: bool) -> None:
    state = run(JobStore.read_flow)
    if as_json:
        print_json(flow_json(state))
        return
    tables = [build_pause_table(state), build_limit_table(state), build_blocked_table(state)]
    shown = [table for table in tables if table.rows]
    for table in shown:
        print_table(table)
    if not shown:
        print_line("Nothing is paused, limited or blocked")


@click.command()
@audit_limit_option
@store_option
@json_option
def audit(limit: int, run: RunOnStore, as_json: bool) -> None:
    """Show who paused, limited, cancelled, requeued, edited or deleted what, the newest first."""
    show_audit(run, limit, as_json)


def show_audit(run: RunOnStore, limit: int, as_json: bool) -> None:
    entries = run(lambda store: store.read_audit(limit))
    if as_json:
        print_json([_audit_json(entry) for entry in entries])
    elif not entries:
        print_line("The audit has no entries")
    else:
        columns = ("At", "Who", "Action", "Object", "Detail")
        print_table(Table("Audit", columns, [_audit_row(entry) for entry in entries]))


def _audit_row(entry: AuditEntry) -> tuple[str, ...]:
    detail = format_value(entry.detail) if entry.detail else ""
    return (format_time(entry.at), entry.actor, entry.action, entry.object, detail)


def _audit_json(entry: AuditEntry) -> dict[str, object]:
    return {
        "id": entry.entry_id,
        "at": entry.at.isoformat(),
        "actor": entry.actor,
        "action": entry.action,
        "object": entry.object,
        "detail": entry.detail,
    }
