"""What the wheel brings with it when it is installed, as a CycloneDX document: the locked versions that the tests ran with.

Made from requirements/dev.lock and pyproject.toml alone, without an image or a network. An installer may choose newer
versions than these; what is inside the images is in documents of their own (`image_sbom`).
"""

from __future__ import annotations

import re
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from image_sbom import SPEC_VERSION, build_component

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REPOSITORY = Path(__file__).parents[1]
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.+?))? \\$")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
PARENT = re.compile(r"^    #(?: via)? +([a-z0-9][a-z0-9-]*)$")


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    marker: str | None  # where it is needed at all, such as sys_platform != 'win32'
    hashes: tuple[str, ...]  # of every file of this version that may be installed
    wanted_by: tuple[str, ...]


def parse_lock(text: str) -> dict[str, Pin]:
    pins = {}
    for part in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        first = PIN.match(part.splitlines()[0])
        if first is None:
            raise ValueError(f"The lock has a line that names no version: {part.splitlines()[0]!r}")
        name, version, marker = first.groups()
        parents = tuple(found[1] for line in part.splitlines() if (found := PARENT.match(line)))
        pins[name] = Pin(name, version, marker, tuple(HASH.findall(part)), parents)
    return pins


def find_needed(pins: Mapping[str, Pin], roots: Iterable[str]) -> set[str]:
    """Return the names of the roots and of everything that they want, and so on."""
    needed: set[str] = set()
    coming = list(roots)
    while coming:
        name = coming.pop()
        if name not in needed:
            needed.add(name)
            coming += [pin.name for pin in pins.values() if name in pin.wanted_by]
    return needed


def read_names(requirements: Iterable[str]) -> list[str]:
    return [canonicalize_name(Requirement(text).name) for text in requirements]


def build_lock_sbom(project: Mapping[str, Any], lock: str, version: str, wheel_digest: str) -> dict[str, Any]:
    """Return the document; what only an extra brings is optional and says which."""
    pins = parse_lock(lock)
    described = project["project"]
    always = find_needed(pins, read_names(described["dependencies"]))
    extras = {
        extra: find_needed(pins, read_names(requirements)) - always
        for extra, requirements in described["optional-dependencies"].items()
    }
    wanted = always.union(*extras.values())
    components = {
        name: build_locked(pins[name], [extra for extra, names in extras.items() if name in names])
        for name in sorted(wanted)
    }
    references = {name: component["bom-ref"] for name, component in components.items()}
    product = build_component("library", described["name"], version, f"pkg:pypi/{described['name']}")
    product["hashes"] = [{"alg": "SHA-256", "content": wheel_digest}]
    product["licenses"] = [{"expression": described["license"]}]
    direct = read_names(
        [
            *described["dependencies"],
            *(text for part in described["optional-dependencies"].values() for text in part),
        ]
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        # Of the wheel alone: the same wheel gives the same document.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, wheel_digest)}",
        "version": 1,
        "metadata": {"component": product},
        "components": list(components.values()),
        "dependencies": [
            {"ref": product["bom-ref"], "dependsOn": sorted(references[name] for name in set(direct))},
            *(
                {
                    "ref": reference,
                    "dependsOn": sorted(
                        references[pin.name]
                        for pin in pins.values()
                        if pin.name in wanted and name in pin.wanted_by
                    ),
                }
                for name, reference in references.items()
            ),
        ],
    }


def build_locked(pin: Pin, extras: list[str]) -> dict[str, Any]:
    properties = [("rrq:extra", extra) for extra in extras]
    if pin.marker:
        properties.append(("rrq:marker", pin.marker))
    # Not as hashes of the component: which of the files an installer takes depends on the machine.
    properties += [("rrq:locked-sha256", digest) for digest in pin.hashes]
    return {
        **build_component("library", pin.name, pin.version, f"pkg:pypi/{pin.name}"),
        "scope": "optional" if extras else "required",
        "properties": [{"name": name, "value": value} for name, value in properties],
    }


def read_lock_sbom(version: str, wheel_digest: str) -> dict[str, Any]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return build_lock_sbom(
        project, (REPOSITORY / "requirements" / "dev.lock").read_text(), version, wheel_digest
    )
