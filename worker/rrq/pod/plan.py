"""The options of a pod and of each of its processes, and how they are passed to a child.

Shared by the command line, the supervisor and the child.
"""

import json
from dataclasses import asdict, dataclass

from rrq.runtime.logs import LogFormat

#: Exit code of a burst that was stopped before its queues were empty: not done, but not an error.
EX_TEMPFAIL = 75
#: Exit code of a burst that ran all jobs but those without a handler here: another run would meet them again.
EX_UNAVAILABLE = 69
#: After the grace period a child has a second to cancel its jobs, and 0.2 s to report it. Then it is killed, so that the
#: pod ends within two seconds of the grace period.
KILL_AFTER_GRACE_SECONDS = 1.2


@dataclass(frozen=True)
class ChildPlan:
    """What the supervisor passes to a child on its command line."""

    channel: int
    settings_path: str | None
    queues: tuple[str, ...] = ()
    weights: dict[str, float] | None = None
    """Shares of the queues; None for those of the settings."""
    burst: bool = False
    burst_linger_seconds: float | None = None
    log_format: LogFormat = "auto"
    log_level: str = "INFO"
    log_context: bool = False

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> "ChildPlan":
        return cls(**json.loads(argument))


@dataclass(frozen=True)
class PodPlan:
    """What the command line asks for."""

    processes: int
    child: ChildPlan
    http: str | None = None
