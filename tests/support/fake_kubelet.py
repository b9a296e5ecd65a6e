"""The loop inside a fake node: follows the pods bound to it and reports of them what they were told to do.

`fake_node` is what tests use; it runs this in a thread.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.aio.client import (
    ApiClient,
    ApiException,
    CoordinationV1Api,
    CoreV1Api,
    V1DeleteOptions,
    V1Lease,
    V1Node,
    V1Preconditions,
)

from fake_pod_status import HOST_ADDRESS, build_finished, build_running, build_waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_INTERVAL_SECONDS = 10.0  # both as a kubelet has them by default
RETRY_DELAY_SECONDS = 0.2
REQUEST_TIMEOUT_SECONDS = 10.0
WATCH_SECONDS = 300
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
NOT_FOUND, CONFLICT, TOO_MANY_REQUESTS = 404, 409, 429
# What a kubelet lives through as well: an API server that is away, slow, or says no for now.
TROUBLE = (ApiException, aiohttp.ClientError, asyncio.TimeoutError)


@dataclass(frozen=True)
class PodBehaviour:
    """How pods come and go on a fake node."""

    ready_after_seconds: float = 0.0
    runs_for_seconds: float | None = None  # from ready on; None: until deleted, or until the test ends it
    exit_code: int = 0  # ... and how it ends then
    waiting_reason: str | None = None  # never runs, for instance ImagePullBackOff
    gone_after_seconds: float = 0.0  # from the deletion on: the time a drain takes
    stop_exit_code: int = 0  # what the containers of a deleted pod end with


class FakeKubelet:
    """Lives in one event loop, from `register` until `run` is cancelled."""

    def __init__(
        self, client: ApiClient, node: str, behaviour_of: Callable[[dict[str, Any]], PodBehaviour]
    ) -> None:
        self._core = CoreV1Api(client)
        self._coordination = CoordinationV1Api(client)
        self._node = node
        self._behaviour_of = behaviour_of
        self._lives: dict[str, asyncio.Task[None]] = {}  # by pod uid
        self._ending: set[str] = set()  # uids of pods that were seen deleted

    async def register(self) -> None:
        """Create the Node and its lease; what a killed run left under this name is replaced."""
        await self.unregister()
        await self._core.create_node(build_node(self._node))
        # Admission taints every new node; the controller would take the taint away a little later.
        await self._core.patch_node(self._node, {"spec": {"taints": None}}, _content_type=STRATEGIC_MERGE)
        lease = V1Lease.from_dict(
            {
                "metadata": {"name": self._node, "namespace": LEASE_NAMESPACE},
                "spec": {
                    "holderIdentity": self._node,
                    "leaseDurationSeconds": LEASE_SECONDS,
                    "renewTime": renewal(),
                },
            }
        )
        assert lease is not None
        await self._coordination.create_namespaced_lease(LEASE_NAMESPACE, lease)

    async def unregister(self) -> None:
        for delete in (
            self._core.delete_node(self._node),
            self._coordination.delete_namespaced_lease(self._node, LEASE_NAMESPACE),
        ):
            try:
                await delete
            except ApiException as error:
                if error.status != NOT_FOUND:
                    raise

    async def run(self) -> None:
        """Renew and follow until cancelled; the pods stay as they are then."""
        # Also the pods' tasks are in the group: a mistake in one of them fails the test that caused it.
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._keep_renewing())
            self._tasks.create_task(self._keep_following())

    async def report(
        self, namespace: str, name: str, build: Callable[[dict[str, Any], datetime], dict[str, Any]]
    ) -> None:
        """Read a pod and patch in the status that `build` makes of it."""
        answer = await self._core.read_namespaced_pod_without_preload_content(
            name, namespace, _request_timeout=REQUEST_TIMEOUT_SECONDS
        )
        async with answer:
            pod = await read_json(answer)
        await self._patch_status(pod, build(pod, datetime.now(UTC)))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEW_INTERVAL_SECONDS)
            await insist(self._renew)

    async def _renew(self) -> None:
        await self._coordination.patch_namespaced_lease(
            self._node,
            LEASE_NAMESPACE,
            {"spec": {"renewTime": renewal()}},
            _content_type=STRATEGIC_MERGE,
            _request_timeout=REQUEST_TIMEOUT_SECONDS,
        )

    async def _keep_following(self) -> None:
        while True:
            try:
                await self._watch(await self._list())
            except TROUBLE:
                await asyncio.sleep(RETRY_DELAY_SECONDS)

    async def _list(self) -> str:
        """Catch up with all pods of the node; return the version to watch from."""
        answer = await self._read_pods()
        async with answer:
            found = await read_json(answer)
        for pod in found.get("items") or []:
            self._take_note(pod)
        here = {pod["metadata"]["uid"] for pod in found.get("items") or []}
        self._forget(set(self._lives) - here)
        version: str = found["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> None:
        answer = await self._read_pods(watch=True, resource_version=version, timeout_seconds=WATCH_SECONDS)
        async with answer:
            if answer.status != 200:
                await read_json(answer)
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":  # the version is too old by now, mostly
                    return
                if event["type"] == "DELETED":
                    self._forget({event["object"]["metadata"]["uid"]})
                else:
                    self._take_note(event["object"])

    async def _read_pods(self, **options: Any) -> Any:
        # Unparsed: models of a hundred pods per change would cost more than all the rest.
        return await self._core.list_pod_for_all_namespaces_without_preload_content(
            field_selector=f"spec.nodeName={self._node}",
            _request_timeout=float(options.get("timeout_seconds", 0)) + REQUEST_TIMEOUT_SECONDS,
            **options,
        )

    def _take_note(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ending:
                self._ending.add(uid)
                self._live(uid, self._go(pod))
        elif uid not in self._lives and pod.get("status", {}).get("phase") in (None, "Pending"):
            self._live(uid, self._come(pod))

    def _live(self, uid: str, life: Any) -> None:
        before = self._lives.get(uid)
        if before is not None:
            before.cancel()
        self._lives[uid] = self._tasks.create_task(life)

    def _forget(self, uids: set[str]) -> None:
        """End what is still to be reported of pods that no longer exist."""
        self._ending -= uids
        for uid in uids & set(self._lives):
            self._lives.pop(uid).cancel()

    async def _come(self, pod: dict[str, Any]) -> None:
        behaviour = self._behaviour_of(pod)
        if behaviour.waiting_reason is not None:
            await self._insist_on(pod, build_waiting(pod, datetime.now(UTC), behaviour.waiting_reason))
            return
        await asyncio.sleep(behaviour.ready_after_seconds)
        pod["status"] |= (running := build_running(pod, datetime.now(UTC)))
        await self._insist_on(pod, running)
        if behaviour.runs_for_seconds is not None:
            await asyncio.sleep(behaviour.runs_for_seconds)
            await self._insist_on(pod, build_finished(pod, datetime.now(UTC), behaviour.exit_code))

    async def _go(self, pod: dict[str, Any]) -> None:
        behaviour = self._behaviour_of(pod)
        await asyncio.sleep(behaviour.gone_after_seconds)
        if pod["status"].get("phase") == "Running":
            await self._insist_on(pod, build_finished(pod, datetime.now(UTC), behaviour.stop_exit_code))
        await insist(lambda: self._delete(pod))

    async def _insist_on(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        await insist(lambda: self._patch_status(pod, status))

    async def _patch_status(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        about = pod["metadata"]
        answer = await self._core.patch_namespaced_pod_status_without_preload_content(
            about["name"],
            about["namespace"],
            # With the uid, the status cannot land on a later pod of the same name.
            {"metadata": {"uid": about["uid"]}, "status": status},
            _content_type=STRATEGIC_MERGE,
            _request_timeout=REQUEST_TIMEOUT_SECONDS,
        )
        async with answer:
            await read_json(answer)

    async def _delete(self, pod: dict[str, Any]) -> None:
        about = pod["metadata"]
        await self._core.delete_namespaced_pod(
            about["name"],
            about["namespace"],
            # All in the body: the API server overlooks parameters beside one.
            body=V1DeleteOptions(grace_period_seconds=0, preconditions=V1Preconditions(uid=about["uid"])),
            _request_timeout=REQUEST_TIMEOUT_SECONDS,
        )


async def insist(call: Callable[[], Awaitable[None]]) -> None:
    """Try until it works, or until the object is gone or another one."""
    while True:
        try:
            return await call()
        except ApiException as error:
            if error.status in (NOT_FOUND, CONFLICT):
                return
            if error.status is not None and error.status < 500 and error.status != TOO_MANY_REQUESTS:
                raise  # our own mistake
        except TROUBLE:
            pass
        await asyncio.sleep(RETRY_DELAY_SECONDS)


async def read_json(answer: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(await answer.read())
    if answer.status != 200:
        raise ApiException(status=answer.status, reason=content.get("message"))
    return content


def renewal() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def build_node(name: str) -> V1Node:
    """A node with room for any test, on which the scheduler sees nothing wrong."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    room = {"cpu": "1000", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": "1000"}
    holds = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    node = V1Node.from_dict(
        {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            },
            "status": {
                "capacity": room,
                "allocatable": room,
                "addresses": [{"type": "InternalIP", "address": HOST_ADDRESS}],
                "conditions": [
                    {
                        "type": kind,
                        "status": status,
                        "reason": "FakeNode",
                        "message": "",
                        "lastHeartbeatTime": now,
                        "lastTransitionTime": now,
                    }
                    for kind, status in holds.items()
                ],
            },
        }
    )
    assert node is not None
    return node
