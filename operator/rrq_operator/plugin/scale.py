"""``kubectl rrq scale``: a floor under the size of a pool."""

import asyncio

import click

from rrq_operator.plugin.options import Access, access_options


@click.command()
@click.argument("pool_name", metavar="POOL")
@click.option(
    "--replicas",
    type=click.IntRange(min=0),
    required=True,
    help="At least so many, whatever the queues hold; 0 leaves it to the queues.",
)
@access_options
def scale(pool_name: str, replicas: int, access: Access) -> None:
    """Set how many replicas a pool has at least.

    The queues may ask for more, up to maxReplicas of the pool.
    """
    asyncio.run(_scale(pool_name, replicas, access))


async def _scale(pool_name: str, replicas: int, access: Access) -> None:
    from rrq.commands.output import print_line, print_note
    from rrq_operator.plugin.clusters import open_cluster

    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        await cluster.scale_pool(pool, replicas)
    meaning = (
        f"at least {replicas}, whatever its queues hold; 0 leaves it to the queues"
        if replicas
        else "no floor, its size is left to the queues"
    )
    print_line(f"Pool {pool.title}: {meaning}.")
    if pool.is_paused:
        print_note(
            f"Note: the pool is paused and keeps its size until `kubectl rrq resume -n {pool.namespace} "
            f"{pool.name}`."
        )
