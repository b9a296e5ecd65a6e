"""What is inside the package and the images, as CycloneDX documents: written by cyclonedx-py and syft.

cyclonedx-py is in .venv-tools, which make builds. syft is a Go program that has to be on PATH; it reads an image from an
archive of `docker save`, and runs nothing of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from docker_engine import DockerEngine, NoDockerEngine, docker_engine
from image_bundle import OPERATOR, WORKER, build_images
from progress import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
CYCLONEDX = ROOT / ".venv-tools" / "bin" / "cyclonedx-py"
SYFT = "github.com/anchore/syft/cmd/syft@v1.46.0"
NO_SYFT = f"syft is missing: go install {SYFT}, and put it on PATH."


def write_package_sbom(file: Path, version: str, wheel_digest: str, epoch: int) -> Path:
    """Name what the wheel brings with all extras, in the versions that the tests ran with."""
    options = ("--pyproject", "pyproject.toml", "--mc-type=library", "--output-reproducible", "--short-PURLs")
    run(
        [CYCLONEDX, "requirements", "requirements/package.lock", *options, "--output-file", file],
        os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONWARNINGS": "ignore"},
    )
    document = json.loads(file.read_text())
    # Our version is not in pyproject.toml.
    document["metadata"]["component"] |= {
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": wheel_digest}],
    }
    file.write_text(json.dumps(document, indent=1) + "\n")
    return file


def has_syft() -> bool:
    return shutil.which("syft") is not None


def write_image_sbom(archive: Path, name: str, version: str, file: Path) -> Path:
    """Name what is inside the image of an archive."""
    described = ("--source-name", name, "--source-version", version)
    run(
        ["syft", "scan", f"docker-archive:{archive}", *described, "--output", f"cyclonedx-json@1.6={file}"],
        dict(os.environ),
    )
    return file


def write_engine_sbom(engine: DockerEngine, tag: str, folder: Path) -> Path:
    name, _, version = tag.partition(":")
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "image.tar"
        engine.run("save", "--output", str(archive), tag)
        return write_image_sbom(archive, name, version, folder / f"{name}.cdx.json")


def run(command: Sequence[str | Path], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise CommandFailed(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not has_syft():
            raise CommandFailed(NO_SYFT)
        with docker_engine() as engine:
            build_images(engine)
            files = [write_engine_sbom(engine, tag, folder) for tag in (WORKER, OPERATOR)]
    except (CommandFailed, NoDockerEngine) as problem:
        print(f"make: no inventory. {problem}", file=sys.stderr)
        return 1
    for file in files:
        print(f"sbom: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
