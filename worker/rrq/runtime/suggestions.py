"""Suggests the known name that a person most likely meant. Pure."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

__all__ = ["find_meant", "suggest"]

# One letter too many, too few or wrong in a name of five; two different short names stay apart.
_LEAST_LIKENESS: Final = 0.75
# Names that people try first and that differ too much from the right one to be found by their letters.
_OTHER_NAMES: Final = {
    "redis_url": "redis_dsn",
    "redis": "redis_dsn",
    "dsn": "redis_dsn",
    "url": "redis_dsn",
    "registry": "job_registry",
    "concurrency": "worker_concurrency",
    "queue": "default_queue_name",
    "queue_name": "default_queue_name",
    "max_retries": "default_max_retries",
    "job_timeout_seconds": "default_job_timeout_seconds",
    "_queue": "_queue_name",
    "_delay": "_defer_by",
    "_timeout": "_job_timeout_seconds",
    "_id": "_job_id",
}


def find_meant(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is nearest to ``name``; None when none is near."""
    other = _OTHER_NAMES.get(name)
    if other in known:
        return other
    found = get_close_matches(name, [*known], n=1, cutoff=_LEAST_LIKENESS)
    return found[0] if found else None


def suggest(name: str, known: Collection[str]) -> str:
    """Return `` Did you mean 'x'?`` to append to a sentence; '' when no known name is near."""
    meant = find_meant(name, known)
    return "" if meant is None else f" Did you mean {meant!r}?"
