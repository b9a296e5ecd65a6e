"""The Redis keys of flow control, cron, pools, statistics and the dashboard; ``keys.py`` has those of jobs and workers.

The docstrings are the rows of docs/reference/keys.md, as told there.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

DEFAULT_PREFIX: Final = "rrq:"


@dataclass(frozen=True)
class ControlKeys:
    """Names the keys by which people and operators control and watch one deployment."""

    prefix: str = DEFAULT_PREFIX

    def slots_key(self, scope: str) -> str:
        """Set of the jobs that run under a limit.

        Lives while one of them runs.
        """
        return f"{self.prefix}slots:{scope}"

    def blocked_key(self, scope: str) -> str:
        """Sorted set of jobs that a pause or a limit blocks, scored by when they were due.

        Lives while one of them waits.
        """
        return f"{self.prefix}parked:{scope}"

    def rate_key(self, scope: str) -> str:
        """Sorted set of the last starts under a rate limit; for a limit with a burst a hash with its bucket.

        Lives for as long as it can block a job: twice the time of the limit, or what filling the
        bucket takes.
        """
        return f"{self.prefix}rate:{scope}"

    def stats_key(self, minute: int) -> str:
        """Hash of what happened in one minute, which is counted since 1970.

        Lives for a day and an hour.
        """
        return f"{self.prefix}stats:{minute}"

    def decisions_key(self, pool: str) -> str:
        """Stream of the last 500 or so scaling decisions about a pool (``namespace/name``).

        Lives for a week after the last one.
        """
        return f"{self.prefix}pool:{pool}:decisions"

    def cron_table_key(self, group: str) -> str:
        """Hash with the cron table of a group of workers.

        Lives for 35 days after it was last renewed, and for as long as its rarest entry waits; an
        empty one for an hour.
        """
        return f"{self.prefix}cron:table:{group}"

    def ended_sessions_key(self, role: str) -> str:
        """Sorted set of dashboard sessions that were signed out, at most a thousand, scored by expiry in Unix seconds.

        Lives for 13 hours after the last one.
        """
        return f"{self.prefix}dashboard:ended:{role}"

    @cached_property
    def active_queues(self) -> str:
        """Sorted set of recently active queues, scored by Unix seconds.

        Lives while queues are served; one that is not is dropped from it within a day.
        """
        return f"{self.prefix}active:queues"

    @cached_property
    def active_workers(self) -> str:
        """Sorted set of recently active workers, scored by Unix seconds.

        Lives while there are workers.
        """
        return f"{self.prefix}active:workers"

    @cached_property
    def monitor_stream(self) -> str:
        """Stream of monitoring events, the last thousand or so.

        Lives for ever.
        """
        return f"{self.prefix}monitor:events"

    @cached_property
    def cron_last(self) -> str:
        """Hash of the last tick (ms) of each cron entry that fired in the fleet, or ``seen <ms>`` when it was first seen.

        Lives for ever.
        """
        return f"{self.prefix}cron:last"

    @cached_property
    def cron_tables(self) -> str:
        """Sorted set of the groups that have a ``cron_table_key``, scored by its end in ms.

        Lives as long as the last of those tables.
        """
        return f"{self.prefix}cron:tables"

    @cached_property
    def notify_channel(self) -> str:
        """Channel on which operators and live views hear that a queue has changed.

        Lives nowhere: Redis stores no message, so a message only reaches those who listen.
        """
        return f"{self.prefix}notify"

    @cached_property
    def pauses(self) -> str:
        """Hash of what is paused or disabled: target (``queue:…``, ``function:…``, ``pool:…``) to JSON.

        Lives until everything is resumed.
        """
        return f"{self.prefix}pauses"

    @cached_property
    def limits(self) -> str:
        """Hash of limits that applications declare: target to JSON.

        Lives until an application no longer declares them.
        """
        return f"{self.prefix}limits"

    @cached_property
    def limit_overrides(self) -> str:
        """Hash of limits that people have set in the place of those.

        Lives until they are removed.
        """
        return f"{self.prefix}limits:override"

    @cached_property
    def blocked_scopes(self) -> str:
        """Sorted set of the scopes that have a ``blocked_key``, scored by when to look at them again in ms.

        Lives while a job is blocked.
        """
        return f"{self.prefix}parked"

    @cached_property
    def missing_functions(self) -> str:
        """Sorted set of queues with functions that a worker of theirs lately lacked, a hundred at most, scored by when in ms.

        Lives for a day after the last of them.
        """
        return f"{self.prefix}functions:missing"

    @cached_property
    def recent(self) -> str:
        """List of the last thousand jobs that ended (up to a hundred more), the newest first.

        Lives for ever.
        """
        return f"{self.prefix}recent"

    @cached_property
    def audit(self) -> str:
        """Stream of what people did to queues, functions and jobs; the last ten thousand entries or so.

        Lives for ever.
        """
        return f"{self.prefix}audit"

    @cached_property
    def pools(self) -> str:
        """Hash of the pools that an operator sizes: ``namespace/name`` to JSON.

        Lives while there are pools; one is removed from it when it is deleted.
        """
        return f"{self.prefix}pools"
