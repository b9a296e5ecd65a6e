"""What people control at run time: pauses, limits, waiting jobs, dead letters; and the audit of all that.

A caller that acts for a person names that person as ``actor``, and the audit stream gets an entry: of a pause or a limit
from the script that sets it, of jobs afterwards, when their number is known. An empty actor is a program that acts for
itself. The values are those of ``rrq.flow``.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rrq.broker.access import RedisAccess
from rrq.flow import (
    AuditEntry,
    FlowState,
    JobFilter,
    Limit,
    Pause,
    PauseState,
    check_target,
    parse_audit,
    parse_limit,
    parse_pause,
)
from rrq.jobs.codec import decode, decode_all, decode_pairs

__all__ = ["ControlCalls"]

#: Entries that one call of a long operation looks at; each call blocks Redis for a few milliseconds.
_ENTRIES_PER_CALL = 500
#: A view is for people; of more scopes than this they see the first.
_MOST_SCOPES = 1_000
#: With more sessions than this the oldest are forgotten. A user who signs out in a loop only forgets sessions of his own
#: role, for which he has the token anyway.
_MOST_ENDED_SESSIONS = 1_000
# An hour more than a session lasts, and less for the clocks.
_ENDED_SESSIONS_TTL_SECONDS = 13 * 3_600
_CLOCK_SKEW_SECONDS = 300


class ControlCalls(RedisAccess):
    """Pauses and limits work, changes jobs that wait or are dead, and keeps the audit."""

    async def set_pause(
        self, target: str, state: PauseState | None, actor: str = "", reason: str = ""
    ) -> bool:
        """Pause or disable ``queue:…``, ``function:…`` or ``pool:…``; None resumes it. False when nothing changed.

        A disabled function also refuses new jobs. Raises InvalidLimit for what cannot be paused.
        """
        value = ""
        if state is not None:
            at_ms = await self._read_now_ms()
            value = json.dumps({"state": state, "by": actor, "at_ms": at_ms, "reason": reason})
        action = {"paused": "pause", "disabled": "disable", None: "resume"}[state]
        return await self._set_control(self.keys.pauses, target, value, actor, action, {"reason": reason})

    async def set_limit(self, target: str, limit: Limit | None, actor: str = "") -> bool:
        """Limit ``function:…`` or ``queue:…``, whatever its application declares; None takes that back.

        Raises InvalidLimit for a limit that cannot be kept.
        """
        if limit is not None:
            limit.check(self.normalise_target(target))
        value = "" if limit is None else limit.to_json()
        detail = {} if limit is None else json.loads(value)
        return await self._set_control(self.keys.limit_overrides, target, value, actor, "limit", detail)

    async def _set_control(
        self, key: str, target: str, value: str, actor: str, action: str, detail: Mapping[str, Any]
    ) -> bool:
        args = [self.keys.prefix, self.normalise_target(target), value, actor, action, json.dumps(detail)]
        return bool(await self.connection.run("set_control", [key], args, read=int))

    async def publish_limits(
        self, source: str, limits: Mapping[str, Limit], *, only_if_lost: bool = False
    ) -> int:
        """Make the limits that an application declares those of the fleet; returns how many changed.

        ``only_if_lost`` is for a Redis that came back without any: it leaves later declarations alone.
        """
        args: list[Any] = [self.keys.prefix, source, int(only_if_lost)]
        for target, limit in limits.items():
            limit.check(target)
            args += (self.normalise_target(target), limit.to_json(source))
        return await self.connection.run("publish_limits", [self.keys.limits], args, read=int)

    def normalise_target(self, target: str) -> str:
        """Return the target as it is stored; a queue has several forms of its name. Raises InvalidLimit for an invalid target."""
        kind, name = check_target(target)
        return f"queue:{self.keys.queue_name(name)}" if kind == "queue" else target

    async def read_flow(self) -> FlowState:
        """Return what keeps jobs from starting now."""
        keys, call = self.keys, self.connection.call
        pauses, declared, overrides, blocked_scopes = await asyncio.gather(
            call("HGETALL", keys.pauses),
            call("HGETALL", keys.limits),
            call("HGETALL", keys.limit_overrides),
            call("ZRANGE", keys.blocked_scopes, 0, _MOST_SCOPES - 1),
        )
        known_declared, known_overrides = _parse_limits(declared), _parse_limits(overrides)
        known_limits = known_declared | known_overrides
        known_pauses: dict[str, Pause] = {
            target: pause for target, text in decode_pairs(pauses).items() if (pause := parse_pause(text))
        }
        scopes = decode_all(blocked_scopes)
        limited = [_scope_of(target) for target in known_limits]
        blocked = await self._count_all("ZCARD", keys.blocked_key, scopes)
        slots = await self._count_all("SCARD", keys.slots_key, dict.fromkeys([*limited, *scopes]))
        overridden = frozenset(known_overrides)
        return FlowState(known_pauses, known_limits, overridden, blocked, slots, known_declared)

    async def _count_all(self, command: str, name_key: Any, scopes: Any) -> dict[str, int]:
        counts = await asyncio.gather(*(self.connection.call(command, name_key(scope)) for scope in scopes))
        return dict(zip(scopes, counts, strict=True))

    async def cancel_where(self, chosen: JobFilter, actor: str = "", *, only_count: bool = False) -> int:
        """Cancel the waiting jobs that fit, blocked ones too; returns how many. Running jobs go on."""
        queue_key = self.keys.queue_key(chosen.queue)
        scopes = decode_all(await self.connection.call("ZRANGE", self.keys.blocked_scopes, 0, -1))
        places = [(queue_key, ""), *((self.keys.blocked_key(scope), queue_key) for scope in scopes)]
        until: int | str = "+inf"
        if chosen.due_for_seconds is not None:
            until = await self._read_now_ms() - int(chosen.due_for_seconds * 1000)
        total = 0
        for place, home in places:
            total += await self._cancel_in(place, home, chosen, until, only_count)
        if total and not only_count:
            detail = {"function": chosen.function, "due_for_seconds": chosen.due_for_seconds, "jobs": total}
            await self.audit(actor, "cancel", f"queue:{self.keys.queue_name(chosen.queue)}", detail)
        return total

    async def _cancel_in(
        self, place: str, home: str, chosen: JobFilter, until: int | str, only_count: bool
    ) -> int:
        def read(reply: Any) -> tuple[int, int, bool]:
            count, stay, more = reply
            return count, stay, bool(more)

        total, skipped, more = 0, 0, True
        while more:
            args = [self.keys.prefix, chosen.function or "", until, _ENTRIES_PER_CALL, skipped]
            args += [int(only_count), home]
            count, stay, more = await self.connection.run("cancel_where", [place], args, read=read)
            total, skipped = total + count, skipped + stay
        return total

    async def requeue_dead_letters(
        self, dlq_name: str, target_queue: str, most: int, job_ids: Sequence[str] = ()
    ) -> tuple[int, int]:
        """Give dead letters a fresh start, the oldest first or the named ones; returns how many were queued, and how
        many left the list.

        A job that has expired leaves the list and is not queued.
        """

        def read(reply: Any) -> tuple[int, int]:
            queued, taken, *_ = reply
            return int(queued), int(taken)

        keys = [self.keys.dlq_key(dlq_name), self.keys.queue_key(target_queue)]
        args = [self.keys.prefix, target_queue, most, *job_ids]
        return await self.connection.run("requeue_dead_letters", keys, args, read=read)

    async def delete_dead_letters(self, dlq_name: str, job_ids: Sequence[str], actor: str = "") -> int:
        """Delete these dead letters for good; returns how many."""
        key, deleted = self.keys.dlq_key(dlq_name), 0
        for start in range(0, len(job_ids), _ENTRIES_PER_CALL):
            args = [self.keys.prefix, *job_ids[start : start + _ENTRIES_PER_CALL]]
            deleted += await self.connection.run("delete_dead_letters", [key], args, read=int)
        await self.audit(actor, "delete", f"dlq:{dlq_name}", {"jobs": deleted, "ids": list(job_ids[:20])})
        return deleted

    async def edit_dead_letter(
        self, dlq_name: str, job_id: str, args_json: str, kwargs_json: str, actor: str = ""
    ) -> bool:
        """Change the arguments of a dead letter; False when the job is not on the list any more."""
        keys = [self.keys.dlq_key(dlq_name), self.keys.job_key(job_id)]
        args = [self.keys.prefix, job_id, args_json, kwargs_json]
        changed = await self.connection.run("edit_dead_letter", keys, args, read=int)
        if changed:
            await self.audit(actor, "edit", f"job:{job_id}", {})
        return bool(changed)

    async def audit(self, actor: str, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """Note what a person did; nothing for an empty actor."""
        if not actor:
            return
        fields = ("actor", actor, "action", action, "object", target, "detail", json.dumps(detail))
        await self.connection.call("XADD", self.keys.audit, "MAXLEN", "~", 10_000, "*", *fields)

    async def read_audit(self, count: int = 100, before: str | None = None) -> list[AuditEntry]:
        """Return the newest entries, or those before the one of that id."""
        last = f"({before}" if before else "+"
        entries = await self.connection.call("XREVRANGE", self.keys.audit, last, "-", "COUNT", count)
        return [parse_audit(decode(entry_id), decode_pairs(fields)) for entry_id, fields in entries]

    async def add_ended_session(
        self, role: str, session_id: str, expires_at_seconds: int, now_seconds: float
    ) -> None:
        """Note that a user signed out of a session, and forget sessions that have expired anyway."""
        key, call = self.keys.ended_sessions_key(role), self.connection.call
        await call("ZADD", key, expires_at_seconds, session_id)
        await call("EXPIRE", key, _ENDED_SESSIONS_TTL_SECONDS)
        # Not at once: another server of the dashboard may have a clock that is late.
        await call("ZREMRANGEBYSCORE", key, "-inf", now_seconds - _CLOCK_SKEW_SECONDS)
        surplus = await call("ZRANGE", key, 0, -_MOST_ENDED_SESSIONS - 1)
        if surplus:
            await call("ZREM", key, *surplus)

    async def read_ended_sessions(self, roles: Sequence[str]) -> set[str]:
        """Return the ids of the sessions of these roles that users signed out of and that may not have expired."""
        replies = await asyncio.gather(
            *(self.connection.call("ZRANGE", self.keys.ended_sessions_key(role), 0, -1) for role in roles)
        )
        return {session_id for reply in replies for session_id in decode_all(reply)}


def _scope_of(target: str) -> str:
    kind, _, name = target.partition(":")
    return f"{kind[:1]}:{name}"


def _parse_limits(reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, Limit]:
    found = decode_pairs(reply)
    return {target: limit for target, text in found.items() if (limit := parse_limit(text))}
