"""The Lease of the election in Kubernetes: read, create and replace, each one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
from kubernetes.aio.client import CoordinationV1Api, V1Lease, V1LeaseSpec, V1ObjectMeta
from kubernetes.aio.client.exceptions import ApiException, ConflictException, NotFoundException

from rrq_operator.decide.election_rules import LeaseRecord, LeaseTaken, LeaseUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from kubernetes.aio.client import ApiClient


class KubeLeaseStore:
    """One Lease by name; a replaced one keeps the labels and annotations that others gave it."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._api = CoordinationV1Api(client)
        self._namespace = namespace
        self._name = name
        self._metadata = V1ObjectMeta(name=name, namespace=namespace)

    async def read(self) -> LeaseRecord | None:
        try:
            return await self._call(self._api.read_namespaced_lease(self._name, self._namespace))
        except NotFoundException:
            return None

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        lease = V1Lease(metadata=V1ObjectMeta(name=self._name), spec=_build_spec(record))
        try:
            return await self._call(self._api.create_namespaced_lease(self._namespace, lease))
        except NotFoundException as error:
            raise LeaseUnreachable(
                f"There is no namespace {self._namespace!r} for the Lease. Create it."
            ) from error

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        metadata = self._metadata.model_copy(update={"resource_version": record.version})
        lease = V1Lease(metadata=metadata, spec=_build_spec(record))
        try:
            return await self._call(self._api.replace_namespaced_lease(self._name, self._namespace, lease))
        except NotFoundException as error:
            raise LeaseTaken(f"Lease {self._namespace}/{self._name} was deleted.") from error

    async def _call(self, answer: Awaitable[V1Lease]) -> LeaseRecord:
        try:
            lease = await answer
        except NotFoundException:
            raise
        except ConflictException as error:
            raise LeaseTaken(
                f"Lease {self._namespace}/{self._name} was written by another client."
            ) from error
        except (ApiException, aiohttp.ClientError, OSError, ValueError) as error:
            # A ValueError is an answer that is no Lease, as of a proxy before an API server that is away.
            raise LeaseUnreachable(
                f"Lease {self._namespace}/{self._name} could not be reached: {_describe(error)}"
            ) from error
        if lease.metadata is None or not lease.metadata.resource_version:
            # Written without its version, the Lease would be taken from its holder.
            raise LeaseUnreachable(
                f"Lease {self._namespace}/{self._name}: the API server answered with something else."
            )
        self._metadata = lease.metadata
        return _parse_record(lease)


def _describe(error: Exception) -> str:
    if isinstance(error, ApiException):
        return f"the API server answered {error.status} {error.reason}"
    return f"{type(error).__name__}: {error}"


def _parse_record(lease: V1Lease) -> LeaseRecord:
    """A missing field counts as never written: a Lease made by hand may have no spec at all."""
    spec = lease.spec or V1LeaseSpec()
    return LeaseRecord(
        version=(lease.metadata.resource_version if lease.metadata else None) or "",
        holder=spec.holder_identity or "",
        duration_seconds=spec.lease_duration_seconds,
        acquired_at=spec.acquire_time,
        renewed_at=spec.renew_time,
        transitions=spec.lease_transitions or 0,
    )


def _build_spec(record: LeaseRecord) -> V1LeaseSpec:
    return V1LeaseSpec(
        holder_identity=record.holder,
        lease_duration_seconds=record.duration_seconds,
        acquire_time=record.acquired_at,
        renew_time=record.renewed_at,
        lease_transitions=record.transitions,
    )
