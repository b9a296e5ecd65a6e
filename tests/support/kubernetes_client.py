"""The Kubernetes client of the tests, from a kubeconfig file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config

if TYPE_CHECKING:
    from pathlib import Path


async def open_client(kubeconfig: Path) -> ApiClient:
    """Return a client to use in `async with`."""
    configuration = Configuration()
    # What the client's own function lacks is types.
    await load_kube_config(  # type: ignore[no-untyped-call]
        config_file=str(kubeconfig), client_configuration=configuration
    )
    return ApiClient(configuration)
