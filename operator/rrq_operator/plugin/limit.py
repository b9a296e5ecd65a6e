"""``kubectl rrq limit``: how much of a function or a queue may run."""

import asyncio

import click

from rrq.commands.limit_options import limit_options
from rrq.commands.options import json_option
from rrq.flow import Limit
from rrq_operator.plugin.options import Access, access_options, redis_url_option
from rrq_operator.plugin.targets import Aim, aim_options


@click.command()
@click.argument("pool_name", metavar="POOL")
@click.argument("action", type=click.Choice(["list", "set", "remove"]), default="list")
@aim_options(with_workers=False)
@limit_options
@access_options
@redis_url_option
@json_option
def limit(
    pool_name: str,
    action: str,
    aim: Aim,
    wanted: Limit,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Limit how many jobs run at once, or start in a time, for all who share the Redis of a pool.

    \b
    kubectl rrq limit emails                                        list the limits
    kubectl rrq limit emails set --function send --concurrency 5    set one
    kubectl rrq limit emails set --queue mail --rate 100 --per 60   set one
    kubectl rrq limit emails remove --function send                 what the application declares holds again
    """
    from rrq.commands.limit import limit_list, limit_remove
    from rrq_operator.plugin.pause_actions import name_target, set_limit
    from rrq_operator.plugin.rrq_commands import run_on_pool

    if bool(aim) == (action == "list"):
        raise click.UsageError("set and remove take --queue or --function; list takes none.")
    if action != "set" and wanted != Limit():
        raise click.UsageError("What the limit is goes with set.")
    if action != "list" and as_json:
        raise click.UsageError("--json is for list.")
    if action == "list":
        run_on_pool(limit_list, pool_name, access, redis_url, as_json=as_json)
    elif action == "set":
        asyncio.run(set_limit(pool_name, access, redis_url, aim, wanted))
    else:
        run_on_pool(
            limit_remove,
            pool_name,
            access,
            redis_url,
            lambda pool_store: {"target": name_target(pool_store, aim), "actor": pool_store.actor},
        )
