"""Decides when to start a worker process again, and when to give up. Pure."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

FIRST_DELAY_SECONDS: Final = 0.1
LONGEST_DELAY_SECONDS: Final = 30.0
#: Starts in a row that fail, in every place of the pod, before the pod ends. With the growing delay that takes 15 s: long
#: enough for two jobs at the head of a queue that crash their process, short enough to notice a broken image soon.
GIVE_UP_AFTER: Final = 8
#: A child that lived this long counts as working, even if it got no job.
LONG_LIFE_SECONDS: Final = 60.0
#: From this number of failed starts on, liveness is red.
NOT_CURABLE_AFTER: Final = 4


class End(StrEnum):
    """How a child ended, as far as the supervisor knows."""

    ENDED = "ended"
    """Orderly and by itself: its burst was done, or another process sent it SIGTERM."""
    STOPPED = "stopped"
    """By the shutdown of the pod, orderly or killed after the grace period."""
    RETIRED = "retired"
    """Recycled or reloaded, after its jobs had ended."""
    CRASHED = "crashed"
    HUNG = "hung"
    """Killed by the supervisor because its event loop was blocked past every deadline."""
    UNFIT = "unfit"
    """The application could not be loaded or started."""


@dataclass(frozen=True)
class Death:
    """The end of one child: a signal or an exit code, and what that means."""

    end: End
    signal_name: str | None
    exit_code: int | None

    @property
    def is_crash(self) -> bool:
        """Whether running jobs may have caused it."""
        return self.end in (End.CRASHED, End.HUNG)

    @property
    def how(self) -> str:
        """One word for a metric: SIGKILL, SIGSEGV, exit 1 …"""
        return self.signal_name or f"exit {self.exit_code}"


def judge_death(code: int, *, is_orderly: bool, is_unfit: bool, asked: End | None) -> Death:
    """Decide what the end of a child means.

    ``code``: as ``subprocess`` has it, negative for a signal. ``is_orderly``: it sent a farewell. ``asked``: the end that
    the supervisor had asked for, if any. A process that exits with 0 without a farewell has crashed as well: a handler
    called ``os._exit``.
    """
    signal_name = _signal_name(-code) if code < 0 else None
    end: End
    if asked is End.STOPPED or asked is End.HUNG:
        end = asked
    elif is_unfit:
        end = End.UNFIT
    elif is_orderly:
        end = asked or End.ENDED
    else:
        end = End.CRASHED
    return Death(end, signal_name, None if signal_name else code)


def count_failures(before: int, death: Death, finished_jobs: int, lived_seconds: float) -> int:
    """Return how many starts in a row have failed, with this death."""
    if death.end in (End.STOPPED, End.RETIRED):
        return 0
    if death.end is End.ENDED and (finished_jobs or lived_seconds >= LONG_LIFE_SECONDS):
        return 0
    return 1 if finished_jobs or lived_seconds >= LONG_LIFE_SECONDS else before + 1


def restart_delay_seconds(failures: int) -> float:
    """Return the delay before the next start: none after an orderly end, then growing."""
    if failures == 0:
        return 0.0
    return min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 20))


def is_hopeless(failures: Sequence[int]) -> bool:
    """Return whether the children in every place only crash, so that the pod should end with an error."""
    return all(count >= GIVE_UP_AFTER for count in failures)


def describe_cause(death: Death, *, worker_id: str, rss_bytes: int | None, at: str) -> dict[str, Any]:
    """Return what is written into the history of the jobs that were running."""
    return {
        "how": "event loop hung, killed by the supervisor" if death.end is End.HUNG else "process died",
        "signal": death.signal_name,
        "exit_code": death.exit_code,
        "rss_bytes": rss_bytes,
        "worker_id": worker_id,
        "at": at,
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
