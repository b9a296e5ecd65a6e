"""What an image consists of, as a CycloneDX document: read from its files, not from what it was to be made of.

Python distributions come from the metadata that pip installed, system packages from dpkg's own list, the
interpreter from the environment that uses it. Nothing of the image is run.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
import uuid
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from email.message import Message

    from docker_engine import DockerEngine

SPEC_VERSION = "1.6"
DPKG_STATUS = "var/lib/dpkg/status"
OS_RELEASE = "usr/lib/os-release"
ENVIRONMENT = "opt/rrq/pyvenv.cfg"
# Debian's own Python packages have metadata as well, and are in dpkg's list already.
DISTRIBUTION_FILE = re.compile(r"(?!usr/lib/python3/).*/([^/]+)\.dist-info/(METADATA|RECORD)")

Component = dict[str, Any]


@dataclass(frozen=True)
class Image:
    name: str
    digest: str
    labels: Mapping[str, str]
    files: Mapping[str, str]  # the text of those that tell what is installed, by path


def write_sbom(engine: DockerEngine, tag: str, file: Path) -> None:
    file.write_text(json.dumps(build_sbom(read_image(engine, tag)), indent=1) + "\n")


def read_image(engine: DockerEngine, tag: str) -> Image:
    described = json.loads(engine.run("image", "inspect", tag))[0]
    container = engine.run("create", tag).strip()
    try:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "files.tar"
            engine.run("export", "--output", str(archive), container)
            files = read_files(archive)
    finally:
        engine.run("rm", container)
    return Image(tag.partition(":")[0], described["Id"], described["Config"]["Labels"] or {}, files)


def read_files(archive: Path) -> dict[str, str]:
    files = {}
    with tarfile.open(archive) as members:
        for member in members:
            if member.name in (DPKG_STATUS, OS_RELEASE, ENVIRONMENT) or DISTRIBUTION_FILE.fullmatch(
                member.name
            ):
                content = members.extractfile(member)
                assert content is not None, f"{member.name} is no file"
                files[member.name] = content.read().decode()
    return files


def build_sbom(image: Image) -> dict[str, Any]:
    components = [
        *build_interpreter(image.files),
        *build_distributions(image.files),
        *build_system_packages(image.files),
    ]
    described: Component = {
        "type": "container",
        "bom-ref": image.name,
        "name": image.name,
        "version": image.labels.get("org.opencontainers.image.version", "unknown"),
        "properties": [{"name": "rrq:image-id", "value": image.digest}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        # Of the image alone: the same image gives the same document.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, image.digest)}",
        "version": 1,
        "metadata": {"component": described},
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
    }


def build_interpreter(files: Mapping[str, str]) -> Iterator[Component]:
    """The Python that runs everything, unless a system package brought it."""
    settings = dict(re.findall(r"^(\S+) = (.*)$", files[ENVIRONMENT], re.MULTILINE))
    if settings["home"] != "/usr/bin":
        yield build_component("application", "python", settings["version"], "pkg:generic/python")


def build_distributions(files: Mapping[str, str]) -> Iterator[Component]:
    for path, text in files.items():
        if path.endswith(".dist-info/METADATA"):
            metadata = HeaderParser().parsestr(text)
            name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
            record = files[path.replace("METADATA", "RECORD")]
            yield {
                **build_component("library", name, metadata["Version"], f"pkg:pypi/{name}"),
                "licenses": build_licenses(metadata),
                "properties": [
                    {"name": "rrq:path", "value": f"/{path.rpartition('/')[0]}"},
                    # Of the list that has the digest of every installed file.
                    {"name": "rrq:record-sha256", "value": hashlib.sha256(record.encode()).hexdigest()},
                ],
            }


def build_licenses(metadata: Message) -> list[dict[str, Any]]:
    """What the distribution says of itself; older ones only do so in a free text or by their category."""
    if expression := metadata["License-Expression"]:
        return [{"expression": expression}]
    categories = [value for value in metadata.get_all("Classifier", []) if value.startswith("License :: ")]
    names = [category.rpartition(" :: ")[2] for category in categories]
    free_text = (metadata["License"] or "").strip()
    if not names and free_text and "\n" not in free_text:  # some put the whole text there
        names = [free_text]
    return [{"license": {"name": name}} for name in names]


def build_system_packages(files: Mapping[str, str]) -> Iterator[Component]:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', files[OS_RELEASE], re.MULTILINE))
    distribution = f"{release['ID']}-{release['VERSION_ID']}"
    for paragraph in files[DPKG_STATUS].strip().split("\n\n"):
        package = HeaderParser().parsestr(paragraph)
        if package["Status"] == "install ok installed":
            purl = f"pkg:deb/{release['ID']}/{package['Package']}"
            options = f"arch={package['Architecture']}&distro={distribution}"
            yield build_component("library", package["Package"], package["Version"], purl, f"?{options}")


def build_component(kind: str, name: str, version: str, purl: str, options: str = "") -> Component:
    address = f"{purl}@{quote(version, safe='.~-')}{options}"
    return {"type": kind, "bom-ref": address, "name": name, "version": version, "purl": address}
