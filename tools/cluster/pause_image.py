"""The image of the sandbox of pods: one static program, packed by hand, so that nothing has to build it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# What images call the processors that Linux calls otherwise.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def write_pause_image(program: Path, tag: str, archive: Path) -> Path:
    """Write an archive as `docker save` does, of an image with nothing but the program in it."""
    layer = pack({"pause": program.read_bytes()})
    content = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    index = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    archive.write_bytes(
        pack(
            {
                "manifest.json": json.dumps(index).encode(),
                "config.json": json.dumps(content).encode(),
                "layer.tar": layer,
            }
        )
    )
    return archive


def pack(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
