"""The files of the page, read once at the start; the server never reads another file for a request."""

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["Asset", "load_assets"]


@dataclass(frozen=True)
class Asset:
    body: bytes
    content_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """Return all files below ``static`` by their path in it."""
    return _load(files("rrq.dashboard") / "static", "")


def _load(folder: Traversable, prefix: str) -> dict[str, Asset]:
    assets: dict[str, Asset] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            assets |= _load(entry, f"{prefix}{entry.name}/")
            continue
        body = entry.read_bytes()
        kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
        assets[prefix + entry.name] = Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return assets
