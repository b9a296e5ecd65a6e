"""A real Kubernetes control plane for tests: etcd, API server, controller manager and scheduler.

By itself it has no node, so nothing runs in a pod: `fake_node` plays one. All it keeps is in one folder, and it
listens on 127.0.0.1 alone. With a machine of its own it serves real nodes: `real_cluster`. The programs come from
`kubernetes_build`; a machine without them raises `CannotHostKubernetes` there. Everybody signs in as administrator
except who asks for another name.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from typing import TYPE_CHECKING

import trustme

from cluster_part import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from kubernetes_build import Programs
    from machine import Machine

# Without a node nobody follows it: an address for documentation, because loopback is refused here.
ADVERTISED_ADDRESS = "192.0.2.1"
SERVICE_ADDRESSES = "10.96.0.0/16"
FIRST_SERVICE_ADDRESS = "10.96.0.1"  # by which pods know the API server
PORT = 6443  # where it has a machine, and so every port, for itself
ISSUER = "https://kubernetes.default.svc"
# Sockets in the folder that etcd and API server work in: no port that another process could take first.
# etcd insists on the form of an address; host and port together are the name of the file.
ETCD_SOCKET = "etcd:0"
PEER_SOCKET = "peer:0"
# What pools, their children and the cleaning up need. Each further one costs memory and idle calls.
CONTROLLERS_WITHOUT_NODES = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)

KUBECTL_TIMEOUT_SECONDS = 120.0
PROBE_TIMEOUT_SECONDS = 2.0


class KubectlFailed(Exception):
    """kubectl ended with an error; the message is what it said."""


class Cluster:
    """Any cluster that a kubeconfig file with all rights leads to."""

    def __init__(self, kubeconfig: Path, kubectl_program: Path) -> None:
        self.kubeconfig = kubeconfig
        self.kubectl_program = kubectl_program

    @property
    def environment(self) -> dict[str, str]:
        """For programs that are to find the cluster by themselves."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str, input: str = "") -> str:
        """Run kubectl and return what it printed; an error raises `KubectlFailed`."""
        done = subprocess.run(
            [self.kubectl_program, *arguments],
            check=False,
            input=input,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=KUBECTL_TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout


class OwnCluster(Cluster, ABC):
    """A cluster that we start and stop: it runs for the length of a `with` block."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...


class ControlPlane(OwnCluster):
    """A control plane of our own, for the length of a `with` block; on `machine`, if given, under `address`.

    `api_server` may be stopped, started again, paused and resumed by itself; its address stays the same.
    `logs` has one file per program.
    """

    def __init__(
        self,
        programs: Programs,
        folder: Path,
        *,
        machine: Machine | None = None,
        address: str = "127.0.0.1",
        outlives_us: bool = False,
    ) -> None:
        super().__init__(folder / "admin.kubeconfig", programs.path("kubectl"))
        self.folder = folder
        self.logs = folder / "logs"
        self.started_in_seconds = 0.0
        self._outlives_us = outlives_us
        self._enter = machine.enter(folder) if machine else ()
        self.address = address
        self._port_holder = None if machine else hold_free_port()
        self.port = int(self._port_holder.getsockname()[1]) if self._port_holder else PORT
        self._authority = trustme.CA()
        self.etcd = self._part("etcd", etcd_command(programs), self._etcd_is_ready)
        serving = serving_nodes(address) if machine else serving_tests_alone()
        self.api_server = self._part(
            "kube-apiserver",
            [*api_server_command(programs, self.port), *serving],
            self._api_server_is_ready,
        )
        controllers = (
            FOR_QUICK_NODES if machine else (f"--controllers={','.join(CONTROLLERS_WITHOUT_NODES)}",)
        )
        self.controller_manager = self._part(
            "kube-controller-manager",
            [*controller_manager_command(programs), *controllers],
            self._controllers_are_ready,
        )
        # Nothing shows when it is: it serves nothing, and pods simply wait for it.
        self.scheduler = self._part("kube-scheduler", scheduler_command(programs), lambda: True)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.etcd, self.api_server, self.controller_manager, self.scheduler)

    def start(self) -> None:
        """Start everything, and return when a pod could be created."""
        began_at = time.monotonic()
        self.logs.mkdir(parents=True)
        self._write_credentials()
        try:
            self.etcd.start()
            self.api_server.start()
            self.scheduler.start()
            self.controller_manager.start()
        except BaseException:
            self.stop()
            raise
        self.started_in_seconds = time.monotonic() - began_at

    def stop(self) -> None:
        """End everything and throw the stored objects away; the logs stay."""
        for part in reversed(self.parts):
            part.stop()
        if self._port_holder is not None:
            self._port_holder.close()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def make_kubeconfig(
        self, user: str, *, group: str | None = None, token: str | None = None, file: Path | None = None
    ) -> Path:
        """Write a file by which `user` signs in: with a token if one is given, else with a certificate.

        A service account signs in by token alone (`kubectl create token`), under whatever name it has here.
        """
        if token is not None:
            credentials = {"token": token}
        else:
            certificate = self._authority.issue_cert(
                "unused.invalid", common_name=user, organization_name=group
            )
            credentials = {
                "client-certificate-data": encode(certificate.cert_chain_pems[0].bytes()),
                "client-key-data": encode(certificate.private_key_pem.bytes()),
            }
        server = {
            "server": f"https://{self.address}:{self.port}",
            "certificate-authority-data": encode(self._authority.cert_pem.bytes()),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        file = file or self.folder / f"{user}.kubeconfig"
        file.write_text(json.dumps(config, indent=1))  # JSON is YAML
        file.chmod(0o600)
        return file

    def read(self, path: str) -> str | None:
        """Ask the API server as administrator; None when it does not answer, or not with 200."""
        connection = http.client.HTTPSConnection(
            self.address, self.port, timeout=PROBE_TIMEOUT_SECONDS, context=self._admin_context
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
            return content.decode() if answer.status == http.client.OK else None
        except OSError:
            return None
        finally:
            connection.close()

    def _part(self, name: str, command: list[str], is_ready: Callable[[], bool]) -> Part:
        log = self.logs / f"{name}.log"
        return Part([*self._enter, *command], self.folder, log, is_ready, self._outlives_us)

    def _write_credentials(self) -> None:
        keys = self.folder / "keys"
        keys.mkdir()
        self._authority.cert_pem.write_to_path(str(keys / "authority.pem"))
        server = self._authority.issue_cert(
            self.address, FIRST_SERVICE_ADDRESS, "localhost", "kubernetes.default.svc"
        )
        server.private_key_and_cert_chain_pem.write_to_path(str(keys / "server.pem"))
        # Any key pair will do to sign the tokens of service accounts.
        signer = self._authority.issue_cert("unused.invalid")
        signer.private_key_pem.write_to_path(str(keys / "signer.pem"))
        self.make_kubeconfig("admin", group="system:masters")
        admin = self._authority.issue_cert(
            "unused.invalid", common_name="admin", organization_name="system:masters"
        )
        self._admin_context = ssl.create_default_context(cafile=keys / "authority.pem")
        admin.configure_cert(self._admin_context)
        # With this the API server signs in at kubelets, for logs and exec.
        admin.private_key_and_cert_chain_pem.write_to_path(str(keys / "admin.pem"))

    def _etcd_is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            # Relative, for a path longer than 107 bytes would be refused.
            return probe.connect_ex(os.path.relpath(self.folder / ETCD_SOCKET)) == 0

    def _api_server_is_ready(self) -> bool:
        return self.read("/readyz") is not None

    def _controllers_are_ready(self) -> bool:
        # A pod cannot be created before its service account.
        return self.read("/api/v1/namespaces/default/serviceaccounts/default") is not None


def hold_free_port() -> socket.socket:
    """Take a free port in a way that lets the API server listen on it and nobody else.

    Held as long as the control plane lives: a client that was handed the port while the API server is
    stopped would keep it from coming back.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def encode(content: bytes) -> str:
    return b64encode(content).decode()


def etcd_command(programs: Programs) -> list[str]:
    return [
        str(programs.path("etcd")),
        "--data-dir=etcd",
        f"--listen-client-urls=unix://{ETCD_SOCKET}",
        f"--advertise-client-urls=unix://{ETCD_SOCKET}",
        f"--listen-peer-urls=unix://{PEER_SOCKET}",
        f"--initial-advertise-peer-urls=unix://{PEER_SOCKET}",
        f"--initial-cluster=default=unix://{PEER_SOCKET}",
        "--unsafe-no-fsync",  # the data need not survive the machine
    ]


def api_server_command(programs: Programs, port: int) -> list[str]:
    return [
        str(programs.path("kube-apiserver")),
        f"--etcd-servers=unix://{ETCD_SOCKET}",
        f"--secure-port={port}",
        "--tls-cert-file=keys/server.pem",
        "--tls-private-key-file=keys/server.pem",
        "--client-ca-file=keys/authority.pem",
        "--service-account-key-file=keys/signer.pem",
        "--service-account-signing-key-file=keys/signer.pem",
        f"--service-account-issuer={ISSUER}",
        f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged",
        "--profiling=false",
    ]


def serving_tests_alone() -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        "--permit-port-sharing",  # with the socket that holds the port
        f"--advertise-address={ADVERTISED_ADDRESS}",
        "--endpoint-reconciler-type=none",
    ]


def serving_nodes(address: str) -> list[str]:
    return [
        f"--advertise-address={address}",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-client-certificate=keys/admin.pem",
        "--kubelet-client-key=keys/admin.pem",
        # Pods of a lost node are given up after seconds; the default, five minutes, would only be waited for.
        "--default-not-ready-toleration-seconds=10",
        "--default-unreachable-toleration-seconds=10",
    ]


# A node that says nothing for this long counts as lost: 50 s by default, see above.
FOR_QUICK_NODES = ("--node-monitor-period=1s", "--node-monitor-grace-period=12s")


def controller_manager_command(programs: Programs) -> list[str]:
    return [
        str(programs.path("kube-controller-manager")),
        "--kubeconfig=admin.kubeconfig",
        "--service-account-private-key-file=keys/signer.pem",
        "--root-ca-file=keys/authority.pem",
        "--leader-elect=false",
        "--secure-port=0",
        # The defaults, 20 and 30, would make a test with 100 pods wait for the limit alone.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]


def scheduler_command(programs: Programs) -> list[str]:
    return [
        str(programs.path("kube-scheduler")),
        "--kubeconfig=admin.kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]
