"""``kubectl rrq pause`` and ``resume``: hold the size of a pool, or keep jobs from starting, and let go again.

The size is a field of the pool in Kubernetes; all else is kept in the Redis of the pool.
"""

import asyncio

import click

from rrq_operator.plugin.options import Access, access_options, redis_url_option
from rrq_operator.plugin.targets import Aim, aim_options

_reason_option = click.option(
    "--reason", default="", help="Why, for those who find it standing still; not for the size of a pool."
)


@click.command()
@click.argument("pool_name", metavar="POOL")
@aim_options(with_workers=True)
@_reason_option
@access_options
@redis_url_option
def pause(pool_name: str, aim: Aim, reason: str, access: Access, redis_url: str | None) -> None:
    """Keep a pool at its size, or a burst pool from starting a run; or keep jobs from starting.

    \b
    kubectl rrq pause emails                    hold its size; its workers go on working
    kubectl rrq pause emails --workers          its workers start no further job
    kubectl rrq pause emails --queue mail       nobody starts a job of this queue
    kubectl rrq pause emails --function send    nobody starts a job of this function

    Jobs that run go on to their end, and those that wait keep their place.
    """
    if aim:
        from rrq_operator.plugin.pause_actions import hold

        asyncio.run(hold(pool_name, access, redis_url, aim, "paused", reason))
    elif reason:
        raise click.UsageError("--reason goes with --workers, --queue or --function.")
    else:
        asyncio.run(_set_paused(pool_name, access, is_paused=True))


@click.command()
@click.argument("pool_name", metavar="POOL")
@aim_options(with_workers=True)
@access_options
@redis_url_option
def resume(pool_name: str, aim: Aim, access: Access, redis_url: str | None) -> None:
    """Let a paused pool follow its queues again; or let its workers, a queue or a function go on."""
    if aim:
        from rrq_operator.plugin.pause_actions import let_go

        asyncio.run(let_go(pool_name, access, redis_url, aim))
    else:
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
        print_line(
            f"Pool {pool.title} follows its queues again."
            if was_paused
            else f"The size of pool {pool.title} was not paused. --workers, --queue and --function let those go on."
        )
