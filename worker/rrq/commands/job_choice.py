"""Which jobs a command is about."""

from dataclasses import dataclass

import click

from rrq.commands.refusal import Refusal
from rrq.inspect.jobs import read_stored_job
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

dlq_name_option = click.option(
    "--dlq-name", help="Dead letter queue. Default: default_dlq_name of the settings."
)


@dataclass(frozen=True)
class JobFilter:
    """What a job must be like; None lets everything pass."""

    queue_name: str | None = None
    function_name: str | None = None
    status: str | None = None

    @property
    def is_open(self) -> bool:
        return self.queue_name is None and self.function_name is None and self.status is None

    def matches(self, store: JobStore, job: StoredJob) -> bool:
        if self.status is not None and job.status != self.status.upper():
            return False
        if self.function_name is not None and job.function_name != self.function_name:
            return False
        if self.queue_name is None:
            return True
        return store.keys.queue_name(self.queue_name) == short_queue_name(store, job)


def short_queue_name(store: JobStore, job: StoredJob) -> str:
    """The queue of a job; producers spell the same queue in several ways, or leave it out."""
    return store.keys.queue_name(job.queue_name or store.settings.default_queue_name)


async def read_chosen_job(store: JobStore, job_id: str) -> StoredJob:
    """Read the job that the user named. Raises Refusal when there is none."""
    job = await read_stored_job(store, job_id)
    if job is None:
        raise job_not_found(job_id)
    return job


def job_not_found(job_id: str) -> Refusal:
    return Refusal(
        f"Job '{job_id}' not found. 'rrq job list' shows those there are; one that ended is forgotten when its "
        "result_ttl_seconds are over, and RRQ_REDIS_DSN or --settings may name another Redis."
    )
