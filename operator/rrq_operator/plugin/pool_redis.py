"""Which Redis belongs to a pool, how the caller reaches it, and what to say when it cannot be reached."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from rrq.broker.connection import LOST_REPLY_ERRORS, is_refused_login
from rrq.commands.output import print_note
from rrq.exc import RRQError
from rrq.runtime.masking import mask_secrets, mask_url
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.cluster.kube import Kube
from rrq_operator.cluster.redis_sources import RedisSources, RedisSourceTrouble
from rrq_operator.plugin.pools import SeenPool

_URL_VARIABLE = "RRQ_REDIS_DSN"
#: A host that does not answer within this is not reachable from here; a person waits for it.
_CONNECT_SECONDS = 3.0


class RedisTrouble(Exception):
    """The Redis of a pool cannot be read; the message has no password in it."""


@dataclass(frozen=True)
class Detour:
    """A way to Redis that the caller named instead of that of the pool."""

    url: str
    lends_credentials: bool
    """Whether it may be given user and password of the pool: not when it comes from a variable that was
    perhaps set for something else."""


@dataclass(frozen=True)
class RedisAddress:
    """Where the queues of a pool are."""

    identity: RedisIdentity
    namespace: str
    is_detour: bool

    def open(self) -> JobStore:
        """Return a store; nothing is sent yet. Raises RedisTrouble for a URL that can never work."""
        try:
            return JobStore(
                RRQSettings(
                    redis_dsn=self.identity.url,
                    key_prefix=self.identity.key_prefix,
                    redis_connect_timeout_seconds=_CONNECT_SECONDS,
                    # The shell may hold settings of an application; the pool has its own.
                    redis_sentinel_hosts=[],
                    redis_sentinel_service=None,
                )
            )
        except (RRQError, ValueError) as error:
            raise RedisTrouble(mask_secrets(str(error))) from error

    def describe(self, error: BaseException) -> str:
        """Return what happened, to which Redis, and what to do."""
        shown = mask_url(self.identity.url)
        reason = mask_secrets(str(error)).rstrip(".") or type(error).__name__
        if is_refused_login(error):
            return f"Redis at {shown} refuses user or password, or what they may do: {reason}."
        if not isinstance(error, LOST_REPLY_ERRORS):
            return f"Redis at {shown} refused a command: {reason}."
        if self.is_detour:
            advice = "Does the port-forward still run? --redis-url and RRQ_REDIS_DSN say where to look."
        else:
            advice = build_forward_advice(self.identity.url, self.namespace)
        return f"Redis at {shown} cannot be reached from here: {reason}. {advice}"


def choose_detour(redis_url: str | None) -> Detour | None:
    """Return the way that the option or the environment names, if any does."""
    if redis_url is not None:
        return Detour(redis_url, lends_credentials=True)
    from_environment = os.environ.get(_URL_VARIABLE)
    if not from_environment:
        return None
    print_note(
        f"Note: Redis is read at {mask_url(from_environment)}, as {_URL_VARIABLE} says, not where the pool says."
    )
    return Detour(from_environment, lends_credentials=False)


class RedisLocator:
    """Finds the Redis of pools by the Secrets that the caller may read."""

    def __init__(self, kube: Kube, detour: Detour | None) -> None:
        self._sources = RedisSources(kube)
        self._detour = detour

    async def locate(self, pools: Sequence[SeenPool]) -> dict[tuple[str, str], RedisAddress | RedisTrouble]:
        """Return for each pool where its queues are, or why that is not known."""
        detour = self._detour
        if detour is None or detour.lends_credentials:
            await self._sources.refresh([pool.pool for pool in pools if pool.pool is not None])
        is_ambiguous = detour is not None and len({_source(pool) for pool in pools}) > 1
        return {pool.key: self._locate(pool, is_ambiguous) for pool in pools}

    def _locate(self, seen: SeenPool, is_ambiguous: bool) -> RedisAddress | RedisTrouble:
        pool, detour = seen.pool, self._detour
        if pool is None:
            return RedisTrouble(f"Pool {seen.title} cannot be read by this version: {seen.fault}")
        own = self._sources.resolve(pool)
        if detour is None:
            if isinstance(own, RedisSourceTrouble):
                return RedisTrouble(_explain(own))
            return RedisAddress(own.identity, seen.namespace, is_detour=False)
        if is_ambiguous:
            return RedisTrouble(
                "These pools name several Redis, and --redis-url or RRQ_REDIS_DSN can stand for one only: "
                "name one pool."
            )
        url = detour.url
        if detour.lends_credentials and not isinstance(own, RedisSourceTrouble):
            url = add_credentials(url, own.identity.url)
        prefix = "rrq:" if pool.spec.redis is None else pool.spec.redis.key_prefix
        return RedisAddress(RedisIdentity(url, prefix), seen.namespace, is_detour=True)


def add_credentials(url: str, own_url: str) -> str:
    """Return ``url`` with user and password of the pool's own, unless it has some or is no network address."""
    parts, own = _split(url), _split(own_url)
    if parts is None or own is None or not parts.netloc or "@" in parts.netloc:
        return url
    credentials, at, _ = own.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{parts.netloc}").geturl()


def build_forward_advice(url: str, pool_namespace: str) -> str:
    """Return the commands that open a way to a Redis inside of the cluster; pure."""
    parts = _split(url)
    host = "" if parts is None else (parts.hostname or "")
    labels = host.split(".")
    is_service = (
        bool(host) and (len(labels) <= 2 or labels[2] == "svc") and not host.replace(".", "").isdigit()
    )
    if parts is None or not is_service or "+" in parts.scheme:
        return "Run this where it can be reached, or forward a port to it and pass --redis-url."
    namespace = labels[1] if len(labels) > 1 else pool_namespace
    port, database = parts.port or 6379, parts.path.strip("/") or "0"
    return (
        f"Run `kubectl port-forward --namespace {namespace} svc/{labels[0]} {port}` "
        f"and pass --redis-url {parts.scheme}://127.0.0.1:{port}/{database}"
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # read here, because only this tells that it is no number
        return parts
    except ValueError:
        return None


def _source(seen: SeenPool) -> object:
    """Return what tells one Redis from another without reading any Secret."""
    redis = seen.pool.spec.redis if seen.pool is not None else None
    if redis is None or redis.url_from is None:
        return redis and redis.url
    reference = redis.url_from.secret_key_ref
    return seen.namespace, reference.name, reference.key


def _explain(trouble: RedisSourceTrouble) -> str:
    if trouble.reason != "SecretUnreadable":
        return trouble.message
    return (
        f"{trouble.message.rstrip('.')}. Have the right to get it granted, or pass --redis-url with user and "
        "password."
    )
