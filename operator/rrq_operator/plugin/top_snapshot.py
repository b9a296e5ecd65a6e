"""All that ``kubectl rrq top`` shows at one moment."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rrq.commands.formatting import format_time, printable
from rrq.commands.output import Table, build_rich_table
from rrq_operator.plugin.clusters import UserCluster
from rrq_operator.plugin.figures import FigureReader
from rrq_operator.plugin.pool_redis import Detour, RedisLocator
from rrq_operator.plugin.tables import PoolLine, build_line, build_top_table, describe_sources

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Picture:
    at: datetime
    lines: tuple[PoolLine, ...]
    notes: tuple[str, ...]
    with_namespace: bool

    def build_table(self) -> Table:
        return build_top_table(self.lines, with_namespace=self.with_namespace)


@contextlib.asynccontextmanager
async def open_picture_reader(
    cluster: UserCluster, pool_name: str | None, detour: Detour | None
) -> AsyncIterator[Callable[[], Awaitable[Picture]]]:
    """Yield a function that looks once at the chosen pools and their queues."""
    figures = FigureReader(RedisLocator(cluster.kube, detour))

    async def read() -> Picture:
        pools = await cluster.choose_pools(pool_name)
        seen = await figures.read(pools)
        now = datetime.now(UTC)
        lines = tuple(build_line(pool, seen[pool.key], now) for pool in pools)
        return Picture(now, lines, tuple(describe_sources(seen.values())), cluster.namespace is None)

    try:
        yield read
    finally:
        await figures.aclose()


def build_screen(picture: Picture | None, trouble: str) -> "RenderableType":
    """Return what to draw; ``trouble`` comes first, and the last picture stays below it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(printable(trouble), style="bold red"))
    if picture is not None:
        parts.append(Text(f"At {format_time(picture.at)}; Ctrl-C ends", style="dim"))
        parts.append(build_rich_table(picture.build_table()))
        parts += (Text(printable(note), style="yellow") for note in picture.notes)
    return Group(*parts)
