"""The exception tree: everything RRQ raises on purpose.

::

    Exception
    ├── RRQError
    │   ├── RetryJob                   a handler asks for another attempt
    │   ├── JobNotFound                no job is stored under this id
    │   ├── JobFailed                  a job whose result was waited for has failed for good
    │   ├── JobCancelled               … was cancelled
    │   ├── JobUnfinished              … has not ended in the time it was given
    │   ├── RedisUnavailable           a producer could not reach Redis
    │   │   └── RedisCutOff            … as producers get it: a ConnectionError of redis-py too (broker/connection.py)
    │   ├── NotDurable                 a job is queued, and Redis did not confirm that it is safe
    │   ├── EnqueueError               a job was refused before it reached Redis
    │   │   ├── FunctionDisabled       … a person has disabled its function
    │   │   ├── InvalidJob             … a field has a value no job may have (a ValueError too)
    │   │   └── UnserializableArguments  … JSON cannot express it (a TypeError too)
    │   ├── InvalidLimit               a pause or a limit that makes no sense (a ValueError too)
    │   ├── UnreadableJob              a stored hash is not a job
    │   ├── BurstFailed                a burst ended without being done
    │   │   └── FunctionsMissing       … it ran everything but jobs whose functions it does not have
    │   ├── LeaseLost                  this worker was declared dead and lost its jobs
    │   ├── SettingsError              the settings cannot be loaded or cannot work
    │   ├── RedisServerNotFound        this machine has no Redis or Valkey server to embed (embedded.py)
    │   ├── RedisServerFailed          the embedded server ended or did not answer (embedded.py)
    │   ├── BenchError                 a test calls its bench in a way that makes no sense (testing/bench.py)
    │   └── OrderRefused               the dashboard rejects an order of its user (dashboard/actions.py)
    ├── MaxRetriesExceeded             not below RRQError, as in RRQ 0.7
    └── ClickException                 of click
        └── Refusal                    a command ends with a message and exit code 1 (commands/refusal.py)

``client.py`` turns errors of Redis into RedisUnavailable or EnqueueError; workers wait them out.
Every class survives pickling, because some applications pass results between processes.
"""

from collections.abc import Sequence

from rrq.runtime.error_types import describe_error

__all__ = [
    "BurstFailed",
    "EnqueueError",
    "FunctionDisabled",
    "FunctionsMissing",
    "InvalidJob",
    "InvalidLimit",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobUnfinished",
    "LeaseLost",
    "MaxRetriesExceeded",
    "NotDurable",
    "RRQError",
    "RedisUnavailable",
    "RetryJob",
    "SettingsError",
    "UnreadableJob",
    "UnserializableArguments",
]


# There may be hundreds in a batch; the text names so many of them.
_NAMED_IN_TEXT = 5


class RRQError(Exception):
    """Base of all errors that RRQ raises, so that one ``except`` can catch them."""


class RetryJob(RRQError):
    """Raise this in a handler to have the job tried again.

    It counts as an attempt like any failure. ``defer_seconds`` replaces the usual growing delay;
    ``None`` keeps it.
    """

    def __init__(self, message: str = "Job requested retry", defer_seconds: float | None = None) -> None:
        super().__init__(message)
        self.defer_seconds = defer_seconds


class JobNotFound(RRQError):
    """No job is stored under the id of a handle; client and store return None instead."""


class JobFailed(RRQError):
    """A job whose result was waited for is dead-lettered; ``reason`` is the error of its last attempt.

    ``error_type`` names the exception that it was, as a traceback does; None where no handler raised one.
    """

    def __init__(self, job_id: str, reason: str, error_type: str | None = None) -> None:
        super().__init__(job_id, reason, error_type)
        self.job_id = job_id
        self.reason = reason
        self.error_type = error_type

    def __str__(self) -> str:
        error = describe_error(self.error_type, self.reason) or "no error was stored"
        return (
            f"Job {self.job_id} failed for good: {error}. 'rrq job show {self.job_id}' tells more; "
            "it is among the dead letters, from where it can be requeued."
        )


# Not a CancelledError, which would cancel the task that waits.
class JobCancelled(RRQError):
    """A job whose result was waited for was cancelled, so there is no result."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"Job {self.job_id} was cancelled, so it has no result. Enqueue it again if that was a mistake."
        )


# Not a TimeoutError: raised in a handler that waits for another job, it would count as the handler's own timeout,
# which is not retried.
class JobUnfinished(RRQError):
    """A job has not ended within the timeout of the wait. The job goes on."""

    def __init__(self, job_id: str, waited_seconds: float, status: str) -> None:
        super().__init__(job_id, waited_seconds, status)
        self.job_id = job_id
        self.waited_seconds = waited_seconds
        self.status = status

    def __str__(self) -> str:
        return (
            f"Job {self.job_id} has not ended within {self.waited_seconds:g} s, it is {self.status}. The job "
            "goes on: wait for it again, or see whether workers serve its queue."
        )


class RedisUnavailable(RRQError):
    """Redis did not answer a producer, so it is unknown whether the command took effect.

    ``address`` is host and port only: a URL may hold a password, and this text ends up in logs.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"Redis at {self.address} could not be reached: {self.reason}. "
            "Check RRQ_REDIS_DSN and that Redis accepts connections from here, then try again; "
            "pass the same _job_id to be sure that the job is queued only once."
        )


class NotDurable(RRQError):
    """Jobs were queued, but what ``settings.durability`` asks for was not confirmed in time.

    They will run unless Redis crashes or fails over before it catches up. ``job_ids`` are their ids: a job that is
    still stored under its id, or has run, must not be enqueued again.
    """

    def __init__(self, durability: str, waited_seconds: float, job_ids: Sequence[str] = ()) -> None:
        job_ids = tuple(job_ids)
        super().__init__(durability, waited_seconds, job_ids)
        self.durability = durability
        self.waited_seconds = waited_seconds
        self.job_ids = job_ids

    def __str__(self) -> str:
        witness = "a replica" if self.durability == "replica" else "the disk of Redis"
        named = ", ".join(self.job_ids[:_NAMED_IN_TEXT])
        if len(self.job_ids) > _NAMED_IN_TEXT:
            named += f" and {len(self.job_ids) - _NAMED_IN_TEXT} more"
        return (
            f"The jobs are queued ({named or 'ids unknown'}), but {witness} did not confirm them within "
            f"{self.waited_seconds:g} s (durability {self.durability!r}): a crash of Redis now could lose them. Check "
            "that a replica is connected and keeps up, or that the disk does. Do not simply enqueue them again, they "
            "may be running: look at the status of job_ids later, and enqueue again only those that are gone."
        )


class EnqueueError(RRQError):
    """A job was refused before anything was written to Redis."""


class InvalidJob(EnqueueError, ValueError):
    """A field of the job has a value that cannot be stored or makes no sense."""


class FunctionDisabled(EnqueueError):
    """The function of a job was disabled by a person; nothing of that job was stored."""


class UnserializableArguments(EnqueueError, TypeError):
    """Job data holds something that JSON cannot express.

    Also a TypeError, which is what RRQ 0.7 applications catch.
    """


class InvalidLimit(RRQError, ValueError):
    """What was to be paused or limited does not exist, or the limit cannot be kept."""


class UnreadableJob(RRQError):
    """A job hash in Redis cannot be turned into a ``Job``; ``reason`` names the field at fault."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, reason)
        self.job_id = job_id
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"Job {self.job_id} cannot be read: {self.reason}. "
            f"Inspect it with 'rrq job show {self.job_id}', then enqueue it anew or delete it."
        )


class BurstFailed(RRQError):
    """A burst cannot know that its queues are empty, because Redis gave no answer; or jobs have no handler here."""


class FunctionsMissing(BurstFailed):
    """A burst ran everything else, but put off jobs for which its worker has no handler."""


class LeaseLost(RRQError):
    """The fleet reaped this worker; its jobs belong to others and must be dropped here."""


class SettingsError(RRQError):
    """The settings cannot be loaded, or contradict each other or the installation."""


class MaxRetriesExceeded(Exception):
    """For applications only. Not an RRQError, because RRQ 0.7 code relies on that."""
