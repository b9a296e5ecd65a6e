"""One replica of a pool: what a pod is in a cluster. Its process is restarted when it ends by itself."""

from collections.abc import Callable
from pathlib import Path

from rrq.pod.restarts import restart_delay_seconds
from rrq_operator.decide.objects import PodObject
from rrq_operator.local.worker_process import WorkerProcess

#: Failed starts in a row, after which a pool that never had a replica ready is given up.
HOPELESS_AFTER = 3
_PROBE_SECONDS = 0.1
#: A replica that is ready is probed less often, as a kubelet does.
_PROBE_READY_SECONDS = 1.0


class Replica:
    """Keeps uid and name over restarts of its process, as a pod does."""

    def __init__(
        self, uid: str, name: str, start: Callable[[Path], WorkerProcess], log_path: Path, now: float
    ) -> None:
        self.uid = uid
        self.name = name
        self.created_at = now
        self.ready_at: float | None = None
        self.deletion_cost = 0
        self.failures = 0
        #: Set by the pool when it has noted the first time.
        self.has_been_ready = False
        self.last_words = ""
        self._start = start
        self._log_path = log_path
        self._start_at = now
        self._probe_at = now
        self._kill_at: float | None = None
        self.process: WorkerProcess | None = start(log_path)

    @property
    def pod(self) -> PodObject:
        return PodObject(self.uid, self.name, self.created_at, self.ready_at, self.deletion_cost)

    @property
    def is_gone(self) -> bool:
        """Whether it was terminated and has ended."""
        return self._kill_at is not None and self.process is None

    async def look_after(self, now: float) -> str | None:
        """Note readiness, restart a process that has ended; returns what is worth showing."""
        if self.process is None:
            if self._kill_at is None and now >= self._start_at:
                self.process = self._start(self._log_path)
            return None
        code = self.process.exit_code()
        if code is not None:
            return self._note_end(self.process, code, now)
        if self._kill_at is not None:
            if now >= self._kill_at:
                self.process.kill()
        elif now >= self._probe_at:
            await self._probe(self.process, now)
        return None

    async def _probe(self, process: WorkerProcess, now: float) -> None:
        is_ready = await process.is_ready()
        if not is_ready:
            self.ready_at = None
        elif self.ready_at is None:
            self.ready_at = now
            self.failures = 0
        self._probe_at = now + (_PROBE_READY_SECONDS if is_ready else _PROBE_SECONDS)

    def _note_end(self, process: WorkerProcess, code: int, now: float) -> str | None:
        self.process, self.ready_at = None, None
        if self._kill_at is not None:
            return None
        process.log.follow()
        self.last_words = process.log.last_words()
        self.failures += 1
        delay_seconds = restart_delay_seconds(self.failures)
        self._start_at = now + delay_seconds
        return f"{self.name} ended with {_describe_code(code)} and is restarted in {delay_seconds:.1f} s: {self.last_words}"

    def terminate(self, kill_at: float) -> None:
        """Have it drain and end, and kill it at ``kill_at``; a second call hurries."""
        self._kill_at = kill_at
        if self.process is not None:
            self.process.terminate()


def _describe_code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
