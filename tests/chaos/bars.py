"""What the times of a run are held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reruns import REPORT_SECONDS


@dataclass(frozen=True)
class Bars:
    """`report_seconds` is how long an outcome may be on its way to Redis when nothing is in its way."""

    child_due_again_seconds: float = 1.0
    pod_due_again_seconds: float = 20.0
    backlog_seconds: float = 30.0
    report_seconds: float = REPORT_SECONDS
    #: Where producers wait until a job is safe, and Redis may forget none that it acknowledged.
    durable_parts: frozenset[str] = frozenset()

    def with_room(self, factor: float) -> Bars:
        """Return the same bars for a machine that has other things to do; counts get no room."""
        return replace(
            self,
            child_due_again_seconds=self.child_due_again_seconds * factor,
            pod_due_again_seconds=self.pod_due_again_seconds * factor,
            backlog_seconds=self.backlog_seconds * factor,
            report_seconds=self.report_seconds * factor,
        )
