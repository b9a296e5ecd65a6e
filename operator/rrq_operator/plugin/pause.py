"""``kubectl rrq pause`` and ``kubectl rrq resume``: hold the size of a pool, and let it go again."""

import asyncio

import click

from rrq_operator.plugin.options import Access, access_options


@click.command()
@click.argument("pool_name", metavar="POOL")
@access_options
def pause(pool_name: str, access: Access) -> None:
    """Keep a pool at its size, whatever its queues hold. Its workers go on working."""
    asyncio.run(_set_paused(pool_name, access, is_paused=True))


@click.command()
@click.argument("pool_name", metavar="POOL")
@access_options
def resume(pool_name: str, access: Access) -> None:
    """Let a paused pool follow its queues again."""
    asyncio.run(_set_paused(pool_name, access, is_paused=False))


async def _set_paused(pool_name: str, access: Access, *, is_paused: bool) -> None:
    from rrq.commands.output import print_line
    from rrq.commands.refusal import Refusal
    from rrq_operator.plugin.clusters import open_cluster

    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        if pool.type == "Job":
            raise Refusal(
                f"ERROR: Pool {pool.title} is of type Job, which has no pause yet. To keep it from running, delete "
                "the pool and apply its manifest again later: its jobs wait in Redis."
            )
        was_paused = pool.is_paused
        if was_paused != is_paused:
            await cluster.change_pool(pool, {"spec": {"scaling": {"paused": is_paused}}})
    if is_paused:
        already = " already" if was_paused else ""
        print_line(
            f"Pool {pool.title} is paused{already}: it keeps its size, whatever its queues hold; its workers go on. "
            f"`kubectl rrq resume -n {pool.namespace} {pool.name}` ends that."
        )
    else:
        print_line(f"Pool {pool.title} {'follows its queues again' if was_paused else 'was not paused'}.")
