"""The application of the end-to-end stories: handlers that work, misbehave and say where they run.

It lives inside an image and knows nothing of the tests. What its handlers did is written to a ledger in Redis,
outside the keys of rrq, which `tests/e2e/support/story_ledger.py` reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from rrq import JobRegistry, RRQSettings
from rrq.broker.connection import REDIS_ERRORS, close_redis, open_redis

VERSION = os.environ.get("STORIES_VERSION", "unknown")
POD = socket.gethostname()  # a pod's host name is its own name
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# One of the stories takes Redis away for a minute: what was done then is still to be recorded.
LEDGER_PATIENCE_SECONDS = 180.0
LEDGER_RETRY_SECONDS = 0.5
FIRST_PROCESS_SCORE = Path("/proc/1/oom_score_adj")
HOARD_STEP_BYTES = 16 * 1024 * 1024
CLUSTER_TIMEOUT_SECONDS = 30.0

registry = JobRegistry()
settings = RRQSettings(job_registry=registry)
redis = open_redis(settings)
hoard: list[bytes] = []


async def record(ctx: dict[str, Any], ledger: str, event: str) -> None:
    """Write one event. Each has its own field, so that sending it again after a lost answer adds nothing."""
    entry = {
        "job_id": ctx["job_id"],
        "attempt": ctx["job_try"],
        "event": event,
        "time": time.time(),
        "pod": POD,
        "version": VERSION,
    }
    field, value = uuid.uuid4().hex, json.dumps(entry)
    gives_up_at = time.monotonic() + LEDGER_PATIENCE_SECONDS
    while True:
        try:
            await redis.hset(f"ledger:{ledger}", field, value)
        except REDIS_ERRORS:
            if time.monotonic() > gives_up_at:
                raise
            await asyncio.sleep(LEDGER_RETRY_SECONDS)
        else:
            return


async def count_starts(ctx: dict[str, Any], ledger: str) -> int:
    """How often this job was begun, also by processes that are dead by now."""
    entries = [json.loads(value) for value in await redis.hvals(f"ledger:{ledger}")]
    return sum(entry["job_id"] == ctx["job_id"] and entry["event"] == "started" for entry in entries)


async def work(ctx: dict[str, Any], ledger: str, seconds: float = 0.0) -> str:
    """Take some time; returns the version that did it."""
    await record(ctx, ledger, "started")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await record(ctx, ledger, "cancelled")
        raise
    await record(ctx, ledger, "finished")
    return VERSION


async def endure(ctx: dict[str, Any], ledger: str, times: int = 1, until_version: str | None = None) -> str:
    """Go on until something ends the attempt; begun more often than told, or in that version, finish at once."""
    await record(ctx, ledger, "started")
    if (await count_starts(ctx, ledger) <= times) if until_version is None else (until_version != VERSION):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await record(ctx, ledger, "cancelled")
            raise
    await record(ctx, ledger, "finished")
    return VERSION


def burn(ctx: dict[str, Any], cpu_seconds: float) -> float:
    """Keep one CPU busy, in a thread beside the event loop; returns how long the clock ran meanwhile."""
    started_at, ends_at = time.monotonic(), time.thread_time() + cpu_seconds
    while time.thread_time() < ends_at:
        pass
    return time.monotonic() - started_at


async def exhaust_memory(
    ctx: dict[str, Any], ledger: str, times: int = 1, whole_container: bool = False
) -> None:
    """Take memory until the kernel ends this process, or all of the container; begun more often than told, just finish."""
    await record(ctx, ledger, "started")
    if await count_starts(ctx, ledger) <= times:
        if whole_container:
            # The kernel takes the first process of the container then, although it is small, and with it all others.
            FIRST_PROCESS_SCORE.write_text("1000")
        while True:
            hoard.append(b"\x01" * HOARD_STEP_BYTES)
            await asyncio.sleep(0.01)  # heartbeats go on until the end
    await record(ctx, ledger, "finished")


async def fail(ctx: dict[str, Any], message: str = "told to fail") -> None:
    raise RuntimeError(message)


async def ignore_cancellation(ctx: dict[str, Any], ledger: str, seconds: float) -> None:
    """Go on when told to stop, as careless handlers do."""
    await record(ctx, ledger, "started")
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            await record(ctx, ledger, "cancelled")
    await record(ctx, ledger, "finished")


async def what_am_i(ctx: dict[str, Any]) -> dict[str, Any]:
    """Report what this process may do and what it was given; of the environment only the names."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "version": VERSION,
        "pod": POD,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "effective_capabilities": int(status["CapEff"], 16),
        "bounding_capabilities": int(status["CapBnd"], 16),
        "no_new_privileges": status["NoNewPrivs"] == "1",
        "seccomp_filters": status["Seccomp"] == "2",
        "read_only_root": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "service_account_token": (SERVICE_ACCOUNT / "token").exists(),
        "environment": sorted(os.environ),
    }


def ask_cluster(
    ctx: dict[str, Any], path: str, method: str = "GET", body: dict[str, Any] | None = None
) -> int | str:
    """Try the Kubernetes API with what lies in this pod; returns the status, or why there was no answer."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    request = urllib.request.Request(
        f"https://kubernetes.default.svc{path}",
        method=method,
        headers={"Content-Type": kind},
        data=None if body is None else json.dumps(body).encode(),
    )
    if (SERVICE_ACCOUNT / "token").exists():
        request.add_header("Authorization", f"Bearer {(SERVICE_ACCOUNT / 'token').read_text()}")
    # A pod without a token has no certificate of the cluster either, and whom it asks is not the question.
    trusting = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=CLUSTER_TIMEOUT_SECONDS, context=trusting) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError as error:
        return f"{type(error).__name__}: {error}"


async def close_ledger() -> None:
    await close_redis(redis)


for handler in (
    work,
    endure,
    burn,
    exhaust_memory,
    fail,
    ignore_cancellation,
    what_am_i,
    ask_cluster,
):
    registry.register(handler.__name__, handler)
settings.on_shutdown = close_ledger
