"""What an API server makes of the manifest of a pool, without keeping it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kubernetes.aio.client import ApiClient, ApiException, CustomObjectsApi

from rrq_operator.api.spec import GROUP, PLURAL, VERSION

if TYPE_CHECKING:
    from bad_manifests import Manifest

REFUSED = (400, 422)


async def dry_run(api_client: ApiClient, manifest: Manifest) -> Manifest:
    """Create without storing, and with the strictness of kubectl: unknown fields are errors."""
    made = await CustomObjectsApi(api_client).create_namespaced_custom_object(
        GROUP, VERSION, "default", PLURAL, manifest, dry_run="All", field_validation="Strict"
    )
    assert isinstance(made, dict)
    return made


async def read_refusal(api_client: ApiClient, manifest: Manifest) -> str:
    """Return the words with which a manifest is refused; empty when it is taken."""
    try:
        await dry_run(api_client, manifest)
    except ApiException as error:
        if error.status not in REFUSED or error.body is None:
            raise
        return str(json.loads(error.body)["message"])
    return ""
