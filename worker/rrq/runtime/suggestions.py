"""Names that are nearly right: what a person most likely meant. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["find_meant", "suggest"]

# One letter too many, too few or wrong in a name of five; two different short names stay apart.
_LEAST_LIKENESS = 0.75


def find_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to ``name``; None when none is near."""
    found = get_close_matches(name, [*known], n=1, cutoff=_LEAST_LIKENESS)
    return found[0] if found else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` to be put behind a sentence; '' when no known name is near."""
    meant = find_meant(name, known)
    return "" if meant is None else f" Did you mean {meant!r}?"
