"""`helm test`: checks that the API server serves RRQWorkerPool, that an operator is ready, and that one has the Lease.

Its own account may only read that Lease.
"""

import json
import os
import ssl
import sys
import time
import urllib.request
from datetime import UTC, datetime

GIVE_UP_SECONDS = 60
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
LEASE = os.environ["RRQ_LEASE"]


def ask_api_server(path: str) -> dict[str, object]:
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}"}
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}{path}", headers=headers
    )
    trust = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=trust, timeout=5) as answer:
        return json.load(answer)


def check() -> str:
    """Return the leader; raises an error that says what is wrong."""
    ask_api_server("/apis/rrq.dev/v1alpha1")
    urllib.request.urlopen(f"{os.environ['RRQ_OPERATOR_URL']}/readyz", timeout=5).close()
    lease = ask_api_server(
        f"/apis/coordination.k8s.io/v1/namespaces/{os.environ['RRQ_NAMESPACE']}/leases/{LEASE}"
    )
    spec = lease["spec"]
    age = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
    if not spec.get("holderIdentity") or age.total_seconds() > spec["leaseDurationSeconds"]:
        raise ValueError(f"no operator has renewed Lease {LEASE} for {age}")
    return str(spec["holderIdentity"])


deadline = time.monotonic() + GIVE_UP_SECONDS
while True:
    try:
        sys.stdout.write(f"RRQWorkerPool is served, the operator is ready, {check()} leads.\n")
        sys.exit(0)
    except (OSError, KeyError, ValueError) as error:
        if time.monotonic() > deadline:
            sys.exit(f"This release does not work: {error!r}. Check the log of the operator.")
    time.sleep(0.5)
