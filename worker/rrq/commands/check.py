"""``rrq check``: does Redis answer, and is any worker alive? For people and for probes."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import Any

import click

from rrq.broker.connection import LOST_REPLY_ERRORS, REDIS_ERRORS
from rrq.broker.redis_advice import describe_redis_trouble
from rrq.broker.server_risks import SlotPlace, describe_risks
from rrq.commands.flow_text import describe_pause, pause_json
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line, print_note
from rrq.flow import FlowState
from rrq.inspect.missing_functions import MissingFunction, describe_missing, read_missing_functions
from rrq.inspect.overview import SeenWorker, WorkerKind, find_reporting_workers, read_workers
from rrq.runtime.installation import describe_other_distribution
from rrq.settings import RRQSettings
from rrq.settings_loading import load_settings
from rrq.store import JobStore

# The share of the timeout for the search for RRQ 0.7 workers among all keys.
_SEARCH_SHARE = 0.5
_MOST_PAUSES_SHOWN = 10
_MOST_FUNCTIONS_SHOWN = 10


@dataclass
class _Report:
    """What the check found; with an error it could not look."""

    workers: list[SeenWorker] = field(default_factory=list)
    risks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flow: FlowState = field(default_factory=FlowState)
    missing_functions: list[MissingFunction] = field(default_factory=list)
    error: str | None = None
    is_connection_error: bool = False

    @property
    def active(self) -> list[SeenWorker]:
        return [worker for worker in self.workers if worker.kind is not WorkerKind.LOST]

    @property
    def is_healthy(self) -> bool:
        return self.error is None and bool(self.active)


def _refuse_nan(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    """Refuse nan, which every range accepts; from Python 3.14 on asyncio.timeout() raises ValueError for it."""
    if isnan(seconds):
        raise click.BadParameter("nan is not a number of seconds")
    return seconds


@click.command()
@settings_option
@json_option
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0.1),
    callback=_refuse_nan,
    default=5.0,
    show_default=True,
    help="Seconds after which the check gives up and fails.",
)
def check(settings_path: str | None, as_json: bool, timeout_seconds: float) -> None:
    """Perform a health check: Redis answers and at least one worker is alive.

    Exits with 0 when both are true, else with 1, and so works as an exec probe.
    """
    settings = load_settings(settings_path)
    store = JobStore(settings)
    if not as_json:
        print_line("Performing RRQ health check...")
    report = asyncio.run(_check(settings, store, timeout_seconds))
    if as_json:
        print_json(_to_json(report))
    else:
        _print_report(report)
    sys.exit(0 if report.is_healthy else 1)


async def _check(settings: RRQSettings, store: JobStore, timeout_seconds: float) -> _Report:
    report = _Report()
    if warning := describe_other_distribution():
        report.risks.append(warning)
    try:
        async with asyncio.timeout(timeout_seconds):
            await _look(store, report, timeout_seconds * _SEARCH_SHARE)
    except TimeoutError:
        silence = TimeoutError(f"no answer within {timeout_seconds:g} s")
        report.error = describe_redis_trouble(settings.redis_dsn, silence)
        report.is_connection_error = True
    except REDIS_ERRORS as error:
        report.error = describe_redis_trouble(settings.redis_dsn, error)
        report.is_connection_error = isinstance(error, LOST_REPLY_ERRORS)
    finally:
        await store.aclose()
    return report


async def _look(store: JobStore, report: _Report, search_seconds: float) -> None:
    observation = await store.observe([])
    reporting, is_complete = await find_reporting_workers(store, search_seconds)
    report.workers += await read_workers(store, observation, reporting)
    if not is_complete:
        report.notes.append(
            f"The search through all keys was stopped after {search_seconds:g} s, so RRQ 0.7 workers, which have no "
            "lease, may be missing here."
        )
    report.notes += _describe_fleet(report.workers)
    with _noting_refusal(report, "Whether Redis may lose jobs"):
        facts = await store.read_server_facts()
        report.risks += describe_risks(facts)
        if facts.place is not None:
            report.notes.append(_describe_place(store.keys.prefix, facts.place))
    with _noting_refusal(report, "Whether workers lack a function"):
        report.missing_functions = await read_missing_functions(store, observation)
        report.notes += map(describe_missing, report.missing_functions[:_MOST_FUNCTIONS_SHOWN])
    if observation.is_controlled:
        with _noting_refusal(report, "Whether anything is paused or limited"):
            report.flow = await store.read_flow()
            report.notes += _describe_flow(report.flow)


@contextlib.contextmanager
def _noting_refusal(report: _Report, question: str) -> Iterator[None]:
    """Turn a command that Redis refuses into a note; a lost connection fails the whole check."""
    try:
        yield
    except LOST_REPLY_ERRORS:
        raise
    except REDIS_ERRORS as refusal:
        report.notes.append(f"{question} could not be checked: {refusal}")


def _describe_place(prefix: str, place: SlotPlace) -> str:
    return (
        f"Redis is a cluster. All keys of {prefix!r} are in slot {place.slot}, on node {place.node} with "
        f"{place.replicas} replica(s). RRQ follows fail-overs; while the slot moves to another node, no job starts."
    )


def _describe_fleet(workers: Sequence[SeenWorker]) -> list[str]:
    notes = []
    legacy = sum(worker.kind is WorkerKind.LEGACY for worker in workers)
    if legacy:
        notes.append(
            f"{legacy} worker(s) without a lease, as of RRQ 0.7: if they die, their running jobs are lost, and they can "
            "neither drain nor cancel. Replace them when you can."
        )
    lost = sum(worker.kind is WorkerKind.LOST for worker in workers)
    if lost:
        notes.append(f"{lost} worker(s) stopped renewing their lease and count as dead.")
    return notes


def _describe_flow(state: FlowState) -> list[str]:
    """Return the pauses and limits that may explain a quiet queue."""
    paused = sorted(state.pauses.items())
    notes = [f"{describe_pause(target, pause)}." for target, pause in paused[:_MOST_PAUSES_SHOWN]]
    if len(paused) > _MOST_PAUSES_SHOWN:
        notes.append(f"{len(paused) - _MOST_PAUSES_SHOWN} more are paused; `rrq flow` lists them.")
    blocked = sum(state.blocked.values())
    if state.limits or blocked:
        notes.append(
            f"{len(state.limits)} limit(s) are set, and limits and pauses block {blocked} due job(s); `rrq flow` shows "
            "which."
        )
    return notes


def _print_report(report: _Report) -> None:
    if report.error is not None:
        event = "Redis connection failed" if report.is_connection_error else "An unexpected error occurred"
        print_note(f"ERROR: {event} during health check: {report.error}")
        kind = "Redis connection error" if report.is_connection_error else "Unexpected error"
        print_line(f"Worker Health Check: FAIL - {kind}: {report.error}")
    elif not report.active:
        print_line("Worker Health Check: FAIL (No active workers found)")
    else:
        print_line(f"Worker Health Check: Found {len(report.active)} active worker(s):")
        for worker in report.active:
            _print_worker(worker)
    for note in report.notes:
        print_note(f"Note: {note}")
    for risk in report.risks:
        print_note(f"WARNING: {risk}")
    print_line("Health check PASSED." if report.is_healthy else "Health check FAILED.")


def _print_worker(worker: SeenWorker) -> None:
    active_jobs = worker.health.get("active_jobs", worker.busy)
    print_line(f"  - Worker ID: {worker.worker_id}")
    print_line(f"    Status: {worker.status}")
    print_line(f"    Active Jobs: {active_jobs}")
    print_line(f"    Last Heartbeat: {worker.last_heartbeat}")
    print_line(f"    TTL: {'no expiry' if worker.ttl_seconds is None else f'{worker.ttl_seconds} seconds'}")
    if worker.lease_seconds is None:
        print_line("    Lease: none (RRQ 0.7)")
    else:
        print_line(f"    Lease: {worker.lease_seconds:.1f} seconds")


def _to_json(report: _Report) -> dict[str, Any]:
    return {
        "healthy": report.is_healthy,
        "error": report.error,
        "workers": [
            {
                "worker_id": worker.worker_id,
                "kind": worker.kind.value,
                "status": worker.status,
                "active_jobs": worker.busy,
                "last_heartbeat": worker.health.get("timestamp"),
                "ttl_seconds": worker.ttl_seconds,
                "lease_seconds": worker.lease_seconds,
                "pod_uid": worker.pod_uid or None,
                "queues": worker.queues,
            }
            for worker in report.workers
        ],
        "rrq_0_7_workers": sum(worker.kind is WorkerKind.LEGACY for worker in report.workers),
        "paused": [pause_json(target, pause) for target, pause in sorted(report.flow.pauses.items())],
        "limits": len(report.flow.limits),
        "blocked": sum(report.flow.blocked.values()),
        "missing_functions": [asdict(missing) for missing in report.missing_functions],
        "risks": report.risks,
        "notes": report.notes,
    }
