"""Whether a run was as large as it was meant to be: one that did less has shown less. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A few have nobody to hit: the pod was just being started again.
LEAST_INJECTED_SHARE = 0.95


def find_shortfalls(
    planned: int, injected: int, left_out: int, jobs_planned: int, jobs: int
) -> Iterator[str]:
    """Yield what is missing. `left_out` are faults that this machine cannot have, which is no fault of the run."""
    possible = planned - left_out
    if injected < LEAST_INJECTED_SHARE * possible:
        yield f"only {injected} of {possible} planned faults were injected"
    if jobs < jobs_planned:
        yield f"only {jobs} of {jobs_planned} planned jobs were acknowledged"
