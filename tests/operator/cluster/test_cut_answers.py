"""Answers that end in the middle or make no sense: trouble to wait out, never the end of the operator."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio.client import Configuration

from listening import Listener
from rrq_operator.cluster.election_lease import KubeLeaseStore
from rrq_operator.cluster.kube import Kube, KubeUnavailable
from rrq_operator.decide.election_rules import LeaseRecord, LeaseUnreachable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

HEADERS = "Content-Type: application/json\r\nConnection: close\r\n"
#: For a watch this is no trouble: every one of them ends so.
WORDLESS = "an answer without a word"
ANSWERS = {
    "nothing at all": "",
    "a refusal that is cut": f"HTTP/1.1 503 Service Unavailable\r\n{HEADERS}Content-Length: 99\r\n\r\n{{",
    "a refusal in pieces that is cut": (
        f"HTTP/1.1 429 Too Many Requests\r\n{HEADERS}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    ),
    "headers that are cut": f"HTTP/1.1 200 OK\r\n{HEADERS}",
    "an answer that is cut": f"HTTP/1.1 200 OK\r\n{HEADERS}Content-Length: 99\r\n\r\n{{",
    WORDLESS: f"HTTP/1.1 200 OK\r\n{HEADERS}Content-Length: 0\r\n\r\n",
    "a page of a proxy": f"HTTP/1.1 200 OK\r\n{HEADERS}Content-Length: 10\r\n\r\n<p>wait</p>",
    "nothing in JSON": f"HTTP/1.1 200 OK\r\n{HEADERS}Content-Length: 2\r\n\r\n{{}}",
    "a list of something else": f"HTTP/1.1 200 OK\r\n{HEADERS}Content-Length: 2\r\n\r\n[]",
    "no HTTP": "SSH-2.0-OpenSSH_9.2\r\n",
}


@contextlib.asynccontextmanager
async def a_server_that_says(words: str) -> AsyncIterator[Kube]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(words.encode())

    async with Listener(answer) as server:
        configuration = type.__call__(Configuration)
        configuration.host = f"http://127.0.0.1:{server.port}"
        async with Kube(configuration) as kube:
            yield kube


async def follow(kube: Kube) -> None:
    async with kube.watch("/api/v1/pods", "1") as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_was_answered_so_is_to_be_asked_again(answer: str) -> None:
    async with a_server_that_says(ANSWERS[answer]) as kube:
        with pytest.raises(KubeUnavailable):
            await kube.list_all("/api/v1/pods")
        if answer != WORDLESS:
            with pytest.raises(KubeUnavailable):
                await follow(kube)
        lease = KubeLeaseStore(kube.client, "default", "rrq-operator")
        with pytest.raises(LeaseUnreachable):
            await lease.read()
        with pytest.raises(LeaseUnreachable):
            await lease.replace(LeaseRecord("1"))
