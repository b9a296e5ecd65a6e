"""The channel between the supervisor and one child: a socket pair with one JSON message per line.

A child describes itself, so that the supervisor need not import the application. The supervisor reads with asyncio; the
child writes synchronously, because a message must have left the process before a handler can block the interpreter.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rrq.broker.messages import BeatReply, LeaseState

# A report carries the metrics of one second; a longer line is not a report.
_LONGEST_LINE = 4 * 1024 * 1024
_LAST_MESSAGES_SECONDS = 1.0


@dataclass(frozen=True)
class Hello:
    """The first message: the identity of the child and the settings that it loaded."""

    worker_id: str
    incarnation: str
    queues: list[str]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """Sent once a second while the event loop runs, and whenever the lease begins or ends."""

    worker_id: str
    #: Able to claim: false before the start, and briefly after the lease was lost.
    is_registered: bool
    #: All jobs were returned and the lease has ended; only hooks may still run.
    has_left: bool
    status: str
    active_jobs: int
    capacity: int
    #: Monotonic time by which every running job must have ended; 0 without running jobs.
    deadline: float
    #: Outcomes stored since the process started.
    finished_jobs: int
    metrics: Mapping[str, Any] = field(default_factory=lambda: {"counts": [], "series": []})
    #: All tasks of its event loop.
    tasks: int = 0


@dataclass(frozen=True)
class InHand:
    """Jobs were claimed: until the deadline (monotonic time) they may block the event loop."""

    deadline: float
    active_jobs: int


@dataclass(frozen=True)
class Failed:
    """The application cannot run. A restart would fail as well, until a person fixes it."""

    message: str


@dataclass(frozen=True)
class Farewell:
    """The last message of an orderly end, with the exit code. Without it, a death counts as a crash."""

    code: int


@dataclass(frozen=True)
class BeatAnswer:
    """The answer of Redis to the heartbeat of a child."""

    worker_id: str
    state: int
    is_draining: bool
    active_count: int
    cancel_job_ids: list[str]

    @classmethod
    def of(cls, worker_id: str, reply: BeatReply) -> "BeatAnswer":
        return cls(
            worker_id, reply.state.value, reply.is_draining, reply.active_count, list(reply.cancel_job_ids)
        )

    @property
    def reply(self) -> BeatReply:
        return BeatReply(
            LeaseState(self.state), self.is_draining, self.active_count, tuple(self.cancel_job_ids)
        )


@dataclass(frozen=True)
class Retire:
    """Stop claiming; end when the jobs in hand have ended."""


@dataclass(frozen=True)
class RenewYourself:
    """The supervisor does not renew the lease of this child; the child must renew it."""


Message = Hello | Report | InHand | Failed | Farewell | BeatAnswer | Retire | RenewYourself
_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Hello, Report, InHand, Failed, Farewell, BeatAnswer, Retire, RenewYourself)
}


def encode_message(message: Message) -> bytes:
    return json.dumps([type(message).__name__, asdict(message)], default=str).encode() + b"\n"


def parse_message(line: bytes) -> Message:
    """Return the message of one line. Raises ValueError for anything else."""
    try:
        kind, fields = json.loads(line)
        message: Message = _KINDS[kind](**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a message of this version: {line[:80]!r}") from error
    return message


class ChildEnd:
    """The child's end of the channel. It never blocks or raises when the supervisor has died."""

    def __init__(self, descriptor: int) -> None:
        # Programs that a handler starts must not keep the channel open.
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._unsent = b""
        self._received = b""
        self._on_order: Callable[[Message], None] | None = None
        self._on_lost: Callable[[], None] | None = None

    @property
    def has_backlog(self) -> bool:
        """Whether the supervisor reads slowly, so that messages that can wait should."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Pass a message to the kernel now, or as soon as its buffer has room."""
        self._unsent += encode_message(message)
        with contextlib.suppress(OSError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def listen(self, on_order: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        """Call back in the running event loop for each order, and once when the supervisor has died."""
        self._on_order, self._on_lost = on_order, on_lost
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def copy_socket(self) -> socket.socket:
        """Return a copy for a thread that waits for the end of the supervisor; closing one does not close the other."""
        return self._socket.dup()

    def close(self) -> None:
        """Send what is unsent, if the supervisor reads it within a second, and close."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(_LAST_MESSAGES_SECONDS)
            self._socket.sendall(self._unsent)
        self._socket.close()

    def _read(self) -> None:
        try:
            received = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._socket)
            if self._on_lost is not None:
                self._on_lost()
            return
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            if self._on_order is not None:
                self._on_order(parse_message(line))


class SupervisorEnd:
    """The supervisor's end of the channel to one child."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        """Whether a message that is sent now can reach the child."""
        return self._writer is not None and not self._writer.is_closing()

    async def read(self) -> AsyncIterator[Message]:
        """Yield the messages of the child until it closes its end."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=_LONGEST_LINE)
        try:
            while line := await reader.readline():
                if line.endswith(b"\n"):
                    yield parse_message(line)
        except OSError:
            return
        finally:
            self._writer.close()

    def send(self, message: Message) -> None:
        """Send a message to the child; does nothing when the child has died."""
        if self._writer is not None and self.is_open:
            self._writer.write(encode_message(message))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._socket.close()


def make_channel() -> tuple[SupervisorEnd, socket.socket]:
    """Return both ends; the child inherits the second one."""
    ours, theirs = socket.socketpair()
    return SupervisorEnd(ours), theirs
