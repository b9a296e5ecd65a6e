"""One run of a Job pool: a process that runs what is due and ends, restarted while it fails.

What a Job object is in a cluster. When a run starts is decided in ``decide/bursts.py``.
"""

from collections.abc import Callable
from pathlib import Path
from time import time

from rrq.pod.plan import EX_UNAVAILABLE
from rrq.pod.restarts import restart_delay_seconds
from rrq_operator.api.schedules import JobRuns
from rrq_operator.local.worker_process import WorkerProcess

Start = Callable[[Path], WorkerProcess]


class BurstRun:
    """Times are monotonic, but for ``finished_at``, which ``decide/bursts.py`` compares with the calendar."""

    has_ttl = False

    def __init__(
        self, run: int, name: str, uid: str, start: Start, log_path: Path, spec: JobRuns, now: float
    ) -> None:
        self.run = run
        self.name = name
        self.uid = uid
        self.is_finished = False
        self.has_succeeded = False
        self.lacks_functions = False
        self.finished_at: float | None = None
        self._start = start
        self._log_path = log_path
        self._failures_allowed = spec.backoff_limit
        self._failures = 0
        self._start_at = now
        deadline_seconds = spec.active_deadline_seconds
        self._deadline_at = None if deadline_seconds is None else now + deadline_seconds
        self._kill_at: float | None = None
        self._process: WorkerProcess | None = start(log_path)

    def look_after(self, now: float, kill_at: float) -> str | None:
        """Start the process, note its end, or end it when it is overdue; returns what is worth showing."""
        if self._process is None:
            if not self.is_finished and now >= self._start_at:
                self._process = self._start(self._log_path)
            return None
        code = self._process.exit_code()
        if code is not None:
            return self._note_end(self._process, code, now)
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._process.kill()
        elif self._deadline_at is not None and now >= self._deadline_at:
            self.stop(kill_at)
            return f"run {self.run} is stopped: its activeDeadlineSeconds are over"
        return None

    def _note_end(self, process: WorkerProcess, code: int, now: float) -> str | None:
        self._process = None
        if code == 0:
            self._finish(has_succeeded=True)
            return f"run {self.run} is done"
        if self._kill_at is not None:
            self._finish(has_succeeded=False)
            return f"run {self.run} was stopped before it was done; what is left stays queued"
        process.log.follow()
        if code == EX_UNAVAILABLE:
            self.lacks_functions = True
            self._finish(has_succeeded=False)
            return f"run {self.run} lacks functions: {process.log.last_words()}"
        self._failures += 1
        failed = f"run {self.run} failed with code {code}: {process.log.last_words()}"
        if self._failures > self._failures_allowed:
            self._finish(has_succeeded=False)
            return failed
        delay_seconds = restart_delay_seconds(self._failures)
        self._start_at = now + delay_seconds
        return f"{failed}; retrying in {delay_seconds:.1f} s"

    def _finish(self, *, has_succeeded: bool) -> None:
        self.is_finished, self.has_succeeded, self.finished_at = True, has_succeeded, time()

    def stop(self, kill_at: float) -> None:
        """Have it drain and end; a second call hurries."""
        self._kill_at = kill_at
        if self._process is not None:
            self._process.terminate()
        elif not self.is_finished:
            self._finish(has_succeeded=False)
