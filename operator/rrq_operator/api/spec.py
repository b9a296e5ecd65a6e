"""What a user writes into an RRQWorkerPool, as typed values: the one source of its schema.

``crd.py`` makes the CustomResourceDefinition of these models, defaults, bounds and rules included, so that the
API server refuses what is refused here, with the same words. Local mode has no API server and relies on the
models alone.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor
from typing import Any, Literal

from pydantic import Field, ValidationError

from rrq.cron import CronSchedule
from rrq_operator.api.field_types import (
    DNS_LABEL,
    Disruption,
    Foreign,
    Image,
    KeyPrefix,
    PodTemplate,
    QueueName,
    RedisUrl,
    Resources,
    SettingsPath,
    UrlFrom,
    Weight,
)
from rrq_operator.api.rules import Part, Rule, explain, matching
from rrq_operator.api.schedules import CronEntry, JobRuns

GROUP = "rrq.dev"
VERSION = "v1alpha1"
KIND = "RRQWorkerPool"
PLURAL = "rrqworkerpools"
API_VERSION = f"{GROUP}/{VERSION}"

#: Children are named after the pool, with at most 11 characters behind it, and a label holds 63.
LONGEST_POOL_NAME = 52
DEFAULT_CONCURRENCY = 10
_MOST_QUEUES = 50


class SpecError(ValueError):
    """A pool whose spec cannot be used; the message is meant for the person who wrote it."""


class RedisSource(Part):
    """The Redis that holds the queues."""

    url: RedisUrl | None = Field(
        default=None,
        description="URL of the server: redis://, rediss:// (TLS), redis+sentinel:// or redis+cluster://. "
        "No password here, anyone who may read the pool would read it: use urlFrom.",
    )
    url_from: UrlFrom | None = Field(default=None, description="Takes the URL from a Secret.")
    key_prefix: KeyPrefix = Field(default="rrq:", description="What every key in Redis begins with.")

    RULES = (
        Rule(
            "has(self.url) != has(self.urlFrom)",
            lambda redis: (redis.url is None) != (redis.url_from is None),
            "name one Redis: either url or urlFrom, not both and not neither",
        ),
    )


#: Larger suffixes are for bytes: 2Gi CPUs is a mistake.
_CPUS = re.compile(r"([0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(n|u|m|[eE][-+]?[0-9]{1,2})?", re.ASCII)
_EXPONENTS = {"": 0, "n": -9, "u": -6, "m": -3}


def parse_cpus(quantity: int | str) -> float:
    """Return CPUs as a number: ``2``, ``"1.5"`` or ``"500m"``. Raises ValueError for anything else."""
    text = str(quantity)
    match = _CPUS.fullmatch(text)
    if match is None:
        raise ValueError(f'CPU quantity {text!r} is not understood. Write CPUs as 2, "1.5" or "500m".')
    suffix = match[2] or ""
    exponent = _EXPONENTS[suffix] if suffix in _EXPONENTS else int(suffix[1:])
    # By way of text, so that 100m is the same number as 0.1.
    return float(f"{match[1]}e{exponent}")


class Worker(Part):
    """The pods of the pool."""

    image: Image | None = Field(
        default=None,
        description="Image with the application and the worker; local mode runs what is installed instead.",
    )
    settings: SettingsPath = Field(
        description="Dotted path of the RRQSettings object of the application, such as shop.jobs.settings.",
    )
    concurrency: int = Field(
        default=DEFAULT_CONCURRENCY, ge=1, le=10_000, description="Jobs in progress at once, per process."
    )
    processes: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Worker processes per pod. Default: one per whole CPU of limits.cpu, else requests.cpu "
        "rounded up, else 1.",
    )
    resources: Resources = Field(default=Resources(), description="CPU and memory of the worker container.")
    env: list[Foreign] = Field(
        default_factory=list, max_length=500, description="Variables of the worker container, as in any pod."
    )
    env_from: list[Foreign] = Field(
        default_factory=list, max_length=100, description="Sources of variables, as in any pod."
    )
    drain_seconds: int = Field(
        default=30,
        ge=0,
        le=86_400,
        description="How long a pod that gets SIGTERM lets its running jobs end; what is unfinished then "
        "goes back to its queue. The grace period of the pod follows.",
    )
    pod_template: PodTemplate = Field(
        default_factory=dict,
        description="Anything else about the pods: metadata and spec, merged over what the operator writes. "
        "The worker's container is the one named worker.",
    )

    def count_processes(self) -> int:
        """Return how many worker processes a pod runs, by the rule that its supervisor follows too."""
        if self.processes is not None:
            return self.processes
        limit = self.resources.limits.get("cpu")
        if limit is not None:
            return max(1, floor(parse_cpus(limit)))
        return max(1, ceil(parse_cpus(self.resources.requests.get("cpu", 1))))


class ScaleDown(Part):
    """How a pool becomes smaller. It never does through a running job."""

    window_seconds: int = Field(
        default=60, ge=0, le=3_600, description="The pool scales down to what was enough for this long."
    )
    step_replicas: int | None = Field(
        default=None,
        ge=1,
        le=1_000,
        description="At most so many replicas at a time; unset means any number.",
    )


class Scaling(Part):
    """How large the pool may and should be."""

    min_replicas: int = Field(default=0, ge=0, le=1_000, description="Never fewer while there is work.")
    max_replicas: int = Field(default=10, ge=1, le=1_000, description="Never more.")
    jobs_per_replica: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="How many jobs, running and due, one replica should carry. Default: processes x concurrency.",
    )
    target_latency_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Add replicas until the last job that is due now starts within this time.",
    )
    idle_replicas: int | None = Field(
        default=None,
        ge=0,
        le=1_000,
        description="Replicas while nothing is due or running. Default: minReplicas.",
    )
    headroom_replicas: int = Field(
        default=0, ge=0, le=100, description="Replicas beyond what the work needs, while there is any."
    )
    scale_down: ScaleDown = Field(default=ScaleDown(), description="How the pool becomes smaller.")
    paused: bool = Field(default=False, description="Freeze the size, whatever the queues hold.")

    RULES = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            lambda scaling: scaling.min_replicas <= scaling.max_replicas,
            "minReplicas must not exceed maxReplicas (10 unless set)",
        ),
        Rule(
            "!has(self.idleReplicas) || self.idleReplicas <= self.minReplicas",
            lambda scaling: scaling.idle_replicas is None or scaling.idle_replicas <= scaling.min_replicas,
            "idleReplicas must not exceed minReplicas: it is the size of a pool that has nothing to do",
        ),
    )


class PoolSpec(Part):
    """The desired state of a pool."""

    type: Literal["Deployment", "Job"] = Field(
        default="Deployment",
        description="Deployment: replicas sized from the queues. Job: burst mode, one pod of one process that runs "
        "what is due and ends.",
    )
    queues: list[QueueName] = Field(
        min_length=1,
        max_length=_MOST_QUEUES,
        description="Queues the workers serve, the first first unless queueWeights say otherwise.",
    )
    queue_weights: dict[str, Weight] | None = Field(
        default=None,
        max_length=_MOST_QUEUES,
        description="Shares of the queues while all of them have work, such as high: 6, default: 3; a queue that is not "
        "named counts 1. Unset: the queues are served in their order, unless the settings of the application have weights.",
    )
    redis: RedisSource | None = Field(default=None, description="The Redis that holds the queues.")
    worker: Worker = Field(description="The pods of the pool.")
    replicas: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="A floor under the size, set by hand with kubectl scale; 0 leaves it to scaling.",
    )
    scaling: Scaling | None = Field(default=None, description="How large the pool may and should be.")
    job: JobRuns | None = Field(
        default=None, description="When the Job of a burst pool runs; only for type: Job."
    )
    cron: list[CronEntry] = Field(
        default_factory=list, max_length=100, description="Jobs enqueued on a schedule by the operator."
    )
    disruption: Disruption = Field(default=Disruption(), description="What a node drain may take at once.")

    RULES = (
        Rule(
            "self.type != 'Job' || self.replicas == 0",
            lambda spec: spec.type != "Job" or spec.replicas == 0,
            "replicas is not for type: Job, which is always one pod; remove it or use type: Deployment",
        ),
        Rule(
            "self.type != 'Job' || !has(self.scaling)",
            lambda spec: spec.type != "Job" or spec.scaling is None,
            "scaling is not for type: Job, which is always one pod; remove it or use type: Deployment",
        ),
        Rule(
            "self.type != 'Job' || !has(self.worker.processes) || self.worker.processes == 1",
            lambda spec: spec.type != "Job" or spec.worker.processes in (None, 1),
            "a pool of type: Job runs one process: bursts cannot be coordinated across several; "
            "remove worker.processes or use type: Deployment",
        ),
        Rule(
            "self.type == 'Job' || !has(self.job)",
            lambda spec: spec.type == "Job" or spec.job is None,
            "job is only for type: Job; remove it or set type: Job",
        ),
        Rule(
            "self.replicas <= (has(self.scaling) ? self.scaling.maxReplicas : 10)",
            lambda spec: spec.replicas <= (spec.scaling or Scaling()).max_replicas,
            "replicas must not exceed scaling.maxReplicas (10 unless set)",
        ),
        Rule(
            "self.cron.all(entry, !has(entry.queue) || entry.queue in self.queues)",
            lambda spec: all(entry.queue is None or entry.queue in spec.queues for entry in spec.cron),
            "each cron entry must name a queue of this pool, or none for the first",
        ),
        Rule(
            "self.cron.map(entry, entry.name).all(name, self.cron.exists_one(other, other.name == name))",
            lambda spec: len({entry.name for entry in spec.cron}) == len(spec.cron),
            "cron entries need names of their own",
        ),
        Rule(
            "self.queues.all(queue, self.queues.exists_one(other, other == queue))",
            lambda spec: len(set(spec.queues)) == len(spec.queues),
            "queues must not name a queue twice",
        ),
        Rule(
            "!has(self.queueWeights) || self.queueWeights.all(name, name in self.queues)",
            lambda spec: set(spec.queue_weights or ()) <= set(spec.queues),
            "queueWeights must name queues of this pool, as they are written in queues",
        ),
    )

    @property
    def sizing(self) -> Scaling:
        return self.scaling or Scaling()

    @property
    def runs(self) -> JobRuns:
        return self.job or JobRuns()

    @property
    def worker_settings(self) -> dict[str, str]:
        """Variables by which the pool sets how its workers work, over the settings of the application."""
        chosen = {
            "RRQ_WORKER_CONCURRENCY": str(self.worker.concurrency),
            "RRQ_WORKER_SHUTDOWN_GRACE_PERIOD_SECONDS": str(self.worker.drain_seconds),
        }
        if self.queue_weights is not None:
            chosen["RRQ_WORKER_QUEUE_WEIGHTS"] = json.dumps(self.queue_weights)
        return chosen

    @property
    def jobs_per_replica(self) -> int:
        return self.sizing.jobs_per_replica or self.worker.count_processes() * self.worker.concurrency


#: Over metadata.name. The API server allows dots too, which a host name, and so a pod, should not have.
NAME_RULES = (
    matching(
        DNS_LABEL,
        "a pool is named by lower-case letters, digits and '-', with a letter or digit at both ends",
        subject="self.metadata.name",
    ),
    Rule(
        f"self.metadata.name.size() <= {LONGEST_POOL_NAME}",
        lambda name: len(name) <= LONGEST_POOL_NAME,
        f"the name of a pool has at most {LONGEST_POOL_NAME} characters: its pods and jobs are named after it",
    ),
)


@dataclass(frozen=True)
class Pool:
    """One RRQWorkerPool as it was last seen."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: PoolSpec

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def redis_origin(self) -> str:
        """Where a person finds the URL of the Redis."""
        named = None if self.spec.redis is None else self.spec.redis.url_from
        return f"Secret {self.namespace}/{named.secret_key_ref.name}" if named else "spec.redis.url"

    @property
    def qualified_name(self) -> str:
        """The pool as Redis knows it."""
        return f"{self.namespace}/{self.name}"

    @property
    def pause_target(self) -> str:
        """What stands among the pauses in Redis while this pool is paused there."""
        return f"pool:{self.qualified_name}"


def parse_pool(body: Mapping[str, Any]) -> Pool:
    """Return the pool of a manifest or API object; raises SpecError with every fault that was found."""
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        metadata = {}
    name = str(metadata.get("name") or "")
    if body.get("apiVersion") != API_VERSION or body.get("kind") != KIND:
        raise SpecError(
            f"This is no {API_VERSION} {KIND} but {body.get('apiVersion')} {body.get('kind')}. "
            f"Write apiVersion: {API_VERSION} and kind: {KIND}."
        )
    if broken := [rule.message for rule in NAME_RULES if not rule.holds(name)]:
        raise SpecError(f"{KIND} {name!r}: metadata.name: {'; '.join(broken)}")
    try:
        spec = PoolSpec.model_validate(body.get("spec") or {})
        _check_meaning(spec)
    except ValidationError as error:
        faults = "; ".join(map(explain, error.errors(include_url=False, include_input=False)))
        raise SpecError(f"{KIND} {name}: {faults}") from None
    except (ValueError, OverflowError) as error:
        raise SpecError(f"{KIND} {name}: {error}") from None
    except RecursionError:
        raise SpecError(f"{KIND} {name}: spec is nested too deeply to be a pool") from None
    generation = metadata.get("generation")
    return Pool(
        namespace=str(metadata.get("namespace") or "default"),
        name=name,
        uid=str(metadata.get("uid") or ""),
        # The API server writes a number; in a file by hand it may be anything, and means nothing.
        generation=generation if isinstance(generation, int) else 0,
        spec=spec,
    )


def _check_meaning(spec: PoolSpec) -> None:
    """Read what a pattern cannot judge: a schedule for 30 February, a CPU limit of 2Gi. Raises ValueError."""
    schedules = [entry.schedule for entry in spec.cron]
    if spec.job is not None and spec.job.schedule is not None:
        schedules.append(spec.job.schedule)
    for schedule in schedules:
        CronSchedule(schedule).next_after(_SOME_DAY)
    spec.worker.count_processes()


#: A date that comes at all comes within nine years of any day.
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)
