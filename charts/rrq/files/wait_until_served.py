"""Wait until the API server names RRQWorkerPool among what it serves: a moment after its definition was created."""

import json
import os
import ssl
import sys
import time
import urllib.request

GIVE_UP_SECONDS = 120
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# The list that Helm goes by, which is a little behind the resource itself.
LIST_OF_GROUPS = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


def read_groups() -> list[str]:
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}", "Accept": LIST_OF_GROUPS}
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}/apis", headers=headers
    )
    trust = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=trust, timeout=5) as answer:
        found = json.load(answer)
    return [group.get("name") or group["metadata"]["name"] for group in found.get("items") or found["groups"]]


deadline = time.monotonic() + GIVE_UP_SECONDS
trouble = "the API server does not list the group rrq.dev"
while time.monotonic() < deadline:
    try:
        if "rrq.dev" in read_groups():
            sys.exit(0)
    except OSError as error:
        trouble = str(error)
    time.sleep(0.2)
sys.exit(
    f"RRQWorkerPool is not served after {GIVE_UP_SECONDS} s: {trouble}. Pools of the values are not created."
)
