"""JobHandle: one job as the producer that enqueued it sees it, with the type of its result.

``RRQClient.wait_for_completion`` waits; here its answers become a value or an exception.
"""

from typing import Generic, TypeVar, cast

from rrq.broker.messages import CancelCode
from rrq.client import RRQClient
from rrq.exc import JobCancelled, JobFailed, JobNotFound, JobUnfinished
from rrq.job import JobResult, JobStatus

__all__ = ["JobHandle"]

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    """A job that was enqueued. Its ``id`` is enough to find it again."""

    def __init__(self, job_id: str, client: RRQClient) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    async def result(self, *, timeout_seconds: float = 30.0) -> R_co:
        """Wait for the end of the job and return what its function returned.

        The result travels as JSON: a tuple comes back as a list, a model as a dict. Raises JobFailed when the
        job was dead-lettered, JobCancelled, JobUnfinished when the time is up before, and JobNotFound when
        there is no such job (any more: a result is kept for ``result_ttl_seconds``). Retries are waited for.
        """
        seen = await self._client.wait_for_completion(self.id, timeout_seconds=timeout_seconds)
        if seen is None:
            # There is no such job, or the time is up: another look shows which.
            seen = await self._client.get_job_status(self.id)
        return self._unpack(seen, timeout_seconds)

    def _unpack(self, seen: JobResult | None, waited_seconds: float) -> R_co:
        if seen is None:
            raise JobNotFound(
                f"There is no job {self.id}. It may have ended so long ago that its result has expired: "
                "wait for it sooner, or enqueue it with a larger result_ttl_seconds."
            )
        match seen.status:
            case JobStatus.COMPLETED:
                return cast(R_co, seen.result)
            case JobStatus.FAILED:
                raise JobFailed(self.id, seen.last_error or "", seen.error_type)
            case JobStatus.CANCELLED:
                raise JobCancelled(self.id)
            case status:
                raise JobUnfinished(self.id, waited_seconds, status.value)

    async def status(self) -> JobStatus | None:
        """Return where the job stands, or None when there is no such job (any more)."""
        seen = await self._client.get_job_status(self.id)
        return None if seen is None else seen.status

    async def cancel(self) -> CancelCode:
        """Cancel the job while it is queued, or ask its worker to; returns what happened."""
        return await self._client.cancel(self.id)
