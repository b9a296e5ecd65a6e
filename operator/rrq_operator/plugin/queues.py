"""``kubectl rrq queues``: what waits and runs, queue by queue."""

import asyncio

import click

from rrq.commands.options import json_option
from rrq_operator.plugin.options import Access, access_options, all_namespaces_option, redis_url_option


@click.command()
@click.argument("pool_name", metavar="[POOL]", required=False)
@all_namespaces_option
@access_options
@redis_url_option
@json_option
def queues(pool_name: str | None, access: Access, redis_url: str | None, as_json: bool) -> None:
    """Show the queues of pools: due now, due soon, due later, the oldest wait, and jobs that run.

    Soon is within the time that a new pod of the pool takes to start. Orphaned jobs are those of workers whose lease has
    ended; they are about to be due again.
    """
    asyncio.run(_show(pool_name, access, redis_url, as_json))


async def _show(pool_name: str | None, access: Access, redis_url: str | None, as_json: bool) -> None:
    from rrq.commands.output import print_json, print_line, print_note, print_table
    from rrq.commands.refusal import Refusal
    from rrq_operator.plugin.clusters import open_cluster
    from rrq_operator.plugin.figures import FigureReader
    from rrq_operator.plugin.pool_redis import RedisLocator, choose_detour
    from rrq_operator.plugin.tables import build_queue_table, queue_json

    detour = choose_detour(redis_url)
    async with open_cluster(access) as cluster:
        pools = await cluster.choose_pools(pool_name)
        reader = FigureReader(RedisLocator(cluster.kube, detour))
        try:
            figures = await reader.read(pools)
        finally:
            await reader.aclose()
    troubles = list(dict.fromkeys(entry.trouble for entry in figures.values() if entry.trouble))
    if pools and all(entry.trouble for entry in figures.values()):
        raise Refusal("\n".join(f"ERROR: {trouble}" for trouble in troubles))
    rows = [(pool, name, queue) for pool in pools for name, queue in figures[pool.key].queues.items()]
    if as_json:
        print_json([queue_json(*row) for row in rows])
    elif not rows:
        print_line(f"No pools in {cluster.place}.")
    else:
        print_table(build_queue_table(rows, with_namespace=cluster.namespace is None))
    for trouble in troubles:
        print_note(f"Note: some queues are not shown: {trouble}")
