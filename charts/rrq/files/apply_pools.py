"""Create the pools of the values as soon as the API server serves their kind, shortly after it got the definition."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

GIVE_UP_SECONDS = 120
# New rights take effect after a moment. A refusal that lasts longer is final.
RIGHTS_SECONDS = 15
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
FORBIDDEN = 403
# Temporary: not served yet, changed by another client at the same time, too many calls.
PASSING = (404, 409, 429)


def apply(pool: dict[str, dict[str, str]]) -> None:
    """Apply the fields of the manifest and leave the others alone (server-side apply)."""
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


def find_patience_seconds(code: int) -> float:
    if code == FORBIDDEN:
        return RIGHTS_SECONDS
    return GIVE_UP_SECONDS if code in PASSING or code >= 500 else 0


def apply_in_time(pool: dict[str, dict[str, str]], begun_at: float) -> None:
    while True:
        try:
            return apply(pool)
        except urllib.error.HTTPError as error:
            trouble = str(json.loads(error.read() or b"{}").get("message", error))
            patience_seconds = find_patience_seconds(error.code)
        except OSError as error:
            trouble, patience_seconds = str(error), GIVE_UP_SECONDS
        if time.monotonic() > begun_at + patience_seconds:
            sys.exit(f"Pool {pool['metadata']['name']} was not created: {trouble}")
        time.sleep(0.2)


start = time.monotonic()
for manifest in json.loads(os.environ["RRQ_POOLS"]):
    apply_in_time(manifest, start)
