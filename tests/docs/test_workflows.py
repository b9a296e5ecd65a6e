"""What runs on GitHub: every `make` target it calls is there, and no job may do more than it has to."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubernetes_build import ETCD

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Who may write what; everything else is read, or not there.
WRITERS = {
    ("release.yml", "build"): {"id-token", "attestations"},
    ("release.yml", "package"): {"id-token"},
    ("release.yml", "images"): {"packages", "id-token", "attestations"},
    ("release.yml", "chart"): {"packages", "id-token", "attestations"},
    ("release.yml", "page"): {"contents"},
}
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
# The next Python, which may fail.
NEXT_PYTHON = "3.15"
MAKE = re.compile(r"\bmake ([a-z][a-z0-9-]*)")

each_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)


def read(file: Path) -> dict[Any, Any]:
    workflow = yaml.safe_load(file.read_text())
    assert isinstance(workflow, dict)
    return workflow


def steps_of(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file)["jobs"].values() for step in job.get("steps", ())]


def scripts_of(file: Path) -> list[str]:
    return [step["run"] for step in steps_of(file) if "run" in step]


def find_targets() -> set[str]:
    """Return what the Makefile can make, told by make itself."""
    database = subprocess.run(
        ["make", "--print-data-base", "--question", "--no-builtin-rules", "help"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return set(re.findall(r"^([a-z][a-z0-9-]*):", database, re.MULTILINE))


def test_changes_nights_and_releases_have_a_workflow() -> None:
    assert [file.stem for file in WORKFLOWS] == ["nightly", "release", "test"]
    called = {file.stem: MAKE.findall("\n".join(scripts_of(file))) for file in WORKFLOWS}
    assert called == {
        "nightly": ["nightly", "chaos", "kind-test"],
        "release": ["release"],
        "test": ["test", "test-lowest", "test-cluster", "coverage"],
    }


@each_workflow
def test_every_make_target_is_one_of_the_makefile(file: Path) -> None:
    assert set(MAKE.findall("\n".join(scripts_of(file)))) <= find_targets()


@each_workflow
def test_a_workflow_may_only_read_unless_a_job_says_what_it_writes(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        allowed = job.get("permissions", {})
        assert isinstance(allowed, dict), f"{name}: permissions are listed one by one"
        written = {scope for scope, right in allowed.items() if right != "read"}
        assert written == WRITERS.get((file.name, name), set()), name


def test_every_action_is_pinned_to_one_commit_with_its_version() -> None:
    used = {
        line.partition("uses: ")[2]
        for file in WORKFLOWS
        for line in file.read_text().splitlines()
        if "uses: " in line and "uses: ./" not in line
    }
    assert [name for name in used if not PINNED.fullmatch(name)] == []
    assert len(used) == len({name.partition("@")[0] for name in used}), "one action in two versions"


def test_every_supported_python_is_tested_and_only_the_next_one_may_fail() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert f">={supported[0]}" == project["requires-python"]
    job = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == [*supported, NEXT_PYTHON]
    assert job["continue-on-error"] == f"${{{{ matrix.python == '{NEXT_PYTHON}' }}}}"


def test_coverage_is_demanded_over_what_the_fast_and_the_long_tests_ran_on_one_python() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]
    kept = {}
    for name, job in jobs.items():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/upload-artifact@"):
                kept[name] = step["with"]["name"], step["with"]["path"], step.get("if")
    assert kept == {
        "test": ("coverage-test", ".coverage", "matrix.python == '3.11'"),
        "cluster": ("coverage-cluster", ".coverage", None),
    }
    assert jobs["coverage"]["needs"] == [*kept]
    pythons = {jobs[name]["steps"][1]["with"]["python-version"] for name in ("cluster", "coverage")}
    assert pythons == {"3.11"}


def test_the_control_plane_finds_the_etcd_that_only_root_may_install() -> None:
    steps = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["cluster"]["steps"]
    *_, installs, tests = [step["run"] for step in steps if "run" in step]
    assert installs.endswith(f"apt-get install -q -y {ETCD['etcd']}")
    assert tests == "make test-cluster"


@pytest.mark.slow
@pytest.mark.cluster
def test_the_linter_of_workflows_has_nothing_to_say() -> None:
    if shutil.which("go") is None:
        pytest.skip("no Go here, which compiles actionlint")
    done = subprocess.run(
        ["make", "lint-workflows"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=280
    )
    # Go itself failed, and has not come as far as the linter.
    if problems := re.findall(r"^go: (?!downloading).*", done.stderr, re.MULTILINE):
        pytest.skip(f"actionlint cannot be had here: {problems[0]}")
    assert done.returncode == 0, done.stdout + done.stderr


@each_workflow
def test_a_checkout_leaves_no_token_behind(file: Path) -> None:
    checkouts = [step for step in steps_of(file) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@each_workflow
def test_no_job_hangs_for_hours(file: Path) -> None:
    for name, job in read(file)["jobs"].items():
        if "uses" not in job:  # else the workflow that is called says so
            assert 0 < job["timeout-minutes"] <= 120, name


@each_workflow
def test_scripts_are_shell_and_take_what_others_wrote_from_variables_only(file: Path) -> None:
    scripts = scripts_of(file)
    assert scripts
    for script in scripts:
        # Put into the text of a script, the name of a branch or a tag would be run.
        assert "${{" not in script
        checked = subprocess.run(["bash", "-n"], input=script, check=False, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


def test_the_package_is_published_before_the_images_and_they_before_the_chart() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    order = ["test", "build", "package", "images", "chart", "page"]
    assert list(jobs) == order
    assert [jobs[later]["needs"] for later in order[1:]] == order[:-1]
    for name in ("package", "chart", "page"):
        first = jobs[name]["steps"][0]
        assert first["uses"].startswith("actions/download-artifact@"), f"{name} takes the files of the build"


def test_files_images_and_chart_are_signed() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    for name in ("build", "images", "chart"):
        used = [step.get("uses", "").partition("@")[0] for step in jobs[name]["steps"]]
        assert "actions/attest-build-provenance" in used, name
    (built,) = [step["run"] for step in jobs["images"]["steps"] if "buildx" in step.get("run", "")]
    assert "--platform linux/amd64,linux/arm64 --sbom=true" in built


def test_only_a_tag_of_a_version_makes_a_release() -> None:
    workflow = read(ROOT / ".github" / "workflows" / "release.yml")
    triggers = workflow[True]  # YAML 1.1 takes the word `on` for that
    assert triggers == {"push": {"tags": ["v*"]}}
    (made,) = [
        script for script in scripts_of(ROOT / ".github" / "workflows" / "release.yml") if "make " in script
    ]
    assert "--tag $GITHUB_REF_NAME" in made
    assert "--snapshot" not in made
