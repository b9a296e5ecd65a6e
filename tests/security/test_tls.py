"""TLS is verified unless somebody says otherwise: by workers, producers, operators, and towards the API server."""

from __future__ import annotations

import contextlib
import datetime
import json
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from listening import Listener
from operator_process import RunningOperator
from rrq import RRQClient, RRQSettings
from rrq.exc import RedisUnavailable
from rrq_operator.api.redis_urls import RedisIdentity
from rrq_operator.cluster.kube import Kube, KubeUnavailable
from rrq_operator.redis.queues import QueueTrouble, RedisQueues
from waiting import eventually

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator
    from pathlib import Path

YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


class Impostor:
    """A server that speaks TLS and counts who trusted it enough to say something."""

    def __init__(self) -> None:
        self.port = 0
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            self.heard += await reader.read(1000)


@contextlib.asynccontextmanager
async def listening(certificate: trustme.LeafCert) -> AsyncIterator[Impostor]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    impostor = Impostor()
    async with Listener(impostor.serve, tls=context) as server:
        impostor.port = server.port
        yield impostor


FAULTS = ("wrong authority", "wrong host name", "expired")


def make_faulty(fault: str, folder: Path) -> tuple[trustme.LeafCert, Path]:
    """A certificate with one fault, and the authority that the client trusts."""
    authority = trustme.CA()
    trusted = folder / "authority.pem"
    (trustme.CA() if fault == "wrong authority" else authority).cert_pem.write_to_path(str(trusted))
    if fault == "wrong host name":
        return authority.issue_cert("redis.example.org"), trusted
    if fault == "expired":
        return authority.issue_cert("127.0.0.1", "localhost", not_after=YESTERDAY), trusted
    return authority.issue_cert("127.0.0.1", "localhost"), trusted


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_workers_and_producers_refuse_a_faulty_certificate(
    fault: str, scheme: str, tmp_path: Path
) -> None:
    certificate, trusted = make_faulty(fault, tmp_path)
    async with listening(certificate) as listener:
        client = RRQClient(
            RRQSettings(
                redis_dsn=f"{scheme}://:secret@127.0.0.1:{listener.port}/0",
                redis_tls_ca_file=str(trusted),
                key_prefix="{shop}:",
            )
        )
        with pytest.raises(RedisUnavailable, match="certificate verify failed"):
            await client.enqueue("f")
        await client.close()
        assert listener.heard == b"", "the password was sent to somebody whom nobody vouches for"


@pytest.mark.parametrize("fault", FAULTS)
async def test_operators_refuse_a_faulty_certificate(fault: str, tmp_path: Path) -> None:
    certificate, trusted = make_faulty(fault, tmp_path)
    async with listening(certificate) as listener:
        url = f"rediss://:secret@127.0.0.1:{listener.port}/0?ssl_ca_certs={trusted}"
        queues = RedisQueues(RedisIdentity(url, "rrq:"))
        with pytest.raises(QueueTrouble, match="certificate verify failed"):
            await queues.observe({"default": 0.0})
        await queues.aclose()
        assert listener.heard == b""


def write_kubeconfig(path: Path, port: int, trusted: Path) -> Path:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(trusted)}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "clusters": [{"name": "c", "cluster": cluster}],
    }  # fmt: skip
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("fault", FAULTS)
async def test_operators_refuse_a_faulty_api_server(fault: str, tmp_path: Path) -> None:
    certificate, trusted = make_faulty(fault, tmp_path)
    async with listening(certificate) as listener:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", listener.port, trusted)
        async with await Kube.connect_as_user(str(kubeconfig)) as kube:
            with pytest.raises(KubeUnavailable, match="certificate verify failed"):
                await kube.read("/api/v1/namespaces/default")
        assert listener.heard == b""


@pytest.mark.slow
async def test_an_operator_that_runs_sends_a_faulty_api_server_nothing(tmp_path: Path) -> None:
    # Its watch of the pools has a connection of its own. Of all faults this one is noticed by the strictest only.
    certificate, trusted = make_faulty("wrong host name", tmp_path)
    async with listening(certificate) as listener:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", listener.port, trusted)
        with RunningOperator(kubeconfig, "default", tmp_path) as operator:
            await eventually(
                lambda: "certificate verify failed" in operator.log, 60, "no word of the certificate"
            )
        assert listener.heard == b""
