"""What an admin may change: checks each order, carries it out through the store, and writes the audit.

An order names its objects by rule, such as a group of dead letters, and has the number that the user saw. It never
changes more than that number, even if more objects match meanwhile.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from rrq.broker.messages import CancelCode
from rrq.dashboard.dead_groups import group_id_of
from rrq.dashboard.reading import read_dead_letters
from rrq.exc import InvalidLimit, RRQError
from rrq.flow import JobFilter, PauseState, check_target
from rrq.inspect.dead_letters import (
    DeadLetter,
    find_dead_letter,
    group_by_queue,
    requeue_by_queue,
    requeue_dead_letters,
)
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore

_LONGEST_TEXT: Final = 500
_IDS_AUDITED: Final = 20


class OrderRefused(RRQError):
    """The order makes no sense, or no longer does; the text is for the user who sent it."""


@dataclass(frozen=True)
class Done:
    affected: int
    words: str


Order = Mapping[str, Any]


class Actions:
    """The orders by name."""

    def __init__(self, store: JobStore, *, hides_values: bool) -> None:
        self._store = store
        self._dlq = store.settings.default_dlq_name
        self._hides_values = hides_values
        self._orders: dict[str, Callable[[Order, str], Awaitable[Done]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "cancel-job": self._cancel_job,
            "cancel-where": self._cancel_where,
            "requeue-dead-letters": self._requeue,
            "delete-dead-letters": self._delete,
            "edit-dead-letter": self._edit,
        }

    async def run(self, name: str, order: Order, actor: str) -> Done:
        """Carry out an order. Raises OrderRefused when that is impossible."""
        carry_out = self._orders.get(name)
        if carry_out is None:
            raise OrderRefused(f"There is no action {name!r}.")
        return await carry_out(order, actor)

    async def _pause(self, order: Order, actor: str) -> Done:
        target, state = _target(order), _text(order, "state")
        if state == "disabled" and not target.startswith("function:"):
            raise OrderRefused(f"Only functions can be disabled; pause {target} instead.")
        if state not in ("paused", "disabled"):
            raise OrderRefused(f"A pause is 'paused' or 'disabled', not {state!r}.")
        await self._store.set_pause(target, cast(PauseState, state), actor, _text(order, "reason"))
        return Done(1, f"{_name(target)} is {state}.")

    async def _resume(self, order: Order, actor: str) -> Done:
        target = _target(order)
        await self._store.set_pause(target, None, actor)
        return Done(1, f"{_name(target)} is resumed.")

    async def _cancel_job(self, order: Order, actor: str) -> Done:
        job_id = _text(order, "id")
        code, status = await self._store.cancel_job(job_id)
        if code not in (CancelCode.CANCELLED, CancelCode.TOLD):
            raise OrderRefused(_CANNOT_CANCEL[code].format(job_id=job_id, status=status))
        await self._store.audit(actor, "cancel", f"job:{job_id}", {"status": status})
        outcome = "is cancelled" if code is CancelCode.CANCELLED else "is running; its worker will cancel it"
        return Done(1, f"Job {job_id} {outcome}.")

    async def _cancel_where(self, order: Order, actor: str) -> Done:
        queue, function = _text(order, "queue"), _text(order, "function")
        if not queue:
            raise OrderRefused("Name the queue; this page cannot cancel the jobs of all queues at once.")
        chosen = JobFilter(queue, function or None)
        matching = await self._store.cancel_where(chosen, only_count=True)
        if _is_dry(order):
            return Done(matching, f"{_jobs(matching)} would be cancelled.")
        if matching > _expected(order):
            raise OrderRefused(f"{_jobs(matching)} match by now, more than you confirmed. Count them again.")
        affected = await self._store.cancel_where(chosen, actor)
        return Done(affected, f"{_jobs(affected)} cancelled.")

    async def _requeue(self, order: Order, actor: str) -> Done:
        letters = await self._choose(order)
        if _is_dry(order):
            return Done(len(letters), f"{_jobs(len(letters))} would be requeued.")
        groups = group_by_queue(
            (DeadLetter(letter.job_id, letter) for letter in letters), self._store.settings.default_queue_name
        )
        affected = (await requeue_by_queue(self._store, self._dlq, groups)).total()
        await self._audit_requeue(actor, [letter.job_id for letter in letters], affected)
        return Done(affected, f"{_jobs(affected)} requeued.")

    async def _delete(self, order: Order, actor: str) -> Done:
        letters = await self._choose(order)
        if _is_dry(order):
            return Done(len(letters), f"{_jobs(len(letters))} would be deleted.")
        job_ids = [letter.job_id for letter in letters]
        affected = await self._store.delete_dead_letters(self._dlq, job_ids, actor)
        return Done(affected, f"{_jobs(affected)} deleted.")

    async def _edit(self, order: Order, actor: str) -> Done:
        if self._hides_values:
            raise OrderRefused("Arguments are hidden on this server, so they cannot be edited here.")
        job_id = _text(order, "id")
        args, kwargs = _json(order, "args", list), _json(order, "kwargs", dict)
        letter = await find_dead_letter(self._store, self._dlq, job_id)
        job = letter.job if letter is not None else None
        if job is None or not await self._store.edit_dead_letter(
            self._dlq, job_id, json.dumps(args), json.dumps(kwargs), actor
        ):
            raise OrderRefused(f"Job {job_id} is no longer a dead letter; reload the page.")
        queue = _text(order, "queue") or job.queue_name or self._store.settings.default_queue_name
        affected = await requeue_dead_letters(self._store, self._dlq, queue, [job_id])
        await self._audit_requeue(actor, [job_id], affected)
        return Done(affected, f"Job {job_id} is requeued with the new arguments.")

    async def _choose(self, order: Order) -> list[StoredJob]:
        """Return the chosen dead letters, the oldest first, and not more than the user confirmed."""
        job_id, group_id = _text(order, "id"), _text(order, "group")
        if job_id:
            letter = await find_dead_letter(self._store, self._dlq, job_id)
            if letter is None or letter.job is None:
                raise OrderRefused(f"Job {job_id} is no longer a dead letter; reload the page.")
            return [letter.job]
        if not group_id:
            raise OrderRefused("Name a dead letter or a group of them.")
        letters, _ = await read_dead_letters(self._store)
        wanted = [letter for letter in reversed(letters) if group_id_of(letter) == group_id]
        if not wanted:
            raise OrderRefused("This group has no dead letters left; another user was faster.")
        return wanted if _is_dry(order) else wanted[: _expected(order)]

    async def _audit_requeue(self, actor: str, job_ids: list[str], affected: int) -> None:
        detail = {"jobs": affected, "ids": job_ids[:_IDS_AUDITED]}
        await self._store.audit(actor, "requeue", f"dlq:{self._dlq}", detail)


_CANNOT_CANCEL: Final = {
    CancelCode.CANNOT_TELL: "Job {job_id} runs on a worker of RRQ 0.7, which cannot cancel it.",
    CancelCode.ENDED: "Job {job_id} has ended already ({status}).",
    CancelCode.NOT_FOUND: "There is no job {job_id}; it may have expired.",
}


def _text(order: Order, name: str) -> str:
    value = order.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise OrderRefused(f"{name} must be text of at most {_LONGEST_TEXT} characters.")
    return value.strip()


def _target(order: Order) -> str:
    target = _text(order, "target")
    try:
        check_target(target)
    except InvalidLimit as error:
        raise OrderRefused(str(error)) from error
    return target


def _name(target: str) -> str:
    kind, _, name = target.partition(":")
    return f"{kind.capitalize()} {name}"


def _is_dry(order: Order) -> bool:
    return order.get("dry_run") is True


def _expected(order: Order) -> int:
    expected = order.get("expected")
    if not isinstance(expected, int) or isinstance(expected, bool) or expected < 1:
        raise OrderRefused("expected must be the number of affected jobs; get it with dry_run first.")
    return expected


def _json(order: Order, name: str, kind: type[Any]) -> Any:
    """Parse arguments, which come as the text that a user typed."""
    text = order.get(name)
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise OrderRefused(f"{name} is not JSON: {error}.") from error
    if not isinstance(value, kind):
        raise OrderRefused(f"{name} must be a JSON {'list' if kind is list else 'object'}.")
    return value


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
