"""What the scripts answer, as the values of ``messages.py``: pure.

Whatever is raised here says that an answer belongs to another question; ``Wire.call`` then gives up the connection.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from rrq.cron_table import PublishCode
from rrq.decoding import CLAIMED_FIELDS
from rrq.messages import (
    Admission,
    BeatReply,
    CancelCode,
    Claim,
    ClaimCode,
    ClaimedJob,
    ClaimRequest,
    CronVerdict,
    Enqueued,
    LeaseState,
    Observation,
    QueueObservation,
    ReapReport,
    Reconciliation,
    Renewal,
    Verdict,
    WorkerObservation,
)

_VERDICTS = {verdict.value: verdict for verdict in Verdict}
#: Far more queues than a worker serves.
_MOST_NAMES = 1000
_LONGEST_NAMES_BYTES = 256 * 1024
#: The year 10000, which Python cannot write.
_END_OF_CALENDAR_MS = 253_402_300_800_000
#: What a claim tells of every job: the fields of the model, the token before and whether it is suspect.
_CLAIM_FIELDS = len(CLAIMED_FIELDS) + 2


def parse_enqueued(reply: Any, jobs: int) -> Enqueued:
    now_us, *answers = reply
    if len(answers) != jobs:
        raise ValueError(f"{len(answers)} answers for {jobs} jobs")
    due_ms: list[int] = []
    job_ids: list[str | None] = []
    for answer in answers:
        code, job_id = (answer[0], to_text(answer[1])) if isinstance(answer, list) else (answer, None)
        due_ms.append(code)
        job_ids.append(job_id)
    return Enqueued(now_us, due_ms, job_ids)


def parse_cron_verdict(code: Any) -> CronVerdict:
    return CronVerdict.FIRED if code >= 0 else CronVerdict(code)


def parse_published(reply: Any) -> tuple[int, PublishCode]:
    first_ms, code = reply
    return first_ms, PublishCode(code)


def parse_claim(reply: Any, request: ClaimRequest, queue_keys: Sequence[str]) -> Claim:
    code, now_ms, next_due_ms, more_due, suspects, missing, bad, rows = reply
    jobs = []
    for number, (job_id, position, score, fields) in enumerate(rows, 1):
        head_start_ms = _parse_milliseconds(fields.pop()) if len(fields) > _CLAIM_FIELDS else 0.0
        is_suspect = fields.pop() is not None
        token_before = fields.pop() or b""
        queue_name, queue_key = request.queues[position - 1], queue_keys[position - 1]
        token = f"{request.token_base}.{number}"
        jobs.append(
            ClaimedJob(
                job_id, token, token_before, queue_name, queue_key, score, is_suspect, fields, head_start_ms
            )
        )
    return Claim(
        ClaimCode(code),
        now_ms,
        None if next_due_ms < 0 else next_due_ms,
        bool(more_due),
        to_texts(suspects),
        to_texts(missing),
        to_texts(bad),
        jobs,
    )


def _parse_milliseconds(text: bytes) -> float:
    # A foreign hand writes what it likes into a job; that must not spoil the answer for the others.
    return float(text) if text.isdigit() else 0.0


def parse_verdicts(reply: Any, outcomes: int) -> list[Verdict]:
    if len(reply) != outcomes:
        raise ValueError(f"{len(reply)} answers for {outcomes} outcomes")
    return [_VERDICTS[code] for code in reply]


def parse_renewal(reply: Any) -> Renewal:
    now_ms, next_end_ms, *replies = reply
    return Renewal(
        now_ms,
        None if next_end_ms < 0 else next_end_ms,
        tuple(
            BeatReply(LeaseState(state), bool(draining), count, tuple(to_texts(cancel)))
            for state, draining, count, *cancel in replies
        ),
    )


def parse_reap_report(reply: Any) -> ReapReport:
    returned, buried, workers, more, put_off_ms = reply
    return ReapReport(returned, buried, workers, bool(more), None if put_off_ms < 0 else put_off_ms)


def parse_reconciliation(reply: Any) -> Reconciliation:
    code, given_back, set_up, *lost = reply
    return Reconciliation(code == 0, given_back, set_up, frozenset(n - 1 for n in lost))


def parse_cancellation(reply: Any) -> tuple[CancelCode, str]:
    code, status = reply
    return CancelCode(code), to_text(status)


def parse_cancelled_page(reply: Any) -> tuple[int, int, bool]:
    count, stay, more = reply
    return count, stay, bool(more)


def parse_observation(reply: Any, queue_names: Sequence[str]) -> Observation:
    now_ms, queues, workers, is_controlled, paused, ended_leases, has_more_orphans = reply
    if not 0 <= now_ms < _END_OF_CALENDAR_MS:
        raise ValueError(f"no clock shows {now_ms} ms")
    return Observation(
        now_ms,
        {
            name: QueueObservation(
                int(due),
                int(soon),
                int(later),
                None if oldest_ms < 0 else max(0, now_ms - oldest_ms) / 1000,
                None if next_ms < 0 else next_ms,
                int(held),
                int(orphaned),
            )
            for name, figures in zip(queue_names, queues, strict=True)
            if figures
            for due, soon, later, oldest_ms, next_ms, held, orphaned in [figures]
        },
        {
            to_text(worker_id): WorkerObservation(
                to_text(worker_id),
                to_text(pod_uid),
                int(busy),
                int(capacity),
                bool(draining),
                parse_names(names),
                int(lease_ends_ms),
                to_text(incarnation),
                None if registered_ms < 0 else registered_ms,
                int(ended),
            )
            for (
                *(worker_id, pod_uid, busy, capacity, draining, names, lease_ends_ms, incarnation),
                registered_ms,
                ended,
            ) in workers
        },
        bool(is_controlled),
        frozenset(to_texts(paused)),
        int(ended_leases),
        bool(has_more_orphans),
    )


def parse_admission(reply: Any, queue_names: Sequence[str]) -> Admission:
    parked, let_in, *counts = reply
    unfinished = {name: count for name, count in zip(queue_names, counts, strict=True) if count >= 0}
    return Admission(parked, let_in, unfinished)


def parse_info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def parse_names(text: bytes) -> tuple[str, ...]:
    # Written by the worker that registered. What another program wrote there must neither break nor fill an observer.
    try:
        if len(text) > _LONGEST_NAMES_BYTES:
            return ()
        return tuple(str(name) for name in islice(json.loads(text), _MOST_NAMES))
    except (TypeError, ValueError, RecursionError):
        return ()


def to_texts(values: Iterable[bytes]) -> list[str]:
    return [to_text(value) for value in values]


def to_text(value: bytes) -> str:
    # As above: bytes that are no text still make a name.
    return value.decode("utf-8", "backslashreplace")
