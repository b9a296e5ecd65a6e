"""The operator may do what it needs by the rights that the chart gives it, and nothing else.

That they suffice is shown by all stories on pods. Here is what the API server says of the accounts when it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helm_client import CHART
from rights import may
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from control_plane import ControlPlane
    from helm_client import Helm

NEEDED = (
    "list rrqworkerpools.rrq.dev",
    "watch rrqworkerpools.rrq.dev",
    "patch rrqworkerpools.rrq.dev/status",
    "create deployments.apps",
    "patch deployments.apps/scale",
    "create jobs.batch",
    "create poddisruptionbudgets.policy",
    "patch pods",
    "get secrets rrq-redis",
    "create events",
)
REFUSED = (
    # Secrets are read one by one, by name, and never written.
    "list secrets",
    "watch secrets",
    "create secrets",
    "update secrets rrq-redis",
    "patch secrets rrq-redis",
    "delete secrets rrq-redis",
    # Pods are made by Deployments and Jobs, and ended by them.
    "create pods",
    "delete pods",
    "deletecollection pods",
    "update pods",
    "create pods/exec",
    "get pods/exec",
    "create pods/attach",
    "create pods/portforward",
    "create pods/eviction",
    "get pods/log",
    # What is made for a pool goes with the pool.
    "delete deployments.apps",
    "deletecollection deployments.apps",
    "delete jobs.batch",
    "delete poddisruptionbudgets.policy",
    "create daemonsets.apps",
    "create statefulsets.apps",
    "create replicasets.apps",
    "create cronjobs.batch",
    # Pools are what people say; the operator only answers.
    "create rrqworkerpools.rrq.dev",
    "update rrqworkerpools.rrq.dev",
    "patch rrqworkerpools.rrq.dev",
    "delete rrqworkerpools.rrq.dev",
    # Ways to get more rights.
    "create roles.rbac.authorization.k8s.io",
    "escalate roles.rbac.authorization.k8s.io",
    "bind roles.rbac.authorization.k8s.io",
    "create rolebindings.rbac.authorization.k8s.io",
    "create clusterroles.rbac.authorization.k8s.io",
    "escalate clusterroles.rbac.authorization.k8s.io",
    "bind clusterroles.rbac.authorization.k8s.io",
    "create clusterrolebindings.rbac.authorization.k8s.io",
    "impersonate users",
    "impersonate groups",
    "impersonate serviceaccounts",
    "create serviceaccounts",
    "create serviceaccounts/token",
    "update certificatesigningrequests.certificates.k8s.io/approval",
    # The cluster and what others have in it.
    "patch customresourcedefinitions.apiextensions.k8s.io",
    "delete customresourcedefinitions.apiextensions.k8s.io",
    "create mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "delete namespaces",
    "patch namespaces",
    "delete nodes",
    "patch nodes",
    "get nodes/proxy",
    "list configmaps",
    "create services",
    "delete persistentvolumeclaims",
    "delete persistentvolumes",
    "list leases.coordination.k8s.io",
    "delete leases.coordination.k8s.io",
    "* *.*",
)
NEEDED_FOR_THE_LEASE = (
    "get leases.coordination.k8s.io rrq-operator",
    "update leases.coordination.k8s.io rrq-operator",
    "create leases.coordination.k8s.io",
)
REFUSED_OF_OTHER_LEASES = (
    "get leases.coordination.k8s.io another",
    "update leases.coordination.k8s.io another",
)
PEOPLE = [f"{verb} rrqworkerpools.rrq.dev" for verb in ("get", "list", "create", "patch", "delete")]


def install(helm: Helm, namespace: str, **values: Any) -> None:
    helm.run("install", "rrq", str(CHART), "--namespace", namespace, values=values)


async def assert_may(
    plane: ControlPlane,
    account: str,
    questions: Sequence[str],
    namespace: str | None,
    is_allowed: bool = True,
) -> None:
    """As the API server says, which hears of rights a moment after they are written; the account is `namespace:name`."""

    def says_so() -> bool:
        said = may(plane, f"system:serviceaccount:{account}", questions, namespace)
        assert said == dict.fromkeys(questions, is_allowed), namespace
        return True

    await eventually(says_so, 60, f"{account} has other rights", interval_seconds=0.3)


@pytest.mark.parametrize("is_namespaced", [False, True], ids=["all namespaces", "one namespace"])
async def test_the_operator_may_do_what_it_needs_and_nothing_else(
    plane: ControlPlane, helm: Helm, namespaces: Callable[[], str], is_namespaced: bool
) -> None:
    home, shop, other = namespaces(), namespaces(), namespaces()
    install(helm, home, watchNamespace=shop if is_namespaced else "")
    account = f"{home}:rrq-operator"
    await assert_may(plane, account, NEEDED, shop)
    await assert_may(plane, account, NEEDED_FOR_THE_LEASE, home)
    for namespace in (shop, home):
        await assert_may(plane, account, REFUSED, namespace, False)
    for elsewhere in (other, home, None):
        await assert_may(plane, account, NEEDED, elsewhere, not is_namespaced)
    await assert_may(plane, account, NEEDED_FOR_THE_LEASE, shop, False)
    await assert_may(plane, account, REFUSED_OF_OTHER_LEASES, home, False)
    # Somebody may, so the questions are not wrong.
    assert may(plane, None, REFUSED, shop) == dict.fromkeys(REFUSED, True)
    # Workers run under the account that every namespace has, without its token.
    await assert_may(plane, f"{shop}:default", (*NEEDED, *REFUSED), shop, False)


async def test_people_who_may_edit_a_namespace_may_edit_its_pools(
    plane: ControlPlane, helm: Helm, namespace: str
) -> None:
    install(helm, namespace)
    for who in ("view", "edit"):
        plane.kubectl(
            *("create", "rolebinding", who, "--namespace", namespace),
            *(f"--clusterrole={who}", f"--serviceaccount={namespace}:{who}"),
        )
    # A controller of the cluster adds the rights to its own roles.
    await assert_may(plane, f"{namespace}:edit", PEOPLE, namespace)
    await assert_may(plane, f"{namespace}:view", PEOPLE[:2], namespace)
    await assert_may(plane, f"{namespace}:view", PEOPLE[2:], namespace, False)
