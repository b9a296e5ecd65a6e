"""The constants are a contract: applications and other engines rely on each value."""

from rrq import constants

CONTRACT = {
    "DEFAULT_QUEUE_NAME": "rrq:queue:default",
    "DEFAULT_DLQ_NAME": "rrq:dlq:default",
    "JOB_KEY_PREFIX": "rrq:job:",
    "QUEUE_KEY_PREFIX": "rrq:queue:",
    "DLQ_KEY_PREFIX": "rrq:dlq:",
    "ACTIVE_JOBS_PREFIX": "rrq:active:",
    "LOCK_KEY_PREFIX": "rrq:lock:job:",
    "UNIQUE_JOB_LOCK_PREFIX": "rrq:lock:unique:",
    "HEALTH_KEY_PREFIX": "rrq:health:worker:",
    "RETRY_COUNTER_PREFIX": "rrq:retry_count:",
    "ACTIVE_QUEUES_SET": "rrq:active:queues",
    "ACTIVE_WORKERS_SET": "rrq:active:workers",
    "MONITOR_EVENTS_STREAM": "rrq:monitor:events",
    "DEFAULT_MAX_RETRIES": 5,
    "DEFAULT_JOB_TIMEOUT_SECONDS": 300,
    "DEFAULT_LOCK_TIMEOUT_EXTENSION_SECONDS": 60,
    "DEFAULT_RESULT_TTL_SECONDS": 86400,
    "DEFAULT_DLQ_RESULT_TTL_SECONDS": 604800,
    "DEFAULT_UNIQUE_JOB_LOCK_TTL_SECONDS": 21600,
    "DEFAULT_POLL_DELAY_SECONDS": 0.1,
    "DEFAULT_WORKER_ID_PREFIX": "rrq_worker_",
    "CONNECTION_POOL_MAX_CONNECTIONS": 20,
}


def test_constants_have_the_values_shared_with_rrq_0_7() -> None:
    assert {name: value for name, value in vars(constants).items() if name.isupper()} == CONTRACT
