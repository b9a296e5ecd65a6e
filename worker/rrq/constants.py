"""Names and numbers that RRQ 0.7 applications import by name.

They describe the default key space (prefix ``rrq:``) and the default limits. Keys for another
prefix are made in ``broker/keys.py``; options that a deployment may change live in ``settings.py``.
"""

from typing import Final

DEFAULT_QUEUE_NAME: Final = "rrq:queue:default"
DEFAULT_DLQ_NAME: Final = "rrq:dlq:default"

JOB_KEY_PREFIX: Final = "rrq:job:"
QUEUE_KEY_PREFIX: Final = "rrq:queue:"
DLQ_KEY_PREFIX: Final = "rrq:dlq:"
ACTIVE_JOBS_PREFIX: Final = "rrq:active:"
LOCK_KEY_PREFIX: Final = "rrq:lock:job:"
UNIQUE_JOB_LOCK_PREFIX: Final = "rrq:lock:unique:"
HEALTH_KEY_PREFIX: Final = "rrq:health:worker:"
# Kept only because applications may import it: the count lives in the job hash.
RETRY_COUNTER_PREFIX: Final = "rrq:retry_count:"

ACTIVE_QUEUES_SET: Final = "rrq:active:queues"
ACTIVE_WORKERS_SET: Final = "rrq:active:workers"
MONITOR_EVENTS_STREAM: Final = "rrq:monitor:events"

DEFAULT_MAX_RETRIES: Final = 5
DEFAULT_JOB_TIMEOUT_SECONDS: Final = 300
DEFAULT_LOCK_TIMEOUT_EXTENSION_SECONDS: Final = 60
DEFAULT_RESULT_TTL_SECONDS: Final = 86_400
DEFAULT_DLQ_RESULT_TTL_SECONDS: Final = 604_800
DEFAULT_UNIQUE_JOB_LOCK_TTL_SECONDS: Final = 21_600
DEFAULT_POLL_DELAY_SECONDS: Final = 0.1

DEFAULT_WORKER_ID_PREFIX: Final = "rrq_worker_"
CONNECTION_POOL_MAX_CONNECTIONS: Final = 20
