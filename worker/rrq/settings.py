"""Every setting of client, worker and store, with its unit and the reason for its default.

A setting is a keyword argument or an environment variable ``RRQ_<NAME>``; the former wins. Applications change fields of
a live object, so readers look at the field each time they need it, and assignment is not validated. The settings of
Redis are in ``runtime/redis_settings.py``. ``settings_loading.py`` reads ``.env`` files and ``--settings``;
``broker/connection.py`` turns the DSN into connections.

No name here may end in ``_host`` or ``_port``, nor contain ``_service_``: Kubernetes injects
``RRQ_REDIS_PORT=tcp://…`` and the like for a Service called ``rrq-redis``.
"""

import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import Field, field_validator, model_validator

from rrq.constants import (
    DEFAULT_DLQ_NAME,
    DEFAULT_DLQ_RESULT_TTL_SECONDS,
    DEFAULT_JOB_TIMEOUT_SECONDS,
    DEFAULT_LOCK_TIMEOUT_EXTENSION_SECONDS,
    DEFAULT_MAX_RETRIES,
    DEFAULT_POLL_DELAY_SECONDS,
    DEFAULT_QUEUE_NAME,
    DEFAULT_RESULT_TTL_SECONDS,
    DEFAULT_UNIQUE_JOB_LOCK_TTL_SECONDS,
)
from rrq.cron import CronJob
from rrq.flow import Limit
from rrq.middleware import Middleware, check_middleware
from rrq.registry import JobRegistry
from rrq.runtime.redis_settings import RedisSettings
from rrq.runtime.suggestions import suggest

__all__ = ["RRQSettings"]

# Two renewals may get lost before the lease ends.
_RENEWALS_PER_LEASE: Final = 3
# Half a lease without any heartbeat counts as an outage of Redis, after which no worker is reaped for one lease. A fleet
# of one worker must not look like that, even when a heartbeat is a little late.
_LONGEST_RENEWAL_SHARE: Final = 0.4
# From the validator through pydantic and pydantic-settings to the line that builds the settings.
_FRAMES_TO_CALLER: Final = 4


class RRQSettings(RedisSettings):
    """The configuration of one application."""

    # What the application brings

    on_startup: Callable[[], Awaitable[None]] | None = Field(
        default=None, description="Awaited once before a worker claims its first job."
    )
    on_shutdown: Callable[[], Awaitable[None]] | None = Field(
        default=None, description="Awaited once after a worker has drained."
    )
    job_registry: JobRegistry | None = Field(
        default=None, description="The handlers; a worker started by the command line needs one."
    )
    middleware: list[Middleware] = Field(
        default_factory=list,
        description="Async functions around every handler, the first one outermost; see rrq.middleware.",
    )
    cron_jobs: list[CronJob] = Field(
        default_factory=list,
        description="Periodic jobs. The objects are kept, not copied: a worker advances them.",
    )
    event_handlers: list[str] = Field(
        default_factory=list, description="Dotted paths of RRQHook classes to load."
    )
    metrics_exporter: str | None = Field(
        default=None, description="'prometheus', 'statsd' or the dotted path of an exporter class."
    )

    # Jobs

    default_queue_name: str = Field(default=DEFAULT_QUEUE_NAME, description="Queue of jobs that name none.")
    default_dlq_name: str = Field(
        default=DEFAULT_DLQ_NAME, description="Dead letter queue for jobs that failed for good."
    )
    default_max_retries: int = Field(
        default=DEFAULT_MAX_RETRIES, description="Attempts in total before a job is dead-lettered."
    )
    default_job_timeout_seconds: int = Field(
        default=DEFAULT_JOB_TIMEOUT_SECONDS,
        description="Seconds one attempt may take; an attempt that takes longer is not retried.",
    )
    default_lock_timeout_extension_seconds: int = Field(
        default=DEFAULT_LOCK_TIMEOUT_EXTENSION_SECONDS,
        description="Seconds a processing lock outlives the timeout of its job, for late clean-up.",
    )
    default_result_ttl_seconds: int = Field(
        default=DEFAULT_RESULT_TTL_SECONDS,
        description="Seconds a result is kept; 0 keeps it for ever.",
    )
    default_dlq_result_ttl_seconds: int = Field(
        default=DEFAULT_DLQ_RESULT_TTL_SECONDS,
        gt=0,
        description="Seconds a dead-lettered job is kept: a week, to look at after a holiday.",
    )
    default_unique_job_lock_ttl_seconds: int = Field(
        default=DEFAULT_UNIQUE_JOB_LOCK_TTL_SECONDS,
        description="Seconds after which a unique key is free again even if its job never ends.",
    )
    max_job_payload_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=0,
        description=(
            "Largest arguments, as JSON, that a producer accepts; 0 for no limit. Redis is one "
            "thread: a huge value stalls every worker, so store the data elsewhere and send its id."
        ),
    )
    expected_job_ttl: int = Field(
        default=30,
        description="Seconds a job usually takes; twice that is how long its last run is known.",
    )
    base_retry_delay_seconds: float = Field(
        default=5.0, description="Seconds before the first retry; doubled for each further one."
    )
    max_retry_delay_seconds: float = Field(
        default=3600.0, description="Seconds that the growing retry delay never exceeds."
    )

    misfire_grace_seconds: float = Field(
        default=300.0,
        ge=1,
        description=(
            "Seconds by which a tick of a cron entry may fire late, after a restart or an outage. Of several missed "
            "ticks only the last one fires. A tick that is later than this is skipped."
        ),
    )

    limits: dict[str, Limit] = Field(
        default_factory=dict,
        description=(
            "How much may run at once or start in a time, in the whole fleet: 'function:NAME' or 'queue:NAME' to a "
            "Limit. Workers publish them when they start; 'rrq limit' changes them at run time."
        ),
    )

    # Worker

    worker_queue_weights: dict[str, float] = Field(
        default_factory=dict,
        description=(
            "Shares of the queues while all of them have work, such as {'high': 6, 'default': 3, 'low': 1}; a queue "
            "that is not named counts 1. Empty: the queues are served in the order in which they are listed."
        ),
    )
    worker_concurrency: int = Field(default=10, description="Jobs in progress at once, per process.")
    worker_sync_handler_threads: int | None = Field(
        default=None,
        gt=0,
        description=(
            "Threads for plain (non-async) handlers, per process; None for worker_concurrency. "
            "Fewer when such handlers are heavy, as threads share one CPU."
        ),
    )
    default_poll_delay_seconds: float = Field(
        default=DEFAULT_POLL_DELAY_SECONDS,
        description="Seconds to the next look at a queue after the first one that found nothing.",
    )
    worker_idle_poll_max_seconds: float = Field(
        default=1.0,
        gt=0,
        description=(
            "Seconds that the growing delay between empty polls never exceeds. Producers of RRQ "
            "0.7 send no wake-up, so this is how long their jobs may wait for an idle worker."
        ),
    )
    worker_health_check_interval_seconds: int | float = Field(
        default=60, description="Seconds that decide, with the buffer, how long a record lives."
    )
    worker_health_check_ttl_buffer_seconds: float = Field(
        default=10.0,
        ge=0,
        description="Seconds a health record outlives its interval, so that a late one is no gap.",
    )
    worker_lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description=(
            "Seconds without a sign of life after which the jobs of a worker run elsewhere. "
            "Shorter recovers sooner; longer forgives slower networks and pauses."
        ),
    )
    worker_lease_renewal_seconds: float | None = Field(
        default=None,
        gt=0,
        description=(
            "Seconds between signs of life, at most 0.4 of the lease; None for a third of the lease, so that two "
            "lost ones still leave a chance."
        ),
    )
    worker_crash_limit: int = Field(
        default=3,
        ge=1,
        description=("Times a job may take its worker down while running alone before it is dead-lettered."),
    )
    worker_lost_limit: int = Field(
        default=5,
        ge=1,
        description=(
            "Times a job may lose its worker for no known reason before it runs alone; if it loses another one "
            "then, it is dead-lettered. A job that needs more memory than its container has ends the whole pod, "
            "and no process is left to report a crash. An attempt that ends normally starts the count anew."
        ),
    )
    unknown_function_patience_seconds: float = Field(
        default=3600.0,
        ge=0,
        description=(
            "Seconds that a job waits for a worker with its function, from when it first meets one without; then "
            "it is dead-lettered. An hour outlasts a roll-out. 0 dead-letters at once."
        ),
    )
    worker_loop_stall_limit_seconds: float = Field(
        default=30.0,
        gt=0,
        description=(
            "Seconds the event loop may stand still beyond the deadlines of all its jobs. Until "
            "a deadline a blocking handler is within its rights; after that the process is hung."
        ),
    )
    worker_shutdown_grace_period_seconds: float = Field(
        default=10.0,
        description="Seconds that running jobs get to finish before they are handed back.",
    )
    worker_redis_patience_seconds: float = Field(
        default=30.0,
        ge=0,
        description=(
            "Seconds without an answer of Redis after which a pod says that it is not ready. Long enough "
            "for a restart or a fail-over, which must not make a whole fleet unready."
        ),
    )
    worker_start_limit_seconds: float = Field(
        default=600.0,
        gt=0,
        description=(
            "Seconds a worker process may take from its start to its first claim, imports and on_startup "
            "included, before it is killed and started anew. Loading a large model takes minutes."
        ),
    )
    worker_recycle_jobs: int | None = Field(
        default=None,
        gt=0,
        description="Jobs after which a worker process is drained and replaced; None for never.",
    )
    worker_recycle_rss_bytes: int | None = Field(
        default=None,
        gt=0,
        description=(
            "Memory in bytes beyond which a worker process is drained and replaced; None for never. "
            "For handlers that leak: set it well below the memory limit of the container."
        ),
    )
    worker_burst_redis_patience_seconds: float = Field(
        default=30.0,
        ge=0,
        description=(
            "Seconds a burst worker waits for an unreachable Redis before it gives up with an "
            "error, because it cannot know whether there is work left."
        ),
    )
    worker_burst_linger_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Seconds a burst worker waits for further jobs, such as retries, before it ends.",
    )

    @property
    def lease_renewal_seconds(self) -> float:
        """Seconds between two renewals, with the default applied."""
        if self.worker_lease_renewal_seconds is not None:
            # Applications may assign to the field of a live object, which is not validated.
            return min(self.worker_lease_renewal_seconds, self._longest_renewal_seconds)
        return self.worker_lease_seconds / _RENEWALS_PER_LEASE

    @property
    def _longest_renewal_seconds(self) -> float:
        # Rounded, so that 0.28 of 0.7 is not too much.
        return round(self.worker_lease_seconds * _LONGEST_RENEWAL_SHARE, 6)

    @property
    def health_ttl_seconds(self) -> int:
        """Seconds after which a health record that is not renewed expires."""
        return int(self.worker_health_check_interval_seconds + self.worker_health_check_ttl_buffer_seconds)

    @property
    def sync_handler_threads(self) -> int:
        """Threads for plain handlers, with the default applied."""
        if self.worker_sync_handler_threads is not None:
            return self.worker_sync_handler_threads
        return self.worker_concurrency

    @field_validator("middleware")
    @classmethod
    def _check_middleware(cls, value: list[Middleware]) -> list[Middleware]:
        return [check_middleware(layer) for layer in value]

    @field_validator("worker_queue_weights")
    @classmethod
    def check_weights(cls, value: dict[str, float]) -> dict[str, float]:
        for name, weight in value.items():
            if not 0.001 <= weight <= 1_000_000:
                raise ValueError(f"the weight of queue {name!r} must be 0.001 to 1,000,000")
        return value

    @field_validator("limits")
    @classmethod
    def _check_limits(cls, value: dict[str, Limit]) -> dict[str, Limit]:
        for target, limit in value.items():
            limit.check(target)
        return value

    @model_validator(mode="before")
    @classmethod
    def _warn_of_unknown_names(cls, given: Any) -> Any:
        # Ignored as in RRQ 0.7, but with a warning. A subclass may take values under other names.
        is_open = cls.model_config.get("extra") == "allow" or any(
            field.alias or field.validation_alias for field in cls.model_fields.values()
        )
        for name in given if isinstance(given, dict) and not is_open else ():
            if name not in cls.model_fields:
                warnings.warn(
                    f"{cls.__name__} has no setting {name!r}, so it is ignored.{suggest(name, cls.model_fields)}",
                    stacklevel=_FRAMES_TO_CALLER,
                )
        return given

    @model_validator(mode="after")
    def _check_lease(self) -> "RRQSettings":
        if (self.worker_lease_renewal_seconds or 0.0) > self._longest_renewal_seconds:
            raise ValueError(
                f"worker_lease_renewal_seconds is {self.worker_lease_renewal_seconds:g}, and may be at most "
                f"{self._longest_renewal_seconds:g}, which is 0.4 of worker_lease_seconds. RRQ takes a longer "
                "silence for an outage of Redis, and would not recover the jobs of dead workers. Lower it, or raise "
                "worker_lease_seconds."
            )
        return self
