"""``kubectl rrq disable`` and ``enable``: switch a function off without a deployment, and on again."""

import asyncio

import click

from rrq_operator.plugin.options import Access, access_options, redis_url_option
from rrq_operator.plugin.targets import Aim

_function_option = click.option("--function", "function_name", required=True, help="The function.")


@click.command()
@click.argument("pool_name", metavar="POOL")
@_function_option
@click.option("--reason", default="", help="Why, for those who are refused.")
@access_options
@redis_url_option
def disable(pool_name: str, function_name: str, reason: str, access: Access, redis_url: str | None) -> None:
    """Switch a function off: nobody starts its jobs, and producers are refused new ones.

    It holds for everybody who shares the Redis of the pool.
    """
    from rrq_operator.plugin.pause_actions import hold

    aim = Aim(function_name=function_name)
    asyncio.run(hold(pool_name, access, redis_url, aim, "disabled", reason))


@click.command()
@click.argument("pool_name", metavar="POOL")
@_function_option
@access_options
@redis_url_option
def enable(pool_name: str, function_name: str, access: Access, redis_url: str | None) -> None:
    """Switch a function on again; what has waited runs."""
    from rrq_operator.plugin.pause_actions import let_go

    asyncio.run(let_go(pool_name, access, redis_url, Aim(function_name=function_name)))
