"""``kubectl rrq pause`` and ``kubectl rrq resume``: hold the size of a pool, and let it go again."""

import asyncio

import click

from rrq_operator.plugin.options import Access, access_options


@click.command()
@click.argument("pool_name", metavar="POOL")
@access_options
def pause(pool_name: str, access: Access) -> None:
    """Keep a pool at its size, or a burst pool from starting a run. Workers go on working."""
    asyncio.run(_set_paused(pool_name, access, is_paused=True))


@click.command()
@click.argument("pool_name", metavar="POOL")
@access_options
def resume(pool_name: str, access: Access) -> None:
    """Let a paused pool follow its queues again."""
    asyncio.run(_set_paused(pool_name, access, is_paused=False))


async def _set_paused(pool_name: str, access: Access, *, is_paused: bool) -> None:
    from rrq.commands.output import print_line
    from rrq_operator.plugin.clusters import open_cluster

    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        was_paused = pool.is_paused
        if was_paused != is_paused:
            part = "job" if pool.type == "Job" else "scaling"
            await cluster.change_pool(pool, {"spec": {part: {"paused": is_paused}}})
    if is_paused:
        already = " already" if was_paused else ""
        means = (
            "it starts no further run; one that is under way goes on"
            if pool.type == "Job"
            else "it keeps its size, whatever its queues hold; its workers go on"
        )
        print_line(
            f"Pool {pool.title} is paused{already}: {means}. "
            f"`kubectl rrq resume -n {pool.namespace} {pool.name}` ends that."
        )
    else:
        print_line(f"Pool {pool.title} {'follows its queues again' if was_paused else 'was not paused'}.")
