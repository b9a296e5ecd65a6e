"""Which Redis a pool uses, by what its Secret holds. The Secrets are read from a stand-in for the API server."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pools import build_pool
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.api.spec import Pool, parse_pool
from rrq_operator.cluster import redis_sources
from rrq_operator.cluster.kube import Kube, KubeMissing, KubeUnavailable
from rrq_operator.cluster.redis_sources import (
    RedisSources,
    RedisSourceTrouble,
    ResolvedRedis,
    SecretVersion,
)

if TYPE_CHECKING:
    from rrq_operator.decide.manifests import Manifest


class Secrets:
    """Answers as the API server would; an API server that hangs cannot be had without waiting for it."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, str]] = {}
        self.annotations = 0
        self.generation = 1
        self.is_away = False
        self.delay_seconds = 0.0
        self.reads: list[str] = []

    async def read(self, path: str) -> Manifest:
        name = path.rpartition("/")[2]
        self.reads.append(name)
        await asyncio.sleep(self.delay_seconds)
        if self.is_away:
            raise KubeUnavailable("The API server did not answer.", "Timeout")
        if name not in self.values:
            raise KubeMissing("not found", "NotFound")
        data = {key: base64.b64encode(value.encode()).decode() for key, value in self.values[name].items()}
        version = str(hash((str(data), self.annotations)))
        return {
            "metadata": {"uid": f"uid-{name}-{self.generation}", "resourceVersion": version},
            "data": data,
        }


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def sources(secrets: Secrets) -> RedisSources:
    return RedisSources(cast("Kube", secrets))


def build(name: str = "emails", **redis: Any) -> Pool:
    redis = redis or {"urlFrom": {"secretKeyRef": {"name": name, "key": "url"}}}
    body = build_pool(name, redis=redis)
    body["metadata"] |= {"namespace": "test", "uid": f"uid-{name}", "generation": 1}
    return parse_pool(body)


async def resolve(sources: RedisSources, pool: Pool) -> ResolvedRedis | RedisSourceTrouble:
    await sources.refresh([pool])
    return sources.resolve(pool)


async def test_pools_with_the_same_url_and_prefix_are_one_identity_and_others_are_not(
    sources: RedisSources, secrets: Secrets
) -> None:
    secrets.values = {
        "a": {"url": "redis://anna:word@host/0"},
        "b": {"url": " redis://anna:word@host/0\n"},
        "c": {"url": "redis://bert:word@host/0"},
    }
    pools = [build(name) for name in "abc"]
    await sources.refresh(pools)
    found = [sources.resolve(pool) for pool in pools]
    assert all(isinstance(one, ResolvedRedis) for one in found)
    a, b, c = (cast("ResolvedRedis", one).identity for one in found)
    assert a == b
    assert a != c
    assert RedisIdentity("redis://host/0", "rrq:") != RedisIdentity("redis://host/1", "rrq:")
    assert RedisIdentity("redis://host/0", "rrq:") != RedisIdentity("redis://host/0", "b:")
    assert "word" not in repr(a)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "SecretMissing"),
        ({"emails": {}}, "SecretKeyMissing"),
        ({"emails": {"url": "http://host"}}, "InvalidURL"),
        ({"emails": {"url": ""}}, "InvalidURL"),
    ],
)
async def test_what_is_wrong_with_a_secret_is_said_with_its_name(
    sources: RedisSources, secrets: Secrets, values: dict[str, dict[str, str]], reason: str
) -> None:
    secrets.values = values
    trouble = await resolve(sources, build())
    assert isinstance(trouble, RedisSourceTrouble)
    assert trouble.reason == reason
    assert "test/emails" in trouble.message


async def test_only_another_value_is_another_digest(
    sources: RedisSources, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sources, "_REFRESH_SECONDS", 0.0)

    async def read_version() -> SecretVersion:
        resolved = await resolve(sources, build())
        assert isinstance(resolved, ResolvedRedis)
        return resolved.secret_version

    secrets.values = {"emails": {"url": "redis://:first@host/0"}}
    first = await read_version()
    secrets.annotations = 1
    annotated = await read_version()
    secrets.values["emails"]["certificate"] = "renewed"
    with_another_key = await read_version()
    secrets.values["emails"]["url"] = "redis://:second@host/0"
    rotated = await read_version()
    secrets.values["emails"]["url"] = "redis://:first@host/0"
    rotated_back = await read_version()

    assert len({first.resource_version, annotated.resource_version, with_another_key.resource_version}) == 3
    digests = [one.digest for one in (annotated, with_another_key, rotated, rotated_back)]
    assert digests == [first.digest, first.digest, rotated.digest, first.digest]
    assert rotated.digest != first.digest


async def test_a_secret_that_was_deleted_and_made_anew_with_the_same_value_has_the_same_digest(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sources, "_REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(redis_sources, "_REFRESH_DOUBTFUL_SECONDS", 0.0)
    sources, later_process = (RedisSources(cast("Kube", secrets)) for _ in range(2))

    async def read_version(by: RedisSources) -> SecretVersion:
        resolved = await resolve(by, build())
        assert isinstance(resolved, ResolvedRedis)
        return resolved.secret_version

    value, other = {"url": "redis://:first@host/0"}, {"url": "redis://:second@host/0"}
    secrets.values = {"emails": value}
    first = await read_version(sources)
    assert first.next_digest == first.digest
    secrets.values = {}
    assert isinstance(await resolve(sources, build()), RedisSourceTrouble)
    secrets.values, secrets.generation = {"emails": value}, 2
    made_anew = await read_version(sources)
    assert made_anew.digest == first.digest
    later = await read_version(later_process)
    assert later.digest != first.digest, "a process that has not seen the first cannot know"
    assert later.digest == made_anew.next_digest, "but finds what the one before left on the Deployment"
    secrets.values, secrets.generation = {"emails": other}, 3
    changed = await read_version(sources)
    assert changed.digest == changed.next_digest not in (first.digest, later.digest)


async def test_a_digest_cannot_be_guessed_without_the_uid_of_the_secret(
    sources: RedisSources, secrets: Secrets
) -> None:
    secrets.values = {name: {"url": "redis://:word@host/0"} for name in "ab"}
    pools = [build(name) for name in "ab"]
    await sources.refresh(pools)
    found = [sources.resolve(pool) for pool in pools]

    digests = {one.secret_version.digest for one in found if isinstance(one, ResolvedRedis)}
    assert len(digests) == 2, "the same value in another Secret has another digest"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://anna:wo%0d%0ard@host/0", "choose a user name and a password without them"),
        ("redis://an%00na:word@host/0", "choose a user name and a password without them"),
        ("redis://anna:wo\x01rd@host/0", "choose a user name and a password without them"),
        ("redis://host/0?password=word%250d", "choose a user name and a password without them"),
        ("redis://anna:wo\u2028rd@host/0", "choose a user name and a password without them"),
        ("unix:///var/run/word.sock", "write host and port"),
        ("redis://", "write host and port"),
        ("redis:///0", "write host and port"),
        ("redis://:6379/0", "write host and port"),
        ("redis://?db=1", "write host and port"),
        ("rediss://anna:word@/0", "write host and port"),
        ("redis://:wo/rd@host/0", "'/', '?' and '#' of a password as %2F"),
        ("redis+sentinel://a:1,:2/main", "write host and port"),
        ("rediss://anna:word@host/0?ssl_keyfile=/etc/tls.key", "the operator opens no files for a URL"),
        ("rediss://anna:word@host/0?db=1&ssl_certfile=/etc/tls.crt", "the operator opens no files for a URL"),
        ("rediss://anna:word@host/0?ssl_ca_certs=/etc/ca.crt", "SSL_CERT_FILE of the operator"),
        ("redis://anna:word@host/0?%73sl_keyfile=/etc/tls.key", "the operator opens no files for a URL"),
        ("redis://anna:word@host/0?parser_class=word", "a URL may have the options client_name, db"),
        ("redis://anna:word@host/0?client_name=" + "a" * 3000, "more than 2048 characters"),
    ],
)
async def test_a_url_that_reaches_into_the_operator_is_refused_with_advice(
    sources: RedisSources, secrets: Secrets, url: str, advice: str
) -> None:
    secrets.values = {"emails": {"url": url}}
    trouble = await resolve(sources, build())
    assert isinstance(trouble, RedisSourceTrouble)
    assert trouble.reason == "InvalidURL"
    assert "Key 'url' of Secret test/emails" in trouble.message
    assert advice in trouble.message
    assert "anna:wo" not in trouble.message
    assert len(trouble.message) < 1000


@pytest.mark.parametrize(
    "url",
    [
        "redis://anna:w%40r%2Fd%25@host:6379/3",
        "rediss://anna:word@host/0?ssl_cert_reqs=none&ssl_check_hostname=false",
        "redis+sentinel://anna:word@a:1,b:2/main/0?sentinel_username=s&sentinel_password=t",
        "redis://anna:w@rd@[2001:db8::1]:6379",
        "redis://host?db=1&username=anna&password=word&client_name=shop",
        "redis://host?socket_timeout=3&retry_on_timeout=1&max_connections=5&health_check_interval=30&protocol=3",
    ],
)
async def test_a_url_may_say_how_to_log_in_and_how_programs_wait(
    sources: RedisSources, secrets: Secrets, url: str
) -> None:
    secrets.values = {"emails": {"url": url}}
    found = await resolve(sources, build())
    assert isinstance(found, ResolvedRedis)
    assert found.identity.url == url


async def test_a_refused_password_is_read_again_soon_but_not_every_round(
    sources: RedisSources, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets.values = {"emails": {"url": "redis://:old@host/0"}}
    pool = build()
    await resolve(sources, pool)
    for _ in range(5):
        sources.doubt(pool)
        await sources.refresh([pool])
    assert len(secrets.reads) == 1
    monkeypatch.setattr(redis_sources, "_REFRESH_DOUBTFUL_SECONDS", 0.0)
    secrets.values = {"emails": {"url": "redis://:new@host/0"}}
    found = await resolve(sources, pool)
    assert isinstance(found, ResolvedRedis)
    assert found.identity.url == "redis://:new@host/0"


async def test_with_the_api_server_away_what_was_known_stays_even_if_it_is_in_doubt(
    sources: RedisSources, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets.values = {"emails": {"url": "redis://:old@host/0"}}
    pool = build()
    before = await resolve(sources, pool)
    monkeypatch.setattr(redis_sources, "_REFRESH_DOUBTFUL_SECONDS", 0.0)
    secrets.is_away = True
    sources.doubt(pool)
    assert await resolve(sources, pool) == before
    assert len(secrets.reads) == 2


async def test_an_api_server_that_is_away_is_not_asked_for_hundreds_of_secrets(
    sources: RedisSources, secrets: Secrets
) -> None:
    secrets.is_away = True
    pools = [build(f"pool-{number}") for number in range(200)]
    await sources.refresh(pools)
    assert len(secrets.reads) <= 20
    unread = [pool for pool in pools if cast("RedisSourceTrouble", sources.resolve(pool)).is_unread]
    assert len(unread) >= 180, "nothing is said of those that had no turn yet"
    secrets.is_away = False
    secrets.values = {pool.name: {"url": "redis://host/0"} for pool in pools}
    await sources.refresh(pools)
    assert sum(isinstance(sources.resolve(pool), ResolvedRedis) for pool in pools) >= 180


async def test_many_doubtful_secrets_of_one_namespace_do_not_hold_up_those_of_another(
    sources: RedisSources, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sources, "_REFRESH_DOUBTFUL_SECONDS", 0.0)
    pools = [build(f"missing-{number}") for number in range(30)]
    other = replace(build("other"), namespace="other")
    await sources.refresh([*pools, other])
    secrets.reads.clear()
    await sources.refresh([*pools, other])
    assert len(secrets.reads) == 3
    assert "other" in secrets.reads


async def test_a_round_ends_in_time_and_the_next_goes_on(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = RedisSources(cast("Kube", secrets), round_seconds=200)
    # Each read takes three seconds, by a clock that only reads move.
    monkeypatch.setattr(redis_sources, "monotonic", lambda: 3.0 * len(secrets.reads))
    secrets.values = {f"pool-{number}": {"url": "redis://host/0"} for number in range(200)}
    pools = [build(name) for name in secrets.values]
    await sources.refresh(pools)
    assert 20 <= len(secrets.reads) < 200
    monkeypatch.undo()
    await sources.refresh(pools)
    assert sum(isinstance(sources.resolve(pool), ResolvedRedis) for pool in pools) >= 160
