"""The HTTP port of a pod and of the operator, as real processes, and clients that mean them no good."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from fleet import all_done
from operator_process import RunningOperator
from pod import Pod
from rrq.client import JobRequest
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rrq.client import RRQClient

pytestmark = pytest.mark.slow

# When to give up. Others may have the machine for seconds, and a crowd that waits is let in one by one.
PATIENCE_SECONDS = 60.0
NOWHERE = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: nobody, user: {token: none}}]
"""


@pytest.fixture
def pod(redis_dsn: str, tmp_path: Path) -> Iterator[Pod]:
    with Pod(redis_dsn, tmp_path, "--num-workers", "1") as pod:
        yield pod


class Port:
    """One port, and the process behind it."""

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.process = psutil.Process(pid)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), timeout=PATIENCE_SECONDS)

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.number, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def send(self, data: bytes) -> bytes:
        """Send bytes and return the answer, as far as it came; the other side may hang up before it has read them all."""
        answer = b""
        with self.connect() as client:
            with contextlib.suppress(OSError):
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
            # What came before the other side hung up is still there to be read.
            with contextlib.suppress(OSError):
                while chunk := client.recv(65536):
                    answer += chunk
        return answer

    def livez(self) -> int:
        """The status a probe sees; like the kubelet it may have to ask once more."""
        for _ in range(3):
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                return self.ask("GET", "/livez")[0]
        return 0


async def assault(port: Port) -> None:
    """Everything at once; probes are answered in between, and in the end nothing is held."""
    before = port.process.num_fds()
    memory = port.process.memory_info().rss
    crowd: list[socket.socket] = []
    try:
        for number in range(300):
            with contextlib.suppress(ConnectionError):
                client = port.connect()
                crowd.append(client)
                client.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: " if number % 2 else b"")
            if number % 100 == 99:
                assert port.livez() == 200, f"after {number} connections"
                # Whoever is shown the door needs a moment to leave.
                await eventually(
                    lambda: port.process.num_fds() < before + 100,
                    message="a crowd holds too many descriptors",
                )
        # A byte now and then, so that no single wait is long.
        for _ in range(5):
            for client in crowd[-40:]:
                with contextlib.suppress(OSError):
                    client.send(b"x")
            assert port.livez() == 200
    finally:
        for client in crowd:
            client.close()
    await eventually(lambda: port.process.num_fds() <= before + 3, message="descriptors were kept")
    for data in GARBAGE.values():
        port.send(data)
        assert port.livez() == 200
    dice = random.Random(7)
    for _ in range(20):
        port.send(dice.randbytes(dice.randrange(1, 3000)))
    assert port.livez() == 200
    await eventually(lambda: port.process.num_fds() <= before + 3, message="descriptors were kept")
    assert port.process.memory_info().rss < memory + 100_000_000


GARBAGE = {
    "nothing": b"",
    "odd bytes": b"\xff\x00\x80" * 1000,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "a line without end": b"GET /" + b"a" * 5_000_000,
    "a header without end": b"GET /livez HTTP/1.1\r\nX: " + b"a" * 5_000_000 + b"\r\n\r\n",
    "headers without end": b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 200_000 + b"\r\n",
    "a version of no kind": b"GET /livez HTTP/9999999.1\r\n\r\n",
    "a length of no kind": b"POST /livez HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "a length beyond all": b"POST /livez HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    "many at once": b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 1000,
    "chunks": b"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
}


def look_around(port: Port) -> None:
    """Nothing but the pages is there, and nothing can be done to them."""
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        status, headers, body = port.ask(method, "/livez")
        assert (status, headers["Allow"], body) == (405, "GET, HEAD", b"")
    assert port.ask("HEAD", "/livez")[::2] == (200, b"")
    for path in (
        "/", "/livez/", "/./livez", "/x/../livez", "/%6civez", "/LIVEZ", "/livez%00", "/livez;a", "/../../etc/passwd",
        "http://127.0.0.1/livez", "/metrics/../../proc/self/environ", "/debug/pprof", "/" + "a" * 60_000,
    ):  # fmt: skip
        assert port.ask("GET", path)[0] == 404, path
    assert port.ask("GET", "/livez?x=<script>")[0] == 200
    status, headers, body = port.ask("GET", "/<script>alert(1)</script>")
    assert status == 404
    assert b"<script>" not in body
    assert headers["Content-Type"].startswith("text/plain")
    assert "Python" not in headers.get("Server", "")
    # One answer per connection: what comes behind is nobody's request.
    assert port.send(GARBAGE["many at once"]).count(b"HTTP/1.0 200") == 1


async def test_a_pod_answers_probes_and_runs_jobs_under_assault(pod: Pod, client: RRQClient) -> None:
    await pod.is_up()
    port = Port(pod.http_port, pod.pid)
    look_around(port)
    jobs = await client.enqueue_many([JobRequest("note", (0.01,))] * 200)
    await assault(port)
    await all_done(client.job_store, jobs, PATIENCE_SECONDS)
    assert not [line for line in pod.log() if line["level"] in ("ERROR", "CRITICAL")]


async def test_the_operator_answers_probes_under_assault(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NOWHERE)
    with RunningOperator(kubeconfig, "default", tmp_path) as operator:
        port = Port(await operator.port(), operator.pid)
        await eventually(lambda: port.livez() == 200, PATIENCE_SECONDS, "the operator never answered")
        look_around(port)
        await assault(port)
