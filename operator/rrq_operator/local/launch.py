"""How a replica is started: its command line and its variables. Pure."""

import sys
from collections.abc import Mapping

from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool, PoolSpec
from rrq_operator.local.guard import SESSION_VARIABLE


def build_command(spec: PoolSpec) -> list[str]:
    """Return what a container of the pool would run, with this Python."""
    size = (
        ["--burst", "--burst-linger", str(spec.runs.linger_seconds)]
        if spec.type == "Job"
        else ["--num-workers", str(spec.worker.count_processes())]
    )
    return [
        *(sys.executable, "-m", "rrq", "worker", "run"),
        *("--settings", spec.worker.settings),
        *(part for queue in spec.queues for part in ("--queue", queue)),
        *size,
        # Port 0: the system chooses a free one, and the log tells which.
        *("--http", "127.0.0.1:0"),
        *("--log-format", "json"),
    ]


def build_environment(
    pool: Pool, redis: RedisIdentity, pod_uid: str, session: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a replica: the inherited ones, those of the manifest, and what the pool decides."""
    return {
        **inherited,
        **{
            str(entry["name"]): str(entry["value"])
            for entry in pool.spec.worker.env
            if "name" in entry and "value" in entry
        },
        "RRQ_ENVIRONMENT_WINS": "1",
        "RRQ_POD_UID": pod_uid,
        "RRQ_POOL": pool.qualified_name,
        "RRQ_REDIS_DSN": redis.url,
        "RRQ_KEY_PREFIX": redis.key_prefix,
        **pool.spec.worker_settings,
        SESSION_VARIABLE: session,
    }


def find_missing_variables(spec: PoolSpec, inherited: Mapping[str, str]) -> list[str]:
    """Return what a cluster would set and this machine does not: variables from Secrets, ConfigMaps and fields."""
    named = [
        str(entry.get("name"))
        for entry in spec.worker.env
        if "value" not in entry and "valueFrom" in entry and entry.get("name") not in inherited
    ]
    sources = [
        str(reference.get("name"))
        for entry in spec.worker.env_from
        for reference in entry.values()
        if isinstance(reference, Mapping)
    ]
    return [*named, *(f"all of {source}" for source in sources)]
