"""For tests that throw anything at the code: what they happen to reach is not counted as covered.

Being reached by chance is no sign of being tested, and to count it would make such tests, which mostly compute, take
half as long again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

#: For the environment of processes that tests start and whose code others test: counting takes half as long again.
UNCOUNTED = {"COVERAGE_PROCESS_START": "", "COVERAGE_PROCESS_CONFIG": ""}


@pytest.fixture(autouse=True)
def uncounted() -> Iterator[None]:
    """For every test below the conftest.py that imports this."""
    counting = coverage.Coverage.current()
    if counting is None:
        yield
        return
    counting.stop()
    yield
    counting.start()
