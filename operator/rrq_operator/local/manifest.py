"""Pools from a file, as `kubectl apply -f` would take it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rrq_operator.api.spec import KIND, Pool, SpecError, parse_pool


class ManifestError(ValueError):
    """A file that cannot be run; the message names every fault that was found."""


def read_pools(path: str) -> list[Pool]:
    """Return the pools of a file, ``-`` for standard input; other objects in it are left to the cluster."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}. Name the file of a pool.") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is no text in UTF-8, so it is no manifest: {error}.") from error
    return parse_pools(text, path)


def parse_pools(text: str, source: str) -> list[Pool]:
    """Return the pools of the YAML documents in ``text``; ManifestError when there is none or any is faulty."""
    try:
        documents = list(yaml.safe_load_all(text))
    # Beside its own errors PyYAML lets through those of a date that no calendar has, and of too deep a nesting.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"{source} is not valid YAML: {_shorten(error)}.") from error
    bodies = [body for document in documents for body in _unpack(document)]
    pools, faults = [], []
    for body in bodies:
        if body.get("kind") != KIND:
            continue
        try:
            pools.append(parse_pool(body))
        except SpecError as error:
            faults.append(str(error))
    # There are no namespaces here, and a name says whose process and log it is.
    names = [pool.name for pool in pools]
    faults += [
        f"Two pools are called {name}: give each a name of its own."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if faults:
        raise ManifestError("\n".join(f"{source}: {fault}" for fault in faults))
    if not pools:
        kinds = ", ".join(sorted({str(body.get("kind")) for body in bodies})) or "nothing"
        raise ManifestError(
            f"{source} holds no {KIND} but {kinds}. Name a file with a pool, such as examples/pool.yaml"
            f"{', or write kind: ' + KIND if KIND.lower() in kinds.lower() else ''}."
        )
    return pools


def _unpack(document: Any) -> list[Mapping[str, Any]]:
    """Return the objects of one document: itself, or the items of a List."""
    if not isinstance(document, Mapping):
        return [] if document is None else [{"kind": f"a {type(document).__name__}"}]
    items = document.get("items")
    if document.get("kind") == "List" and isinstance(items, list):
        return [item for item in items if isinstance(item, Mapping)]
    return [document]


def _shorten(error: Exception) -> str:
    """Return a YAML error on one line."""
    return " ".join(str(error).split())
