"""Where the files of a release come from: an in-toto statement with the predicate of SLSA 1.0, and their checksums.

Pure, except for the digests. The statement is not signed here: who builds says who they are in RRQ_BUILDER_ID, and
signs what they vouch for by their own means. Without it, a statement is no more than a note of how a folder came about.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://rrq.dev/make-release/v1"
# Nobody in particular: a builder that can be trusted has a name of its own.
UNKNOWN_BUILDER = "https://rrq.dev/builders/unknown"
BUILDER_VARIABLE, INVOCATION_VARIABLE = "RRQ_BUILDER_ID", "RRQ_BUILD_INVOCATION"
SOURCE_VARIABLE = "RRQ_SOURCE_URI"  # such as git+https://github.com/OWNER/REPOSITORY
CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Build:
    version: str
    revision: str  # of Git
    is_snapshot: bool  # then the files may come from a tree that no revision has
    started_at: datetime
    finished_at: datetime
    materials: Mapping[str, str] = field(default_factory=dict)  # digests of the locks, by path
    parts: Sequence[str] = ()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_statement(files: Sequence[Path], build: Build, environment: Mapping[str, str]) -> dict[str, Any]:
    source: dict[str, Any] = {"digest": {"gitCommit": build.revision}}
    if uri := environment.get(SOURCE_VARIABLE):
        source["uri"] = uri
    metadata = {"startedOn": write_time(build.started_at), "finishedOn": write_time(build.finished_at)}
    if invocation := environment.get(INVOCATION_VARIABLE):
        metadata["invocationId"] = invocation
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": file.name, "digest": {"sha256": file_digest(file)}} for file in sorted(files)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "version": build.version,
                    "snapshot": build.is_snapshot,
                    "parts": list(build.parts),
                },
                "resolvedDependencies": [
                    source,
                    *(
                        {"name": name, "digest": {"sha256": digest}}
                        for name, digest in build.materials.items()
                    ),
                ],
            },
            "runDetails": {
                "builder": {"id": environment.get(BUILDER_VARIABLE) or UNKNOWN_BUILDER},
                "metadata": metadata,
            },
        },
    }


def write_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def build_checksums(files: Sequence[Path]) -> str:
    """Return what `sha256sum --check` reads."""
    return "".join(f"{file_digest(file)}  {file.name}\n" for file in sorted(files))
