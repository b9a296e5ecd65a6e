"""The images that clusters in tests run, as one archive that `ctr images import` reads.

Built with Docker once and kept in the cache folder under a digest of everything that goes in, so that an
unchanged tree costs nothing and needs no engine. `docker_engine` is where the engine comes from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from docker_engine import (
    BASE_VARIABLE,
    DockerEngine,
    NoDockerEngine,
    base_digest,
    docker_engine,
)
from kubernetes_build import cache_folder
from progress import CommandFailed, say
from rrq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPOSITORY = Path(__file__).parents[1]
WORKER, OPERATOR, EXAMPLE = "rrq-worker:test", "rrq-operator:test", "rrq-example:test"
STORIES, NEXT_STORIES, REDIS = "rrq-e2e:test", "rrq-e2e:next", "rrq-redis:test"
# Everything that the images are made of; folders with all that is in them.
SOURCES = (
    ".dockerignore",
    "Dockerfile.operator",
    "Dockerfile.worker",
    "LICENSE",
    "README.md",
    "examples",
    "operator",
    "pyproject.toml",
    "requirements",
    "tests/e2e/images",
    "tools/image_bundle.py",
    "worker",
)
ARCHIVE = "images.tar"
# Clones on the same machine take turns without building each time; a bundle is about 400 MB.
KEPT_BUNDLES = 3
UNFINISHED = "unfinished-images-"
LONGEST_SAVE_SECONDS = 3600.0


@dataclass(frozen=True)
class Recipe:
    """How one image is made; paths from the top of the repository."""

    tag: str
    dockerfile: str
    context: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    has_build_stage: bool = False


RECIPES = (
    Recipe(WORKER, "Dockerfile.worker", ".", {"VERSION": __version__}, has_build_stage=True),
    Recipe(OPERATOR, "Dockerfile.operator", ".", {"VERSION": __version__}, has_build_stage=True),
    Recipe(EXAMPLE, "examples/image/Dockerfile", "examples"),
    Recipe(STORIES, "tests/e2e/images/Dockerfile.stories", "tests/e2e/images", {"VERSION": "test"}),
    Recipe(NEXT_STORIES, "tests/e2e/images/Dockerfile.stories", "tests/e2e/images", {"VERSION": "next"}),
    Recipe(REDIS, "tests/e2e/images/Dockerfile.redis", "tests/e2e/images"),
)


@dataclass(frozen=True)
class ImageSize:
    total_bytes: int
    own_bytes: int  # what the image adds to its base


@dataclass(frozen=True)
class Bundle:
    path: Path  # the archive, in the format of `docker save`
    sizes: Mapping[str, ImageSize]  # by tag


def build_bundle(environment: Mapping[str, str] = os.environ) -> Bundle:
    """Return the archive of this tree, made if it is not there yet.

    Raises `NoDockerEngine` where no engine can be had, `CommandFailed` where a step failed.
    """
    folder = bundle_folder(environment)
    if not folder.is_dir():
        with docker_engine(environment) as engine:
            if not folder.is_dir():  # who had the engine before us may have made it
                build_images(engine)
                save_into(folder, engine)
        remove_old_bundles(folder)
    os.utime(folder)  # the ones that nobody used for longest are removed first
    archive = folder / ARCHIVE
    return Bundle(archive, read_sizes(archive))


def bundle_folder(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_folder(environment) / f"images-{source_digest(environment.get(BASE_VARIABLE))}"


def source_digest(base: str | None) -> str:
    digest = hashlib.sha256(f"{base or base_digest()}\n".encode())
    for file in source_files():
        content = file.read_bytes()
        digest.update(f"{file.relative_to(REPOSITORY)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def source_files() -> Iterator[Path]:
    for source in SOURCES:
        path = REPOSITORY / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def build_images(engine: DockerEngine) -> None:
    """Bring the engine's images in step with the tree; what did not change is not made again."""
    for recipe in RECIPES:
        # Some name the worker as users call it.
        dockerfile = (
            (REPOSITORY / recipe.dockerfile).read_text().replace("FROM rrq-worker\n", f"FROM {WORKER}\n")
        )
        context = REPOSITORY / recipe.context
        arguments = [f"--build-arg={name}={value}" for name, value in recipe.arguments.items()]
        if recipe.has_build_stage and engine.is_ours:
            # Under a name, or it would be pruned, and the next build would fetch all packages again.
            engine.build(context, f"{recipe.tag}-build", dockerfile, "--target=build")
        engine.build(context, recipe.tag, dockerfile, *arguments)
    if engine.is_ours:  # another's engine is not ours to tidy
        engine.run("container", "prune", "--force")
        engine.run("image", "prune", "--force")


def save_into(folder: Path, engine: DockerEngine) -> None:
    tags = [recipe.tag for recipe in RECIPES]
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
    try:
        engine.run("save", "--output", str(unfinished / ARCHIVE), *tags)
        unfinished.chmod(0o755)
        unfinished.rename(folder)  # in one step, so that an interrupted run leaves no half an archive
    except OSError:
        if not folder.is_dir():  # else another run on the same engine was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_sizes(archive: Path) -> dict[str, ImageSize]:
    """Add up the layers of each image; the first ones, which all of them share, are the base."""
    with tarfile.open(archive) as files:
        images = json.loads(read_member(files, "manifest.json").read())
        layers = {tag: image["Layers"] for image in images for tag in image["RepoTags"]}
        names = {name for image in layers.values() for name in image}
        sizes = {name: read_member(files, name).seek(0, os.SEEK_END) for name in names}
    totals = {tag: sum(sizes[name] for name in image) for tag, image in layers.items()}
    in_step = zip(*layers.values(), strict=False)
    base_bytes = sum(sizes[names[0]] for names in takewhile(lambda names: len(set(names)) == 1, in_step))
    return {tag: ImageSize(totals[tag], totals[tag] - base_bytes) for tag in sorted(totals)}


def read_member(files: tarfile.TarFile, name: str) -> IO[bytes]:
    file = files.extractfile(name)  # follows links: equal layers may be stored once
    assert file is not None, f"{name} is a folder"
    return file


def remove_old_bundles(newest: Path) -> None:
    bundles = sorted(newest.parent.glob("images-*/"), key=lambda folder: folder.stat().st_mtime)
    # What a killed run left; younger ones may be another's, who is at it now.
    too_old = time.time() - LONGEST_SAVE_SECONDS
    dead = [folder for folder in newest.parent.glob(f"{UNFINISHED}*/") if folder.stat().st_mtime < too_old]
    for folder in (*bundles[:-KEPT_BUNDLES], *dead):
        if folder != newest:
            shutil.rmtree(folder, ignore_errors=True)  # two runs may do the same


def build_table(sizes: Mapping[str, ImageSize]) -> str:
    lines = [f"{'image':<18} {'MB':>5} {'added to the base':>18}"]
    lines += [
        f"{tag:<18} {size.total_bytes / 1e6:>5.0f} {size.own_bytes / 1e6:>18.0f}"
        for tag, size in sizes.items()
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Build the images that clusters in tests run, as one archive."
    )
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="a machine that lacks something is told so, and is no error",
    )
    arguments = parser.parse_args()
    try:
        bundle = build_bundle()
    except NoDockerEngine as missing:
        say(f"no images here, tests that need them are skipped. {missing}")
        return 0 if arguments.if_possible else 1
    except CommandFailed as error:
        say(str(error))
        return 1
    for line in build_table(bundle.sizes).splitlines():
        say(line)
    say(f"images are in {bundle.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
