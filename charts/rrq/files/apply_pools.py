"""Create the pools of the values, as soon as the API server serves their kind: a moment after its definition came."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

GIVE_UP_SECONDS = 120
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NOT_SERVED_YET = 404


def apply(pool: dict[str, dict[str, str]]) -> None:
    """Make the fields of the manifest ours and let the rest be (server-side apply)."""
    name, namespace = pool["metadata"]["name"], pool["metadata"]["namespace"]
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    with open(f"{ACCOUNT}/token") as file:
        token = file.read().strip()
    request = urllib.request.Request(
        f"{server}/apis/rrq.dev/v1alpha1/namespaces/{namespace}/rrqworkerpools/{name}?fieldManager=rrq-chart&force=true",
        data=json.dumps(pool).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/apply-patch+yaml"},
        method="PATCH",
    )
    trust = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    urllib.request.urlopen(request, context=trust, timeout=10).close()


def apply_in_time(pool: dict[str, dict[str, str]], deadline: float) -> None:
    while True:
        try:
            return apply(pool)
        except urllib.error.HTTPError as error:
            trouble = str(json.loads(error.read() or b"{}").get("message", error))
            is_refused = error.code != NOT_SERVED_YET and error.code < 500
        except OSError as error:
            trouble, is_refused = str(error), False
        if is_refused or time.monotonic() > deadline:
            sys.exit(f"Pool {pool['metadata']['name']} was not created: {trouble}")
        time.sleep(0.2)


give_up_at = time.monotonic() + GIVE_UP_SECONDS
for manifest in json.loads(os.environ["RRQ_POOLS"]):
    apply_in_time(manifest, give_up_at)
