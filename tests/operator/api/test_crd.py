"""The CustomResourceDefinition as text and as a structural schema. What the API server makes of it: integration/."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bad_manifests import BAD_MANIFESTS
from rrq_operator.api.crd import build_crd, render_crd
from rrq_operator.api.schedules import JobRuns
from rrq_operator.api.spec import PoolSpec, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

LARGEST_BYTES = 256 * 1024


@pytest.fixture(scope="module")
def root() -> dict[str, Any]:
    [version] = build_crd()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


@pytest.fixture(scope="module")
def spec(root: dict[str, Any]) -> dict[str, Any]:
    schema = root["properties"]["spec"]
    assert isinstance(schema, dict)
    return schema


def walk(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, with its place."""
    yield place, schema
    for name, value in schema.get("properties", {}).items():
        yield from walk(value, f"{place}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from walk(schema[name], f"{place}[]")


def test_the_file_is_small_enough_for_kubectl_apply() -> None:
    # That command keeps a copy in an annotation, which may have 256 KiB.
    assert len(render_crd().encode()) < LARGEST_BYTES


def test_the_text_reads_in_the_usual_order_and_is_the_definition() -> None:
    text = render_crd()
    assert text.startswith("# Generated from operator/rrq_operator by `make crd`")
    assert re.findall(r"^(\w+):", text, re.MULTILINE) == ["apiVersion", "kind", "metadata", "spec"]
    assert yaml.safe_load(text) == build_crd()


def test_every_part_has_one_type_and_no_reference(root: dict[str, Any]) -> None:
    forbidden = {"$ref", "$defs", "title", "anyOf", "allOf", "oneOf", "definitions", "const"}
    for place, schema in walk(root):
        assert not forbidden & schema.keys(), place
        assert (
            schema.get("type") in {"object", "array", "string", "integer", "number", "boolean"}
            or schema.get("x-kubernetes-int-or-string")
            or schema.get("x-kubernetes-preserve-unknown-fields")
        ), place
        assert schema.get("additionalProperties") not in (True, False), place
        assert schema.get("default", ...) is not None, place


def test_every_field_is_described(root: dict[str, Any]) -> None:
    for part in ("spec", "status"):
        for place, schema in walk(root["properties"][part], part):
            if not place.endswith("[]"):
                assert schema["description"][-1] == ".", place


def test_every_value_of_a_spec_is_bounded(spec: dict[str, Any]) -> None:
    """CEL charges a rule for the largest value that the schema allows."""
    number = {"minimum", "maximum", "format"}
    bounds = {
        "string": ({"maxLength"}, {"enum"}),
        "array": ({"maxItems"},),
        "integer": (number,),
        "number": (number,),
    }
    for place, schema in walk(spec):
        if schema.get("type") in bounds:
            assert any(bound <= schema.keys() for bound in bounds[schema["type"]]), place
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, place


def test_every_default_of_the_models_is_in_the_schema(spec: dict[str, Any]) -> None:
    """A pool read back from the cluster must mean the same to every version of the operator."""
    said = {"queues": ["a"], "worker": {"image": "a", "settings": "a.b"}, "redis": {"url": "redis://a"}}
    assert fill_defaults(spec, said) == write(PoolSpec.model_validate(said))
    assert fill_defaults(spec["properties"]["scaling"], {}) == write(Scaling())
    runs = write(JobRuns())
    del runs["timeZone"]  # newer than the first release: see NO_SCHEMA_DEFAULT
    assert fill_defaults(spec["properties"]["job"], {}) == runs


def write(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, exclude_none=True)


def fill_defaults(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Do what the API server does before it judges."""
    filled = dict(value)
    for name, field in schema.get("properties", {}).items():
        if name not in filled and "default" in field:
            filled[name] = field["default"]
        if isinstance(filled.get(name), dict):
            filled[name] = fill_defaults(field, filled[name])
    return filled


def test_every_rule_has_a_bad_manifest_that_breaks_it(root: dict[str, Any]) -> None:
    rules = [rule for _, schema in walk(root) for rule in schema.get("x-kubernetes-validations", ())]
    untried = {
        rule["message"]
        for rule in rules
        if not any(bad.server in rule["message"] for bad in BAD_MANIFESTS) and "oldSelf" not in rule["rule"]
    }
    assert untried == set()
    assert len(BAD_MANIFESTS) >= 45
