"""Manifests of pools that nobody may get past the API server, with the words that each is refused with.

Each is a good manifest with some fields changed. `server` is a part of the API server's message; `local` of what
`parse_pool` says in local mode, where there is no API server, or None where local mode can do without.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rrq_operator.api.spec import API_VERSION, KIND

Manifest = dict[str, Any]

#: In the place of a value: the field is left out.
LEFT_OUT = object()


@dataclass(frozen=True)
class BadManifest:
    name: str
    changes: dict[str, Any]
    server: str
    local: str | None

    def build(self) -> Manifest:
        return change(good_manifest(), self.changes)


def good_manifest() -> Manifest:
    """The smallest pool that a cluster takes."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "emails"},
        "spec": {
            "queues": ["default"],
            "redis": {"url": "redis://redis:6379/0"},
            "worker": {"image": "registry.invalid/shop:1.4", "settings": "shop.jobs.settings"},
        },
    }


def change(manifest: Manifest, changes: dict[str, Any]) -> Manifest:
    """Return a copy with values put at places such as ``spec.worker.image``; objects on the way are made."""
    changed = deepcopy(manifest)
    for place, value in changes.items():
        *above, last = place.split(".")
        target = changed
        for step in above:
            target = target.setdefault(step, {})
        if value is LEFT_OUT:
            del target[last]
        else:
            target[last] = value
    return changed


def cron(**changes: Any) -> Manifest:
    return {"name": "nightly", "schedule": "0 3 * * *", "function": "clean_up", **changes}


QUANTITY = "write an amount as Kubernetes does"
SCHEDULE = "a schedule has five fields, minute hour day month weekday"
TIME_ZONE = "a time zone has its IANA name, such as UTC or Europe/Berlin"
SHARE = "maxUnavailable is a number from 1 or a share from '1%' to '100%'"
REDIS_URL = "the URL of a Redis begins with redis://"
PASSWORD = "a URL with a password belongs into a Secret"
CONTROL = "a URL has no control characters"
FILES = "the operator opens no files for a URL"
ONE_REDIS = "name one Redis: either url or urlFrom"
ON_SCHEDULE = "schedule goes with start: OnSchedule, and start: OnSchedule needs a schedule"
SETTINGS = "settings is the dotted path of an object in a module"
QUEUE_NAME = "a queue name has no blanks"
POOL_NAME = "a pool is named by lower-case letters, digits and '-'"
SECRET_NAME = "the name of a Secret has lower-case letters"
SECRET_KEY = "a key of a Secret has letters, digits"
IMAGE = "an image has a name, without blanks"
UNKNOWN = "is not a field of a pool"


def refused(name: str, place: str, value: Any, server: str, local: str | None = "") -> BadManifest:
    """One field with a wrong value; without `local`, both say the same."""
    return BadManifest(name, {place: value}, server, server if local == "" else local)


def at_least(name: str, place: str, value: int, least: int) -> BadManifest:
    return BadManifest(
        name,
        {place: value},
        f"{place} in body should be greater than or equal to {least}",
        f"{place}: Input should be greater than or equal to {least}",
    )


def at_most(name: str, place: str, value: int, most: int) -> BadManifest:
    return BadManifest(
        name,
        {place: value},
        f"{place} in body should be less than or equal to {most}",
        f"{place}: Input should be less than or equal to {most}",
    )


def wrong_type(name: str, place: str, value: Any, wanted: str, found: str) -> BadManifest:
    words = {"array": "list", "object": "dictionary"}.get(wanted, wanted)
    return BadManifest(
        name,
        {place: value},
        f'{place} in body must be of type {wanted}: "{found}"',
        f"{place}: Input should be a valid {words}",
    )


def missing(place: str, *, local: bool = True) -> BadManifest:
    return BadManifest(
        f"no {place}",
        {place: LEFT_OUT},
        f"{place}: Required value",
        f"{place}: is required" if local else None,
    )


def unknown(place: str, value: Any = 1) -> BadManifest:
    return BadManifest(f"unknown {place}", {place: value}, f'unknown field "{place}"', f"{place}: {UNKNOWN}")


def job_pool(name: str, changes: dict[str, Any], message: str) -> BadManifest:
    return BadManifest(name, {"spec.type": "Job", **changes}, message, message)


BAD_MANIFESTS: tuple[BadManifest, ...] = (
    # The name of the pool.
    refused("name too long", "metadata.name", "a" * 53, "the name of a pool has at most 52 characters"),
    refused("name with a dot", "metadata.name", "shop.emails", POOL_NAME),
    refused("name with capitals", "metadata.name", "Emails", POOL_NAME),
    # Type and size.
    refused(
        "unknown type",
        "spec.type",
        "StatefulSet",
        'Unsupported value: "StatefulSet": supported values: "Deployment", "Job"',
        "spec.type: Input should be 'Deployment' or 'Job'",
    ),
    refused(
        "min above max",
        "spec.scaling",
        {"minReplicas": 5, "maxReplicas": 4},
        "minReplicas must not exceed maxReplicas",
    ),
    refused(
        "idle above min",
        "spec.scaling",
        {"minReplicas": 1, "idleReplicas": 2},
        "idleReplicas must not exceed minReplicas",
    ),
    BadManifest(
        "replicas above max",
        {"spec.replicas": 4, "spec.scaling.maxReplicas": 3},
        "replicas must not exceed scaling.maxReplicas",
        "replicas must not exceed scaling.maxReplicas",
    ),
    at_least("negative replicas", "spec.replicas", -1, 0),
    at_least("max of zero", "spec.scaling.maxReplicas", 0, 1),
    at_least("negative window", "spec.scaling.scaleDown.windowSeconds", -60, 0),
    wrong_type("paused as text", "spec.scaling.paused", "yes", "boolean", "string"),
    wrong_type("replicas as text", "spec.replicas", "3", "integer", "string"),
    wrong_type("half a replica", "spec.scaling.maxReplicas", 2.5, "integer", "number"),
    # Burst mode.
    job_pool(
        "burst with replicas", {"spec.replicas": 2}, "replicas is not for type: Job, which is always one pod"
    ),
    job_pool(
        "burst with scaling", {"spec.scaling": {}}, "scaling is not for type: Job, which is always one pod"
    ),
    job_pool("burst with processes", {"spec.worker.processes": 2}, "a pool of type: Job runs one process"),
    refused("job of a Deployment", "spec.job", {}, "job is only for type: Job; remove it or set type: Job"),
    job_pool("OnSchedule without schedule", {"spec.job.start": "OnSchedule"}, ON_SCHEDULE),
    job_pool("schedule without OnSchedule", {"spec.job.schedule": "0 3 * * *"}, ON_SCHEDULE),
    job_pool(
        "schedule of four fields", {"spec.job": {"start": "OnSchedule", "schedule": "0 3 * *"}}, SCHEDULE
    ),
    job_pool("61st minute", {"spec.job": {"start": "OnSchedule", "schedule": "61 3 * * *"}}, SCHEDULE),
    BadManifest(
        "unknown start",
        {"spec.type": "Job", "spec.job.start": "Always"},
        'supported values: "WhenDue", "OnSchedule", "Once"',
        "spec.job.start: Input should be 'WhenDue', 'OnSchedule' or 'Once'",
    ),
    # Queues.
    missing("spec.queues"),
    refused(
        "empty queues",
        "spec.queues",
        [],
        "spec.queues in body should have at least 1 items",
        "spec.queues: List should have",
    ),
    refused("queue twice", "spec.queues", ["a", "b", "a"], "queues must not name a queue twice"),
    refused("queue with blank", "spec.queues", ["low priority"], QUEUE_NAME),
    refused("queue with wildcard", "spec.queues", ["mail-*"], QUEUE_NAME),
    refused(
        "endless queue name",
        "spec.queues",
        ["q" * 201],
        "spec.queues[0]: Too long: may not be more than 200",
        "spec.queues[0]: ",
    ),
    refused(
        "too many queues",
        "spec.queues",
        [f"q{number}" for number in range(51)],
        "spec.queues: Too many: 51: must have at most 50 items",
        "spec.queues: List should have at most 50 items",
    ),
    refused(
        "weight of a queue of others",
        "spec.queueWeights",
        {"default": 3, "high": 6},
        "queueWeights must name queues of this pool",
    ),
    refused(
        "weight of zero",
        "spec.queueWeights.default",
        0,
        "a weight is at least 0.001",
        "spec.queueWeights.default: Input should be greater than or equal to 0.001",
    ),
    wrong_type("weight as text", "spec.queueWeights.default", "6", "number", "string"),
    # Redis.
    missing("spec.redis", local=False),
    refused("no Redis source", "spec.redis", {}, ONE_REDIS),
    refused(
        "two Redis sources",
        "spec.redis",
        {"url": "redis://redis", "urlFrom": {"secretKeyRef": {"name": "a", "key": "url"}}},
        ONE_REDIS,
    ),
    refused("password in the URL", "spec.redis.url", "redis://:secret@redis:6379/0", PASSWORD),
    refused("password as option", "spec.redis.url", "redis://redis:6379/0?password=secret", PASSWORD),
    refused(
        "password of Sentinel",
        "spec.redis.url",
        "redis+sentinel://a:1,b:1/main?sentinel_password=secret",
        PASSWORD,
    ),
    refused("bad scheme", "spec.redis.url", "http://redis:6379", REDIS_URL),
    refused("URL with blank", "spec.redis.url", "redis://redis: 6379", REDIS_URL),
    refused("URL without host", "spec.redis.url", "redis:///0", REDIS_URL),
    refused("line separator in the URL", "spec.redis.url", "redis://redis/0?client_name=\u2028", CONTROL),
    refused("socket", "spec.redis.url", "unix:///var/run/redis.sock", "write host and port"),
    refused("newline in a user", "spec.redis.url", "redis://app%0d%0aGET@redis:6379/0", CONTROL),
    refused(
        "control character in the URL", "spec.redis.url", "redis://redis:6379/0?client_name=\x07", CONTROL
    ),
    refused("option decoded twice", "spec.redis.url", "redis://redis:6379/0?client_name=%250a", CONTROL),
    refused("file of a certificate", "spec.redis.url", "rediss://redis/0?ssl_certfile=/etc/tls.crt", FILES),
    refused(
        "file behind another option", "spec.redis.url", "rediss://redis?db=1&ssl_keyfile=/tls.key", FILES
    ),
    refused("encoded option", "spec.redis.url", "rediss://redis?%73sl_ca_certs=/ca.crt", FILES),
    refused(
        "newline in the prefix",
        "spec.redis.keyPrefix",
        "x\r\nflush_all\r\n",
        "a key prefix has no control characters",
    ),
    refused(
        "next line in the prefix", "spec.redis.keyPrefix", "x\x85", "a key prefix has no control characters"
    ),
    refused(
        "empty prefix",
        "spec.redis.keyPrefix",
        "",
        "spec.redis.keyPrefix in body should be at least 1 chars",
        "keyPrefix: ",
    ),
    refused(
        "Secret without key",
        "spec.redis",
        {"urlFrom": {"secretKeyRef": {"name": "rrq-redis"}}},
        "spec.redis.urlFrom.secretKeyRef.key: Required value",
        "spec.redis.urlFrom.secretKeyRef.key: is required",
    ),
    refused(
        "bad Secret name",
        "spec.redis",
        {"urlFrom": {"secretKeyRef": {"name": "RRQ", "key": "url"}}},
        SECRET_NAME,
    ),
    refused(
        "bad Secret key",
        "spec.redis",
        {"urlFrom": {"secretKeyRef": {"name": "rrq", "key": "a/b"}}},
        SECRET_KEY,
    ),
    # The pods.
    missing("spec.worker"),
    missing("spec.worker.image", local=False),
    missing("spec.worker.settings"),
    refused("empty image", "spec.worker.image", "", IMAGE),
    refused("image with blank", "spec.worker.image", "shop: 1.4", IMAGE),
    refused("settings without a dot", "spec.worker.settings", "settings", SETTINGS),
    refused("settings as file", "spec.worker.settings", "shop/jobs.py", SETTINGS),
    at_least("zero concurrency", "spec.worker.concurrency", 0, 1),
    at_least("negative drain", "spec.worker.drainSeconds", -1, 0),
    wrong_type("drain with a unit", "spec.worker.drainSeconds", "30s", "integer", "string"),
    refused("CPU in words", "spec.worker.resources.limits", {"cpu": "2 cores"}, QUANTITY),
    refused("mistyped unit", "spec.worker.resources.limits", {"memory": "1GBB"}, QUANTITY),
    refused("negative memory", "spec.worker.resources.requests", {"memory": "-1Gi"}, QUANTITY),
    refused(
        "CPU as fraction",
        "spec.worker.resources.limits",
        {"cpu": 0.5},
        'spec.worker.resources.limits.cpu in body must be of type integer,string: "number"',
        QUANTITY,
    ),
    refused(
        "CPU as boolean",
        "spec.worker.resources.limits",
        {"cpu": True},
        'spec.worker.resources.limits.cpu in body must be of type integer,string: "boolean"',
        QUANTITY,
    ),
    refused(
        "env as object",
        "spec.worker.env",
        {"DEBUG": "1"},
        'unknown field "spec.worker.env.DEBUG"',
        "spec.worker.env: Input should be a valid list",
    ),
    # Cron entries.
    refused("cron name twice", "spec.cron", [cron(), cron()], "cron entries need names of their own"),
    refused(
        "cron in a foreign queue",
        "spec.cron",
        [cron(queue="reports")],
        "each cron entry must name a queue of this pool",
    ),
    refused("cron of six fields", "spec.cron", [cron(schedule="0 0 3 * * *")], SCHEDULE),
    refused("cron with a step of zero", "spec.cron", [cron(schedule="*/0 * * * *")], SCHEDULE),
    refused("cron in a zone of two words", "spec.cron", [cron(timeZone="Europe/New Berlin")], TIME_ZONE),
    refused(
        "cron in an unknown time zone",
        "spec.cron",
        [cron(timeZone="Europe/Berln")],
        "the API server must know the time zone",
        "There is no time zone 'Europe/Berln'. Write an IANA name such as 'Europe/Berlin'. Did you mean 'Europe/Berlin'?",
    ),
    BadManifest(
        "runs in an unknown time zone",
        {
            "spec.type": "Job",
            "spec.job": {"start": "OnSchedule", "schedule": "0 3 * * *", "timeZone": "Mars/Base"},
        },
        "the API server must know the time zone",
        "spec.job.timeZone: There is no time zone 'Mars/Base'",
    ),
    refused(
        "cron with a bad name",
        "spec.cron",
        [cron(name="Clean up")],
        "a cron entry is named by lower-case letters",
    ),
    refused("cron in a queue with blank", "spec.cron", [cron(queue="low priority")], QUEUE_NAME),
    refused(
        "cron without a function",
        "spec.cron",
        [{"name": "nightly", "schedule": "0 3 * * *"}],
        "spec.cron[0].function: Required value",
        "spec.cron[0].function: is required",
    ),
    # Disruption.
    refused("nothing may be evicted", "spec.disruption.maxUnavailable", 0, SHARE),
    refused("more than all", "spec.disruption.maxUnavailable", "150%", SHARE),
    # What no pool has, on every level.
    unknown("spec.replica"),
    unknown("spec.redis.host", "redis"),
    unknown("spec.worker.imagePullPolicy", "Always"),
    unknown("spec.worker.resources.limit", {"cpu": 1}),
    unknown("spec.scaling.scaleDown.cooldownSeconds"),
    unknown("spec.job.parallelism"),
    refused(
        "unknown part of a pod template",
        "spec.worker.podTemplate.specs",
        {},
        'unknown field "spec.worker.podTemplate.specs"',
        "a pod template has metadata and spec, not specs",
    ),
    refused(
        "unknown field of a cron entry",
        "spec.cron",
        [cron(timezone="UTC")],
        'unknown field "spec.cron[0].timezone"',
        f"spec.cron[0].timezone: {UNKNOWN}",
    ),
    refused(
        "unknown field of a reference",
        "spec.redis",
        {"urlFrom": {"secretKeyRef": {"name": "a", "key": "b", "optional": True}}},
        'unknown field "spec.redis.urlFrom.secretKeyRef.optional"',
        f"spec.redis.urlFrom.secretKeyRef.optional: {UNKNOWN}",
    ),
)


#: Variants that both take.
GOOD_CHANGES: dict[str, dict[str, Any]] = {
    "smallest": {},
    "URL from a Secret": {"spec.redis": {"urlFrom": {"secretKeyRef": {"name": "rrq-redis", "key": "url"}}}},
    "URL with options": {
        "spec.redis.url": "rediss://redis:6379/0?ssl_cert_reqs=none&socket_timeout=3&db=1&&client_name=a%20b"
    },
    "user without password": {"spec.redis.url": "rediss://app@[::1]:6380/2"},
    "Sentinel": {"spec.redis.url": "redis+sentinel://a:26379,b:26379/main/0"},
    "Cluster": {"spec.redis": {"url": "rediss+cluster://redis:6379", "keyPrefix": "{rrq}:"}},
    "longest name": {"metadata.name": "a" * 52},
    "several queues": {"spec.queues": ["mail.high", "mail:low", "größe"]},
    "weighted queues": {"spec.queues": ["high", "low", "rest"], "spec.queueWeights": {"high": 6, "low": 0.5}},
    "burst": {"spec.type": "Job", "spec.worker.processes": 1, "spec.job": {}},
    "nightly burst": {
        "spec.type": "Job",
        "spec.job": {
            "start": "OnSchedule",
            "schedule": " 0,30 8-18/2 1,15 JAN-mar MON-fri ",
            "keepFinished": 1,
        },
    },
    "paused burst": {"spec.type": "Job", "spec.job.paused": True},
    "everything of scaling": {
        "spec.replicas": 2,
        "spec.scaling": {
            "minReplicas": 2,
            "maxReplicas": 40,
            "jobsPerReplica": 5,
            "targetLatencySeconds": 30,
            "idleReplicas": 0,
            "headroomReplicas": 1,
            "scaleDown": {"windowSeconds": 0, "stepReplicas": 1},
            "paused": True,
        },
    },
    "everything of a worker": {
        "spec.worker": {
            "image": "registry.invalid:5000/shop@sha256:" + "0" * 64,
            "settings": "shop.jobs:settings",
            "concurrency": 1,
            "processes": 4,
            "resources": {
                "limits": {"cpu": 2, "memory": "1.5Gi", "nvidia.com/gpu": "1"},
                "requests": {"cpu": "500m", "memory": "1e9", "ephemeral-storage": "0"},
            },
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "envFrom": [{"secretRef": {"name": "shop"}}],
            "drainSeconds": 0,
            "podTemplate": {
                "metadata": {"labels": {"team": "shop"}},
                "spec": {"containers": [{"name": "worker", "volumeMounts": []}], "nodeSelector": {"a": "b"}},
            },
        }
    },
    "cron": {
        "spec.queues": ["default", "reports"],
        "spec.cron": [
            cron(args=[None, 1, "a", {"b": None}], kwargs={"deep": {"er": [1.5]}}, unique=True),
            cron(name="weekly", schedule="*/5 * * * 7", queue="reports", timeZone="Europe/Berlin"),
            cron(name="zoned", timeZone="Etc/GMT+5", misfireGraceSeconds=60),
        ],
    },
    "share of the pods": {"spec.disruption.maxUnavailable": "25%"},
    "number of pods": {"spec.disruption.maxUnavailable": 3},
    "nulls for fields left out": {
        "spec.scaling": {"scaleDown": None, "minReplicas": None, "idleReplicas": None},
        "spec.job": None,
        "spec.worker.concurrency": None,
    },
}
