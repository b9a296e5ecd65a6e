"""The Redis of a pool: where it is, how the caller reaches it, and how a command runs on it."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from rrq.broker.connection import LOST_REPLY_ERRORS, is_refused_login
from rrq.broker.keys import Keys
from rrq.commands.options import name_login
from rrq.commands.output import print_note
from rrq.commands.redis_access import Work, run_on_store
from rrq.commands.refusal import Refusal
from rrq.exc import RRQError
from rrq.runtime.masking import mask_secrets, mask_url
from rrq.settings import RRQSettings
from rrq.store import JobStore
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.cluster.kube import Kube
from rrq_operator.cluster.redis_sources import RedisSources, RedisSourceTrouble
from rrq_operator.plugin.options import Access, Target
from rrq_operator.plugin.pools import SeenPool, open_cluster

T = TypeVar("T")

_URL_VARIABLE = "RRQ_REDIS_DSN"
#: Short, because a person waits: a host that does not answer in this time cannot be reached from here.
_CONNECT_SECONDS = 3.0


class RedisTrouble(RRQError):
    """The Redis of a pool cannot be read; the message contains no password."""


@dataclass(frozen=True)
class RedisOverride:
    """A URL that the caller named instead of the URL of the pool."""

    url: str
    lends_credentials: bool
    """Whether it may get user and password of the pool. Not when it comes from a variable, which may be set for
    another purpose."""


@dataclass(frozen=True)
class RedisAddress:
    """Where the queues of a pool are."""

    identity: RedisIdentity
    namespace: str
    is_override: bool

    def open(self) -> JobStore:
        """Return a store; nothing is sent yet. Raises RedisTrouble for a URL that can never work."""
        try:
            return JobStore(
                RRQSettings(
                    redis_dsn=self.identity.url,
                    key_prefix=self.identity.key_prefix,
                    redis_connect_timeout_seconds=_CONNECT_SECONDS,
                    # The environment may have settings of an application; the pool has its own.
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
            return f"Redis at {shown} rejected the login or the command: {reason}."
        if not isinstance(error, LOST_REPLY_ERRORS):
            return f"Redis at {shown} refused a command: {reason}."
        if self.is_override:
            advice = "Check that the port-forward still runs, and --redis-url or RRQ_REDIS_DSN."
        else:
            advice = build_forward_advice(self.identity.url, self.namespace)
        return f"Redis at {shown} cannot be reached from here: {reason}. {advice}"


def choose_override(redis_url: str | None) -> RedisOverride | None:
    """Return the URL that the option or the environment names, if any."""
    if redis_url is not None:
        return RedisOverride(redis_url, lends_credentials=True)
    from_environment = os.environ.get(_URL_VARIABLE)
    if not from_environment:
        return None
    print_note(
        f"Note: Redis is read at {mask_url(from_environment)}, from {_URL_VARIABLE}, instead of the URL of the pool."
    )
    return RedisOverride(from_environment, lends_credentials=False)


class RedisLocator:
    """Finds the Redis of pools by the Secrets that the caller may read."""

    def __init__(self, kube: Kube, override: RedisOverride | None) -> None:
        self._sources = RedisSources(kube)
        self._override = override

    async def locate(self, pools: Sequence[SeenPool]) -> dict[tuple[str, str], RedisAddress | RedisTrouble]:
        """Return where the queues of each pool are, or why that is unknown."""
        override = self._override
        if override is None or override.lends_credentials:
            await self._sources.refresh([pool.pool for pool in pools if pool.pool is not None])
        is_ambiguous = override is not None and len({_source(pool) for pool in pools}) > 1
        return {pool.key: self._locate(pool, is_ambiguous) for pool in pools}

    def _locate(self, seen: SeenPool, is_ambiguous: bool) -> RedisAddress | RedisTrouble:
        pool, override = seen.pool, self._override
        if pool is None:
            return RedisTrouble(f"Pool {seen.title} cannot be read by this version: {seen.fault}")
        own = self._sources.resolve(pool)
        if override is None:
            if isinstance(own, RedisSourceTrouble):
                return RedisTrouble(_explain(own))
            return RedisAddress(own.identity, seen.namespace, is_override=False)
        if is_ambiguous:
            return RedisTrouble(
                "These pools use several Redis, and --redis-url or RRQ_REDIS_DSN replaces only one: name one pool."
            )
        url = override.url
        if override.lends_credentials and not isinstance(own, RedisSourceTrouble):
            url = add_credentials(url, own.identity.url)
        prefix = "rrq:" if pool.spec.redis is None else pool.spec.redis.key_prefix
        return RedisAddress(RedisIdentity(url, prefix), seen.namespace, is_override=True)


@dataclass(frozen=True)
class PoolRedis:
    """One pool and its Redis, for commands that read or change its jobs."""

    pool: SeenPool
    address: RedisAddress
    actor: str
    """Who acts, for the audit: the user of the kubeconfig, else the login name."""

    def run(self, work: Work[T]) -> T:
        """Run ``work`` on the Redis of the pool. Raises Refusal when that fails."""
        return run_on_store(self.address.open(), work, self.address.describe)

    def choose_queues(self, queue_name: str | None) -> tuple[str, ...]:
        """Return the short name of this queue, or those of all queues of the pool. Raises Refusal for another queue."""
        shorten = Keys(self.address.identity.key_prefix).queue_name
        queues = tuple(map(shorten, self.pool.queues))
        if queue_name is None:
            return queues
        if shorten(queue_name) not in queues:
            raise Refusal(
                f"ERROR: Pool {self.pool.title} does not serve queue {queue_name}, but {', '.join(queues)}."
            )
        return (shorten(queue_name),)

    def name_target(self, target: Target) -> str:
        """Return the target as Redis stores it. Raises Refusal for a queue that the pool does not serve."""
        if target.is_workers:
            return f"pool:{self.pool.title}"
        if target.queue_name is not None:
            return f"queue:{self.choose_queues(target.queue_name)[0]}"
        return f"function:{target.function_name}"


def find_pool_redis(pool_name: str, access: Access, redis_url: str | None) -> PoolRedis:
    """Find the pool and its Redis. Raises Refusal when either cannot be found; connects only to the cluster."""
    return asyncio.run(_find_pool_redis(pool_name, access, choose_override(redis_url)))


async def _find_pool_redis(pool_name: str, access: Access, override: RedisOverride | None) -> PoolRedis:
    async with open_cluster(access) as cluster:
        pool = await cluster.read_pool(pool_name)
        actor = cluster.kube.user or name_login()
        address = (await RedisLocator(cluster.kube, override).locate([pool]))[pool.key]
    if isinstance(address, RedisTrouble):
        raise Refusal(f"ERROR: {address}") from address
    return PoolRedis(pool, address, actor)


def add_credentials(url: str, own_url: str) -> str:
    """Return ``url`` with user and password of ``own_url``, unless it has its own or is not a network address."""
    parts, own = _split(url), _split(own_url)
    if parts is None or own is None or not parts.netloc or "@" in parts.netloc:
        return url
    credentials, at, _ = own.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{parts.netloc}").geturl()


def build_forward_advice(url: str, pool_namespace: str) -> str:
    """Return the commands that connect to a Redis inside the cluster; pure."""
    parts = _split(url)
    host = "" if parts is None else (parts.hostname or "")
    labels = host.split(".")
    is_service = (
        bool(host) and (len(labels) <= 2 or labels[2] == "svc") and not host.replace(".", "").isdigit()
    )
    if parts is None or not is_service or "+" in parts.scheme:
        return "Run this where Redis can be reached, or forward a port to it and pass --redis-url."
    namespace = labels[1] if len(labels) > 1 else pool_namespace
    port, database = parts.port or 6379, parts.path.strip("/") or "0"
    return (
        f"Run `kubectl port-forward --namespace {namespace} svc/{labels[0]} {port}` "
        f"and pass --redis-url {parts.scheme}://127.0.0.1:{port}/{database}"
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port that is not a number
        return parts
    except ValueError:
        return None


def _source(seen: SeenPool) -> object:
    """Return what differs between two Redis, without reading a Secret."""
    redis = seen.pool.spec.redis if seen.pool is not None else None
    if redis is None or redis.url_from is None:
        return redis and redis.url
    reference = redis.url_from.secret_key_ref
    return seen.namespace, reference.name, reference.key


def _explain(trouble: RedisSourceTrouble) -> str:
    if trouble.reason != "SecretUnreadable":
        return trouble.message
    return f"{trouble.message.rstrip('.')}. Get the right to read it, or pass --redis-url with user and password."
