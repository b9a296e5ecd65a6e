"""The operator as a process: a cluster cache that is always warm, one leader that acts, a port for probes and metrics."""

import asyncio
import contextlib
import logging
import signal
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import Any

from rrq.pod.http import Answer, Page, PodServer
from rrq_operator.cluster.cluster_cache import ClusterCache
from rrq_operator.cluster.election_lease import KubeLeaseStore
from rrq_operator.cluster.handlers import PoolWatch
from rrq_operator.cluster.informer import Informer
from rrq_operator.cluster.kube import (
    Kube,
    KubeError,
    KubeMissing,
    budgets_path,
    deployments_path,
    jobs_path,
    pods_path,
)
from rrq_operator.control.election import Leadership, lead, make_identity
from rrq_operator.control.leader import Leader, list_pools
from rrq_operator.control.metrics import Metrics
from rrq_operator.control.services import Services
from rrq_operator.decide.manifests import MANAGED_SELECTOR
from rrq_operator.decide.objects import parse_budget, parse_deployment, parse_job, parse_pod

logger = logging.getLogger(__name__)

#: A loop without a round for this long is stuck.
_STALLED_SECONDS = 60.0
#: Watches receive something every minute, and are opened anew when they do not.
_DEAF_SECONDS = 600.0


@dataclass(frozen=True)
class Options:
    namespace: str | None
    """None means all namespaces."""
    lease_namespace: str
    lease_name: str
    pod_name: str
    http: str | None
    elects: bool = True


class OperatorProcess:
    """Everything that runs in one operator pod."""

    def __init__(self, options: Options, kube: Kube, lease_kube: Kube) -> None:
        self._options = options
        self._kube = kube
        self._lease_kube = lease_kube
        self.cluster_cache = ClusterCache()
        self.metrics = Metrics()
        self.metrics.count_api_calls(lambda: self.api_calls)
        self._leader: Leader | None = None
        self._loop_turned_at = monotonic()
        self._watch: PoolWatch | None = None
        path = options.namespace
        self._informers: list[Informer[Any]] = [
            Informer(
                kube,
                deployments_path(path),
                parse_deployment,
                self.cluster_cache.set_deployment,
                selector=MANAGED_SELECTOR,
            ),
            Informer(
                kube,
                budgets_path(path),
                parse_budget,
                self.cluster_cache.set_budget,
                selector=MANAGED_SELECTOR,
            ),
            Informer(kube, pods_path(path), parse_pod, self.cluster_cache.set_pod, selector=MANAGED_SELECTOR),
            Informer(kube, jobs_path(path), parse_job, self.cluster_cache.set_job, selector=MANAGED_SELECTOR),
        ]

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises when the operator cannot continue."""
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(informer.run()) for informer in self._informers]
            background.append(tasks.create_task(self._turn()))
            background.append(tasks.create_task(self._work()))
            with self._serve() as server:
                if server is not None:
                    logger.info("operator serves", extra={"port": server.port})
                await stopping.wait()
                logger.info("operator stops")
                for task in background:
                    task.cancel()

    async def _work(self) -> None:
        """Wait until the cluster is known, then lead, or stand by until it is our turn."""
        try:
            await self._wait_for_pools()
            watch = PoolWatch(self.cluster_cache.take_event, self._options.namespace, self._on_lost)
            # Started before /livez can see it: a watch that does not run yet would look like one that has ended.
            watch.start()
            self._watch = watch
            for informer in self._informers:
                await informer.synced.wait()
            logger.info("operator knows the cluster", extra={"pools": len(self.cluster_cache.pools)})
            if not self._options.elects:
                await self._lead(None)
                return
            store = KubeLeaseStore(
                self._lease_kube.client, self._options.lease_namespace, self._options.lease_name
            )
            await lead(store, make_identity(self._options.pod_name), self._lead)
        finally:
            if self._watch is not None:
                await self._watch.stop()

    async def _lead(self, leadership: Leadership | None) -> None:
        if leadership is not None:
            self._kube.may_write = leadership.is_leading
        # The watches of a standby may lag or be dead: a new leader must not act on old objects.
        await asyncio.gather(self._wait_for_pools(), *(informer.refresh() for informer in self._informers))
        services = Services(self._kube, self.cluster_cache, self.metrics)
        self._leader = Leader(services, self._options.namespace)
        self.metrics.is_leader.set(1)
        logger.info("operator leads")
        try:
            await self._leader.run()
        finally:
            self._leader = None
            self.metrics.is_leader.set(0)
            logger.info("operator no longer leads")

    async def _wait_for_pools(self) -> None:
        """List the pools once; waits for a CustomResourceDefinition or an API server that is not there yet."""
        last_trouble = ""
        while True:
            try:
                await list_pools(self._kube, self.cluster_cache, self._options.namespace)
                return
            except KubeMissing:
                trouble = "The cluster does not know RRQWorkerPool. Apply crds/rrqworkerpools.rrq.dev.yaml."
            except KubeError as error:
                trouble = str(error)
            if trouble != last_trouble:
                logger.warning("pools not listed", extra={"error": trouble})
                last_trouble = trouble
            await asyncio.sleep(1.0)

    def _on_lost(self) -> None:
        if self._leader is not None:
            self._leader.list_soon()

    async def _turn(self) -> None:
        """Note that this loop runs, for the probes, which another thread answers."""
        while True:
            self._loop_turned_at = monotonic()
            await asyncio.sleep(1.0)

    @property
    def is_synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self._informers)

    @property
    def api_calls(self) -> int:
        return self._kube.calls

    def find_stall(self) -> str:
        """Return which loop is stuck, or nothing."""
        now, leader = monotonic(), self._leader
        if now - self._loop_turned_at > _STALLED_SECONDS:
            return "the event loop stalls"
        if leader is not None and now - leader.ticked_at > _STALLED_SECONDS:
            return "a round of the leader does not end"
        if self._watch is not None and not self._watch.is_alive:
            return "the watch of the pools has ended"
        # By the last answer and not by the clock: an API server that is away is no reason for a restart.
        if any(self._kube.answered_at - informer.heard_at > _DEAF_SECONDS for informer in self._informers):
            return "a watch receives nothing although the API server answers"
        return ""

    def _serve(self) -> Any:
        if self._options.http is None:
            return contextlib.nullcontext()
        pages: dict[str, Page] = {
            "/livez": lambda _: _answer(self.find_stall()),
            "/readyz": lambda _: _answer("" if self.is_synced else "the cluster is not known yet"),
            "/metrics": lambda _: (
                HTTPStatus.OK,
                "text/plain; version=0.0.4; charset=utf-8",
                self.metrics.expose(),
            ),
        }
        return PodServer(self._options.http, pages)


def _answer(trouble: str) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
    return status, "text/plain; charset=utf-8", f"{trouble or 'ok'}\n".encode()


async def run_operator(options: Options) -> None:
    """Connect to the cluster and serve until SIGTERM or SIGINT."""
    # The Lease has a connection of its own: its renewal must not wait behind other calls, nor be forbidden.
    async with await Kube.connect() as kube, await Kube.connect() as lease_kube:
        await OperatorProcess(options, kube, lease_kube).run()
