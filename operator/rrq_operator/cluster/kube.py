"""The only module that calls the Kubernetes API.

The official client brings addresses, certificates and tokens; objects travel as plain dictionaries, because
turning a thousand pods into model instances costs more than everything else the operator does. Every failure
becomes one of the errors below, so that callers need to know neither HTTP nor the client.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config
from yaml import YAMLError

from rrq_operator.decide.manifests import MANAGER, SCALE_MANAGER, Manifest
from rrq_operator.decide.status import Fault

logger = logging.getLogger(__name__)

#: Longer than any healthy call takes, and short enough for a round to wait for it.
CALL_TIMEOUT_SECONDS = 5.0
#: The server ends a watch after this time, and the informer opens a new one: where nothing changes, not even bookmarks come.
WATCH_SECONDS = 90
#: A watch that is silent for longer is dead, although its connection is open.
_WATCH_SILENCE_SECONDS = 100.0
#: Few, so that one object that cannot be read takes few others with it.
_READABLE_PAGE = 50
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class KubeError(Exception):
    """A call to the Kubernetes API that did not do what it was to do."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class KubeMissing(KubeError):
    """404: there is no such object."""


class KubeConflict(KubeError):
    """409: another client was faster, or the object exists already."""


class KubeRefused(KubeError):
    """The API server refused the call: invalid, forbidden, over quota. A retry does not help."""


class KubeUnavailable(KubeError):
    """No answer, or a temporary refusal. A retry helps."""


class KubeExpired(KubeError):
    """410: the version to watch from is too old; list again."""


class KubeUnreadable(KubeError):
    """An answer that nests deeper than can be parsed, because such an object is stored."""


def describe_fault(error: KubeError) -> Fault:
    """Return a refusal of the API server as it goes into a condition."""
    if isinstance(error, KubeUnavailable):
        return Fault("APIUnavailable", f"the Kubernetes API did not answer, the operator retries: {error}")
    reason = error.reason if error.reason.isalnum() and not error.reason.isdigit() else "Refused"
    return Fault(reason, str(error))


class Kube:
    """A connection to one cluster; an async context manager."""

    def __init__(self, configuration: client.Configuration) -> None:
        # The caller decides about retries.
        configuration.retries = None
        self.client = client.ApiClient(configuration)
        #: Calls made so far, for metrics and benchmarks.
        self.calls = 0
        #: When a call last succeeded, by the monotonic clock.
        self.answered_at = monotonic()
        #: Called right before every write: a leader that lost the Lease while it waited must not write any more.
        self.may_write: Callable[[], bool] = lambda: True
        #: The namespace of the kubeconfig, for commands that name none.
        self.namespace = "default"
        #: The user of the kubeconfig; '' where it names none.
        self.user = ""

    @classmethod
    async def connect(cls) -> Self:
        """Return a connection with the service account of the pod, else with the kubeconfig of the user."""
        configuration = type.__call__(client.Configuration)
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the client has no types here
        except config.ConfigException:
            try:
                await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the client has no types here
            except config.ConfigException as error:
                raise KubeUnavailable(
                    f"No cluster to talk to: {error}. Run in a pod, or set KUBECONFIG to a file that names a cluster."
                ) from error
        return cls(configuration)

    @classmethod
    async def connect_as_user(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Return a connection with the rights of the kubeconfig of the user, also inside a pod.

        The file is ``kubeconfig``, else KUBECONFIG, else ~/.kube/config; it is never written.
        """
        configuration = type.__call__(client.Configuration)
        files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        # Checked here, because the client logs a warning of its own and then fails with a missing key.
        if not _has_file(files):
            raise KubeUnavailable(
                f"No cluster to talk to: there is no kubeconfig {files}. Name one by --kubeconfig or KUBECONFIG."
            )
        try:
            loader = await config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types here
                files, context, client_configuration=configuration, persist_config=False
            )
        except (config.ConfigException, OSError, ValueError, TypeError, AttributeError, YAMLError) as error:
            # The client expects a well-formed file and raises anything for another.
            raise KubeUnavailable(
                f"No cluster to talk to: kubeconfig {files} is of no use: {error}"
            ) from error
        kube = cls(configuration)
        chosen = loader.current_context["context"]
        kube.namespace = str(chosen.get("namespace") or "default")
        kube.user = str(chosen.get("user") or "")
        return kube

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()  # type: ignore[no-untyped-call]  # the client has no types here

    async def read(self, path: str) -> Manifest:
        return await self._call("GET", path)

    async def list_page(
        self, path: str, *, selector: str = "", page_after: str = "", limit: int = 500
    ) -> Manifest:
        """Return one page of a list; ``metadata.continue`` of it names the next."""
        query = {"limit": str(limit)}
        if selector:
            query["labelSelector"] = selector
        if page_after:
            query["continue"] = page_after
        page = await self._call("GET", path, query=query)
        if not (isinstance(page, dict) and isinstance(page.get("metadata"), dict)):
            # A proxy answers with anything while the API server behind it is away.
            raise KubeUnavailable(f"GET {path} was answered with something that is no list.", "NoList")
        return page

    async def list_all(self, path: str, *, selector: str = "") -> tuple[list[Manifest], str]:
        """Return all objects and the version of the list, from which they can be watched."""
        items: list[Manifest] = []
        page_after = ""
        while True:
            page = await self.list_page(path, selector=selector, page_after=page_after)
            items += page.get("items") or ()
            page_after = page["metadata"].get("continue") or ""
            if not page_after:
                return items, str(page["metadata"].get("resourceVersion") or "")

    async def list_readable(self, path: str) -> list[Manifest]:
        """Return all objects that can be parsed: one that cannot must not hide the others."""
        items: list[Manifest] = []
        page_after = ""
        one_by_one = 0
        while True:
            limit = 1 if one_by_one > 0 else _READABLE_PAGE
            try:
                page = await self.list_page(path, page_after=page_after, limit=limit)
            except KubeUnreadable:
                if limit > 1:
                    one_by_one = limit
                    continue
                page = await self._skip_one(path, page_after)
            items += page.get("items") or ()
            one_by_one -= 1
            page_after = page["metadata"].get("continue") or ""
            if not page_after:
                return items

    async def _skip_one(self, path: str, page_after: str) -> Manifest:
        """Return a page without the one object on it, which cannot be read: a table of names leads past it."""
        query = {"limit": "1", "includeObject": "None"} | ({"continue": page_after} if page_after else {})
        table = await self._call("GET", path, query=query, accept=_TABLE)
        names = [str(row["cells"][0]) for row in table.get("rows") or ()]
        logger.error(
            "object cannot be read: it nests too deep and is left alone; delete it or make it flatter",
            extra={"path": path, "resource": ", ".join(names)},
        )
        return {"metadata": table["metadata"]}

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, version: str, *, selector: str = ""
    ) -> AsyncIterator[AsyncIterator[Manifest]]:
        """Yield the changes after ``version`` as they come; ends when the server closes the watch."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        if selector:
            query["labelSelector"] = selector
        # No limit for the whole, which the server ends, but one for silence.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CALL_TIMEOUT_SECONDS, sock_read=_WATCH_SILENCE_SECONDS
        )
        response = await self._send("GET", path, query=query, timeout=timeout)
        try:
            yield _read_events(response)
        finally:
            response.close()

    async def apply(self, path: str, manifest: Manifest, *, manager: str = MANAGER) -> Manifest:
        """Apply a manifest server-side: its fields become ours, all others stay."""
        return await self._call(
            "PATCH",
            path,
            body=manifest,
            query={"fieldManager": manager, "force": "true"},
            content_type=_APPLY,
        )

    async def merge(self, path: str, change: Manifest, *, manager: str = MANAGER) -> Manifest:
        return await self._call(
            "PATCH", path, body=change, query={"fieldManager": manager}, content_type=_MERGE
        )

    async def create(self, path: str, manifest: Manifest) -> Manifest:
        return await self._call("POST", path, body=manifest, query={"fieldManager": MANAGER})

    async def apply_scale(self, deployment_path: str, name: str, namespace: str, replicas: int) -> int:
        """Ask for a number of replicas; returns the version of the Deployment that has it.

        By apply and under a manager of its own: a merge that changes nothing takes no ownership, and the next
        apply of the Deployment without replicas would then reset them to 1.
        """
        scale = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": replicas},
        }
        written = await self.apply(f"{deployment_path}/scale", scale, manager=SCALE_MANAGER)
        return int(written["metadata"]["resourceVersion"])

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        try:
            # Around the whole call: a server may stop in the middle of an answer.
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                response = await self._send(
                    method, path, body=body, query=query, content_type=content_type, accept=accept
                )
                answer: Manifest = json.loads(await response.read())
                return answer
        except RecursionError:
            raise KubeUnreadable(f"The answer to {method} {path} nests too deep.", "TooDeep") from None
        except TimeoutError:
            raise KubeUnavailable(
                f"The API server did not answer {method} {path} in time.", "Timeout"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise KubeUnavailable(f"The API server cannot be reached: {error!r}.", "Unreachable") from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: Any = CALL_TIMEOUT_SECONDS,
    ) -> aiohttp.ClientResponse:
        if method != "GET" and not self.may_write():
            raise KubeUnavailable(
                f"{method} {path} was not sent: this operator is not the leader.", "NotLeader"
            )
        self.calls += 1
        try:
            # Inside, because it reads the token of the pod's account, which is a file.
            request = await self.client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self.client.call_api(*request[:4], _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            # A refusal may be cut like any other answer.
            refusal = await response.read() if response.status >= 400 else b""
        except (aiohttp.ClientError, OSError) as error:
            raise KubeUnavailable(f"The API server cannot be reached: {error!r}.", "Unreachable") from error
        if response.status >= 400:
            raise _build_error(response.status, refusal)
        self.answered_at = monotonic()
        return response


def _has_file(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


async def _read_events(response: aiohttp.ClientResponse) -> AsyncIterator[Manifest]:
    """Yield the events of a watch, one JSON document a line; raises whatever ends it as a KubeError."""
    try:
        async for line in response.content:
            event: Manifest = json.loads(line)
            if not isinstance(event, dict) or not event.keys() >= {"type", "object"}:
                raise ValueError(f"{line[:100]!r} is no event")
            if event["type"] == "ERROR":
                status = event["object"]
                raise _build_error(int(status.get("code") or 500), json.dumps(status).encode())
            yield event
    except RecursionError:
        # Treated as expired: continuing from the version before would meet the same object again.
        raise KubeExpired("The watch brought an object that nests too deep.", "TooDeep") from None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise KubeUnavailable(f"The watch was cut: {error!r}.", "Unreachable") from error


def _build_error(code: int, body: bytes) -> KubeError:
    try:
        status = json.loads(body)
        message, reason = str(status.get("message") or body[:300]), str(status.get("reason") or "")
    except (ValueError, RecursionError):
        message, reason = body[:300].decode("utf-8", "replace"), ""
    kinds: dict[int, type[KubeError]] = {404: KubeMissing, 409: KubeConflict, 410: KubeExpired}
    if code in kinds:
        return kinds[code](message, reason)
    # An unknown field in an apply is answered with 500, but it is the manifest that is wrong.
    if code == 500 and "field not declared in schema" in message:
        return KubeRefused(message, "Invalid")
    if code in (401, 408, 429) or code >= 500:
        return KubeUnavailable(f"{code} {message}", reason or str(code))
    return KubeRefused(message, reason or str(code))


def pools_path(namespace: str | None) -> str:
    return _collection("apis/rrq.dev/v1alpha1", "rrqworkerpools", namespace)


def deployments_path(namespace: str | None) -> str:
    return _collection("apis/apps/v1", "deployments", namespace)


def jobs_path(namespace: str | None) -> str:
    return _collection("apis/batch/v1", "jobs", namespace)


def pods_path(namespace: str | None) -> str:
    return _collection("api/v1", "pods", namespace)


def secrets_path(namespace: str) -> str:
    return _collection("api/v1", "secrets", namespace)


def events_path(namespace: str) -> str:
    return _collection("api/v1", "events", namespace)


def budgets_path(namespace: str | None) -> str:
    return _collection("apis/policy/v1", "poddisruptionbudgets", namespace)


def _collection(group: str, plural: str, namespace: str | None) -> str:
    return f"/{group}/{plural}" if namespace is None else f"/{group}/namespaces/{namespace}/{plural}"
