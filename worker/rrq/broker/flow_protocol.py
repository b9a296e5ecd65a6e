"""Control at run time: one method per script or read that pauses, limits, cancels, counts and audits.

The hot path of the queue is in ``protocol.py``. Whoever acts for a person names them as ``actor``, and what was done is
noted in the audit stream: of pauses and limits by the script that sets them, of jobs afterwards, when their number is
known. An empty actor is a program acting for itself.
"""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from rrq.broker.keys import Keys
from rrq.broker.pipelined_connection import PipelinedConnection
from rrq.broker.replies import parse_cancelled_page, to_text
from rrq.flow import (
    AuditEntry,
    FlowState,
    JobFilter,
    Limit,
    MinuteStats,
    Pause,
    PauseState,
    PoolDecision,
    PoolReport,
    check_target,
    parse_audit,
    parse_limit,
    parse_minute,
    parse_pause,
    parse_pool_decision,
    parse_pool_report,
)

#: Entries that one call of a long operation looks at; Redis is held up for a few milliseconds each time.
_ENTRIES_PER_CALL = 500
#: A view is for people; whoever has more scopes than this sees the first of them.
_MOST_SCOPES = 1_000
_MOST_POOLS_PER_CALL = 500
_MOST_DECISIONS = 500
_KEEP_DECISIONS_SECONDS = 7 * 86_400
#: Beyond that, who signs out in a loop pushes out old records of his own role, for which he has the token anyway.
_MOST_ENDED_SESSIONS = 1_000
# An hour more than a session lasts, and less for the clocks.
_ENDED_SESSIONS_TTL_SECONDS = 13 * 3_600
_CLOCK_SKEW_SECONDS = 300
_DECISION_FIELDS = tuple(field.name for field in fields(PoolDecision))


class FlowProtocol:
    """What people do to queues, and what they see of their flow."""

    keys: Keys
    connection: PipelinedConnection

    # Pauses and limits

    async def set_pause(
        self, target: str, state: PauseState | None, actor: str = "", reason: str = ""
    ) -> bool:
        """Pause or disable ``queue:…``, ``function:…`` or ``pool:…``; None lets it go on. False when it was so already.

        A disabled function also refuses new jobs. Raises InvalidLimit for what cannot be paused.
        """
        target = self.normalise_target(target)
        value = ""
        if state is not None:
            seconds, microseconds = await self.connection.call("TIME")
            at_ms = int(seconds) * 1000 + int(microseconds) // 1000
            value = json.dumps({"state": state, "by": actor, "at_ms": at_ms, "reason": reason})
        action = {"paused": "pause", "disabled": "disable", None: "resume"}[state]
        return await self._set_control(self.keys.pauses, target, value, actor, action, {"reason": reason})

    async def set_limit(self, target: str, limit: Limit | None, actor: str = "") -> bool:
        """Limit ``function:…`` or ``queue:…`` over what its application declares; None takes that back.

        Raises InvalidLimit for a limit that cannot be kept.
        """
        target = self.normalise_target(target)
        if limit is not None:
            limit.check(target)
        value = "" if limit is None else limit.to_json()
        detail = {} if limit is None else json.loads(value)
        return await self._set_control(self.keys.limit_overrides, target, value, actor, "limit", detail)

    async def publish_limits(
        self, source: str, limits: Mapping[str, Limit], *, only_if_lost: bool = False
    ) -> int:
        """Make the limits that an application declares those of the fleet; returns how many changed.

        ``only_if_lost`` is for a Redis that came back without any: one who knows of later declarations is left alone.
        """
        args: list[Any] = [self.keys.prefix, source, int(only_if_lost)]
        for target, limit in limits.items():
            limit.check(target)
            args += (self.normalise_target(target), limit.to_json(source))
        changed: int = await self.connection.run("publish_limits", [self.keys.limits], args, read=int)
        return changed

    async def _set_control(
        self, key: str, target: str, value: str, actor: str, action: str, detail: Mapping[str, Any]
    ) -> bool:
        args = [self.keys.prefix, target, value, actor, action, json.dumps(detail)]
        return bool(await self.connection.run("set_control", [key], args, read=int))

    def normalise_target(self, target: str) -> str:
        """Return the target as it is stored; queues have many spellings. Raises InvalidLimit for what is none."""
        kind, name = check_target(target)
        return f"queue:{self.keys.queue_name(name)}" if kind == "queue" else target

    async def read_flow(self) -> FlowState:
        """Return what holds jobs back now."""
        keys = self.keys
        pauses, declared, overrides, scopes = await asyncio.gather(
            self.connection.call("HGETALL", keys.pauses),
            self.connection.call("HGETALL", keys.limits),
            self.connection.call("HGETALL", keys.limit_overrides),
            self.connection.call("ZRANGE", keys.parked, 0, _MOST_SCOPES - 1),
        )
        known_declared, known_overrides = _parse_limits(declared), _parse_limits(overrides)
        known_limits = known_declared | known_overrides
        known_pauses: dict[str, Pause] = {
            target: pause for target, text in _pairs(pauses).items() if (pause := parse_pause(text))
        }
        parked_scopes = [to_text(scope) for scope in scopes]
        limited = [_scope_of(target) for target in known_limits]
        parked = await self._count_all("ZCARD", keys.parked_key, parked_scopes)
        slots = await self._count_all("SCARD", keys.slots_key, dict.fromkeys([*limited, *parked_scopes]))
        overridden = frozenset(known_overrides)
        return FlowState(known_pauses, known_limits, overridden, parked, slots, known_declared)

    async def _count_all(self, command: str, name_key: Any, scopes: Any) -> dict[str, int]:
        counts = await asyncio.gather(*(self.connection.call(command, name_key(scope)) for scope in scopes))
        return dict(zip(scopes, counts, strict=True))

    # Jobs

    async def cancel_where(self, chosen: JobFilter, actor: str = "", *, only_count: bool = False) -> int:
        """Cancel the waiting jobs that fit, parked ones too; returns how many. Running jobs go on."""
        queue_key = self.keys.queue_key(chosen.queue)
        scopes = [to_text(scope) for scope in await self.connection.call("ZRANGE", self.keys.parked, 0, -1)]
        places = [(queue_key, ""), *((self.keys.parked_key(scope), queue_key) for scope in scopes)]
        until: int | str = "+inf"
        if chosen.due_for_seconds is not None:
            seconds, microseconds = await self.connection.call("TIME")
            until = int(seconds) * 1000 + int(microseconds) // 1000 - int(chosen.due_for_seconds * 1000)
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
        total, skipped, more = 0, 0, True
        while more:
            args = [self.keys.prefix, chosen.function or "", until, _ENTRIES_PER_CALL, skipped]
            args += [int(only_count), home]
            count, stay, more = await self.connection.run(
                "cancel_where", [place], args, read=parse_cancelled_page
            )
            total, skipped = total + count, skipped + stay
        return total

    async def delete_dead_letters(self, dlq_name: str, job_ids: Sequence[str], actor: str = "") -> int:
        """Forget these dead letters for good; returns how many."""
        deleted = 0
        for start in range(0, len(job_ids), _ENTRIES_PER_CALL):
            part = job_ids[start : start + _ENTRIES_PER_CALL]
            args = [self.keys.prefix, *part]
            deleted += await self.connection.run(
                "delete_dead_letters", [self.keys.dlq_key(dlq_name)], args, read=int
            )
        await self.audit(actor, "delete", f"dlq:{dlq_name}", {"jobs": deleted, "ids": list(job_ids[:20])})
        return deleted

    async def edit_dead_letter(
        self, dlq_name: str, job_id: str, args_json: str, kwargs_json: str, actor: str = ""
    ) -> bool:
        """Change the arguments of a dead letter; False when it is none any more."""
        keys = [self.keys.dlq_key(dlq_name), self.keys.job_key(job_id)]
        changed = await self.connection.run(
            "edit_dead_letter",
            keys,
            [self.keys.prefix, job_id, args_json, kwargs_json],
            read=int,
        )
        if changed:
            await self.audit(actor, "edit", f"job:{job_id}", {})
        return bool(changed)

    async def note_progress(self, job_id: str, token: str, field: str, value: str) -> bool:
        """Keep the progress or the cursor (JSON) of a running attempt; False when it no longer owns its job."""
        keys = [self.keys.job_key(job_id)]
        args = [self.keys.prefix, token, field, value]
        return bool(await self.connection.run("note_progress", keys, args, read=int))

    async def read_cursor(self, job_id: str) -> str | None:
        """Return the cursor (JSON) that an earlier attempt left, if any."""
        value = await self.connection.call("HGET", self.keys.job_key(job_id), "cursor")
        return None if value is None else to_text(value)

    # Batches

    async def open_batch(self, batch_id: str, total: int, callback: str, keep_seconds: int) -> None:
        """Prepare a batch whose jobs are still to be queued. ``callback`` is JSON, '' for none.

        Without ``close_batch`` it is forgotten after ``keep_seconds``.
        """
        key = self.keys.batch_key(batch_id)
        await self.connection.call("HSET", key, "total", total, "failed", 0, "open", 1, "callback", callback)
        await self.connection.call("EXPIRE", key, keep_seconds)

    async def close_batch(self, batch_id: str) -> int:
        """Say that all jobs of the batch are queued; returns how many have not ended."""
        keys = [self.keys.batch_key(batch_id), self.keys.batch_pending_key(batch_id)]
        remaining: int = await self.connection.run("close_batch", keys, [self.keys.prefix], read=int)
        return remaining

    async def read_batch(self, batch_id: str) -> dict[str, str] | None:
        """Return what is known of a batch, with ``pending``; None when there is none."""
        fields = _pairs(await self.connection.call("HGETALL", self.keys.batch_key(batch_id)))
        if not fields:
            return None
        fields["pending"] = str(await self.connection.call("SCARD", self.keys.batch_pending_key(batch_id)))
        return fields

    # Pools

    async def publish_pools(
        self, reports: Sequence[PoolReport], decided: Collection[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """Say how pools stand now.

        Those in ``decided`` get an entry in their history too, those that are ``gone`` are forgotten.
        """
        for start in range(0, len(reports) or 1, _MOST_POOLS_PER_CALL):
            part = reports[start : start + _MOST_POOLS_PER_CALL]
            noted = [report for report in part if report.pool in decided]
            args: list[Any] = [self.keys.prefix, _MOST_DECISIONS, _KEEP_DECISIONS_SECONDS]
            args += (2 * len(_DECISION_FIELDS), len(gone), *gone, len(part))
            for report in part:
                args += (report.pool, report.to_json())
            for report in noted:
                for name in _DECISION_FIELDS:
                    value = getattr(report, name)
                    args += (name, "" if value is None else value)
            keys = [self.keys.pools, *(self.keys.decisions_key(report.pool) for report in noted)]
            await self.connection.run("publish_pools", keys, args, read=bool)
            gone = ()

    async def read_pools(self) -> list[PoolReport]:
        """Return how each pool stood when its operator last said so, by name."""
        pools = _pairs(await self.connection.call("HGETALL", self.keys.pools))
        reports = (parse_pool_report(pool, text) for pool, text in sorted(pools.items()))
        return [report for report in reports if report is not None]

    async def read_decisions(self, pool: str, count: int = 100) -> list[PoolDecision]:
        """Return the last decisions about the size of a pool (``namespace/name``), the oldest of them first."""
        key = self.keys.decisions_key(pool)
        entries = await self.connection.call("XREVRANGE", key, "+", "-", "COUNT", count)
        return [parse_pool_decision(_pairs(values)) for _, values in reversed(entries)]

    # Statistics and audit

    async def read_stats(self, minutes: int) -> list[MinuteStats]:
        """Return the last minutes, the oldest first, the one that goes on last."""
        seconds, _ = await self.connection.call("TIME")
        last = int(seconds) // 60
        wanted = range(last - minutes + 1, last + 1)
        replies = await asyncio.gather(
            *(self.connection.call("HGETALL", self.keys.stats_key(minute)) for minute in wanted)
        )
        return [parse_minute(minute, _pairs(reply)) for minute, reply in zip(wanted, replies, strict=True)]

    async def read_counters(self) -> dict[str, int]:
        """Return the running totals of ended attempts by outcome."""
        counters = _pairs(await self.connection.call("HGETALL", self.keys.counters))
        return {name: int(text) for name, text in counters.items() if text.isdigit()}

    async def read_recent(self, offset: int = 0, limit: int = 100) -> list[str]:
        """Return the ids of the jobs that ended last, the newest first."""
        return [
            to_text(entry)
            for entry in await self.connection.call("LRANGE", self.keys.recent, offset, offset + limit - 1)
        ]

    async def audit(self, actor: str, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """Note what somebody did; nothing for an empty actor."""
        if not actor:
            return
        fields = ("actor", actor, "action", action, "object", target, "detail", json.dumps(detail))
        await self.connection.call("XADD", self.keys.audit, "MAXLEN", "~", 10_000, "*", *fields)

    async def read_audit(self, count: int = 100, before: str | None = None) -> list[AuditEntry]:
        """Return the newest entries, or those before the one of that id."""
        last = f"({before}" if before else "+"
        entries = await self.connection.call("XREVRANGE", self.keys.audit, last, "-", "COUNT", count)
        return [parse_audit(to_text(entry_id), _pairs(fields)) for entry_id, fields in entries]

    # Sessions of the dashboard

    async def add_ended_session(
        self, role: str, session_id: str, expires_at_seconds: int, now_seconds: float
    ) -> None:
        """Note that a session was signed out, and forget those that have expired anyway."""
        key = self.keys.ended_sessions_key(role)
        await self.connection.call("ZADD", key, expires_at_seconds, session_id)
        await self.connection.call("EXPIRE", key, _ENDED_SESSIONS_TTL_SECONDS)
        # Not at once: another server of the dashboard may have a clock that is late.
        await self.connection.call("ZREMRANGEBYSCORE", key, "-inf", now_seconds - _CLOCK_SKEW_SECONDS)
        surplus = await self.connection.call("ZRANGE", key, 0, -_MOST_ENDED_SESSIONS - 1)
        if surplus:
            await self.connection.call("ZREM", key, *surplus)

    async def read_ended_sessions(self, roles: Sequence[str]) -> set[str]:
        """Return the ids of the sessions of these roles that were signed out and may not have expired."""
        replies = await asyncio.gather(
            *(self.connection.call("ZRANGE", self.keys.ended_sessions_key(role), 0, -1) for role in roles)
        )
        return {to_text(session_id) for reply in replies for session_id in reply}


def _scope_of(target: str) -> str:
    kind, _, name = target.partition(":")
    return f"{kind[:1]}:{name}"


def _parse_limits(reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, Limit]:
    found = _pairs(reply)
    return {target: limit for target, text in found.items() if (limit := parse_limit(text))}


def _pairs(reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, str]:
    if isinstance(reply, Mapping):
        return {to_text(name): to_text(value) for name, value in reply.items()}
    texts = [to_text(value) for value in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
