"""``rrq pause``, ``resume``, ``disable`` and ``enable``: let something stand still for everybody, and go on."""

import click

from rrq.commands.actor import as_option
from rrq.commands.flow_words import describe_hold
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line, print_note
from rrq.commands.redis_access import run_with_store
from rrq.flow import PauseState, check_target
from rrq.inspect.jobs import read_served_queue_names
from rrq.store import JobStore

_target_argument = click.argument("target", metavar="TARGET")
_function_argument = click.argument("function_name", metavar="FUNCTION")
_reason_option = click.option("--reason", default="", help="Why, for those who find it standing still.")


@click.command()
@_target_argument
@_reason_option
@as_option
@settings_option
@json_option
def pause(target: str, reason: str, actor: str, settings_path: str | None, as_json: bool) -> None:
    """Let a queue, a function or a pool stand still for the whole fleet.

    TARGET is queue:NAME, function:NAME or pool:NAMESPACE/NAME. Jobs that run go on to their end; those that wait
    keep their place.
    """
    _pause(settings_path, target, "paused", actor, reason, as_json)


@click.command()
@_target_argument
@as_option
@settings_option
@json_option
def resume(target: str, actor: str, settings_path: str | None, as_json: bool) -> None:
    """Let a paused queue, function or pool go on, and enable a function that was disabled."""
    _resume(settings_path, target, actor, as_json)


@click.command()
@_function_argument
@_reason_option
@as_option
@settings_option
@json_option
def disable(function_name: str, reason: str, actor: str, settings_path: str | None, as_json: bool) -> None:
    """Switch a function off without a deployment: as paused, and producers are refused new jobs of it."""
    _pause(settings_path, _function_target(function_name), "disabled", actor, reason, as_json)


@click.command()
@_function_argument
@as_option
@settings_option
@json_option
def enable(function_name: str, actor: str, settings_path: str | None, as_json: bool) -> None:
    """Switch a function on again; what has waited runs."""
    _resume(settings_path, _function_target(function_name), actor, as_json)


def _function_target(name: str) -> str:
    return f"function:{name.removeprefix('function:')}"


def _pause(
    settings_path: str | None, target: str, state: PauseState, actor: str, reason: str, as_json: bool
) -> None:
    is_known = run_with_store(settings_path, lambda store: _set_pause(store, target, state, actor, reason))
    if as_json:
        print_json({"target": target, "state": state})
    else:
        undo = f"resume {target}" if state == "paused" else f"enable {target.removeprefix('function:')}"
        print_line(f"{describe_hold(target, state)}. `rrq {undo}` ends that.")
    if not is_known:
        print_note(f"Note: {target} has no jobs and no worker has served it yet. Is that its name?")


async def _set_pause(store: JobStore, target: str, state: PauseState, actor: str, reason: str) -> bool:
    """Return False for a queue that nobody has used: most likely a slip of the pen."""
    await store.set_pause(target, state, actor, reason)
    kind, name = check_target(target)
    if kind != "queue" or await store.redis.exists(store.keys.queue_key(name)):
        return True
    return store.keys.queue_name(name) in await read_served_queue_names(store)


def _resume(settings_path: str | None, target: str, actor: str, as_json: bool) -> None:
    was_held = run_with_store(settings_path, lambda store: store.set_pause(target, None, actor))
    if as_json:
        print_json({"target": target, "state": None, "changed": was_held})
    else:
        print_line(f"{target} {'goes on' if was_held else 'was not paused'}.")
