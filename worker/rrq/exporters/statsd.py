"""Metrics for StatsD: a UDP datagram per value, sent and forgotten.

Where to: RRQ_STATSD_HOST (127.0.0.1), RRQ_STATSD_PORT (8125), RRQ_STATSD_PREFIX (none). They are no
fields of the settings, because Kubernetes sets variables of the first two names by itself for a Service
called ``rrq-statsd``. Labels become tags as DogStatsD writes them.
"""

import ipaddress
import logging
import os
import re
import socket
import threading
from collections import deque
from math import isfinite
from time import monotonic
from typing import Final

from rrq.exc import SettingsError
from rrq.hooks import MetricsExporter
from rrq.settings import RRQSettings

__all__ = ["StatsdExporter"]

logger = logging.getLogger(__name__)

_DEFAULT_HOST: Final = "127.0.0.1"
_DEFAULT_PORT: Final = "8125"
# What has a meaning of its own in a datagram.
_NOT_IN_NAMES: Final = re.compile(r"[:|@#,\s]")
_NOT_IN_TAGS: Final = re.compile(r"[|,#\s]")
# What comes before a host name is known waits; beyond this the oldest goes.
_MOST_WAITING: Final = 1000
# A name may come to mean another address; one that meant none is asked for sooner.
_RESOLVE_AGAIN_SECONDS: Final = 300.0
_RESOLVE_RETRY_SECONDS: Final = 10.0


class StatsdExporter(MetricsExporter):
    """Sends values without ever waiting: what the network does not take at once is lost."""

    def __init__(self, settings: RRQSettings) -> None:
        super().__init__(settings)
        self._host = os.environ.get("RRQ_STATSD_HOST") or _DEFAULT_HOST
        self._port = _parse_port(os.environ.get("RRQ_STATSD_PORT") or _DEFAULT_PORT)
        prefix = os.environ.get("RRQ_STATSD_PREFIX", "").rstrip(".")
        self._prefix = f"{prefix}." if prefix else ""
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._socket: socket.socket | None = None
        self._address: str | None = None
        self._resolve_at = 0.0
        self._is_closed = False
        if _is_address(self._host):
            self._use(self._host)
            self._resolve_at = float("inf")

    async def export_counter(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._send(name, value, "c", labels)

    async def export_gauge(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._send(name, value, "g", labels)

    async def export_histogram(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._send(name, value, "h", labels)

    async def close(self) -> None:
        """Close the socket; what comes after is dropped."""
        with self._lock:
            self._is_closed = True
            if self._socket is not None:
                self._socket.close()

    def _send(self, name: str, value: float, kind: str, labels: dict[str, str] | None) -> None:
        datagram = build_datagram(self._prefix + name, value, kind, labels)
        if datagram is None or self._is_closed:
            return
        now = monotonic()
        if now >= self._resolve_at:
            self._resolve_at = now + _RESOLVE_AGAIN_SECONDS
            # Asking for a name may take seconds, which the event loop does not have.
            threading.Thread(target=self._resolve, name="rrq-statsd-resolve", daemon=True).start()
        with self._lock:
            if self._socket is None:
                self._waiting.append(datagram)
            else:
                self._put(self._socket, datagram)

    def _put(self, channel: socket.socket, datagram: bytes) -> None:
        try:
            channel.sendto(datagram, (self._address, self._port))
        except OSError:
            # A full buffer, an unreachable host, a closed socket: metrics are not worth a job.
            return

    def _resolve(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
            address = str(found[0][4][0])
        except (OSError, UnicodeError) as error:
            self._resolve_at = min(self._resolve_at, monotonic() + _RESOLVE_RETRY_SECONDS)
            logger.warning("StatsD host not found", extra={"host": self._host, "error": str(error)})
            return
        self._use(address)

    def _use(self, address: str) -> None:
        with self._lock:
            if self._is_closed or address == self._address:
                return
            if self._socket is not None:
                self._socket.close()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._address = address
            while self._waiting:
                self._put(self._socket, self._waiting.popleft())


def build_datagram(name: str, value: float, kind: str, labels: dict[str, str] | None) -> bytes | None:
    """Return one value in the words of StatsD; None for a value it cannot express."""
    if not isfinite(value):
        return None
    number = str(int(value)) if value == int(value) else repr(float(value))
    text = f"{_NOT_IN_NAMES.sub('_', name)}:{number}|{kind}"
    if labels:
        tags = (f"{_NOT_IN_NAMES.sub('_', key)}:{_NOT_IN_TAGS.sub('_', str(labels[key]))}" for key in labels)
        text += f"|#{','.join(tags)}"
    return text.encode("utf-8", "backslashreplace")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse_port(text: str) -> int:
    # For a Service called rrq-statsd Kubernetes says "udp://10.0.0.7:8125" here; its port is the right one.
    number = text.rpartition(":")[2] if "://" in text else text
    if not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536:
        raise SettingsError(f"RRQ_STATSD_PORT must be a port number such as 8125, not {text!r}.")
    return int(number)
