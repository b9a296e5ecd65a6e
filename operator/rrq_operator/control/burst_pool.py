"""A burst pool: one Job at a time, started when ``decide/bursts.py`` says so. A Job that runs is never touched."""

import logging
from collections.abc import Iterable
from time import monotonic, time

from rrq_operator.api.pool_status import RunsStatus
from rrq_operator.api.spec import Pool
from rrq_operator.cluster.cluster_cache import PoolRecord, parse_status
from rrq_operator.cluster.kube import (
    KubeConflict,
    KubeError,
    KubeMissing,
    KubeRefused,
    describe_fault,
    jobs_path,
    pods_path,
    pools_path,
)
from rrq_operator.cluster.redis_sources import SecretVersion
from rrq_operator.control.pool_group import Round
from rrq_operator.control.reporting import ReportingPool
from rrq_operator.control.services import Services
from rrq_operator.decide.bursts import BurstInput, RunDecision, RunMemory, decide_run, measure_work
from rrq_operator.decide.manifests import build_job, build_selector, job_name
from rrq_operator.decide.objects import JobObject, PodObject, owner_uid_of, parse_job, parse_pod
from rrq_operator.decide.status import NAME_TAKEN_REASON, Fault, build_burst_status

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
#: How long the watch may take to show what was written, or what another operator has written.
_WATCH_LAG_SECONDS = 3.0
_LOOK_AGAIN_SECONDS = 1.0
#: More Jobs of others in a row than a pool that was made anew leaves behind.
_MOST_TAKEN_NAMES = 50


class BurstPool(ReportingPool):
    """Decides each round without waiting; acts when there is something to do."""

    #: No pod is needed before its work is due: a run finds what is due when it starts.
    horizon_seconds = 0.0

    def __init__(self, record: PoolRecord, services: Services) -> None:
        super().__init__(record, services)
        self._created_at = record.created_at
        self._started = 0
        self._last_schedule_at: float | None = None
        self._decision: RunDecision | None = None
        self._fault: Fault | None = None
        self._retry_at = 0.0
        self._may_start = False
        self._reported_failed: set[str] | None = None

    def decide(self, this_round: Round) -> bool:
        """Take one decision; returns whether there is anything to do about it."""
        pool = this_round.pool
        jobs = self._own_jobs(pool)
        pods = list(self._services.cluster_cache.pods.get(self._key, {}).values())
        memory = self._remember(jobs)
        if self._reported_failed is None:
            self._reported_failed = _find_reported(self._runs_status, jobs)
        given = BurstInput(
            jobs,
            measure_work(this_round.seen, self.queue_names, is_paused=this_round.is_paused),
            self._created_at,
            time(),
            is_pod_left=any(map(_is_run_under_way, pods)),
        )
        decision = self._decision = decide_run(pool.spec.runs, given, memory)
        if decision.start is None:
            # Only what was asked for can have been refused.
            self._fault = None
            self._last_schedule_at = decision.schedule_at or self._last_schedule_at
        snapshot = self._take_snapshot(this_round, pods, self._fault)
        last_schedule_at = self._last_schedule_at or memory.last_schedule_at
        status = build_burst_status(snapshot, decision, jobs, memory.runs, last_schedule_at)
        self._note_status(this_round, status)
        self._report_failures(jobs)
        may_write = monotonic() >= self._retry_at
        # A run that was just started may not be in the watch yet; then `_retry_at` is not over either.
        self._may_start = decision.start is not None and self.secret_version is not None and may_write
        return self._may_start or (may_write and bool(decision.expire))

    async def act(self, this_round: Round) -> None:
        """Start a run if one is to be started, let old ones expire."""
        pool, decision = this_round.pool, self._decision
        assert decision is not None, "decide comes first"
        try:
            if self._may_start:
                version = self.secret_version or SecretVersion()
                await self._start(pool, decision, version.digest)
            await self._expire(pool, decision)
        except KubeConflict:
            # Another operator has started this run, or the watch is behind: the next round sees it.
            self._retry_at = monotonic() + _LOOK_AGAIN_SECONDS
        except KubeError as error:
            self._services.metrics.api_errors.labels(error.reason or "Other").inc()
            self._retry_at = monotonic() + _RETRY_SECONDS
            self._fault = describe_fault(error)
            logger.warning(
                "cannot start a run or expire old ones",
                extra={"namespace": pool.namespace, "resource": pool.name, "error": str(error)},
            )

    async def _start(self, pool: Pool, decision: RunDecision, secret_digest: str) -> None:
        assert decision.start is not None
        if not await self._is_still_wanted(pool, decision.start):
            self._retry_at = monotonic() + _LOOK_AGAIN_SECONDS
            return
        self._started = await self._create(pool, decision.start, secret_digest)
        self._last_schedule_at = decision.schedule_at or self._last_schedule_at
        self._fault = None
        self._retry_at = monotonic() + _WATCH_LAG_SECONDS
        self._services.metrics.decisions.labels(*self._key, decision.reason).inc()
        words = decision.words
        if self._started != decision.start:
            words += ", under the next number whose name is free"
        self.reporter.say("RunStarted", f"{job_name(pool, self._started)}: {words}")

    async def _create(self, pool: Pool, run: int, secret_digest: str) -> int:
        """Create the Job of a run; returns its number, which is higher where names are taken by Jobs of others.

        Every operator walks the same numbers and stops at a Job of this pool, so that two still collide.
        """
        path = jobs_path(pool.namespace)
        for number in range(run, run + _MOST_TAKEN_NAMES):
            try:
                await self._services.kube.create(path, build_job(pool, number, secret_digest))
            except KubeConflict as conflict:
                if not await self._is_of_another(f"{path}/{job_name(pool, number)}", pool):
                    raise
                taken = conflict
            else:
                return number
        raise KubeRefused(
            f"The Jobs {pool.namespace}/{job_name(pool, run)} to -{number} exist and do not belong to this pool; "
            "they are left alone. Delete them, or rename the pool.",
            NAME_TAKEN_REASON,
        ) from taken

    async def _is_of_another(self, job_path: str, pool: Pool) -> bool:
        try:
            return owner_uid_of(await self._services.kube.read(job_path)) != pool.uid
        except KubeMissing:
            return False  # gone meanwhile, or it was not the name that was refused

    async def _is_still_wanted(self, pool: Pool, run: int) -> bool:
        """Ask the API server itself: the watch may not show yet what another operator or a person has done."""
        kube = self._services.kube
        try:
            raw = await kube.read(f"{pools_path(pool.namespace)}/{pool.name}")
        except KubeMissing:
            return False
        metadata, runs = raw["metadata"], parse_status(raw).job or RunsStatus()
        is_same = (metadata["uid"], metadata["generation"]) == (pool.uid, pool.generation)
        if not is_same or "deletionTimestamp" in metadata or (runs.runs or 0) >= run:
            return False
        listed, _ = await kube.list_all(jobs_path(pool.namespace), selector=build_selector(pool))
        jobs = [parse_job(job) for job in listed if owner_uid_of(job) == pool.uid]
        if any(not job.is_finished or job.run >= run for job in jobs):
            return False
        # The pod of a Job that was deleted by hand outlives it while it drains.
        listed, _ = await kube.list_all(pods_path(pool.namespace), selector=build_selector(pool))
        return not any(_is_run_under_way(parse_pod(pod)) for pod in listed)

    async def _expire(self, pool: Pool, decision: RunDecision) -> None:
        change = {"spec": {"ttlSecondsAfterFinished": pool.spec.runs.ttl_seconds_after_finished}}
        for name in decision.expire:
            try:
                await self._services.kube.merge(f"{jobs_path(pool.namespace)}/{name}", change)
            except KubeMissing:
                continue  # deleted already

    def _report_failures(self, jobs: Iterable[JobObject]) -> None:
        failed = {job.name: job for job in jobs if job.is_finished and not job.has_succeeded}
        for name in failed.keys() - (self._reported_failed or set()):
            # In the words of the condition, which makes the same event unless another run failed right before.
            words = f"run {failed[name].run} failed: {failed[name].message}"
            self.reporter.say("RunFailed", words, is_warning=True)
        self._reported_failed = set(failed)

    def _own_jobs(self, pool: Pool) -> list[JobObject]:
        known = self._services.cluster_cache.jobs.get(self._key, {}).values()
        return [job for job in known if job.owner_uid == pool.uid]

    @property
    def _runs_status(self) -> RunsStatus:
        record = self._services.cluster_cache.pools.get(self._key)
        return RunsStatus() if record is None or record.status.job is None else record.status.job

    def _remember(self, jobs: list[JobObject]) -> RunMemory:
        """Put together what is known of earlier runs: from the status, the Jobs and this process."""
        known = self._runs_status
        # A run that was started although its status could not be written any more has served its tick.
        moments = [job.created_at for job in jobs]
        if known.last_schedule_time is not None:
            moments.append(known.last_schedule_time.timestamp())
        if self._last_schedule_at is not None:
            moments.append(self._last_schedule_at)
        return RunMemory(
            runs=max(known.runs or 0, self._started), last_schedule_at=max(moments, default=None)
        )


def _find_reported(known: RunsStatus, jobs: list[JobObject]) -> set[str]:
    """Return the runs whose end an earlier process has reported: each failure makes one event."""
    if known.last_finish_time is None:
        return set()
    until = known.last_finish_time.timestamp()
    return {job.name for job in jobs if job.finished_at is not None and job.finished_at <= until}


def _is_run_under_way(pod: PodObject) -> bool:
    return pod.owner_kind == "Job" and not pod.has_ended
