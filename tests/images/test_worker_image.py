"""The worker image as a cluster with strict rules runs it: no root, no privileges, nothing to write to."""

from __future__ import annotations

import json
from collections import Counter
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

ON_ITS_OWN = ("run", "--rm", "--network", "none", *LOCKED_DOWN)
# What the library and its dependencies may add to the base, in megabytes; 49 when this was written.
LARGEST_ENVIRONMENT_MB = 60
LARGEST_IMAGE_MB = 300


def ask(engine: DockerEngine, image: str, code: str, *options: str) -> Any:
    """Run Python inside the locked-down image and return the JSON that it prints."""
    return json.loads(engine.run(*ON_ITS_OWN, *options, "--entrypoint", "python3", image, "-c", code))


# What a locked-down container knows of itself. Whether code could be changed is asked of the files, whose rights count where
# the root file system is writable, too. None of the bytecode can be written at run time, so every start would compile the
# library again; Python trusts a file of it whose bytes 8 to 12 are the time of its source.
INSIDE = """
import json, os, rrq, rrq.worker, shutil, subprocess, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
tools = [tool for tool in ("pip", "pip3", "gcc", "cc", "make", "git", "uv", "hatch") if shutil.which(tool)]
for python in (sys.executable, sys._base_executable):
    for module in ("pip", "setuptools", "hatchling"):
        if subprocess.run([python, "-c", "import " + module], stderr=subprocess.DEVNULL).returncode == 0:
            tools.append(python + " -m " + module)
compiled = open(rrq.worker.__cached__, "rb").read()
files = [os.path.join(folder, file) for folder, _, files in os.walk("/opt/rrq") for file in files]
print(json.dumps({
    "ids": [os.getuid(), os.geteuid()],
    "capabilities": int(status["CapEff"], 16),
    "no_new_privileges": int(status["NoNewPrivs"]),
    "tools": tools,
    "has_bytecode": int.from_bytes(compiled[8:12], "little") == int(os.stat(rrq.worker.__file__).st_mtime),
    "bytes": sum(os.lstat(file).st_size for file in files),
}))
"""
CAN_WRITE = """
import json, os, rrq
print(json.dumps([os.access(path, os.W_OK) for path in ("/", "/app", "/opt/rrq/bin/rrq", rrq.__file__)]))
"""


def test_the_image_is_small_has_no_privilege_and_nothing_that_could_change_or_build_code(
    engine: DockerEngine, worker_image: str
) -> None:
    assert engine.run(*ON_ITS_OWN, worker_image, "--version").strip() == f"rrq, version {__version__}"
    inside = ask(engine, worker_image, INSIDE)
    assert inside.pop("bytes") < LARGEST_ENVIRONMENT_MB * 1e6
    assert inside == {
        "ids": [65532, 65532],
        "capabilities": 0,
        "no_new_privileges": 1,
        "tools": [],
        "has_bytecode": True,
    }
    writable = ("run", "--rm", "--network", "none", "--entrypoint", "python3", worker_image, "-c", CAN_WRITE)
    assert json.loads(engine.run(*writable)) == [False] * 4


def test_the_image_says_how_it_wants_to_be_run(engine: DockerEngine, worker_image: str) -> None:
    image = json.loads(engine.run("image", "inspect", worker_image))[0]
    assert image["Size"] < LARGEST_IMAGE_MB * 1e6
    config = image["Config"]
    assert config["User"] == "65532:65532"
    assert (config["Entrypoint"], config["Cmd"]) == (["rrq"], ["worker", "run"])
    assert config["StopSignal"] == "SIGTERM"
    assert list(config["ExposedPorts"]) == ["8080/tcp"]
    assert config["Labels"]["org.opencontainers.image.title"] == "rrq-worker"


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
from rrq.runtime.allotment import read_cpu_allotment
print(json.dumps(dataclasses.asdict(read_cpu_allotment())))
"""
    allotment = ask(engine, worker_image, code, *limit)
    assert (allotment["cpus"], allotment["processes"]) == (cpus, 1)
    assert allotment["source"].endswith(source)


async def test_the_example_application_finishes_real_jobs_without_a_shell_or_any_other_program(
    engine: DockerEngine,
    application_image: str,
    without_programs: Callable[[str], str],
    client: RRQClient,
    redis_dsn: str,
) -> None:
    image = without_programs(application_image)
    jobs = [await enqueue(client, "send_email", f"user{number}@example.org") for number in range(100)]
    jobs += [await enqueue(client, "resize_picture", "cat.png", width=number) for number in range(100)]
    environment = ("--env", f"RRQ_REDIS_DSN={redis_dsn}")
    engine.run(
        "run", "--rm", "--network", "host", *LOCKED_DOWN, *environment, image, "worker", "run", "--burst"
    )
    done = [await client.get_job_status(job.id) for job in jobs]
    assert [job.status for job in done if job is not None] == [JobStatus.COMPLETED] * len(jobs)
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
