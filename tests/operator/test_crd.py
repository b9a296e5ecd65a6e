"""The CustomResourceDefinition as text and as a structural schema. What the API server makes of it: integration/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bad_manifests import BAD_MANIFESTS
from pool_definition import CRD_FILE
from rrq_operator.crd import build_crd, render_crd
from rrq_operator.pool_status import Condition, PoolStatus
from rrq_operator.spec import JobRuns, PoolSpec, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

CLONE = Path(__file__).parents[2]
LARGEST_BYTES = 256 * 1024


@pytest.fixture(scope="module")
def version() -> dict[str, Any]:
    [version] = build_crd()["spec"]["versions"]
    assert isinstance(version, dict)
    return version


@pytest.fixture(scope="module")
def root(version: dict[str, Any]) -> dict[str, Any]:
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


def find(schema: dict[str, Any], place: str) -> dict[str, Any]:
    return dict(walk(schema))[f".{place}"]


def test_the_committed_file_is_what_the_models_say() -> None:
    assert CRD_FILE.read_text() == render_crd(), "run make crd"


def test_the_file_is_small_enough_for_kubectl_apply() -> None:
    # That command keeps a copy in an annotation, which may have 256 KiB.
    assert len(render_crd().encode()) < LARGEST_BYTES


def test_the_text_reads_in_the_usual_order_and_is_the_definition() -> None:
    text = render_crd()
    assert text.startswith("# Generated from operator/rrq_operator by `make crd`")
    assert re.findall(r"^(\w+):", text, re.MULTILINE) == ["apiVersion", "kind", "metadata", "spec"]
    assert yaml.safe_load(text) == build_crd()


def test_the_text_does_not_depend_on_the_process() -> None:
    command = [sys.executable, "-m", "rrq_operator.crd"]
    texts = {
        subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {render_crd()}


def test_names_are_those_that_people_type() -> None:
    definition = build_crd()
    assert definition["metadata"]["name"] == "rrqworkerpools.rrq.dev"
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"] == {
        "kind": "RRQWorkerPool",
        "listKind": "RRQWorkerPoolList",
        "plural": "rrqworkerpools",
        "singular": "rrqworkerpool",
        "shortNames": ["rrqpool"],
        "categories": ["all", "rrq"],
    }


def test_the_columns_answer_whether_the_pool_keeps_up(version: dict[str, Any]) -> None:
    columns = version["additionalPrinterColumns"]
    usual = [column["name"] for column in columns if not column.get("priority")]
    assert usual == ["Type", "Queues", "Due", "Oldest", "Busy", "Ready", "Desired", "Reason", "Age"]
    assert [column["name"] for column in columns if column.get("priority")] == [
        *("Held", "Soon", "Later", "Message")
    ]


def test_every_path_outside_the_schema_leads_into_it(version: dict[str, Any], root: dict[str, Any]) -> None:
    known = {place for place, _ in walk(root)} | {".metadata.creationTimestamp"}
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += version["subresources"]["scale"].values()
    for path in paths:
        assert re.sub(r"\[\?.*?\]", "[]", path) in known


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


def test_every_text_list_and_map_of_a_spec_is_bounded(spec: dict[str, Any]) -> None:
    """CEL charges a rule for the largest value that the schema allows."""
    bounds = {"string": {"maxLength", "enum"}, "array": {"maxItems"}}
    for place, schema in walk(spec):
        if schema.get("type") in bounds:
            assert bounds[schema["type"]] & schema.keys(), place
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, place


def test_every_number_of_a_spec_is_bounded(spec: dict[str, Any]) -> None:
    for place, schema in walk(spec):
        if schema.get("type") in ("integer", "number"):
            assert {"minimum", "maximum", "format"} <= schema.keys(), place


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


def test_sections_of_one_type_alone_are_not_made_up(spec: dict[str, Any]) -> None:
    assert "default" not in spec["properties"]["scaling"]
    assert "default" not in spec["properties"]["job"]
    assert spec["properties"]["replicas"]["default"] == 0  # /scale answers 500 where there is none


def test_a_cluster_must_be_told_what_local_mode_brings(spec: dict[str, Any]) -> None:
    assert spec["required"] == ["queues", "redis", "worker"]
    assert spec["properties"]["worker"]["required"] == ["image", "settings"]


def test_foreign_parts_are_kept_as_they_are(spec: dict[str, Any]) -> None:
    kept = {place for place, schema in walk(spec) if schema.get("x-kubernetes-preserve-unknown-fields")}
    assert kept == {
        ".worker.env[]",
        ".worker.envFrom[]",
        ".worker.podTemplate.metadata",
        ".worker.podTemplate.spec",
        ".cron[].args[]",
        ".cron[].kwargs",
    }


def test_amounts_are_numbers_or_texts(spec: dict[str, Any]) -> None:
    for place in ("worker.resources.limits[]", "worker.resources.requests[]", "disruption.maxUnavailable"):
        assert find(spec, place)["x-kubernetes-int-or-string"] is True


def test_every_rule_has_a_bad_manifest_that_breaks_it(root: dict[str, Any]) -> None:
    rules = [rule for _, schema in walk(root) for rule in schema.get("x-kubernetes-validations", ())]
    untried = {
        rule["message"]
        for rule in rules
        if not any(bad.server in rule["message"] for bad in BAD_MANIFESTS) and "oldSelf" not in rule["rule"]
    }
    assert untried == set()
    assert len(BAD_MANIFESTS) >= 45


def test_every_rule_of_the_models_is_in_the_schema(spec: dict[str, Any]) -> None:
    for place, rules in {"": PoolSpec.RULES, ".scaling": Scaling.RULES, ".job": JobRuns.RULES}.items():
        written = dict(walk(spec))[place]["x-kubernetes-validations"]
        assert written == [{"rule": rule.cel, "message": rule.message} for rule in rules]


def test_conditions_have_the_form_of_kubernetes(root: dict[str, Any]) -> None:
    conditions = find(root, "status.conditions")
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert set(conditions["items"]["required"]) == {
        "type",
        "status",
        "reason",
        "message",
        "lastTransitionTime",
    }


def test_a_status_says_nothing_of_what_is_unknown() -> None:
    assert PoolStatus().to_manifest() == {}
    assert PoolStatus(due=0).to_manifest() == {"due": 0}


def test_times_of_a_status_have_whole_seconds_of_utc() -> None:
    condition = Condition.model_validate(
        {
            "type": "Ready",
            "status": "True",
            "reason": "Idle",
            "message": "",
            "lastTransitionTime": "2026-01-01T01:00:00.75+01:00",
            "somethingNewer": 1,
        }
    )
    [written] = PoolStatus(conditions=[condition]).to_manifest()["conditions"]
    assert written["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert "somethingNewer" not in written


def test_make_verify_says_which_file_to_write_anew(tmp_path: Path) -> None:
    """With a copy in a chart that somebody changed by hand."""
    copy = tmp_path / "charts" / "rrq" / "files" / "crds" / CRD_FILE.name
    for file, text in {
        copy: render_crd() + "# changed\n",
        tmp_path / "crds" / CRD_FILE.name: render_crd(),
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (tmp_path / "Makefile").write_bytes((CLONE / "Makefile").read_bytes())
    # The environment of this run serves, however old its lock.
    environment = [f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.ready"]
    verify = subprocess.run(
        ["make", "--silent", *environment, "verify"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert verify.returncode != 0
    assert (
        f"make: charts/rrq/files/crds/{CRD_FILE.name} differs from operator/rrq_operator. Run make crd"
        in verify.stderr
    )
