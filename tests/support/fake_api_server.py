"""An API server in memory, for a handful of calls: read, list, create, apply, scale and status. Nothing is validated."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from listening import Listener

if TYPE_CHECKING:
    import asyncio

Object = dict[str, Any]


class FakeApiServer(Listener):
    """Speaks HTTP, one call per connection; `objects` by their path."""

    def __init__(self) -> None:
        super().__init__(self._serve)
        self.objects: dict[str, Object] = {}
        self._versions = itertools.count(1)

    def put(self, path: str, manifest: Object) -> Object:
        """Store an object as if it had been applied."""
        known = self.objects.get(path, {"metadata": {"uid": f"uid of {path}", "generation": 0}})
        merged: Object = _merge(known, manifest)
        if merged.get("spec") != known.get("spec"):
            merged["metadata"]["generation"] = known["metadata"]["generation"] + 1
        merged["metadata"]["resourceVersion"] = str(next(self._versions))
        merged["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.objects[path] = merged
        return merged

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        status, answer = self._answer(method, target.partition("?")[0], json.loads(body) if body else {})
        content = json.dumps(answer).encode()
        writer.write(
            f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        await writer.drain()

    def _answer(self, method: str, path: str, manifest: Object) -> tuple[int, Object]:
        match method:
            case "PATCH" if path.endswith("/scale"):
                return 200, self.put(path.removesuffix("/scale"), {"spec": manifest["spec"]})
            case "PATCH" if path.endswith("/status"):
                return 200, self.put(path.removesuffix("/status"), {"status": manifest["status"]})
            case "PATCH":
                return 200, self.put(path, manifest)
            case "POST":
                return 201, self.put(f"{path}/{manifest['metadata']['name']}", manifest)
            case "GET" if path in self.objects:
                return 200, self.objects[path]
            case "GET" if path.endswith(("pods", "jobs")):
                return 200, {"metadata": {"resourceVersion": "1"}, "items": []}
        return 404, {"kind": "Status", "code": 404, "message": f"{path} not found", "reason": "NotFound"}


def _merge(known: Any, over: Any) -> Any:
    if not (isinstance(known, dict) and isinstance(over, dict)):
        return over
    return known | {name: _merge(known.get(name), value) for name, value in over.items()}
