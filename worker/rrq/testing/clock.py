"""Test clock: the time of Redis plus an offset.

Every script reads the time once, by ``redis.call('TIME')`` in ``lua/shared/context.lua``. A bench replaces this call in
the text of its scripts and changes nothing else.
"""

from dataclasses import dataclass

from rrq.broker.scripts import Script, build_script

_READ_TIME = "redis.call('TIME')"

#: The clock moves in small steps for this many leases at the end of ``travel``. After a long silence a fleet waits one
#: lease before it reaps, and only then a worker that died on the way is reaped.
_LEASES_IN_STEPS = 2
# As often as a worker renews by default: half a lease of silence would count as an outage.
_STEPS_PER_LEASE = 3


@dataclass
class Clock:
    """How far the clock of a bench is ahead of that of Redis."""

    offset_us: int = 0

    def shift(self, script: Script) -> Script:
        """Return the script as it runs by the clock of the bench."""
        if self.offset_us == 0:
            return script
        if script.source.count(_READ_TIME) != 1:
            raise AssertionError(f"The script {script.name} does not read the time once from {_READ_TIME}.")
        later = f"(function(now) return {{now[1], now[2] + {self.offset_us}}} end)({_READ_TIME})"
        return build_script(script.name, script.source.replace(_READ_TIME, later))


def decide_step_seconds(
    left_seconds: float, lease_seconds: float, to_next_tick_seconds: float | None
) -> float:
    """Return how far to move the clock before the worker renews its lease and cron entries fire."""
    far_seconds = left_seconds - _LEASES_IN_STEPS * lease_seconds
    step_seconds = far_seconds if far_seconds > 0 else min(left_seconds, lease_seconds / _STEPS_PER_LEASE)
    if to_next_tick_seconds is not None and 0 < to_next_tick_seconds < step_seconds:
        return to_next_tick_seconds
    return step_seconds
