"""``kubectl rrq flow``: everything that holds the jobs of a pool back."""

import click

from rrq.commands.options import json_option
from rrq_operator.plugin.options import Access, access_options, redis_url_option


@click.command()
@click.argument("pool_name", metavar="POOL")
@access_options
@redis_url_option
@json_option
def flow(pool_name: str, access: Access, redis_url: str | None, as_json: bool) -> None:
    """Show pauses with who and why, limits, and the jobs that wait for them, in the Redis of a pool."""
    from rrq.commands.flow import flow as rrq_flow
    from rrq_operator.plugin.rrq_commands import run_on_pool

    run_on_pool(rrq_flow, pool_name, access, redis_url, as_json=as_json)
