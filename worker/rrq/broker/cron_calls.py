"""Cron in Redis: ticks that fire once in the fleet, and the tables of entries that workers publish.

Which entry is due is decided in ``cron.py``; ``cron_table.py`` defines the form of a table.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import ResponseError

from rrq.broker.access import RedisAccess, to_ms
from rrq.broker.cron_table import MOST_ENTRIES, CronTable, NewCronTable, PublishCode, parse_cron_table
from rrq.broker.messages import CronVerdict
from rrq.jobs.codec import decode_all
from rrq.jobs.request import EncodedJob
from rrq.runtime.masking import clean_foreign_text
from rrq.settings import RRQSettings

__all__ = ["CronCalls"]

logger = logging.getLogger(__name__)

_MOST_TABLES = 1_000


class CronCalls(RedisAccess):
    """Fires ticks, and publishes and reads cron tables."""

    def __init__(self, settings: RRQSettings) -> None:
        super().__init__(settings)
        self._problems_by_group: dict[str, str] = {}

    async def fire_cron(
        self, digest: str, tick_ms: int, job: EncodedJob, token: str, unique_ttl_seconds: int | None = None
    ) -> CronVerdict:
        """Enqueue one tick of a cron entry, unless another process has done so."""
        keys = [self.keys.cron_last, self.keys.queue_key(job[4])]
        if unique_ttl_seconds is None:
            unique_ttl_seconds = self.settings.default_unique_job_lock_ttl_seconds
        args = [self.keys.prefix, token, unique_ttl_seconds, digest, tick_ms, *job[:4], 1, *job[4:]]

        def read(code: Any) -> CronVerdict:
            return CronVerdict.FIRED if code >= 0 else CronVerdict(code)

        return await self.connection.run("fire_cron", keys, args, read=read)

    async def note_cron_entries(self, digests: Sequence[str], now: datetime) -> list[datetime]:
        """Return up to when the ticks of each entry are settled: its last fired tick, or when it was first seen.

        An entry that the fleet has not seen before is seen now. ``now`` is by the clock of Redis.
        """

        def read(settled_ms: Any) -> list[datetime]:
            return [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in settled_ms]

        args = [self.keys.prefix, round(now.timestamp() * 1000), *digests]
        return await self.connection.run("note_cron_entries", [self.keys.cron_last], args, read=read)

    async def publish_cron_table(
        self, table: NewCronTable, started_ms: int | None, patience_seconds: float
    ) -> tuple[int, PublishCode]:
        """Publish or renew the table of a group, unless a process that started later publishes it.

        ``started_ms`` is what the first call of this process returned, None for that call. A publisher
        that has not renewed its table for ``patience_seconds`` is taken for gone.
        """
        args = [
            *(self.keys.prefix, table.group, "" if started_ms is None else started_ms, table.text),
            *(to_ms(table.keep_seconds), to_ms(patience_seconds)),
        ]

        def read(reply: Any) -> tuple[int, PublishCode]:
            first_ms, code = reply
            return first_ms, PublishCode(code)

        keys = [self.keys.cron_tables, self.keys.cron_table_key(table.group)]
        return await self.connection.run("publish_cron_table", keys, args, read=read)

    async def read_cron_tables(self) -> tuple[CronTable, ...]:
        """Return all published tables that have entries; what cannot be read is left out and logged."""
        groups = decode_all(
            await self.connection.call("ZREVRANGE", self.keys.cron_tables, 0, _MOST_TABLES - 1)
        )
        # In flight together on the one connection; not a script, so that a reader needs no right to write.
        tables: list[CronTable] = []
        replies = await asyncio.gather(
            *(self._read_cron_table(group, tables) for group in groups), return_exceptions=True
        )
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, ResponseError | ValueError):
                self._log_problem(group, str(reply))
            elif isinstance(reply, BaseException):
                raise reply
        return tuple(tables)

    async def _read_cron_table(self, group: str, tables: list[CronTable]) -> None:
        """Add a table to those that are read already, with as many entries as there is room for."""
        reply = await self.connection.call(
            "HMGET", self.keys.cron_table_key(group), "table", "started_ms", "renewed_ms"
        )
        text, started_ms, renewed_ms = reply
        if not text:
            return
        room = MOST_ENTRIES - sum(len(table.entries) for table in tables)
        table, problems = parse_cron_table(text, int(started_ms or 0), int(renewed_ms or 0), room)
        if problems:
            self._log_problem(group, "; ".join(problems))
        else:
            self._problems_by_group.pop(group, None)
        tables.append(table)

    def _log_problem(self, group: str, problem: str) -> None:
        # Tables are read every few seconds: only a new problem is worth a line.
        problem = clean_foreign_text(problem)
        if self._problems_by_group.get(group) != problem:
            self._problems_by_group[group] = problem
            logger.error(
                "cron table not read in full; start a worker of the application to publish it again",
                extra={"key": self.keys.cron_table_key(group), "error": problem},
            )
