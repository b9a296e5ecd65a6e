"""``kubectl rrq scale``, ``freeze`` and ``unfreeze``: the size of a pool, which is a field of the pool in Kubernetes."""

import asyncio
from typing import TYPE_CHECKING

import click

from rrq_operator.plugin.options import Access, access_options, pool_argument

if TYPE_CHECKING:
    from rrq_operator.plugin.pools import SeenPool


@click.command()
@pool_argument
@click.option(
    "--replicas",
    type=click.IntRange(min=0),
    required=True,
    help="Minimum number of replicas, whatever the queues hold; 0 removes the minimum.",
)
@access_options
def scale(pool_name: str, replicas: int, access: Access) -> None:
    """Set the minimum number of replicas of a pool.

    The queues may need more, up to maxReplicas of the pool.
    """
    asyncio.run(_scale(pool_name, replicas, access))


@click.command()
@pool_argument
@access_options
def freeze(pool_name: str, access: Access) -> None:
    """Keep a pool at its size, whatever its queues hold; its workers go on working.

    A pool of type Job starts no further run. `kubectl rrq pause` is for the work: it keeps jobs from starting.
    """
    asyncio.run(_set_frozen(pool_name, access, is_frozen=True))


@click.command()
@pool_argument
@access_options
def unfreeze(pool_name: str, access: Access) -> None:
    """Let the size of a frozen pool follow its queues again."""
    asyncio.run(_set_frozen(pool_name, access, is_frozen=False))


async def _scale(pool_name: str, replicas: int, access: Access) -> None:
    from rrq.commands.output import print_line, print_note
    from rrq_operator.plugin.pools import open_cluster

    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        await cluster.scale_pool(pool, replicas)
    meaning = (
        f"at least {replicas}, whatever its queues hold; 0 removes the minimum"
        if replicas
        else "no minimum, its size follows the queues"
    )
    print_line(f"Pool {pool.title}: {meaning}.")
    if pool.is_frozen:
        print_note(f"Note: the pool is frozen and keeps its size until `{_undo(pool)}`.")


async def _set_frozen(pool_name: str, access: Access, *, is_frozen: bool) -> None:
    from rrq.commands.output import print_line
    from rrq_operator.plugin.pools import open_cluster

    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        was_frozen = pool.is_frozen
        if was_frozen != is_frozen:
            part = "job" if pool.type == "Job" else "scaling"
            await cluster.change_pool(pool, {"spec": {part: {"paused": is_frozen}}})
    if is_frozen:
        already = " already" if was_frozen else ""
        print_line(
            f"Pool {pool.title} is frozen{already}: {_describe_effect(pool)}. To undo it: `{_undo(pool)}`."
        )
    else:
        print_line(
            f"Pool {pool.title} follows its queues again."
            if was_frozen
            else f"Pool {pool.title} was not frozen."
        )


def _describe_effect(pool: "SeenPool") -> str:
    if pool.type == "Job":
        return "it starts no further run; a run that has started goes on"
    return "it keeps its size, whatever its queues hold; its workers go on working"


def _undo(pool: "SeenPool") -> str:
    return f"kubectl rrq unfreeze -n {pool.namespace} {pool.name}"
