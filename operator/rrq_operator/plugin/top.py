"""``kubectl rrq top``: are the pools keeping up?"""

import asyncio
from typing import TYPE_CHECKING

import click

from rrq.commands.options import json_option
from rrq_operator.plugin.options import Access, access_options, all_namespaces_option, redis_url_option

if TYPE_CHECKING:
    from rrq_operator.plugin.pool_redis import Detour


@click.command()
@click.argument("pool_name", metavar="[POOL]", required=False)
@click.option("-w", "--watch", is_flag=True, help="Keep looking, in a terminal, until Ctrl-C.")
@click.option(
    "--refresh",
    "refresh_seconds",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
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
    """Show pools: what waits, what runs, how large they are and why.

    Figures come from Redis where you can reach it, else from the status of the pool; those are marked by *.
    """
    from rrq.commands.output import is_terminal
    from rrq_operator.plugin.pool_redis import choose_detour

    detour = choose_detour(redis_url)
    if watch and is_terminal() and not as_json:
        asyncio.run(_show_live(pool_name, access, detour, refresh_seconds))
    else:
        asyncio.run(_show_once(pool_name, access, detour, as_json))


async def _show_once(pool_name: str | None, access: Access, detour: "Detour | None", as_json: bool) -> None:
    from rrq.commands.output import print_json, print_line, print_note, print_table
    from rrq_operator.plugin.clusters import open_cluster
    from rrq_operator.plugin.tables import top_json
    from rrq_operator.plugin.top_snapshot import open_picture_reader

    async with open_cluster(access) as cluster, open_picture_reader(cluster, pool_name, detour) as read:
        picture = await read()
    if as_json:
        print_json([top_json(line) for line in picture.lines])
    elif not picture.lines:
        print_line(f"No pools in {cluster.place}.")
    else:
        print_table(picture.build_table())
    for note in picture.notes:
        print_note(note)


async def _show_live(
    pool_name: str | None, access: Access, detour: "Detour | None", refresh_seconds: float
) -> None:
    from rrq_operator.plugin.clusters import open_cluster
    from rrq_operator.plugin.live import show_live
    from rrq_operator.plugin.top_snapshot import build_screen, open_picture_reader

    async with open_cluster(access) as cluster, open_picture_reader(cluster, pool_name, detour) as read:
        await show_live(read, build_screen, refresh_seconds)
