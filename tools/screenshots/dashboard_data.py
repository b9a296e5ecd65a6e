"""Fills a Redis with the data of a busy shop, so that a screenshot of the dashboard shows everything.

It writes the keys of the scripts directly, because an hour of real traffic takes an hour.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from rrq.broker.cron_table import build_cron_table
from rrq.cron import CronJob, cron_digest
from rrq.job import Job, JobStatus
from rrq.jobs.job_hash import build_job_hash

if TYPE_CHECKING:
    from rrq.store import JobStore

ENDED: Final = ("done", "retry", "dead")
TICK_SECONDS: Final = 0.2
# Jobs per minute at noon, and how the wait of the queue is like, in ms.
TRAFFIC: Final = {
    "default": (900, 35),
    "emails": (420, 20),
    "payments": (160, 12),
    "reports": (24, 2400),
    "thumbnails": (300, 90),
}
FUNCTIONS: Final = {
    "default": ("sync_inventory", "update_search_index", "refresh_prices"),
    "emails": ("send_receipt", "send_newsletter", "send_password_reset"),
    "payments": ("charge_card", "settle_payout"),
    "reports": ("build_sales_report", "export_ledger"),
    "thumbnails": ("render_thumbnail",),
}
TRACEBACK: Final = """Traceback (most recent call last):
  File "/app/shop/payments.py", line 84, in charge_card
    receipt = await gateway.charge(order.card, order.total)
  File "/app/shop/gateway.py", line 41, in charge
    raise GatewayTimeout(f"no answer from {self.host} within {self.timeout_seconds} s")
shop.gateway.GatewayTimeout: no answer from pay-eu-2.example.net within 10 s
"""
# Function, queue, how the error reads, how many.
FAILURES: Final = (
    ("charge_card", "payments", "no answer from pay-eu-{small}.example.net within 10 s", 37),
    ("render_thumbnail", "thumbnails", "cannot identify image file 'upload-{large}.heic'", 21),
    ("send_newsletter", "emails", "550 mailbox of customer {large} does not exist", 12),
    ("export_ledger", "reports", "disk quota exceeded after {large} rows", 4),
    ("sync_inventory", "default", "warehouse {small} answered 502 Bad Gateway", 3),
)
WORKERS: Final = (
    ("shop-default-7c9f5-k2xmd", ("default", "emails"), 8),
    ("shop-default-7c9f5-p8vqr", ("default", "emails"), 8),
    ("shop-default-7c9f5-zt4nw", ("default", "emails"), 8),
    ("shop-media-5d4b8-h6wlc", ("thumbnails",), 4),
    ("shop-media-5d4b8-x9jfs", ("thumbnails",), 4),
    ("shop-payments-6f7d9-bq2rt", ("payments",), 4),
    ("shop-reports-84c6b-m5kzp", ("reports",), 2),
)
# Queue, due jobs, age of the oldest in seconds, jobs that are due later.
DEPTHS: Final = (
    ("default", 46, 2.1, 12),
    ("emails", 9, 0.6, 140),
    ("payments", 2, 0.2, 3),
    ("reports", 7, 21.0, 2),
    ("thumbnails", 128, 6.4, 0),
)
CRON: Final = (
    CronJob(function_name="refresh_prices", schedule="*/5 * * * *", queue_name="default"),
    CronJob(
        function_name="build_sales_report", schedule="0 6 * * mon-fri", queue_name="reports", unique=True
    ),
    CronJob(function_name="settle_payout", schedule="30 2 * * *", queue_name="payments", unique=True),
    CronJob(function_name="export_ledger", schedule="0 3 1 * *", queue_name="reports"),
)


@dataclass
class DashboardData:
    """Fills one Redis. The same seed makes the same shop, at whatever time it is."""

    store: JobStore
    seed: int = 8
    chance: random.Random = field(init=False)
    now: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    @property
    def redis(self) -> Any:
        """The client without its types, which know neither our numbers nor our records."""
        return self.store.redis

    async def fill(self) -> None:
        """Write an hour of the past and the present moment."""
        self.now = await self.store.read_time()
        await self.add_minutes()
        await self.add_workers()
        await self.add_queued_jobs()
        await self.add_recent_jobs()
        await self.add_dead_letters()
        await self.add_pools()
        await self.add_cron()
        await self.add_controls()
        await self.add_audit()

    # Statistics

    async def add_minutes(self) -> None:
        this_minute, second = divmod(int(self.now.timestamp()), 60)
        totals: Counter[str] = Counter()
        for minute in range(this_minute - 60, this_minute + 1):
            # Of the minute that runs only as much as has passed.
            share = second / 60 if minute == this_minute else 1.0
            figures: Counter[str] = Counter()
            for queue, (per_minute, wait_ms) in TRAFFIC.items():
                made = self._make_minute(minute - this_minute, queue, per_minute * share, wait_ms)
                figures.update(_name_figures(queue, made))
                totals.update({name: made[name] for name in ENDED})
            await self.redis.hset(self.store.keys.stats_key(minute), mapping=figures)
        await self.redis.hset(self.store.keys.counters, mapping=totals)

    def _make_minute(self, ago: int, queue: str, per_minute: float, wait_ms: int) -> dict[str, int]:
        wave = 1 + 0.35 * math.sin(ago / 9 + len(queue)) + self.chance.uniform(-0.06, 0.06)
        # A quarter of an hour ago a wave of work came, and the pools grew for it.
        burst = 2.2 if queue in ("default", "thumbnails") and -22 <= ago <= -15 else 1.0
        started = round(per_minute * wave * burst)
        lag = (1 + 14 * max(0.0, 1 - abs(ago + 18) / 5)) if burst > 1 else 1.0
        dead = (
            self.chance.choices((0, 1, 2), (12, 3, 1))[0]
            if queue in ("payments", "thumbnails", "emails")
            else 0
        )
        return {
            "started": started,
            "done": max(0, started - dead),
            "retry": self.chance.randint(0, max(1, started // 60)),
            "dead": dead,
            "wait_ms": round(started * wait_ms * lag),
            "wait_max_ms": round(wait_ms * lag * self.chance.uniform(5, 9)),
        }

    async def tick(self, seconds: float) -> None:
        """Let so much time pass: jobs end, others come."""
        key = self.store.keys.stats_key(int((await self.store.read_time()).timestamp()) // 60)
        async with self.store.redis.pipeline(transaction=False) as pipe:
            for queue, (per_minute, wait_ms) in TRAFFIC.items():
                mean = per_minute * 1.15 * seconds / 60
                started = int(mean * self.chance.uniform(0.8, 1.2) + self.chance.random())
                if not started:
                    continue
                dead = int(self.chance.random() < 0.004 * started)
                retry = int(self.chance.random() < 0.04 * started)
                made = {"started": started, "done": started - dead - retry, "dead": dead, "retry": retry}
                made["wait_ms"] = round(started * wait_ms * self.chance.uniform(0.7, 1.4))
                for name, number in _name_figures(queue, made).items():
                    pipe.hincrby(key, name, number)
                for name in ENDED:
                    pipe.hincrby(self.store.keys.counters, name, made[name])
                worst = round(wait_ms * self.chance.uniform(4, 7))
                pipe.hset(key, f"{queue}|wait_max_ms", str(worst))
            await pipe.execute()
        if self.chance.random() < seconds:
            for queue, _, oldest_seconds, _ in DEPTHS:
                await self._move_queue(queue, oldest_seconds)

    async def _move_queue(self, queue: str, oldest_seconds: float) -> None:
        """Let the due jobs of a queue be as old as ever: others have come for those that were taken."""
        now_ms = (await self.store.read_time()).timestamp() * 1000
        key = self.store.keys.queue_key(queue)
        due = await self.redis.zrangebyscore(key, "-inf", now_ms + 30_000)
        # More or less of them wait, but none comes or goes: those that do not are due soon.
        waiting = round(len(due) * self.chance.uniform(0.55, 1.0))
        for number, member in enumerate(due):
            age_ms = oldest_seconds * 1000 * (1 - number / max(1, waiting))
            await self.redis.zadd(key, {member: now_ms - age_ms if number < waiting else now_ms + 20_000})

    # Workers and jobs

    async def add_workers(self) -> None:
        redis, keys = self.redis, self.store.keys
        now_ms = int(self.now.timestamp() * 1000)
        for number, (worker_id, queues, capacity) in enumerate(WORKERS):
            pod_uid = f"pod-{worker_id[-5:]}"
            await redis.zadd(keys.leases, {worker_id: now_ms + 24 * 3_600_000})
            record = {
                "pod_uid": pod_uid,
                "capacity": capacity,
                "queues": json.dumps(queues),
                "incarnation": "1",
                "registered_ms": now_ms - 5_400_000 + 700_000 * number,
                "ended": 4_000 + 613 * number,
            }
            await redis.hset(keys.worker_key(worker_id), mapping=record)
            health = {"status": "running", "timestamp": self.now.isoformat()}
            await redis.set(keys.health_key(worker_id), json.dumps(health), ex=86_400)
            for _ in range(max(1, capacity - number % 4)):
                await self.add_running_job(worker_id, self.chance.choice(queues))
            for queue in queues:
                await redis.zadd(keys.active_queues, {queue: self.now.timestamp()})
        await redis.set(keys.drain_key("pod-zt4nw"), "1", ex=86_400)

    async def add_running_job(self, worker_id: str, queue: str) -> None:
        started = self.now - timedelta(seconds=self.chance.uniform(0.2, 40))
        job = self._make_job(queue, started - timedelta(seconds=1), JobStatus.ACTIVE)
        extra = {"start_time": started.isoformat(), "worker_id": worker_id}
        if queue == "reports":
            progress = {"done": 6200, "total": 10000, "note": "rows of October", "at": self.now.isoformat()}
            extra["progress"] = json.dumps(progress)
        await self._store_job(job, **extra)
        await self.redis.zadd(self.store.keys.active_jobs_key(worker_id), {job.id: started.timestamp()})

    async def add_queued_jobs(self) -> None:
        for queue, waiting, oldest_seconds, later in DEPTHS:
            for number in range(waiting + later):
                is_due = number < waiting
                seconds = (
                    -oldest_seconds * (1 - number / waiting) if is_due else self.chance.uniform(30, 5_000)
                )
                due = self.now + timedelta(seconds=seconds)
                job = self._make_job(queue, min(due, self.now), JobStatus.PENDING)
                job.next_scheduled_run_time = due
                await self._store_job(job)
                await self.redis.zadd(self.store.keys.queue_key(queue), {job.id: due.timestamp() * 1000})

    async def add_recent_jobs(self, count: int = 180) -> None:
        for number in range(count):
            queue = self.chance.choices(list(TRAFFIC), [traffic[0] for traffic in TRAFFIC.values()])[0]
            ended = self.now - timedelta(seconds=(count - number) * 0.7)
            started = ended - timedelta(seconds=self.chance.uniform(0.03, 0.9))
            is_cancelled = number % 45 == 7
            status = JobStatus.CANCELLED if is_cancelled else JobStatus.COMPLETED
            job = self._make_job(queue, started - timedelta(seconds=self.chance.uniform(0.01, 0.3)), status)
            job.next_scheduled_run_time, job.completion_time = job.enqueue_time, ended
            job.result = None if is_cancelled else {"ok": True, "rows": self.chance.randint(1, 900)}
            worker_id = self.chance.choice([name for name, served, _ in WORKERS if queue in served])
            extra = {"start_time": started.isoformat(), "worker_id": worker_id}
            if number % 30 == 4:
                extra["attempts"] = json.dumps(
                    [self._make_attempt(started - timedelta(seconds=9), worker_id)]
                )
                job.current_retries = 1
            await self._store_job(job, **extra)
            await self.redis.lpush(self.store.keys.recent, job.id)

    async def add_dead_letters(self) -> None:
        made = []
        for function, queue, error, count in FAILURES:
            for _ in range(count):
                ended = self.now - timedelta(minutes=self.chance.uniform(1, 600))
                made.append((ended, function, queue, error))
        for number, (ended, function, queue, error) in enumerate(sorted(made)):
            await self.add_dead_letter(f"dead-{number:04}", function, queue, error, ended)

    async def add_dead_letter(
        self, job_id: str, function: str, queue: str, error: str, ended: datetime
    ) -> None:
        """Store a job that failed three times, the last time just now."""
        words = error.format(small=self.chance.randint(1, 4), large=self.chance.randint(10_000, 99_999))
        job = self._make_job(queue, ended - timedelta(seconds=70), JobStatus.FAILED)
        job.id, job.function_name, job.completion_time = job_id, function, ended
        job.last_error, job.current_retries = words, 3
        worker_id = next(name for name, served, _ in WORKERS if queue in served)
        attempts = [
            self._make_attempt(ended - timedelta(seconds=seconds), worker_id, words, outcome)
            for seconds, outcome in ((64, "retry"), (38, "retry"), (4, "dead"))
        ]
        await self._store_job(
            job,
            start_time=(ended - timedelta(seconds=4)).isoformat(),
            worker_id=worker_id,
            attempts=json.dumps(attempts),
            traceback=TRACEBACK.replace("no answer from pay-eu-2.example.net within 10 s", words),
        )
        dlq = self.store.keys.dlq_key(self.store.settings.default_dlq_name)
        await self.redis.lpush(dlq, job.id)

    def _make_attempt(
        self, start: datetime, worker_id: str, error: str = "connection reset by peer", outcome: str = "retry"
    ) -> dict[str, Any]:
        end = start + timedelta(seconds=self.chance.uniform(0.2, 4))
        return {
            "start": start.isoformat(),
            "end": end.isoformat(),
            "worker": worker_id,
            "outcome": outcome,
            "error": error,
        }

    def _make_job(self, queue: str, enqueued: datetime, status: JobStatus) -> Job:
        function = self.chance.choice(FUNCTIONS[queue])
        order = self.chance.randint(100_000, 999_999)
        return Job(
            id=f"{self.chance.getrandbits(32):08x}-{order}",
            function_name=function,
            job_args=[order],
            job_kwargs={"customer": f"c-{order % 8_999}", "currency": "EUR", "express": order % 3 == 0},
            enqueue_time=enqueued,
            next_scheduled_run_time=enqueued,
            status=status,
            queue_name=queue,
        )

    async def _store_job(self, job: Job, **extra: str) -> None:
        fields = {**build_job_hash(job), **extra}
        await self.redis.hset(self.store.keys.job_key(job.id), mapping=fields)

    # Pools, cron, controls

    async def add_pools(self) -> None:
        pools: tuple[tuple[str, tuple[str, ...], int, int], ...] = (
            ("shop/default", ("default", "emails"), 3, 8),
            ("shop/media", ("thumbnails",), 2, 6),
            ("shop/payments", ("payments",), 1, 3),
            ("shop/reports", ("reports",), 1, 2),
        )
        for pool, queues, size, peak in pools:
            await self._add_decisions(pool, queues, size, peak)

    async def _add_decisions(self, pool: str, queues: tuple[str, ...], size: int, peak: int) -> None:
        now_ms = int(self.now.timestamp() * 1000)
        latest: dict[str, Any] = {}
        replicas = size
        for ago in range(120, -1, -1):
            wave = math.exp(-(((ago - 42) / 14) ** 2)) + 0.5 * math.exp(-(((ago - 96) / 7) ** 2))
            desired = min(peak, size + round((peak - size) * wave))
            due = round(180 * wave * self.chance.uniform(0.7, 1.2)) + self.chance.randint(0, 9)
            reason, words = "Steady", "nothing to change"
            if desired > replicas:
                reason, words = "Backlog", f"{due} jobs are due; {desired} pods can take them at once"
            elif desired < replicas:
                reason, words = "CooledDown", "the wave is over and the cooldown has passed"
            latest = {
                "at_ms": now_ms - ago * 60_000,
                "replicas": replicas,
                "ready": replicas,
                "desired": desired,
                "due": due,
                "busy": max(1, desired * 4 - self.chance.randint(0, 4)),
                "reason": reason,
                "words": words,
            }
            if desired != replicas or ago % 10 == 0:
                await self.redis.xadd(self.store.keys.decisions_key(pool), latest)
            replicas = desired
        stored = latest | {
            "type": "Deployment",
            "queues": list(queues),
            "is_paused": False,
            "ready": replicas,
        }
        await self.redis.hset(self.store.keys.pools, pool, json.dumps(stored))

    async def add_cron(self) -> None:
        for queues in (("default", "emails"), ("payments",), ("reports",)):
            entries = [entry for entry in CRON if entry.queue_name in queues]
            await self.store.publish_cron_table(build_cron_table(queues, entries, self.now), None, 60)
        for entry, minutes in zip(CRON, (3, 700, 1_300), strict=False):
            fired_ms = int((self.now - timedelta(minutes=minutes)).timestamp() * 1000)
            digest = cron_digest(entry, entry.queue_name)
            await self.redis.hset(self.store.keys.cron_last, digest, str(fired_ms))

    async def add_controls(self) -> None:
        hour_ago_ms = int((self.now - timedelta(minutes=48)).timestamp() * 1000)
        pause = {"state": "paused", "by": "anna", "at_ms": hour_ago_ms, "reason": "mail provider limits us"}
        await self.redis.hset(self.store.keys.pauses, "function:send_newsletter", json.dumps(pause))
        limits: dict[str, Any] = {
            "function:charge_card": {"concurrency": 4, "source": "payments"},
            "function:send_newsletter": {"rate": 100, "per_seconds": 60, "burst": 20, "source": "default"},
            "function:render_thumbnail": {"key": "customer", "per_key": 2, "source": "media"},
            "queue:reports": {"concurrency": 2, "source": "reports"},
        }
        await self.redis.hset(
            self.store.keys.limits, mapping={target: json.dumps(limit) for target, limit in limits.items()}
        )
        due_ms = self.now.timestamp() * 1000
        for number in range(6):
            job = self._make_job("emails", self.now - timedelta(minutes=5), JobStatus.PENDING)
            job.function_name = "send_newsletter"
            await self._store_job(job, parked_in="f:send_newsletter")
            await self.redis.zadd(
                self.store.keys.blocked_key("f:send_newsletter"), {job.id: due_ms - number * 9_000}
            )
        await self.redis.zadd(self.store.keys.blocked_scopes, {"f:send_newsletter": due_ms + 30_000})

    async def add_audit(self) -> None:
        for minutes, actor, action, what, detail in (
            (340, "omar", "requeue", "dlq:rrq:dlq:default", {"jobs": 52}),
            (205, "anna", "pause", "queue:reports", {"reason": "database moves"}),
            (160, "anna", "resume", "queue:reports", {}),
            (75, "deploy", "limit", "function:charge_card", {"concurrency": 4}),
            (48, "anna", "pause", "function:send_newsletter", {"reason": "mail provider limits us"}),
            (12, "omar", "delete", "dlq:rrq:dlq:default", {"jobs": 8}),
        ):
            at = self.now - timedelta(minutes=minutes)
            entry = {"actor": actor, "action": action, "object": what}
            entry_id = f"{int(at.timestamp() * 1000)}-0"
            await self.redis.xadd(self.store.keys.audit, {**entry, "detail": json.dumps(detail)}, id=entry_id)


def _name_figures(queue: str, made: dict[str, int]) -> dict[str, int]:
    """Name the figures of a queue as the scripts do: how jobs end is counted for all queues together, too."""
    by_queue = {f"{queue}|{name}": number for name, number in made.items() if name != "done"}
    return by_queue | {f"|{name}": made[name] for name in ENDED}
