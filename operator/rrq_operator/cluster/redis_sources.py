"""Which Redis a pool uses, and with which credentials.

Pools are grouped by the whole of it, address, database, user, password and prefix, so that the queues of one
tenant are never read with the password of another. Secrets are read one by one, by name, and again now and
then: a rotated password shows within seconds, and the number of calls does not grow with the number of pools.
"""

import asyncio
import base64
import binascii
import hmac
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import monotonic

from rrq_operator.api.redis_urls import RedisIdentity, find_url_fault
from rrq_operator.api.spec import Pool
from rrq_operator.cluster.kube import Kube, KubeError, KubeMissing, KubeUnavailable, secrets_path
from rrq_operator.decide.manifests import Manifest

_REFRESH_SECONDS = 10.0
#: A Secret that is missing or cannot be used is usually being created or corrected right now.
_REFRESH_DOUBTFUL_SECONDS = 2.0
_REFRESHES_PER_ROUND = 5
#: On top of those, so that many healthy Secrets do not hold up the one that is being corrected.
_DOUBTFUL_PER_ROUND = 20
#: Of those, so that one tenant with many does not hold up the others.
_DOUBTFUL_PER_NAMESPACE = 2
_READS_AT_ONCE = 20

SecretName = tuple[str, str]


@dataclass(frozen=True)
class RedisSourceTrouble:
    """Why a pool has no Redis."""

    reason: str
    message: str
    is_unread: bool = False
    """Nothing is wrong: the Secret has not been read yet."""


@dataclass(frozen=True)
class SecretVersion:
    """Which value of its Secret a pool uses; empty without a Secret."""

    digest: str = ""
    """Changes with the value, and with nothing else of the Secret."""
    resource_version: str = ""
    """Changes with every change of the Secret."""
    next_digest: str = ""
    """What an operator that starts now takes for the digest: another one if the Secret was made anew with this value."""


@dataclass(frozen=True)
class ResolvedRedis:
    identity: RedisIdentity
    secret_version: SecretVersion


@dataclass(frozen=True)
class _Secret:
    data: dict[str, str]
    trouble: RedisSourceTrouble | None
    read_at: float
    uid: str = ""
    resource_version: str = ""
    is_unanswered: bool = False
    is_refused: bool = False
    """Redis does not accept what it holds."""

    @property
    def is_doubtful(self) -> bool:
        return self.is_refused or self.trouble is not None

    @property
    def stale_at(self) -> float:
        return self.read_at + (_REFRESH_DOUBTFUL_SECONDS if self.is_doubtful else _REFRESH_SECONDS)


@dataclass(frozen=True)
class _Value:
    """One value of a Secret. Its digest stays as it was read first."""

    encoded: str
    url: str
    fault: str | None
    digest: str
    secret_uid: str
    """Of the Secret that holds it now."""
    next_digest: str


class RedisSources:
    """The Secrets that pools name, as last read."""

    def __init__(self, kube: Kube, round_seconds: float | None = None) -> None:
        self._kube = kube
        #: How long a round may take; None for as long as it needs. The next round reads what is left.
        self._round_seconds = round_seconds
        self._secrets: dict[SecretName, _Secret] = {}
        self._values: dict[tuple[SecretName, str], _Value] = {}

    async def refresh(self, pools: Iterable[Pool]) -> None:
        """Read Secrets that are in doubt or new, then a few of those that were read longest ago; forget unused ones."""
        named = {name for pool in pools if (name := _secret_name(pool)) is not None}
        for name in set(self._secrets) - named:
            del self._secrets[name]
        self._values = {place: value for place, value in self._values.items() if place[0] in named}
        wanted = self._choose(named)
        ends_at = None if self._round_seconds is None else monotonic() + self._round_seconds
        for first in range(0, len(wanted), _READS_AT_ONCE):
            batch = wanted[first : first + _READS_AT_ONCE]
            left_seconds = None if ends_at is None else ends_at - monotonic()
            if left_seconds is not None and left_seconds <= 0:
                return
            answers = await asyncio.gather(*(self._read(name, left_seconds) for name in batch))
            self._secrets |= zip(batch, answers, strict=True)
            # While the API server is away, only a few are tried, or a round would take minutes.
            if all(answer.is_unanswered for answer in answers):
                return

    def _choose(self, named: set[SecretName]) -> list[SecretName]:
        """Return the Secrets to read in this round, the most urgent first."""
        stale = sorted(
            (name for name, secret in self._secrets.items() if secret.stale_at < monotonic()),
            key=lambda name: self._secrets[name].stale_at,
        )
        doubtful = [name for name in stale if self._secrets[name].is_doubtful]
        routine = [name for name in stale if not self._secrets[name].is_doubtful]
        fair = [name for place, name in _take_turns(doubtful) if place < _DOUBTFUL_PER_NAMESPACE]
        unread = [name for _, name in _take_turns(name for name in named if name not in self._secrets)]
        return [*fair[:_DOUBTFUL_PER_ROUND], *unread, *routine[:_REFRESHES_PER_ROUND]]

    def doubt(self, pool: Pool) -> None:
        """Have the Secret of a pool read again soon: its password was refused."""
        name = _secret_name(pool)
        if name is not None and name in self._secrets:
            self._secrets[name] = replace(self._secrets[name], is_refused=True)

    def resolve(self, pool: Pool) -> ResolvedRedis | RedisSourceTrouble:
        """Return the Redis of a pool by what has been read; no I/O."""
        redis = pool.spec.redis
        if redis is None:
            return RedisSourceTrouble("NoRedis", "spec.redis is missing: name a url or urlFrom.")
        if redis.url_from is None:
            return ResolvedRedis(RedisIdentity(redis.url or "", redis.key_prefix), SecretVersion())
        reference = redis.url_from.secret_key_ref
        name = pool.namespace, reference.name
        secret = self._secrets.get(name)
        where = f"Secret {pool.namespace}/{reference.name}"
        if secret is None:
            return RedisSourceTrouble("SecretUnread", f"{where} has not been read yet.", is_unread=True)
        if secret.trouble is not None:
            return secret.trouble
        if reference.key not in secret.data:
            return RedisSourceTrouble(
                "SecretKeyMissing",
                f"{where} has no key {reference.key!r}. Add it, or name another in urlFrom.",
            )
        place, encoded = (name, reference.key), secret.data[reference.key]
        value = self._values.get(place)
        if value is None or value.encoded != encoded:
            value = self._values[place] = _read_value(encoded, secret.uid)
        # A Secret that was deleted and made anew with the same value has another uid, and the same digest.
        elif value.secret_uid != secret.uid:
            next_digest = _digest(encoded, secret.uid)
            value = self._values[place] = replace(value, secret_uid=secret.uid, next_digest=next_digest)
        if value.fault is not None:
            return RedisSourceTrouble(
                "InvalidURL",
                f"Key {reference.key!r} of {where} holds no URL that the operator accepts, such as "
                f"redis://user:password@host:6379/0: {value.fault}.",
            )
        version = SecretVersion(value.digest, secret.resource_version, value.next_digest)
        return ResolvedRedis(RedisIdentity(value.url, redis.key_prefix), version)

    async def _read(self, name: SecretName, timeout_seconds: float | None) -> _Secret:
        namespace, secret_name = name
        try:
            raw = await self._ask(f"{secrets_path(namespace)}/{secret_name}", timeout_seconds)
        except KubeMissing:
            trouble = RedisSourceTrouble(
                "SecretMissing",
                f"Secret {namespace}/{secret_name} does not exist. Create it, or correct urlFrom.",
            )
        except KubeError as error:
            known = self._secrets.get(name)
            # What was read before is still the best that is known.
            if known is not None and known.trouble is None:
                return replace(known, read_at=monotonic(), is_unanswered=True)
            trouble = RedisSourceTrouble(
                "SecretUnreadable", f"Secret {namespace}/{secret_name} cannot be read: {error}"
            )
            return _Secret({}, trouble, monotonic(), is_unanswered=isinstance(error, KubeUnavailable))
        else:
            metadata = raw["metadata"]
            return _Secret(
                raw.get("data") or {}, None, monotonic(), metadata["uid"], metadata["resourceVersion"]
            )
        return _Secret({}, trouble, monotonic())

    async def _ask(self, path: str, timeout_seconds: float | None) -> Manifest:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._kube.read(path)
        except TimeoutError:
            raise KubeUnavailable(f"The API server did not answer GET {path} in time.", "Timeout") from None


def _take_turns(names: Iterable[SecretName]) -> list[tuple[int, SecretName]]:
    """Return the names, each with its place in its namespace, so that namespaces take turns."""
    seen: Counter[str] = Counter()
    placed = []
    for name in names:
        placed.append((seen[name[0]], name))
        seen[name[0]] += 1
    return sorted(placed, key=lambda entry: entry[0])


def _secret_name(pool: Pool) -> SecretName | None:
    redis = pool.spec.redis
    if redis is None or redis.url_from is None:
        return None
    return pool.namespace, redis.url_from.secret_key_ref.name


def _read_value(encoded: str, secret_uid: str) -> _Value:
    url = _decode(encoded)
    fault = "it is not UTF-8 text" if url is None else find_url_fault(url)
    digest = _digest(encoded, secret_uid)
    return _Value(encoded, url or "", fault, digest, secret_uid, digest)


def _digest(value: str, secret_uid: str) -> str:
    """Return a digest of a value that may be shown to those who may not read its Secret.

    The uid of the Secret is the key. It is random, and the API server shows it only to clients that may read the Secret, so
    no other client can try passwords against the digest.
    """
    return hmac.new(secret_uid.encode(), value.encode(), "sha256").hexdigest()[:32]


def _decode(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return None
