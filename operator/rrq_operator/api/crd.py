"""The CustomResourceDefinition of RRQWorkerPool, made of the models in ``spec.py`` and ``pool_status.py``. Pure.

``python -m rrq_operator.api.crd`` prints it; ``make crd`` keeps it in crds/.
"""

import sys
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from rrq_operator.api.pool_status import PoolStatus
from rrq_operator.api.rules import VALIDATIONS, build_validations
from rrq_operator.api.spec import GROUP, KIND, NAME_RULES, PLURAL, VERSION, PoolSpec

CRD_NAME: Final = f"{PLURAL}.{GROUP}"
GENERATED_BY: Final = (
    "# Generated from operator/rrq_operator by `make crd`: change the models there, not this file."
)

Schema = dict[str, Any]

_ANY_JSON: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
_STAYS_THE_SAME: Final = {
    "rule": "self == oldSelf",
    "message": "the type of a pool cannot be changed: delete the pool and create it anew, its queues keep their jobs",
}


def build_crd() -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["rrqpool"],
                "categories": ["all", "rrq"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _build_columns(),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": _build_root_schema()},
                }
            ],
        },
    }


def render_crd() -> str:
    """Return the definition as the text of crds/; the same models always give the same text."""
    # Aliases would save some lines and cost readers more.
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    body: str = yaml.dump(build_crd(), Dumper=dumper, sort_keys=False, allow_unicode=True, width=110)
    return f"{GENERATED_BY}\n{body}"


def _build_root_schema() -> Schema:
    spec = build_schema(PoolSpec)
    spec["properties"]["type"][VALIDATIONS] = [_STAYS_THE_SAME]
    # Local mode brings a Redis and runs what is installed; a cluster needs both in the spec.
    _require(spec, "redis")
    _require(spec["properties"]["worker"], "image")
    # By name and not as a whole, so that several authors can each apply entries of their own.
    spec["properties"]["cron"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    return {
        "type": "object",
        "description": "A pool of RRQ workers, sized from what its queues hold.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": spec,
            "status": build_schema(PoolStatus),
        },
        # Only here may a rule see the name, so each says where it looks.
        VALIDATIONS: [{**rule, "fieldPath": ".metadata.name"} for rule in build_validations(NAME_RULES)],
    }


def _require(schema: Schema, name: str) -> None:
    # In the order of the properties, which is the order that people read.
    required = {*schema.get("required", ()), name}
    schema["required"] = [known for known in schema["properties"] if known in required]


def _build_columns() -> list[dict[str, Any]]:
    ready_message = '.status.conditions[?(@.type=="Ready")].message'
    return [
        _column("Type", "string", ".spec.type"),
        _column("Queues", "string", ".status.queues"),
        _column("Due", "integer", ".status.due", "Jobs that are due and wait"),
        _column("Oldest", "date", ".status.oldestDueTime", "How long the oldest of them has waited"),
        _column("Busy", "integer", ".status.busy", "Jobs that run"),
        _column("Ready", "integer", ".status.readyReplicas", "Pods that are ready"),
        _column("Desired", "integer", ".status.desiredReplicas", "Pods that the pool should have"),
        _column("Reason", "string", ".status.reason", "Why it should have so many"),
        _column("Blocked", "integer", ".status.blocked", "Of those due, jobs that may not start", priority=1),
        _column("Soon", "integer", ".status.dueSoon", "Jobs that come due shortly", priority=1),
        _column("Later", "integer", ".status.later", "Jobs that come due after that", priority=1),
        _column("Message", "string", ready_message, "What the condition Ready says", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]


def _column(name: str, kind: str, path: str, description: str = "", priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


def build_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a model in the form that Kubernetes calls structural: every type named, no references."""
    written = model.model_json_schema(by_alias=True, schema_generator=_AllDefaults)
    return _convert(written, written.get("$defs", {}))


class _AllDefaults(GenerateJsonSchema):
    """Writes every default, also those that a factory makes."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        default = schema["default_factory"]() if "default_factory" in schema else schema.get("default")  # type: ignore[call-arg]  # ours take no data
        # Of an object only that it is there: the API server then fills in the defaults of its fields.
        return {} if isinstance(default, BaseModel) else default


def _convert(written: Schema, definitions: dict[str, Schema]) -> Schema:
    schema = _resolve(written, definitions)
    if schema.get("default", ...) is None:
        del schema["default"]
    if schema.get("type") == "object":
        _convert_object(schema, definitions)
    elif schema.get("type") == "array":
        # Named, for a bare list of anything may hold nulls as well.
        schema["items"] = _convert(schema["items"], definitions) or {**_ANY_JSON, "nullable": True}
    elif schema.get("type") == "integer":
        schema["format"] = "int32" if "maximum" in schema else "int64"
    elif schema.get("type") == "number":
        schema["format"] = "double"
    return dict(sorted(schema.items()))


def _resolve(written: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return a copy with references replaced by what they name; what is said beside one goes first."""
    schema = {name: value for name, value in written.items() if name not in ("$defs", "title")}
    if "anyOf" in schema:
        # Only ever "this or null": leaving a field out is how a manifest says null.
        [schema["anyOf"]] = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
        schema = {**schema.pop("anyOf"), **schema}
    if "$ref" in schema:
        named = definitions[schema.pop("$ref").removeprefix("#/$defs/")]
        schema = {**_resolve(named, definitions), **schema}
    return schema


def _convert_object(schema: Schema, definitions: dict[str, Schema]) -> None:
    match schema.pop("additionalProperties", False):
        case True:
            schema |= _ANY_JSON
        case dict() as values:
            schema["additionalProperties"] = _convert(values, definitions)
    if "properties" in schema:
        schema["properties"] = {
            name: _convert(value, definitions) for name, value in schema["properties"].items()
        }


if __name__ == "__main__":
    sys.stdout.write(render_crd())
