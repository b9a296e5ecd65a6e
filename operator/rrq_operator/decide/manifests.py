"""The Kubernetes objects of a pool, as plain dictionaries. Pure.

Everything the operator wants of a pod is written here once; ``spec.worker.podTemplate`` is merged over it, so that
everything that Kubernetes can do stays possible. Replicas are left out: they are written through ``/scale`` only.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rrq_operator.api.spec import API_VERSION, GROUP, KIND, Pool

if TYPE_CHECKING:
    from rrq_operator.decide.objects import DeploymentObject

Manifest = dict[str, Any]

MANAGER = "rrq-operator"
#: Owns the replicas of Deployments.
SCALE_MANAGER = f"{MANAGER}-scale"
POOL_LABEL = f"{GROUP}/pool"
RUN_LABEL = f"{GROUP}/run"
MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}
#: What every object of every pool carries.
MANAGED_SELECTOR = ",".join(f"{name}={value}" for name, value in MANAGED_BY.items())
DIGEST_ANNOTATION = f"{GROUP}/manifest-digest"
SECRET_ANNOTATION = f"{GROUP}/redis-secret-version"
#: On the Deployment itself, where it rolls no pods.
SECRET_DIGEST_ANNOTATION = f"{GROUP}/redis-secret-digest"
COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
CONTAINER = "worker"
HTTP_PORT = 8080
#: A burst that was stopped before its queues were empty: neither done nor failed.
STOPPED_EARLY_EXIT_CODE = 75
#: A burst that ran all but jobs whose functions it does not have: started again it would meet them again.
LACKS_FUNCTIONS_EXIT_CODE = 69
#: The supervisor exits within two seconds of its grace period; the rest is for a slow machine.
_GRACE_BEYOND_DRAIN_SECONDS = 10
#: Lists of Kubernetes whose entries have a name: merged entry by entry, where others are replaced.
_NAMED_BY = {
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
}
#: Lists whose entries are replaced whole: half a variable and half of another would be neither.
_REPLACED_WHOLE = ("env", "volumes")
#: A probe or hook has one of these; the one of the user replaces ours.
_ACTIONS = frozenset(("exec", "httpGet", "tcpSocket", "grpc", "sleep"))


class SecretShown:
    """What the pod template of a pool shows of its Secret: the digest of the value, so that a new value rolls the pods.

    It stays until the value changes. An operator that starts after the Secret was made anew finds another digest for the same
    value; that digest is on the Deployment itself, and says that the pods have the value. Earlier operators showed the
    resource version. If the Secret still has that version, the pods have its current value as well: an upgrade rolls no pods.
    """

    def __init__(self) -> None:
        #: A digest, and what the Deployment shows instead of it.
        self._inherited = ("", "")

    def choose(self, digest: str, resource_version: str, live: "DeploymentObject | None") -> str:
        """Return what to show of a value with this digest; ``live`` is the Deployment as it is."""
        if live is not None and live.secret_shown and digest:
            is_version = live.secret_shown == resource_version
            if is_version or live.secret_digest == digest:
                self._inherited = digest, live.secret_shown
        inherited, shown = self._inherited
        return shown if inherited == digest else digest


def build_labels(pool: Pool) -> dict[str, str]:
    return {"app.kubernetes.io/name": "rrq-worker", **MANAGED_BY, POOL_LABEL: pool.name}


def build_selector(pool: Pool) -> str:
    """Return the label selector of the pods of a pool, as its scale subresource shows it."""
    return f"{POOL_LABEL}={pool.name}"


def build_deployment(pool: Pool, secret_shown: str, secret_digest: str = "") -> Manifest:
    """Return the Deployment of a pool; a change of ``secret_shown`` rolls the pods.

    Where that is not the digest of the value, because the Secret was made anew or an earlier operator showed something else,
    the Deployment keeps the digest beside it.
    """
    template = build_pod_template(pool, secret_shown, arguments=build_arguments(pool), restart="Always")
    metadata = _metadata(pool, pool.name)
    if secret_digest not in ("", secret_shown):
        metadata["annotations"] = {SECRET_DIGEST_ANNOTATION: secret_digest}
    return _sealed(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": {POOL_LABEL: pool.name}},
                # New pods first, then old ones drain: a roll-out takes no capacity away.
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
                },
                "revisionHistoryLimit": 3,
                "template": template,
            },
        }
    )


def build_disruption_budget(pool: Pool) -> Manifest:
    return _sealed(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(pool, pool.name),
            "spec": {
                "maxUnavailable": pool.spec.disruption.max_unavailable,
                "selector": {"matchLabels": {POOL_LABEL: pool.name}},
                # A pod that is not ready runs no job; keeping it would only block a node drain.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    )


def job_name(pool: Pool, run: int) -> str:
    """Return the name of a run: counted, so that two operators that start the same run collide."""
    return f"{pool.name}-run-{run}"


def build_job(pool: Pool, run: int, secret_digest: str) -> Manifest:
    """Return one run of a burst pool: one pod, one process, never restarted in place."""
    runs = pool.spec.runs
    arguments = [*build_arguments(pool), "--burst", "--burst-linger", str(runs.linger_seconds)]
    metadata = _metadata(pool, job_name(pool, run))
    metadata["labels"][RUN_LABEL] = str(run)
    spec: Manifest = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": runs.backoff_limit,
        # A replacement only once the pod before it has really ended: never two at a time.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                # Neither a node drain nor a burst that was stopped is a fault of the jobs.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "Ignore",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [STOPPED_EARLY_EXIT_CODE],
                    },
                },
                # The only rule of this kind, so that a Job that failed by a rule is known to have ended so.
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [LACKS_FUNCTIONS_EXIT_CODE],
                    },
                },
            ]
        },
        "template": build_pod_template(pool, secret_digest, arguments=arguments, restart="Never", run=run),
    }
    if runs.active_deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = runs.active_deadline_seconds
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def build_arguments(pool: Pool) -> list[str]:
    """Return what the worker image is called with."""
    worker = pool.spec.worker
    arguments = ["worker", "run", "--settings", worker.settings.replace(":", ".")]
    for queue in pool.spec.queues:
        arguments += ["--queue", queue]
    # With a CPU limit the supervisor reads its own allotment; without one it would see the whole node.
    if pool.spec.type == "Deployment" and (
        worker.processes is not None or "cpu" not in worker.resources.limits
    ):
        arguments += ["--num-workers", str(worker.count_processes())]
    return arguments


def build_pod_template(
    pool: Pool, secret_digest: str, *, arguments: Sequence[str], restart: str, run: int | None = None
) -> Manifest:
    """Return the template of a worker pod with ``podTemplate`` of the user merged over it."""
    worker = pool.spec.worker
    labels = build_labels(pool) | ({RUN_LABEL: str(run)} if run is not None else {})
    base: Manifest = {
        "metadata": {
            "labels": labels,
            "annotations": {SECRET_ANNOTATION: secret_digest} if secret_digest else {},
        },
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": worker.drain_seconds + _GRACE_BEYOND_DRAIN_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {POOL_LABEL: pool.name}},
                }
            ],
            "containers": [_build_container(pool, arguments)],
            # The root file system is read-only; handlers still expect a place for scratch files.
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    return _insist(merge(base, worker.pod_template), pool, labels)


def _build_container(pool: Pool, arguments: Sequence[str]) -> Manifest:
    worker = pool.spec.worker
    return {
        "name": CONTAINER,
        "image": worker.image,
        "args": list(arguments),
        "env": _build_environment(pool),
        "envFrom": worker.env_from,
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": worker.resources.model_dump(by_alias=True, exclude_defaults=True),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # Asked every second while it starts, so that a pod counts as soon as it can work.
        "startupProbe": _probe("/startupz", period_seconds=1, failures=300),
        "readinessProbe": _probe("/readyz", period_seconds=5, failures=2),
        "livenessProbe": _probe("/livez", period_seconds=10, failures=3),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _build_environment(pool: Pool) -> list[Manifest]:
    """Return the variables: the user's win over defaults, the pool's over the user's."""
    defaults = {"RRQ_LOG_FORMAT": {"name": "RRQ_LOG_FORMAT", "value": "json"}}
    users = pool.spec.worker.env
    named = {entry.get("name") for entry in users}
    kept = [entry for name, entry in defaults.items() if name not in named]
    return _put_own_first([*kept, *users], _build_own_environment(pool))


def _build_own_environment(pool: Pool) -> list[Manifest]:
    """Return the variables by which pool and pods are tied together."""
    redis = pool.spec.redis
    own: dict[str, Manifest] = {
        "RRQ_POD_UID": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        "RRQ_POD_SOLE_WORKER": {"value": "1"},
        "RRQ_POOL": {"value": pool.qualified_name},
        "RRQ_ENVIRONMENT_WINS": {"value": "1"},
        "RRQ_WORKER_HTTP": {"value": f"0.0.0.0:{HTTP_PORT}"},
        **{name: {"value": value} for name, value in pool.spec.worker_settings.items()},
    }
    if redis is not None:
        own["RRQ_KEY_PREFIX"] = {"value": redis.key_prefix}
        if redis.url_from is not None:
            reference = redis.url_from.secret_key_ref
            own["RRQ_REDIS_DSN"] = {"valueFrom": {"secretKeyRef": reference.model_dump(by_alias=True)}}
        else:
            own["RRQ_REDIS_DSN"] = {"value": redis.url}
    return [{"name": name, **value} for name, value in own.items()]


def _put_own_first(users: Sequence[Any], own: Sequence[Manifest]) -> list[Any]:
    """Return all variables; ours stand first, because a value may refer to a variable before it."""
    names = [entry["name"] for entry in own]
    return [
        *own,
        *(entry for entry in users if not (isinstance(entry, Mapping) and entry.get("name") in names)),
    ]


def _insist(template: Manifest, pool: Pool, labels: Mapping[str, str]) -> Manifest:
    """Return the template with what no ``podTemplate`` may change: how pods are found, and the pool's variables.

    The API server refuses what has the wrong type, and says where it is.
    """
    metadata, spec = template.get("metadata"), template.get("spec")
    if isinstance(metadata, Mapping) and isinstance(known := metadata.get("labels", {}), Mapping):
        template = template | {"metadata": {**metadata, "labels": {**known, **labels}}}
    if isinstance(spec, Mapping) and isinstance(containers := spec.get("containers"), list):
        own = _build_own_environment(pool)
        insisted = [
            {**entry, "env": _put_own_first(users, own)}
            if isinstance(entry, Mapping)
            and entry.get("name") == CONTAINER
            and isinstance(users := entry.get("env", []), list)
            else entry
            for entry in containers
        ]
        template = template | {"spec": {**spec, "containers": insisted}}
    return template


def _probe(path: str, *, period_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def merge(base: Any, over: Any, name: str = "") -> Any:
    """Return ``base`` with ``over`` laid upon it: objects field by field, named lists entry by entry.

    A field that is null in ``over`` is taken away.
    """
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        dropped = _ACTIONS if _ACTIONS & over.keys() else frozenset()
        kept = {key: value for key, value in base.items() if key in over or key not in dropped}
        return {
            key: merge(kept[key], over[key], key)
            if key in kept and key in over
            else over.get(key, kept.get(key))
            for key in [*kept, *(key for key in over if key not in kept)]
            if over.get(key, ...) is not None
        }
    if isinstance(base, list) and isinstance(over, list):
        if name == "envFrom":
            return [*base, *over]
        key_field = _NAMED_BY.get(name, "name")
        if all(_has_name(entry, key_field) for entry in (*base, *over)):
            return _merge_named(base, over, key_field, replaces=name in _REPLACED_WHOLE)
    return over


def _has_name(entry: Any, key_field: str) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get(key_field), str | int)


def _merge_named(base: Sequence[Any], over: Sequence[Any], key_field: str, *, replaces: bool) -> list[Any]:
    changes = {entry[key_field]: entry for entry in over}
    known = {entry[key_field] for entry in base}
    return [
        *(
            changes[entry[key_field]]
            if replaces and entry[key_field] in changes
            else merge(entry, changes.get(entry[key_field], {}))
            for entry in base
        ),
        *(entry for entry in over if entry[key_field] not in known),
    ]


def _metadata(pool: Pool, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": pool.namespace,
        "labels": build_labels(pool),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": pool.name,
                "uid": pool.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _sealed(manifest: Manifest) -> Manifest:
    """Return the manifest with a digest of itself, by which a changed one is known without comparing fields."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), DIGEST_ANNOTATION: digest}
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def digest_spec(spec: Mapping[str, Any]) -> str:
    """Return a digest of a spec without what others may rightly change: the number of replicas."""
    kept = {name: value for name, value in spec.items() if name != "replicas"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
