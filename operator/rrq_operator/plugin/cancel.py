"""``kubectl rrq cancel``: waiting jobs of a pool, by what they are like."""

import click

from rrq.commands.cancel_options import filter_options
from rrq.commands.options import json_option
from rrq_operator.plugin.options import Access, access_options, redis_url_option


@click.command()
@click.argument("pool_name", metavar="POOL")
@click.option("--queue", "queue_name", required=True, help="The queue of the pool in which they wait.")
@filter_options
@access_options
@redis_url_option
@json_option
def cancel(
    pool_name: str,
    queue_name: str,
    function_name: str | None,
    due_for_seconds: int | None,
    dry_run: bool,
    is_confirmed: bool,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Cancel jobs that wait in a queue of a pool; those that run go on.

    The number is shown first, and asked for, unless --yes is given.
    """
    from rrq.commands.job_cancel import job_cancel
    from rrq_operator.plugin.rrq_commands import run_on_pool

    run_on_pool(
        job_cancel,
        pool_name,
        access,
        redis_url,
        lambda pool_store: {
            "queue_name": pool_store.choose_queues(queue_name)[0],
            "actor": pool_store.actor,
        },
        job_ids=(),
        function_name=function_name,
        due_for_seconds=due_for_seconds,
        dry_run=dry_run,
        is_confirmed=is_confirmed,
        as_json=as_json,
    )
