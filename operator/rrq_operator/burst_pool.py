"""A burst pool: one Job at a time, started when ``bursts.py`` says so. A Job that runs is never touched."""

import logging
from time import monotonic, time

from rrq_operator.bursts import RunDecision, RunMemory, decide_run
from rrq_operator.children import describe_fault
from rrq_operator.kube import KubeConflict, KubeError, jobs_path
from rrq_operator.manifests import build_job, build_selector, job_name
from rrq_operator.reporting import Reporter
from rrq_operator.shell import Round, Shell
from rrq_operator.spec import Pool
from rrq_operator.status import Fault, Picture, build_job_status
from rrq_operator.views import JobView, PoolKey, owner_uid_of, parse_job, parse_time

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0


class BurstPool:
    """Decides each round without waiting; acts when there is something to do."""

    wants_another_look = False
    #: Nobody waits for a pod before its work is due: a run finds what is due when it starts.
    horizon_seconds = 0.0

    def __init__(self, key: PoolKey, shell: Shell) -> None:
        self._key = key
        self._shell = shell
        self._reporter = Reporter(key, shell)
        self._started = 0
        self._last_schedule_at: float | None = None
        self._decision: RunDecision | None = None
        self._fault: Fault | None = None
        self._retry_at = 0.0
        self._may_start = False
        self._told_failed: set[str] = set()

    def decide(self, this_round: Round, pool: Pool) -> bool:
        """Take one decision; returns whether there is anything to do about it."""
        jobs = self._own_jobs(pool)
        memory = self._remember(this_round, jobs)
        due = _count_due(this_round)
        # A run that was started a moment ago may not be in the watch yet.
        is_lagging = (
            self._started > max((job.run for job in jobs), default=0) and monotonic() < self._retry_at
        )
        self._decision = decide_run(pool.spec.runs, jobs, due, memory, this_round.record.created_at, time())
        if self._decision.schedule_at is not None:
            self._last_schedule_at = self._decision.schedule_at
        picture = Picture(
            pool=pool,
            queues=None if this_round.seen is None else this_round.seen.queues,
            queue_fault=this_round.queue_fault,
            child_fault=self._fault,
            scale_fault=None,
            pods=list(self._shell.world.pods.get(self._key, {}).values()),
            now=time(),
        )
        status, conditions = build_job_status(
            picture, self._decision, jobs, memory.runs, self._last_schedule_at or memory.last_schedule_at
        )
        has_news = self._reporter.note(this_round, status, conditions)
        self._may_start = (
            self._decision.start is not None
            and this_round.secret_version is not None
            and not is_lagging
            and monotonic() >= self._retry_at
        )
        return has_news or self._may_start or bool(self._decision.expire)

    async def act(self, this_round: Round, pool: Pool) -> None:
        """Start a run if one is to be started, let old ones go, tell of it."""
        decision = self._decision
        assert decision is not None, "decide comes first"
        try:
            if self._may_start and decision.start is not None:
                await self._start(pool, decision, this_round.secret_version or "")
            for name in decision.expire:
                path = f"{jobs_path(pool.namespace)}/{name}"
                ttl = pool.spec.runs.ttl_seconds_after_finished
                await self._shell.kube.merge(path, {"spec": {"ttlSecondsAfterFinished": ttl}})
            self._fault = None
        except KubeConflict:
            # Another operator has started this run, or the watch is behind: the next round sees it.
            self._retry_at = monotonic() + 1.0
        except KubeError as error:
            self._shell.metrics.api_errors.labels(error.reason or "Other").inc()
            self._retry_at = monotonic() + _RETRY_SECONDS
            self._fault = describe_fault(error)
        await self._tell_failures(pool)
        await self._reporter.warn_of_unseen_queues(this_round)
        await self._reporter.write()

    async def _start(self, pool: Pool, decision: RunDecision, secret_version: str) -> None:
        assert decision.start is not None
        kube, path = self._shell.kube, jobs_path(pool.namespace)
        # Not from the cache: what another operator started a moment ago must be seen.
        listed, _ = await kube.list_all(path, selector=build_selector(pool))
        known = [parse_job(raw) for raw in listed if owner_uid_of(raw) == pool.uid]
        if any(not job.is_finished or job.run >= decision.start for job in known):
            self._retry_at = monotonic() + 1.0
            return
        await kube.create(path, build_job(pool, decision.start, secret_version))
        self._started = decision.start
        self._retry_at = monotonic() + 3.0
        self._shell.metrics.decisions.labels(*self._key, decision.reason).inc()
        await self._reporter.tell("RunStarted", f"{job_name(pool, decision.start)}: {decision.words}")

    async def _tell_failures(self, pool: Pool) -> None:
        failed = {job.name: job for job in self._own_jobs(pool) if job.is_finished and not job.has_succeeded}
        for name in failed.keys() - self._told_failed:
            await self._reporter.tell("RunFailed", f"{name}: {failed[name].message}", is_warning=True)
        self._told_failed = set(failed)

    def _own_jobs(self, pool: Pool) -> list[JobView]:
        return [
            job for job in self._shell.world.jobs.get(self._key, {}).values() if job.owner_uid == pool.uid
        ]

    def _remember(self, this_round: Round, jobs: list[JobView]) -> RunMemory:
        """Put together what is known of earlier runs: from the status, the Jobs and this process."""
        told = this_round.record.status.get("job") or {}
        moments = [
            *(parse_time(told[name]) for name in ("lastScheduleTime",) if name in told),
            # A run that was started although its status could not be written any more has served its tick.
            *(job.created_at for job in jobs),
        ]
        if self._last_schedule_at is not None:
            moments.append(self._last_schedule_at)
        return RunMemory(
            runs=max(int(told.get("runs", 0)), self._started),
            last_schedule_at=max(moments, default=None),
        )


def _count_due(this_round: Round) -> int | None:
    seen = this_round.seen
    if seen is None or any(name not in seen.queues for name in this_round.queue_names):
        return None
    return sum(seen.queues[name].due for name in this_round.queue_names)
