"""``kubectl rrq audit``: who did what to the queues of a pool."""

import click

from rrq.commands.options import json_option
from rrq_operator.plugin.options import Access, access_options, redis_url_option


@click.command()
@click.argument("pool_name", metavar="POOL")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Most entries to show."
)
@access_options
@redis_url_option
@json_option
def audit(pool_name: str, limit: int, access: Access, redis_url: str | None, as_json: bool) -> None:
    """Show who paused, limited, cancelled or requeued what, in the Redis of a pool, the newest first."""
    from rrq.commands.audit import audit as rrq_audit
    from rrq_operator.plugin.rrq_commands import run_on_pool

    run_on_pool(rrq_audit, pool_name, access, redis_url, limit=limit, as_json=as_json)
