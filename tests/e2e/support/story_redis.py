"""A real Redis in the cluster, for one story: a pod, a Service, and a Secret with its address."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cluster_choice import name_image
from control_plane import KubectlFailed
from rrq.broker.connection import REDIS_ERRORS, open_redis
from rrq.settings import RRQSettings
from story_ledger import StoryLedger

if TYPE_CHECKING:
    from pools import PoolDesk
    from port_forward import PortForward

NAME = "redis"
SECRET = "rrq-redis"  # as the chart calls that of its own
PORT = 6379
USER_ID = 65532
READY_TIMEOUT = "100s"
LEDGER = "story"
READ_TIMEOUT_SECONDS = 60.0
READ_PAUSE_SECONDS = 0.5
# While this file exists, a Redis that was ended does not come back: its container starts, and waits.
HOLD = "/data/hold"
WAIT_WHILE_HELD = f'while [ -e {HOLD} ]; do sleep 0.1; done; exec "$@"'


@dataclass(frozen=True)
class StoryRedis:
    """The Redis of a story, seen from the test. Pods reach it through the Secret."""

    desk: PoolDesk
    way: PortForward
    password: str

    @property
    def dsn(self) -> str:
        return f"redis://:{self.password}@{self.way.host}:{self.way.port}/0"

    @property
    def settings(self) -> RRQSettings:
        return RRQSettings(redis_dsn=self.dsn)

    async def read_ledger(self, name: str = LEDGER) -> StoryLedger:
        """What the handlers wrote so far. A way that broke off while it was read is tried again."""
        gives_up_at = time.monotonic() + READ_TIMEOUT_SECONDS
        while True:
            try:
                return await self._read_ledger(name)
            except REDIS_ERRORS:
                if time.monotonic() > gives_up_at:
                    raise
                await asyncio.sleep(READ_PAUSE_SECONDS)

    async def _read_ledger(self, name: str) -> StoryLedger:
        connection = open_redis(self.settings)
        try:
            return StoryLedger.parse(await connection.hvals(f"ledger:{name}"))
        finally:
            await connection.aclose()

    def take_away(self) -> None:
        """End Redis, which had everything in its append-only file, and keep it from coming back."""
        self.desk.kubectl("exec", NAME + "-0", "--", "touch", HOLD)
        with suppress(
            KubectlFailed
        ):  # what runs in the container ends with its first process, this command too
            self.cli("shutdown", "nosave")

    def give_back(self) -> None:
        self.desk.kubectl("exec", NAME + "-0", "--", "rm", HOLD)

    def rotate_password(self, password: str) -> StoryRedis:
        """Have Redis know a new password only, and write it to the Secret; returns Redis as it is reached now."""
        self.cli("config", "set", "requirepass", password)
        self.desk.add_secret(SECRET, url=url_inside(self.desk.namespace, password))
        return replace(self, password=password)

    def cli(self, *arguments: str) -> str:
        """Run redis-cli inside the pod."""
        return self.desk.kubectl(
            "exec", NAME + "-0", "--", "redis-cli", "-a", self.password, "--no-auth-warning", *arguments
        )


def url_inside(namespace: str, password: str) -> str:
    return f"redis://:{password}@{NAME}.{namespace}.svc:{PORT}/0"


def build_redis(namespace: str, password: str) -> list[dict[str, Any]]:
    """The objects: with an append-only file that outlives the container, and everything a strict namespace asks for."""
    labels = {"app": NAME}
    command = ["redis-server", "--dir", "/data", "--appendonly", "yes", "--requirepass", password]
    container = {
        "name": NAME,
        "image": name_image("rrq-redis:test"),
        "imagePullPolicy": "IfNotPresent",
        "command": [
            *("sh", "-c", WAIT_WHILE_HELD, "-"),
            *(*command, "--save", "", "--maxmemory-policy", "noeviction"),
        ],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "stringData": {"url": url_inside(namespace, password)},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": NAME},
            "spec": {
                "serviceName": NAME,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]


def start_redis(desk: PoolDesk, password: str) -> None:
    """Create it, and wait until it answers."""
    objects = {"apiVersion": "v1", "kind": "List", "items": build_redis(desk.namespace, password)}
    desk.kubectl("apply", "--filename", "-", input=json.dumps(objects))
    desk.kubectl("rollout", "status", f"statefulset/{NAME}", f"--timeout={READY_TIMEOUT}")
