"""Which Redis a pool uses on this machine: named, or embedded where the manifest leaves it to the cluster."""

from dataclasses import dataclass

from rrq_operator.api.spec import PoolSpec

DEFAULT_KEY_PREFIX = "rrq:"


@dataclass(frozen=True)
class RedisChoice:
    """``dsn`` None stands for a server of our own, for ``reason``."""

    dsn: str | None
    key_prefix: str
    reason: str = ""


def choose_redis(spec: PoolSpec, option: str | None, variable: str | None) -> RedisChoice:
    """``option`` wins over the manifest; ``variable`` stands in for a Secret, which only a cluster has."""
    source = spec.redis
    prefix = DEFAULT_KEY_PREFIX if source is None else source.key_prefix
    if option:
        return RedisChoice(option, prefix)
    if source is None:
        return RedisChoice(None, prefix, "the manifest names no Redis")
    if source.url is not None:
        return RedisChoice(source.url, prefix)
    if variable:
        return RedisChoice(variable, prefix)
    assert source.url_from is not None  # a rule of the spec: one of the two
    secret = source.url_from.secret_key_ref
    return RedisChoice(
        None,
        prefix,
        f"the manifest takes its URL from Secret {secret.name}, and neither --redis-url nor RRQ_REDIS_DSN is given",
    )
