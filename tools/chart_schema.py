"""What values.schema.json says of a pool, made of the definition of RRQWorkerPool. `crd` writes it.

A misspelt field is refused by Helm then, before anything is installed. What only the API server can check, rules that
compare fields say, is left to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "charts" / "rrq" / "values.schema.json"
DEFINITION = ROOT / "crds" / "rrqworkerpools.rrq.dev.yaml"

Schema = dict[str, Any]

ANYTHING = "x-kubernetes-preserve-unknown-fields"
# Words for people and for the API server, which fills in defaults and knows sizes of integers.
LEFT_OUT = ("default", "description", "format", "nullable")


def render_schema(schema: str, definition: str) -> str:
    """Return the schema of the values with the pools of this definition."""
    whole = json.loads(schema)
    whole["properties"]["pools"]["additionalProperties"] = build_pool(yaml.safe_load(definition))
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def build_pool(definition: dict[str, Any]) -> Schema:
    (version,) = definition["spec"]["versions"]
    pool = convert(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    # A pool that names none gets the Redis of the release, where there is one.
    pool["required"].remove("redis")
    return pool


def convert(structural: Schema) -> Schema:
    """Return a schema in the words of JSON Schema, where a field that is not named must be refused expressly."""
    schema = {
        name: value
        for name, value in structural.items()
        if name not in LEFT_OUT and not name.startswith("x-kubernetes-")
    }
    if "items" in schema:
        schema["items"] = convert(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = convert(schema["additionalProperties"])
    if "properties" in schema:
        schema["properties"] = {name: convert(field) for name, field in schema["properties"].items()}
        if not structural.get(ANYTHING):
            schema["additionalProperties"] = False
    return schema
