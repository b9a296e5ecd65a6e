"""``kubectl rrq top`` and ``queues``: are the pools keeping up, and what waits and runs in each queue?"""

import asyncio
from typing import TYPE_CHECKING

import click

from rrq.commands.options import json_option
from rrq_operator.plugin.options import Access, access_options, all_namespaces_option, redis_url_option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rrq_operator.plugin.pool_redis import RedisOverride
    from rrq_operator.plugin.tables import TopSnapshot

_pool_argument = click.argument("pool_name", metavar="[POOL]", required=False)


@click.command()
@_pool_argument
@click.option("-w", "--watch", is_flag=True, help="In a terminal, update until Ctrl-C.")
@click.option(
    "--refresh",
    "refresh_seconds",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two updates of --watch.",
)
@all_namespaces_option
@access_options
@redis_url_option
@json_option
def top(
    pool_name: str | None,
    watch: bool,
    refresh_seconds: float,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Show pools: the jobs that wait and run, their size, and the reason for it.

    The numbers come from Redis if you can reach it, else from the status of the pool; those are marked by *.
    """
    from rrq.commands.output import is_terminal
    from rrq_operator.plugin.pool_redis import choose_override

    override = choose_override(redis_url)
    if watch and is_terminal() and not as_json:
        asyncio.run(_show_live(pool_name, access, override, refresh_seconds))
    else:
        asyncio.run(_show_once(pool_name, access, override, as_json))


async def _show_once(
    pool_name: str | None, access: Access, override: "RedisOverride | None", as_json: bool
) -> None:
    from rrq.commands.output import print_json, print_line, print_note, print_table
    from rrq_operator.plugin.figures import open_top_reader
    from rrq_operator.plugin.pools import open_cluster
    from rrq_operator.plugin.tables import top_json

    async with open_cluster(access) as cluster, open_top_reader(cluster, pool_name, override) as read:
        snapshot = await read()
    if as_json:
        print_json([top_json(line) for line in snapshot.lines])
    elif not snapshot.lines:
        print_line(f"No pools in {cluster.place}.")
    else:
        print_table(snapshot.build_table())
    for note in snapshot.notes:
        print_note(note)


async def _show_live(
    pool_name: str | None, access: Access, override: "RedisOverride | None", refresh_seconds: float
) -> None:
    from rrq.commands.output import show_live
    from rrq_operator.plugin.figures import open_top_reader
    from rrq_operator.plugin.pools import open_cluster
    from rrq_operator.plugin.tables import build_screen

    async with open_cluster(access) as cluster, open_top_reader(cluster, pool_name, override) as read:
        await show_live(_LiveReader(read).run_once, build_screen, refresh_seconds)


class _LiveReader:
    """Reads for the screen; keeps the last snapshot while a newer one is refused."""

    def __init__(self, read: "Callable[[], Awaitable[TopSnapshot]]") -> None:
        self._read = read
        self._snapshot: TopSnapshot | None = None

    async def run_once(self) -> "tuple[TopSnapshot, str]":
        """Return the last snapshot, and why there is no newer one ('' when it is new). The first one must not fail."""
        from rrq.commands.refusal import Refusal

        try:
            self._snapshot = await self._read()
        except Refusal as refusal:
            # What never worked is more likely a wrong name than an outage.
            if self._snapshot is None:
                raise
            return self._snapshot, refusal.message
        return self._snapshot, ""


@click.command()
@_pool_argument
@all_namespaces_option
@access_options
@redis_url_option
@json_option
def queues(pool_name: str | None, access: Access, redis_url: str | None, as_json: bool) -> None:
    """Show the queues of pools: jobs due now, soon and later, the oldest wait, and running jobs.

    Soon is within the time that a new pod of the pool takes to start. Orphaned jobs belong to workers whose lease has
    ended; they are due again soon.
    """
    asyncio.run(_show_queues(pool_name, access, redis_url, as_json))


async def _show_queues(pool_name: str | None, access: Access, redis_url: str | None, as_json: bool) -> None:
    from rrq.commands.output import print_json, print_line, print_note, print_table
    from rrq.commands.refusal import Refusal
    from rrq_operator.plugin.figures import FigureReader
    from rrq_operator.plugin.pool_redis import RedisLocator, choose_override
    from rrq_operator.plugin.pools import open_cluster
    from rrq_operator.plugin.tables import build_queue_table, queue_json

    override = choose_override(redis_url)
    async with open_cluster(access) as cluster:
        pools = await cluster.choose_pools(pool_name)
        reader = FigureReader(RedisLocator(cluster.kube, override))
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
