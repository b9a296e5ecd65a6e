"""The worker image as a cluster with strict rules runs it: no root, no privileges, nothing to write to."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from docker_engine import LOCKED_DOWN
from progress import CommandFailed
from rrq.job import JobStatus
from rrq.version import __version__
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker_engine import DockerEngine
    from rrq.client import RRQClient
    from rrq.job import Job

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_ITS_OWN = ("run", "--rm", "--network", "none", *LOCKED_DOWN)
# What the library and its dependencies may add to the base, in megabytes; 49 when this was written.
LARGEST_ENVIRONMENT_MB = 60
LARGEST_IMAGE_MB = 300


def ask(engine: DockerEngine, image: str, code: str, *options: str) -> Any:
    """Run Python inside the locked-down image and return the JSON that it prints."""
    return json.loads(engine.run(*ON_ITS_OWN, *options, "--entrypoint", "python3", image, "-c", code))


def configuration(engine: DockerEngine, image: str) -> dict[str, Any]:
    return json.loads(engine.run("image", "inspect", image))[0]  # type: ignore[no-any-return]  # JSON


def test_the_version_is_told_without_network_privileges_or_a_place_to_write(
    engine: DockerEngine, worker_image: str
) -> None:
    assert engine.run(*ON_ITS_OWN, worker_image, "--version").strip() == f"rrq, version {__version__}"


def test_the_image_says_how_it_wants_to_be_run(engine: DockerEngine, worker_image: str) -> None:
    config = configuration(engine, worker_image)["Config"]
    assert config["User"] == "65532:65532"
    assert (config["Entrypoint"], config["Cmd"]) == (["rrq"], ["worker", "run"])
    assert config["StopSignal"] == "SIGTERM"
    assert list(config["ExposedPorts"]) == ["8080/tcp"]
    assert config["Labels"]["org.opencontainers.image.title"] == "rrq-worker"


def test_the_worker_has_no_privilege_and_no_way_to_one(engine: DockerEngine, worker_image: str) -> None:
    code = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({"ids": [os.getuid(), os.geteuid()], "capabilities": int(status["CapEff"], 16),
                  "no_new_privileges": int(status["NoNewPrivs"])}))
"""
    assert ask(engine, worker_image, code) == {
        "ids": [65532, 65532],
        "capabilities": 0,
        "no_new_privileges": 1,
    }


def test_code_cannot_be_changed_even_where_the_root_file_system_is_writable(
    engine: DockerEngine, worker_image: str
) -> None:
    code = """
import json, os, rrq
print(json.dumps([os.access(path, os.W_OK) for path in ("/", "/app", "/opt/rrq/bin/rrq", rrq.__file__)]))
"""
    answer = engine.run(
        "run", "--rm", "--network", "none", "--entrypoint", "python3", worker_image, "-c", code
    )
    assert json.loads(answer) == [False] * 4


def test_nothing_inside_can_install_or_build_anything(engine: DockerEngine, worker_image: str) -> None:
    code = """
import json, shutil, subprocess, sys
tools = [tool for tool in ("pip", "pip3", "gcc", "cc", "make", "git", "uv", "hatch") if shutil.which(tool)]
for python in (sys.executable, sys._base_executable):
    for module in ("pip", "setuptools", "hatchling"):
        if subprocess.run([python, "-c", "import " + module], stderr=subprocess.DEVNULL).returncode == 0:
            tools.append(python + " -m " + module)
print(json.dumps(tools))
"""
    assert ask(engine, worker_image, code) == []


def test_the_image_is_small(engine: DockerEngine, worker_image: str) -> None:
    code = """
import json, os
print(json.dumps(sum(os.lstat(os.path.join(folder, file)).st_size
                     for folder, _, files in os.walk("/opt/rrq") for file in files)))
"""
    assert ask(engine, worker_image, code) < LARGEST_ENVIRONMENT_MB * 1e6
    assert configuration(engine, worker_image)["Size"] < LARGEST_IMAGE_MB * 1e6


def test_bytecode_was_compiled_by_the_build(engine: DockerEngine, worker_image: str) -> None:
    # None can be written at run time, so every start would compile the library again. Python trusts a file of
    # bytecode whose bytes 8 to 12 are the time of its source.
    code = """
import json, os, rrq.worker as module
compiled = open(module.__cached__, "rb").read()
print(json.dumps(int.from_bytes(compiled[8:12], "little") == int(os.stat(module.__file__).st_mtime)))
"""
    assert ask(engine, worker_image, code) is True


@pytest.mark.parametrize(
    ("limit", "cpus", "source"),
    [
        (("--cpus", "0.5"), 0.5, "50000/100000 = 0.5 CPUs"),
        (("--cpuset-cpus", "0"), 1.0, "cpuset of 1 CPU, no quota"),
    ],
)
def test_a_container_knows_how_many_cpus_it_was_given(
    engine: DockerEngine, worker_image: str, limit: tuple[str, ...], cpus: float, source: str
) -> None:
    code = """
import dataclasses, json
from rrq.allotment import read_cpu_allotment
print(json.dumps(dataclasses.asdict(read_cpu_allotment())))
"""
    allotment = ask(engine, worker_image, code, *limit)
    assert (allotment["cpus"], allotment["processes"]) == (cpus, 1)
    assert allotment["source"].endswith(source)


def test_an_application_needs_three_lines() -> None:
    lines = (EXAMPLES / "image" / "Dockerfile").read_text().splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("#")] == ["FROM", "COPY", "ENV"]


async def test_the_example_application_finishes_real_jobs(
    engine: DockerEngine, application_image: str, client: RRQClient, redis_dsn: str
) -> None:
    jobs = [await enqueue(client, "send_email", f"user{number}@example.org") for number in range(100)]
    jobs += [await enqueue(client, "resize_picture", "cat.png", width=number) for number in range(100)]
    environment = ("--env", f"RRQ_REDIS_DSN={redis_dsn}")
    engine.run("run", "--rm", "--network", "host", *LOCKED_DOWN, *environment, application_image, "worker", "run", "--burst")  # fmt: skip
    done = [await client.get_job_status(job.id) for job in jobs]
    assert [job.status for job in done if job is not None] == [JobStatus.COMPLETED] * len(jobs)


async def test_jobs_run_where_there_is_no_shell_nor_any_other_program(
    engine: DockerEngine,
    application_image: str,
    without_programs: Callable[[str], str],
    client: RRQClient,
    redis_dsn: str,
) -> None:
    image = without_programs(application_image)
    job = await enqueue(client, "send_email", "user@example.org")
    environment = ("--env", f"RRQ_REDIS_DSN={redis_dsn}")
    engine.run(
        "run", "--rm", "--network", "host", *LOCKED_DOWN, *environment, image, "worker", "run", "--burst"
    )
    done = await client.get_job_status(job.id)
    assert done is not None
    assert done.status is JobStatus.COMPLETED
    with pytest.raises(CommandFailed, match="/bin/sh"):
        engine.run(*ON_ITS_OWN, "--entrypoint", "/bin/sh", image, "-c", "true")


async def test_a_stopped_container_finishes_what_it_has_in_hand_and_ends_well(
    engine: DockerEngine, application_image: str, client: RRQClient, redis_dsn: str, container_name: str
) -> None:
    # Ten seconds of work for one process, which mostly waits in its handlers on any machine.
    jobs = [await enqueue(client, "resize_picture", "cat.png", width=number) for number in range(2_000)]
    options = (
        "--detach",
        "--name",
        container_name,
        "--network",
        "host",
        "--env",
        f"RRQ_REDIS_DSN={redis_dsn}",
    )
    one_process = ("worker", "run", "--num-workers", "1")
    engine.run("run", *options, *LOCKED_DOWN, application_image, *one_process)

    async def is_at_work() -> bool:
        first = await client.get_job_status(jobs[0].id)
        return first is not None and first.status is JobStatus.COMPLETED

    await eventually(is_at_work, 60, "the container never finished a job")
    engine.run("stop", "--time", "60", container_name)
    state = json.loads(engine.run("inspect", container_name))[0]["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    seen = [await client.get_job_status(job.id) for job in jobs]
    counts = Counter(job.status.name for job in seen if job is not None)
    assert counts["PENDING"] > 0, "the queue was empty before the container was stopped: enqueue more"
    assert counts["PENDING"] + counts["COMPLETED"] == len(jobs)


def test_a_worker_without_an_application_says_what_is_missing(
    engine: DockerEngine, worker_image: str
) -> None:
    with pytest.raises(CommandFailed, match="need --settings or RRQ_SETTINGS"):
        engine.run(*ON_ITS_OWN, worker_image)


async def enqueue(client: RRQClient, name: str, *args: Any, **kwargs: Any) -> Job:
    job = await client.enqueue(name, *args, **kwargs)
    assert job is not None
    return job
