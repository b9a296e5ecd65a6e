"""A node that runs nothing: it stands in for a kubelet where a control plane has none.

Real pods come with the end-to-end suite. Until then, and wherever only the control plane's view of pods
matters, this is what a kubelet looks like from the API server: a Node that stays Ready, pods that become
Running and Ready some time after the scheduler has bound them, and that are gone some time after they
were deleted. Tests say how pods behave, and report a container as ended or restarted whenever they like.

It lives in a thread with an event loop of its own: a test may block, and kopf, which cancels the tasks that
appear in its loop, does not see these.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fake_kubelet import FakeKubelet, PodBehaviour
from fake_pod_status import build_finished, build_restarted, build_running
from kubernetes_client import open_client
from running import end

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from datetime import datetime
    from pathlib import Path
    from typing import Self

__all__ = ["FakeNode", "PodBehaviour"]


class FakeNode:
    """A node for the length of an `async with` block; afterwards the Node is deleted."""

    def __init__(self, kubeconfig: Path, name: str = "fake-node") -> None:
        self.name = name
        self._kubeconfig = kubeconfig
        self._rules: list[tuple[Mapping[str, str], PodBehaviour]] = [({}, PodBehaviour())]
        self._started: Future[None] = Future()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def behave(self, behaviour: PodBehaviour, labels: Mapping[str, str] | None = None) -> None:
        """Let pods with these labels (all pods, without) behave like this from now on; the last word counts.

        A pod that is on its way already goes on as it began.
        """
        self._rules.append((labels or {}, behaviour))

    async def finish(self, namespace: str, pod: str, exit_code: int = 0, reason: str | None = None) -> None:
        """End a pod's containers for good: the pod has succeeded or failed."""
        await self._report(namespace, pod, lambda seen, now: build_finished(seen, now, exit_code, reason))

    async def restart(
        self, namespace: str, pod: str, exit_code: int = 137, reason: str | None = None
    ) -> None:
        """Report that the containers ended and run again, for instance for the reason OOMKilled."""
        await self._report(namespace, pod, lambda seen, now: build_restarted(seen, now, exit_code, reason))

    async def set_ready(self, namespace: str, pod: str, *, ready: bool) -> None:
        """Report what the readiness probe of a running pod found."""
        await self._report(namespace, pod, lambda seen, now: build_running(seen, now, ready=ready))

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: asyncio.run(self._live())
        )
        started = asyncio.wrap_future(self._started)
        await asyncio.wait([started, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await self._close()  # raises what kept it from starting
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        await self._close()

    async def _close(self) -> None:
        try:
            await self._ended
        finally:
            self._thread.shutdown()

    async def _report(
        self, namespace: str, pod: str, build: Callable[[dict[str, Any], datetime], dict[str, Any]]
    ) -> None:
        await self._call(self._kubelet.report(namespace, pod, build))

    async def _call(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with await open_client(self._kubeconfig) as client:
            self._kubelet = FakeKubelet(client, self.name, self._behaviour_of)
            await self._kubelet.register()
            self._work = asyncio.create_task(self._kubelet.run())
            self._started.set_result(None)
            await self._leave.wait()
            try:
                await self._fall_silent()
            finally:
                await self._kubelet.unregister()

    async def _fall_silent(self) -> None:
        await end(self._work)

    def _behaviour_of(self, pod: dict[str, Any]) -> PodBehaviour:
        labels = pod["metadata"].get("labels") or {}
        return next(rule for wanted, rule in reversed(self._rules) if wanted.items() <= labels.items())
