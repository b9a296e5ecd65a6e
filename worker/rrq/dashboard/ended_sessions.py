"""Which sessions were ended by signing out, for all servers that share a Redis, and across their restarts.

A session cookie is valid by its signature. Without this record, a copied cookie would still work after signing out.
"""

import asyncio
import logging
from time import time

from rrq.dashboard.access import Session
from rrq.dashboard.feed import TROUBLE, SharedReads
from rrq.dashboard.policy import Role
from rrq.store import JobStore

logger = logging.getLogger(__name__)

_FRESH_SECONDS = 1.0
# A server whose Redis refuses writes keeps the record in memory, with this limit.
_MOST_UNSTORED = 1000


class EndedSessions:
    """The ids of the ended sessions, as of the last ``refresh``."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._stored: frozenset[str] = frozenset()
        self._unstored: dict[str, Session] = {}
        self._shared = SharedReads()
        self._storing = asyncio.Lock()
        self._is_refused = False

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._stored or session_id in self._unstored

    async def end(self, session: Session) -> None:
        """End a session: on this server at once, on others as soon as Redis has stored it."""
        self._unstored[session.id] = session
        while len(self._unstored) > _MOST_UNSTORED:
            del self._unstored[next(iter(self._unstored))]
        try:
            await self._exchange()
        except TROUBLE as error:
            logger.warning("cannot read ended sessions", extra={"error": str(error)})

    async def refresh(self) -> None:
        """Read which sessions other servers have ended, at most once a second. Raises TROUBLE."""
        await self._shared.get("ended", _FRESH_SECONDS, self._exchange)

    async def _exchange(self) -> None:
        # One at a time: an older answer must not replace a newer one.
        async with self._storing:
            written = await self._store_ours()
            self._stored = frozenset(await self._store.read_ended_sessions([role.value for role in Role]))
            for session_id in written:
                self._unstored.pop(session_id, None)

    async def _store_ours(self) -> list[str]:
        written = []
        try:
            for session in list(self._unstored.values()):
                await self._store.add_ended_session(
                    session.role.value, session.id, session.ends_at_seconds, time()
                )
                written.append(session.id)
        except TROUBLE as error:
            # Logged once, because each request tries again.
            if not self._is_refused:
                logger.warning(
                    "cannot store ended sessions: other replicas and restarts still accept them",
                    extra={"error": str(error)},
                )
            self._is_refused = True
        else:
            self._is_refused = False
        return written
