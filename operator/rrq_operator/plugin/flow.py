"""``kubectl rrq pause``, ``resume``, ``disable``, ``enable``, ``limit``, ``flow`` and ``audit``: what may start.

All of it is stored in the Redis of the pool; the size of a pool is in ``size.py``.
"""

from typing import TYPE_CHECKING

import click

from rrq.commands.options import audit_limit_option, json_option, limit_options
from rrq.flow import Limit
from rrq_operator.plugin.options import (
    Access,
    Target,
    access_options,
    pool_argument,
    redis_url_option,
    target_options,
)

if TYPE_CHECKING:
    from rrq.flow import PauseState

_function_option = click.option("--function", "function_name", required=True, help="The function.")
_reason_option = click.option("--reason", default="", help="Why, for everyone who finds it paused.")


@click.command()
@pool_argument
@target_options(with_workers=True)
@_reason_option
@access_options
@redis_url_option
def pause(pool_name: str, target: Target, reason: str, access: Access, redis_url: str | None) -> None:
    """Keep jobs from starting: by the workers of a pool, from a queue, or of a function.

    \b
    kubectl rrq pause emails --workers          the workers of this pool start no job
    kubectl rrq pause emails --queue mail       workers start no job of this queue
    kubectl rrq pause emails --function send    workers start no job of this function

    Running jobs go on to their end, and queued jobs keep their place. `kubectl rrq freeze` is for the size of a pool.
    """
    _require(target, "pause", "To keep the size of the pool", "freeze", pool_name, access)
    _pause(pool_name, access, redis_url, target, "paused", reason)


@click.command()
@pool_argument
@target_options(with_workers=True)
@access_options
@redis_url_option
def resume(pool_name: str, target: Target, access: Access, redis_url: str | None) -> None:
    """Resume the paused workers of a pool, a paused queue or a paused function."""
    _require(target, "resume", "To let the size of the pool follow its queues", "unfreeze", pool_name, access)
    _resume(pool_name, access, redis_url, target)


@click.command()
@pool_argument
@_function_option
@_reason_option
@access_options
@redis_url_option
def disable(pool_name: str, function_name: str, reason: str, access: Access, redis_url: str | None) -> None:
    """Disable a function: workers start no job of it, and producers cannot enqueue new ones.

    It holds for all users of the Redis of the pool.
    """
    _pause(pool_name, access, redis_url, Target(function_name=function_name), "disabled", reason)


@click.command()
@pool_argument
@_function_option
@access_options
@redis_url_option
def enable(pool_name: str, function_name: str, access: Access, redis_url: str | None) -> None:
    """Enable a function again; its queued jobs run."""
    _resume(pool_name, access, redis_url, Target(function_name=function_name))


def _require(
    target: Target, verb: str, size_purpose: str, size_verb: str, pool_name: str, access: Access
) -> None:
    """Explain what to type to those who mean the size of the pool, which this command was about once."""
    if not target:
        where = "" if access.namespace is None else f"-n {access.namespace} "
        raise click.UsageError(
            f"Choose what to {verb}: --workers, --queue NAME or --function NAME. {size_purpose}, type "
            f"`kubectl rrq {size_verb} {where}{pool_name}`."
        )


def _pause(
    pool_name: str, access: Access, redis_url: str | None, target: Target, state: "PauseState", reason: str
) -> None:
    from rrq.commands.flow_text import describe_pause_effect
    from rrq.commands.output import print_line
    from rrq_operator.plugin.pool_redis import find_pool_redis

    pool = find_pool_redis(pool_name, access, redis_url)
    name = pool.name_target(target)
    pool.run(lambda store: store.set_pause(name, state, pool.actor, reason))
    verb = "resume" if state == "paused" else "enable"
    undo = f"kubectl rrq {verb} -n {pool.pool.namespace} {pool_name} {target.as_options()}"
    print_line(f"{describe_pause_effect(name, state)}. To undo it: `{undo}`.")


def _resume(pool_name: str, access: Access, redis_url: str | None, target: Target) -> None:
    from rrq.commands.flow import print_resumed
    from rrq_operator.plugin.pool_redis import find_pool_redis

    pool = find_pool_redis(pool_name, access, redis_url)
    name = pool.name_target(target)
    print_resumed(name, pool.run(lambda store: store.set_pause(name, None, pool.actor)))


@click.command()
@pool_argument
@click.argument("action", type=click.Choice(["list", "set", "remove"]), default="list")
@target_options(with_workers=False)
@limit_options
@access_options
@redis_url_option
@json_option
def limit(
    pool_name: str,
    action: str,
    target: Target,
    wanted: Limit,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Limit how many jobs run at once, or start in a period, for all users of the Redis of a pool.

    \b
    kubectl rrq limit emails                                        list the limits
    kubectl rrq limit emails set --function send --concurrency 5    set a limit
    kubectl rrq limit emails set --queue mail --rate 100 --per 60   set a limit
    kubectl rrq limit emails remove --function send                 the limit of the application holds again
    """
    from rrq.commands import flow as rrq_flow
    from rrq_operator.plugin.pool_redis import find_pool_redis

    if bool(target) == (action == "list"):
        raise click.UsageError("set and remove need --queue or --function; list has no target.")
    if action != "set" and wanted != Limit():
        raise click.UsageError("The options of a limit are for set.")
    if action != "list" and as_json:
        raise click.UsageError("--json is for list.")
    pool = find_pool_redis(pool_name, access, redis_url)
    if action == "list":
        rrq_flow.show_limits(pool.run, as_json)
    elif action == "set":
        undo = f"kubectl rrq limit -n {pool.pool.namespace} {pool_name} remove {target.as_options()}"
        rrq_flow.set_limit(pool.run, pool.name_target(target), wanted, pool.actor, undo=undo)
    else:
        rrq_flow.remove_limit(pool.run, pool.name_target(target), pool.actor)


@click.command()
@pool_argument
@access_options
@redis_url_option
@json_option
def flow(pool_name: str, access: Access, redis_url: str | None, as_json: bool) -> None:
    """Show the pauses with who and why, the limits, and the jobs that they block, in the Redis of a pool."""
    from rrq.commands.flow import show_flow
    from rrq_operator.plugin.pool_redis import find_pool_redis

    show_flow(find_pool_redis(pool_name, access, redis_url).run, as_json)


@click.command()
@pool_argument
@audit_limit_option
@access_options
@redis_url_option
@json_option
def audit(pool_name: str, limit: int, access: Access, redis_url: str | None, as_json: bool) -> None:
    """Show who paused, limited, cancelled or requeued what, in the Redis of a pool, the newest first."""
    from rrq.commands.flow import show_audit
    from rrq_operator.plugin.pool_redis import find_pool_redis

    show_audit(find_pool_redis(pool_name, access, redis_url).run, limit, as_json)
