"""What a job is, for applications: the job and its status, and what is asked for and answered.

The values themselves live in ``rrq.jobs``, beside the code that writes and reads them.
"""

from rrq.jobs.job import Job, JobResult, JobStatus
from rrq.jobs.options import JobOptions
from rrq.jobs.request import JobRequest, new_job_id

__all__ = ["Job", "JobOptions", "JobRequest", "JobResult", "JobStatus", "new_job_id"]
