"""Builds docs/reference/pool.md from the schema of the API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reference_text import NOTHING, code, render_page, render_table, words
from rrq_operator.api.crd import build_crd
from rrq_operator.api.rules import VALIDATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Schema = Mapping[str, Any]

OPENING = """
The fields of an `RRQWorkerPool` (`rrq.dev/v1alpha1`, short `rrqpool`); `kubectl explain rrqpool.spec.worker` shows the same.
`[]` stands for each entry of a list. A field without a default is optional unless it is required.
[The operator](../operator.md) explains what it does with them.

With `rrq-operator local`, on one machine, `redis` and `worker.image` are optional: local mode starts a Redis and runs the
installed packages.
"""

RULES = """
## Rules

The checks beyond types and bounds, with their messages.
"""

STATUS = """
## status

The operator writes it. It omits a value that it could not read, and does not write a zero.
[Conditions, reasons and events](../operator.md#conditions-reasons-and-events) explains conditions and reasons.
"""

VALUES = "The [values of the chart](../../charts/rrq/README.md#values) may contain pools, too."

COLUMNS = """
## Columns

The columns of `kubectl get rrqpool`; those marked wide need `--output wide`.
"""

_BOUNDS = (
    ("minimum", "maximum", "{} to {}"),
    ("minLength", "maxLength", "{} to {} characters"),
    ("minItems", "maxItems", "{} to {} entries"),
    ("minProperties", "maxProperties", "{} to {} entries"),
)
_NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}


def render() -> str:
    version = build_crd()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    return render_page(
        "Fields of a pool",
        "operator/rrq_operator/api/spec.py and pool_status.py",
        OPENING,
        VALUES,
        "## spec",
        render_table(("field", "type", "default", "what it is"), list_fields(spec)),
        RULES,
        render_table(("at", "rule"), list_rules(schema)),
        STATUS,
        render_table(
            ("field", "type", "what it is"), [(row[0], row[1], row[3]) for row in list_fields(status)]
        ),
        COLUMNS,
        render_table(("column", "shows", "what it is"), list_columns(version["additionalPrinterColumns"])),
    )


def list_fields(schema: Schema, parent: str = "") -> Iterator[tuple[str, ...]]:
    """Yield path, type with bounds, default and words of every field, each as a cell of the table."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{parent}{name}"
        told = words(
            field.get("description"),
            f"Field {path} of a pool",
            "Give it Field(description=...) in its model.",
        )
        yield code(path), describe_type(field), "required" if name in required else _show_default(field), told
        yield from list_fields(field, f"{path}.")
        yield from list_fields(field.get("items", {}), f"{path}[].")


def list_rules(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield where a rule holds, and its message, for every rule over more than the text of one field."""
    for rule in schema.get(VALIDATIONS, ()):
        yield (
            code(str(rule.get("fieldPath", path)).lstrip(".")),
            words(rule["message"], f"A rule of {path}", "Give it a message."),
        )
    for name, field in schema.get("properties", {}).items():
        inside = f"{path}.{name}" if path else name
        yield from list_rules(field, inside)
        yield from list_rules(field.get("items", {}), f"{inside}[]")
        yield from list_rules(field.get("additionalProperties", {}), f"{inside}.*")


def list_columns(columns: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for column in columns:
        name = f"{column['name']} (wide)" if column.get("priority") else column["name"]
        yield name, code(column["jsonPath"]), column.get("description", NOTHING)


def describe_type(field: Schema) -> str:
    """Return the type of a field in plain words, with what bounds it."""
    if "enum" in field:
        return " or ".join(map(code, field["enum"]))
    told = _name_type(field)
    for least, most, form in _BOUNDS:
        if least in field and most in field:
            told += f", {form.format(f'{field[least]:,}', f'{field[most]:,}')}"
        elif most in field:
            told += f", up to {form.partition('{} to ')[2].format(f'{field[most]:,}')}"
        elif field.get(least, 0):
            told += f", at least {field[least]:,}"
    return told


def _name_type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "whole number or text"
    if field.get("format") == "date-time":
        return "time"
    kind = field.get("type", "anything")
    if kind == "array":
        inside = field["items"]
        return f"list of {'objects' if inside.get('type') == 'object' else _name_many(inside)}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {_name_type(field['additionalProperties'])}"
    return str(_NAMES.get(kind, kind))


def _name_many(schema: Schema) -> str:
    return {"string": "texts", "integer": "whole numbers"}.get(schema.get("type", ""), "anything")


def _show_default(field: Schema) -> str:
    default = field.get("default")
    # Of an object the defaults of its fields tell more.
    if default is None or default in ({}, []):
        return NOTHING
    return code(default if isinstance(default, str) else json.dumps(default))
