"""``JobStore``, for applications: all calls to one Redis, under the names of RRQ 0.7 where it had one."""

from rrq.broker.job_store import JobStore

__all__ = ["JobStore"]
