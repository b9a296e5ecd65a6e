"""What an account may do: as the API server says when asked, and as a pod with its token finds out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from control_plane import Cluster
    from pools import PoolDesk

# Resources that no object is of: they exist to be named in rules.
ONLY_FOR_RIGHTS = ("users", "groups", "*.*")
# Runs inside a pod, with nothing but Python: tries each call that it is given with the token that lies there.
ATTEMPTS = """
import json, os, ssl, sys, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
token = open(folder + "token").read()
trusted = ssl.create_default_context(cafile=folder + "ca.crt")
answers = []
for call in json.loads(sys.argv[1]):
    headers = {"Authorization": "Bearer " + token, "Content-Type": call["content_type"], **call["headers"]}
    data = json.dumps(call["body"]).encode() if call["body"] is not None else None
    url = "https://kubernetes.default.svc" + call["path"]
    request = urllib.request.Request(url, method=call["method"], headers=headers, data=data)
    try:
        with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
            answers.append(answer.status)
    except urllib.error.HTTPError as refused:
        answers.append(refused.code)
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Call:
    """One call to the API server."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def encode(self) -> dict[str, Any]:
        kind = "application/merge-patch+json" if self.method == "PATCH" else "application/json"
        return {**asdict(self), "headers": dict(self.headers), "content_type": kind}


def attempt(desk: PoolDesk, pod: str, calls: Iterable[Call]) -> dict[str, int]:
    """Make these calls from inside a pod; returns the status of each answer."""
    calls = list(calls)
    encoded = json.dumps([call.encode() for call in calls])
    answers = json.loads(desk.kubectl("exec", pod, "--", "python3", "-c", ATTEMPTS, encoded))
    return dict(zip(map(str, calls), answers, strict=True))


def may(
    cluster: Cluster, account: str | None, questions: Iterable[str], namespace: str | None
) -> dict[str, bool]:
    """Whether an account may do such as "list secrets" in a namespace, or in all of them; None is who owns the cluster.

    Asks what `kubectl auth can-i --as` asks, but all questions at once.
    """
    questions = list(questions)
    known = cluster.kubectl("api-resources", "--output=name").split()
    reviews = [build_review(question, namespace, known) for question in questions]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    allowed = '--output=jsonpath={.status.allowed}{"\\n"}'
    who = [f"--as={account}"] if account else []
    answers = cluster.kubectl(*who, "create", "--filename=-", allowed, input=listed).split()
    return {question: json.loads(answer) for question, answer in zip(questions, answers, strict=True)}


def build_review(question: str, namespace: str | None, known: Iterable[str]) -> dict[str, Any]:
    """Understand verb, resource with group, perhaps a name, perhaps a subresource: "get pods/exec", "get pods web-0"."""
    verb, whole, *name = question.split()
    kind, _, subresource = whole.partition("/")
    # Of a resource that does not exist everything is refused: a misspelt question would pass.
    assert kind in known or kind in ONLY_FOR_RIGHTS, f"there is no {kind}"
    resource, _, group = kind.partition(".")
    asked = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "name": "".join(name),
        "namespace": namespace or "",
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
