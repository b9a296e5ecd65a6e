"""The built wheel, without and with each extra in an empty environment, does what README.md promises."""

from __future__ import annotations

import subprocess
import urllib.request
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from installed import Installed, build_wheel, install, install_wheel, run_pip

if TYPE_CHECKING:
    from pathlib import Path

    from rrq.embedded import EmbeddedRedis

Environments = Callable[[str | None], Installed]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("installed wheel")]

APPLICATION = """
from rrq import App

app = App()

@app.job()
async def greet(ctx, name: str) -> str:
    return f"hello {name}"

settings = app.settings
"""
PRODUCER = """
import asyncio
from shop import app, greet

async def main():
    async with app:
        handle = await greet.enqueue("ada")
        print(handle.id, (await handle.status()).value)

asyncio.run(main())
"""
READER = """
import asyncio, sys
from shop import app

async def main():
    async with app:
        done = await app.client.wait_for_completion(sys.argv[1], timeout_seconds=0)
        print(done.status.value, done.result)

asyncio.run(main())
"""
TEST_WITH_A_BENCH = """
import asyncio
from rrq.testing import JobBench
from shop import app, greet

async def main():
    async with JobBench(app) as bench:
        handle = await greet.enqueue("ada")
        await bench.run_due()
        print(await handle.result())

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def with_extra(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Return the wheel with this extra, or with none."""
    folder = tmp_path_factory.mktemp("installed")
    made: dict[str | None, Installed] = {}

    def get(extra: str | None) -> Installed:
        if extra not in made:
            made[extra] = install(wheel, folder / (extra or "base"), extra)
            (made[extra].folder / "shop.py").write_text(APPLICATION)
        return made[extra]

    return get


def refusal_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line with which a program refused."""
    assert (done.returncode, done.stdout) == (1, ""), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    return line


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_producer_needs_no_extra_and_a_worker_the_extra_worker(
    with_extra: Environments, own_redis: EmbeddedRedis
) -> None:
    there = {"RRQ_REDIS_DSN": own_redis.dsn}
    job_id, status = output_of(with_extra(None).python(PRODUCER, **there)).split()
    assert status == "PENDING"
    output_of(
        with_extra("worker").run("rrq", "worker", "run", "--burst", "--settings", "shop.settings", **there)
    )
    read = with_extra(None).run("python", "-c", READER, job_id, **there)
    assert output_of(read) == "COMPLETED hello ada\n"


@pytest.mark.parametrize(
    ("extra", "command", "wanted"),
    [
        (None, "rrq", "worker"),
        (None, "rrq --version", "worker"),
        (None, "rrq worker run", "worker"),
        (None, "rrq dashboard", "worker"),
        (None, "python -m rrq check", "worker"),
        (None, "rrq-operator --help", "operator"),
        (None, "python -m rrq_operator run", "operator"),
        (None, "kubectl-rrq --help", "operator"),
        ("worker", "rrq dashboard", "dashboard"),
        ("worker", "rrq-operator local", "operator"),
        ("worker", "kubectl-rrq top", "operator"),
        ("dashboard", "rrq-operator --help", "operator"),
    ],
)
def test_a_program_without_its_extra_says_how_to_get_it(
    with_extra: Environments, extra: str | None, command: str, wanted: str
) -> None:
    line = refusal_of(with_extra(extra).run(*command.split()))
    assert line.startswith("ERROR: ")
    assert line.endswith(f"Run: pip install 'rrq-kubernetes[{wanted}]'")


def test_a_function_that_needs_an_extra_names_it(with_extra: Environments) -> None:
    worker = with_extra("worker")
    (worker.folder / "traced.py").write_text("import rrq.integrations.otel\nfrom shop import settings\n")
    traced = worker.run("rrq", "worker", "run", "--burst", "--settings", "traced.settings")
    assert traced.returncode == 1
    assert "Run: pip install 'rrq-kubernetes[otel]'" in traced.stderr
    assert "Traceback" not in traced.stderr
    bench = with_extra(None).python(TEST_WITH_A_BENCH)
    assert "`pip install 'rrq-kubernetes[embedded]'`" in bench.stderr.splitlines()[-1]
    exporter = with_extra(None).python(
        "import asyncio; from rrq import *; from rrq.hooks import HookManager;"
        "asyncio.run(HookManager(RRQSettings(metrics_exporter='prometheus')).initialize())"
    )
    (line,) = exporter.stderr.splitlines()
    assert line.endswith("Run: pip install 'rrq-kubernetes[worker]'")
    imported = with_extra(None).python("import rrq.exporters.prometheus")
    assert imported.stderr.splitlines()[-1] == (
        "ImportError: Metrics for Prometheus need the package prometheus-client. "
        "Run: pip install 'rrq-kubernetes[worker]'"
    )


@pytest.mark.parametrize(
    ("extra", "command", "shown"),
    [
        ("worker", "rrq --help", "dashboard"),
        ("worker", "rrq worker watch --help", "--path"),
        ("worker", "rrq monitor --help", "--json"),
        ("dashboard", "rrq dashboard --help", "--http"),
        ("operator", "rrq --version", "rrq, version"),
        ("operator", "rrq-operator --help", "local"),
        ("operator", "rrq-operator run --help", "--leader-election"),
        ("operator", "rrq-operator local --help", "--file"),
        ("operator", "kubectl-rrq --help", "top"),
        ("operator", "kubectl-rrq scale --help", "scale"),
    ],
)
def test_a_program_with_its_extra_starts(
    with_extra: Environments, extra: str, command: str, shown: str
) -> None:
    assert shown in output_of(with_extra(extra).run(*command.split()))


def test_the_dashboard_serves_with_its_extra(with_extra: Environments, own_redis: EmbeddedRedis) -> None:
    installed = with_extra("dashboard")
    command = installed.command("rrq", "dashboard", "--http", "127.0.0.1:0")
    environment = installed.variables(RRQ_REDIS_DSN=own_redis.dsn, PYTHONUNBUFFERED="1")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as dashboard:
        assert dashboard.stdout is not None
        url = dashboard.stdout.readline().split()[4]
        with urllib.request.urlopen(url, timeout=30) as page:
            assert page.status == 200
        dashboard.terminate()


def test_files_that_another_distribution_overwrote_come_back_as_the_error_says(
    wheel: Path, tmp_path: Path
) -> None:
    installed = install(wheel, tmp_path / "environment", "worker")
    install_wheel(build_other_wheel(tmp_path), installed.folder)
    # Its program replaces ours, and does not know ours.
    assert output_of(installed.run("rrq", "--version")) == "rrq 0.11.1\n"
    line = refusal_of(installed.run("python", "-m", "rrq", "--version"))
    assert line == refusal_of(installed.run("rrq-operator", "--version"))
    said, _, cure = line.partition(" Run: ")
    assert said == "ERROR: Another distribution has overwritten files of rrq-kubernetes."
    remove, bring_back = cure.split(" && ")
    run_pip(installed.folder, *remove.split()[1:])
    run_pip(
        installed.folder, *bring_back.removesuffix("rrq-kubernetes").split()[1:], "--no-index", str(wheel)
    )
    shown = installed.run("rrq", "--version")
    assert output_of(shown).startswith("rrq, version ")
    assert shown.stderr == ""


def test_a_program_without_its_extra_tells_of_the_other_distribution(wheel: Path, tmp_path: Path) -> None:
    installed = install(wheel, tmp_path / "environment", None)
    (packages,) = installed.folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(
        build_other_wheel(tmp_path)
    ) as other:  # as installed first: ours has its files overwritten
        other.extract("rrq-0.11.1.dist-info/METADATA", packages)
    shown = installed.run("rrq", "--version")
    assert (shown.returncode, shown.stdout) == (1, "")
    missing, warning = shown.stderr.splitlines()
    assert missing.endswith("Run: pip install 'rrq-kubernetes[worker]'")
    assert warning.startswith(
        "WARNING: The distribution rrq 0.11.1, another project, is installed beside rrq-kubernetes"
    )


def build_other_wheel(folder: Path) -> Path:
    """Build a wheel with the name, the package and the program of the other project."""
    files = {
        "rrq/__init__.py": "",
        "rrq/other.py": "def main(): print('rrq 0.11.1')\n",
        "rrq-0.11.1.dist-info/entry_points.txt": "[console_scripts]\nrrq = rrq.other:main\n",
        "rrq-0.11.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: rrq\nVersion: 0.11.1\n",
        "rrq-0.11.1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "rrq-0.11.1.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in (*files, record))
    with zipfile.ZipFile(folder / "rrq-0.11.1-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return folder / "rrq-0.11.1-py3-none-any.whl"


def test_the_operator_connects_to_a_cluster_with_its_extra(with_extra: Environments) -> None:
    for command in ("rrq-operator run", "kubectl-rrq top"):
        done = with_extra("operator").run(*command.split())
        assert done.returncode == 1
        assert "KUBECONFIG" in done.stderr
        assert "Traceback" not in done.stderr


def test_jobs_are_tested_on_a_server_of_the_extra_embedded(with_extra: Environments) -> None:
    assert output_of(with_extra("embedded").python(TEST_WITH_A_BENCH)) == "hello ada\n"


def test_jobs_are_traced_with_the_extra_otel(with_extra: Environments) -> None:
    code = "from rrq.integrations import otel; print(type(otel.enable()).__name__)"
    assert output_of(with_extra("otel").python(code)) == "OtelTelemetry\n"
