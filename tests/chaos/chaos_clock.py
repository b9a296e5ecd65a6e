"""Wall clocks that jump: those of single processes, by libfaketime, never the machine's.

A process that was started under a `FakeClock` reads its offset from a file at every look at the time. Monotonic time
stays true, as it does when somebody sets a real clock.
"""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

from packages import MissingPackages, install

PACKAGES = {"faketime": "faketime"}
# The variant with locks, for programs with threads; Debian has a folder per architecture.
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")


class NoFakeClock(Exception):
    """Clocks cannot be faked here; the message says why."""


def find_library() -> Path:
    """Return libfaketime, installing Debian's package where root may; NoFakeClock elsewhere."""
    for pattern in LIBRARIES:
        for found in sorted(glob.glob(pattern)):
            return Path(found)
    try:
        install(PACKAGES)
    except MissingPackages as missing:
        raise NoFakeClock(str(missing)) from missing
    for pattern in LIBRARIES:
        for found in sorted(glob.glob(pattern)):
            return Path(found)
    raise NoFakeClock("The package faketime has no libfaketimeMT.so.1 where Debian puts it.")


class FakeClock:
    """The wall clock of whatever was started with `environment`."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.offset_seconds = 0.0
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its name in older versions
            # Its default has waits by the monotonic clock end far too late. Python hands its interpreter lock over by such
            # a wait: without this, an event loop may stand still for as long as another thread computes.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }
        self._write()

    def jump(self, seconds: float) -> None:
        """Move the clock, from now on, by so much."""
        self.offset_seconds += seconds
        self._write()

    def _write(self) -> None:
        # Renamed into place: whoever reads in this moment sees the old time or the new, never half a line.
        new = self._file.with_suffix(".new")
        new.write_text(f"{self.offset_seconds:+.3f}\n")
        os.replace(new, self._file)


def remove_traces() -> None:
    """Remove what libfaketime leaves in shared memory for processes that were killed."""
    for path in glob.glob("/dev/shm/*faketime_s*_*"):
        pid = path.rpartition("_")[2]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                os.unlink(path)
