"""Which cron entries an operator fires: those of the manifest, and those that workers have published. Pure.

The operator alone fires the first. Workers fire the second while there are any, and the operator for a pool at zero.
"""

from collections.abc import Collection, Iterable, Sequence

from rrq.broker.cron_table import CronTable
from rrq.cron import CronJob
from rrq_operator.api.spec import PoolSpec


def build_cron_jobs(spec: PoolSpec) -> list[CronJob]:
    """Return the entries of a manifest."""
    return [
        CronJob(
            function_name=entry.function,
            schedule=entry.schedule,
            timezone=entry.time_zone,
            args=entry.args,
            kwargs=entry.kwargs,
            queue_name=entry.queue or spec.queues[0],
            unique=entry.unique,
            misfire_grace_seconds=entry.misfire_grace_seconds,
        )
        for entry in spec.cron
    ]


def split_tables(
    tables: Iterable[CronTable], pools: Sequence[Collection[str]], served: Sequence[Collection[str]]
) -> tuple[list[CronJob], list[CronJob]]:
    """Return the entries of applications without a living worker, and of those with one.

    ``pools``: the queues of each of our pools; tables of other applications are not ours to fire.
    ``served``: the queues of each living worker.
    """
    ours = {frozenset(queues) for queues in pools}
    living = {frozenset(queues) for queues in served}
    away: list[CronJob] = []
    there: list[CronJob] = []
    for table in tables:
        queues = frozenset(table.queues)
        if queues in ours:
            (there if queues in living else away).extend(table.entries)
    return away, there
