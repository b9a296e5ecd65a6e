"""One Redis, as operator and local mode use it: observe, listen, flag pods, report deaths, fire cron entries.

Every failure becomes a QueueTrouble with words for a condition; nothing here decides anything.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic

from pydantic import ValidationError

from rrq import RRQClient, RRQSettings
from rrq.broker.connection import LOST_REPLY_ERRORS, NONSENSE, REDIS_ERRORS, is_refused_login
from rrq.broker.cron_table import CronTable
from rrq.broker.messages import Admission, DeathCertificate, Observation
from rrq.cron import CronJob
from rrq.engine.cron_scheduler import CronTracker
from rrq.exc import RRQError, SettingsError
from rrq.flow import PoolReport
from rrq.runtime.masking import MASK, clean_foreign_text, mask_secrets, mask_url
from rrq_operator.api.redis_urls import RedisIdentity, drop_client_options, find_passwords
from rrq_operator.decide.deaths import Deaths
from rrq_operator.decide.publishing import Publication
from rrq_operator.redis.complaints import Complaint

logger = logging.getLogger(__name__)

#: Redis refused the credentials: the Secret may have newer ones.
REFUSED_LOGIN_REASON = "AuthenticationFailed"

#: Longer than a healthy Redis ever takes; a round must not hang on a dead one.
_TIMEOUT_SECONDS = 2.0
#: For a whole operation, opening a connection and retries included.
_CALL_SECONDS = 5.0
#: The largest legitimate reply tells of 10,000 workers in 300 bytes and 11 values each, with many queues per worker in
#: more bytes. A Redis that sends more counts as unreadable: it would cost all tenants memory and time.
_MOST_REPLY_BYTES = 8 * 1024 * 1024
_MOST_REPLY_VALUES = 150_000
#: A flag outlives the operator by this long, so that a pool is not left half drained.
DRAIN_SECONDS = 30.0
#: Three renewals fit into the life of a flag.
_RENEW_DRAIN_SECONDS = DRAIN_SECONDS / 3
_SHORTEST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 2.0
#: The rest is left for the next round, or all pools would wait for it.
_MOST_SWEEPS = 4
#: As much as a hundred busy queues announce, each every 50 ms. An announcement that is read late only brings a look that the
#: poll of each second brings as well.
_HEARD_AT_ONCE = 20
_HEARD_PER_SECOND = 2000


class QueueTrouble(Exception):
    """Redis could not be asked. The message has no password in it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RedisQueues:
    """The queues, workers and cron entries of one Redis identity.

    Raises QueueTrouble when its URL cannot be used at all.
    """

    def __init__(
        self,
        identity: RedisIdentity,
        may_write: Callable[[], bool] = lambda: True,
        on_call: Callable[[float], None] = lambda count: None,
    ) -> None:
        """``may_write`` is asked before every write; ``on_call`` gets the number of calls that are made."""
        self.identity = identity
        self._may_write = may_write
        self._on_call = on_call
        self._unreadable, self._misheard = Complaint(), Complaint()
        self._client = _open_client(identity)
        self._store = self._client.job_store
        self._cron = CronTracker(self._client)
        #: Calls made so far.
        self.calls = 0

    async def aclose(self) -> None:
        await self._client.close()

    def short_name(self, queue: str) -> str:
        """Return the name of a queue however it was written, so that two spellings are one queue."""
        return self._store.keys.queue_name(queue)

    async def observe(self, horizons_seconds: Mapping[str, float]) -> Observation:
        """Look at the queues (by short name, each with its horizon) and at all living workers."""
        self._count()
        try:
            async with self._asking():
                seen = await self._store.observe(list(horizons_seconds), horizons_seconds)
        except QueueTrouble:
            raise
        # Any client may have stored anything in Redis: its pools report that instead of being skipped in silence.
        except Exception as error:
            if self._unreadable.is_news(repr(error)):
                logger.exception("queues cannot be parsed", extra={"redis": repr(self.identity)})
            said = clean_foreign_text(mask_secrets(f"{type(error).__name__}: {error}"))
            raise QueueTrouble("Unreadable", f"What Redis holds cannot be parsed: {said}") from error
        self._unreadable.said = ""
        return seen

    async def admit(self, queues: Sequence[str]) -> Admission:
        """Put jobs of these queues aside that may not start, and queue those again that may."""
        self._count()
        async with self._asking(writes=True):
            return await self._store.admit_jobs(queues)

    async def publish(self, publication: Publication) -> None:
        """Write how pools stand, for dashboards."""
        self._count()
        async with self._asking(writes=True):
            await self._store.publish_pools(publication.reports, publication.decided, publication.gone)

    async def read_published(self) -> list[PoolReport]:
        """Return the reports on pools that operators have published."""
        self._count()
        async with self._asking():
            return await self._store.read_pools()

    async def listen(self, on_change: Callable[[str], None]) -> None:
        """Call ``on_change`` with the short name of each queue that changes, until cancelled."""
        retry_seconds = _SHORTEST_RETRY_SECONDS
        while True:
            started_at = monotonic()
            try:
                async with self._store.listen() as hear:
                    await _hear_in_moderation(hear, on_change)
            except REDIS_ERRORS as error:
                logger.debug("not listening to Redis", extra={"error": self._clean(error)})
            # Any client may publish anything there; the wake-ups must go on.
            except Exception as error:
                said = self._clean(error)
                if self._misheard.is_news(said):
                    logger.warning(
                        "announcement not understood",
                        exc_info=not isinstance(error, NONSENSE),
                        extra={"redis": repr(self.identity), "error": said},
                    )
            # A server that hangs up again and again is not called ten times a second.
            if monotonic() - started_at > _LONGEST_RETRY_SECONDS:
                retry_seconds = _SHORTEST_RETRY_SECONDS
            await asyncio.sleep(retry_seconds * random.uniform(0.5, 1.0))
            retry_seconds = min(_LONGEST_RETRY_SECONDS, retry_seconds * 2)

    async def drain(self, pod_uids: Sequence[str]) -> None:
        """Keep these pods from claiming jobs for a while."""
        async with self._asking(writes=True):
            await self._each(self._store.set_drain(uid, DRAIN_SECONDS) for uid in pod_uids)

    async def release(self, pod_uids: Sequence[str]) -> None:
        """Let these pods claim jobs again."""
        async with self._asking(writes=True):
            await self._each(self._store.clear_drain(uid) for uid in pod_uids)

    async def report(self, deaths: Deaths) -> int:
        """Return the jobs of dead workers to their queues and shorten the leases of doubtful ones; returns how many jobs."""
        returned = 0
        refusal: Exception | None = None
        async with self._asking(writes=True):
            for certificate in deaths.certificates:
                try:
                    returned += await self._bury(certificate)
                except LOST_REPLY_ERRORS:
                    raise
                except REDIS_ERRORS as error:
                    refusal = error  # what is wrong with one dead worker does not concern the next
            if deaths.hints:
                self._count()
                await self._store.shorten_leases(deaths.hints)
        if refusal is not None:
            raise self._trouble(refusal) from refusal
        return returned

    async def sweep(self) -> int:
        """Reap workers whose lease has ended, a bounded number at once; returns how many jobs are queued again."""
        returned = 0
        async with self._asking(writes=True):
            for _ in range(_MOST_SWEEPS):
                self._count()
                reaped = await self._store.reap_workers()
                returned += reaped.returned + reaped.buried
                if not reaped.has_more:
                    break
        return returned

    async def _bury(self, certificate: DeathCertificate) -> int:
        returned = 0
        has_more = True
        while has_more:
            self._count()
            reaped = await self._store.reap_workers(certificate)
            returned += reaped.returned + reaped.buried
            has_more = reaped.has_more
        return returned

    async def read_cron_tables(self) -> tuple[CronTable, ...]:
        self._count()
        async with self._asking():
            return await self._store.read_cron_tables()

    def track_cron(self, unattended: Iterable[CronJob], attended: Iterable[CronJob]) -> None:
        """Set the cron entries to look after."""
        self._cron.track(unattended, attended)

    async def fire_cron(self, now_ms: int) -> list[CronJob]:
        """Enqueue the jobs of cron entries that are due; returns the entries that no worker had fired."""
        async with self._asking(writes=True):
            return await self._cron.fire_due(datetime.fromtimestamp(now_ms / 1000, UTC))

    def next_cron_look_ms(self) -> int | None:
        """When the next of these entries falls due, by the clock of Redis; None without entries."""
        look_at = self._cron.find_next_look()
        return None if look_at is None else int(look_at.timestamp() * 1000)

    def _count(self, calls: int = 1) -> None:
        self.calls += calls
        self._on_call(calls)

    async def _each(self, calls: Iterable[Awaitable[None]]) -> None:
        pending = list(calls)
        self._count(len(pending))
        # All at once on one connection; the first failure is that of all.
        for answer in await asyncio.gather(*pending, return_exceptions=True):
            if answer is not None:
                raise answer

    @contextlib.asynccontextmanager
    async def _asking(self, *, writes: bool = False) -> AsyncIterator[None]:
        """Bound the calls inside in time, and turn every error into a QueueTrouble."""
        # A leader that lost the Lease while it waited must not write any more: another one does by now.
        if writes and not self._may_write():
            raise QueueTrouble(
                "NotLeader",
                f"Redis {mask_url(self.identity.url)} was not written to: this operator is not the leader.",
            )
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                yield
        except (*REDIS_ERRORS, RRQError, TimeoutError) as error:
            raise self._trouble(error) from error
        except NONSENSE as error:
            # Mostly what another program has stored there. If it is a mistake of ours, this says where.
            logger.debug("answer of Redis not understood", exc_info=error)
            where, said = mask_url(self.identity.url), f"{type(error).__name__}: {self._clean(error)}"
            raise QueueTrouble("Unreadable", f"What Redis {where} holds cannot be parsed: {said}") from error

    def _trouble(self, error: BaseException) -> QueueTrouble:
        where = mask_url(self.identity.url)
        said = self._clean(error)
        if is_refused_login(error):
            return QueueTrouble(
                REFUSED_LOGIN_REASON,
                f"Redis {where} refused the credentials, or they may not do what is needed: {said}.",
            )
        return QueueTrouble("Unreachable", f"Redis {where} cannot be read: {said}")

    def _clean(self, error: BaseException) -> str:
        """Return what an error says, fit for logs and conditions; some servers quote the login they do not understand."""
        said = mask_secrets(str(error))
        for password in find_passwords(self.identity.url):
            said = said.replace(password, MASK)
        return clean_foreign_text(said) or type(error).__name__


class DrainFlags:
    """The flags that keep pods of one pool from claiming jobs. Each ends by itself unless it is renewed."""

    def __init__(self) -> None:
        self._flagged_at: dict[str, float] = {}

    @property
    def fresh(self) -> frozenset[str]:
        """The pods that were flagged here."""
        return frozenset(self._flagged_at)

    def are_live(self, pod_uids: Iterable[str]) -> bool:
        """Whether the flags of all these pods last for a good while."""
        now = monotonic()
        return all(now - self._flagged_at.get(uid, float("-inf")) < DRAIN_SECONDS / 2 for uid in pod_uids)

    async def release(self, queues: RedisQueues, pod_uids: Sequence[str]) -> None:
        if pod_uids:
            await queues.release(pod_uids)
            for uid in pod_uids:
                self._flagged_at.pop(uid, None)

    async def renew(self, queues: RedisQueues, pod_uids: Sequence[str], claiming: Collection[str]) -> bool:
        """Flag these pods if they still claim jobs or if their flag is about to end; returns whether any was flagged."""
        now = monotonic()
        stale = [
            uid
            for uid in pod_uids
            if uid in claiming or now - self._flagged_at.get(uid, float("-inf")) > _RENEW_DRAIN_SECONDS
        ]
        if stale:
            await queues.drain(stale)
            self._flagged_at |= dict.fromkeys(stale, monotonic())
        now = monotonic()
        self._flagged_at = {uid: at for uid, at in self._flagged_at.items() if now - at < DRAIN_SECONDS}
        return bool(stale)


async def _hear_in_moderation(
    hear: Callable[[float], Awaitable[str | None]], on_change: Callable[[str], None]
) -> None:
    """Pass announcements on at a bounded rate, so that a flood of them leaves time for everything else."""
    while True:
        began_at = monotonic()
        for _ in range(_HEARD_AT_ONCE):
            name = await hear(5.0)
            if name is not None:
                on_change(name)
        spare_seconds = _HEARD_AT_ONCE / _HEARD_PER_SECOND - (monotonic() - began_at)
        if spare_seconds > 0:
            await asyncio.sleep(spare_seconds)


def _open_client(identity: RedisIdentity) -> RRQClient:
    try:
        return RRQClient(
            RRQSettings(
                redis_dsn=drop_client_options(identity.url),
                key_prefix=identity.key_prefix,
                redis_max_reply_bytes=_MOST_REPLY_BYTES,
                redis_max_reply_values=_MOST_REPLY_VALUES,
                redis_socket_timeout_seconds=_TIMEOUT_SECONDS,
                redis_connect_timeout_seconds=_TIMEOUT_SECONDS,
            )
        )
    except SettingsError as error:
        raise QueueTrouble("InvalidURL", str(error)) from error
    except (ValueError, TypeError) as error:
        faults = error.errors() if isinstance(error, ValidationError) else []
        if words := [fault["msg"] for fault in faults if fault["loc"] != ("redis_dsn",)]:
            raise QueueTrouble("InvalidURL", f"{mask_url(identity.url)}: {'; '.join(words)}") from None
        # Without its cause and words, which may quote the URL with the password in it.
        raise QueueTrouble("InvalidURL", f"{mask_url(identity.url)} is no Redis URL.") from None
