"""The web dashboard in the chart: read-only unless told otherwise, behind a token, with no right in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helm_client import HelmFailed
from rendering import find, render, render_objects

if TYPE_CHECKING:
    from helm_client import Helm

NAME = "rrq-dashboard"


def dashboard(helm: Helm, **values: Any) -> list[dict[str, Any]]:
    redis = {"redis": {"enabled": True, "password": "not-random"}}
    return render_objects(helm, values=redis | {"dashboard": {"enabled": True, **values}})


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = find(objects, "Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def mounted_keys(volume: dict[str, Any]) -> dict[str, bool]:
    """Return the keys of the Secrets of a volume, each with whether the pod waits for it."""
    secrets = [source["secret"] for source in volume["projected"]["sources"]]
    return {item["key"]: not secret.get("optional") for secret in secrets for item in secret["items"]}


def test_there_is_none_unless_asked_for(offline: Helm) -> None:
    assert NAME not in render(offline)


def test_it_is_read_only_and_behind_a_token(offline: Helm) -> None:
    objects = dashboard(offline)
    arguments = container(objects)["args"]
    assert "--read-only" in arguments
    assert "--view-token-file=/etc/rrq-dashboard/view-token" in arguments
    assert not [argument for argument in arguments if "admin" in argument]
    tokens = find(objects, "Secret", NAME)["stringData"]
    assert list(tokens) == ["session-key", "view-token"]
    assert len(tokens["view-token"]) == 32


def test_acting_has_a_token_of_its_own(offline: Helm) -> None:
    objects = dashboard(offline, readOnly=False)
    arguments = container(objects)["args"]
    assert "--admin-token-file=/etc/rrq-dashboard/admin-token" in arguments
    assert "--read-only" not in arguments
    tokens = find(objects, "Secret", NAME)["stringData"]
    assert tokens["admin-token"] != tokens["view-token"]


def test_all_replicas_and_upgrades_share_one_random_session_key(offline: Helm) -> None:
    objects = dashboard(offline)
    assert "--session-key-file=/etc/rrq-dashboard/session-key" in container(objects)["args"]
    secret = find(objects, "Secret", NAME)["stringData"]
    assert len(secret["session-key"]) >= 32
    assert secret["session-key"] != secret["view-token"]
    (volume,) = find(objects, "Deployment", NAME)["spec"]["template"]["spec"]["volumes"]
    assert mounted_keys(volume) == {"view-token": True, "session-key": False}


def test_a_rendering_without_a_cluster_is_the_same_each_time_when_the_values_say_all(offline: Helm) -> None:
    values = {
        "dashboard": {
            "enabled": True,
            "redis": {"existingSecret": "shop-redis"},
            "auth": {"sessionKey": "k" * 32, "viewToken": "v" * 16},
        }
    }
    # By different arguments, because renderings with the same ones are kept.
    assert render(offline, values=values) == render(offline, "--dry-run=client", values=values)
    values["dashboard"]["auth"] = {"existingSecret": "tokens"}
    assert render(offline, values=values) == render(offline, "--dry-run=client", values=values)


def test_given_secrets_are_used_as_they_are(offline: Helm) -> None:
    values = {"redis": {"existingSecret": "shop-redis", "key": "dsn"}, "auth": {"existingSecret": "tokens"}}
    objects = render_objects(offline, values={"dashboard": {"enabled": True, **values}})
    assert not [entry for entry in objects if entry["kind"] == "Secret"]
    (dsn,) = (entry for entry in container(objects)["env"] if entry["name"] == "RRQ_REDIS_DSN")
    assert dsn["valueFrom"]["secretKeyRef"] == {"name": "shop-redis", "key": "dsn"}
    (volume,) = find(objects, "Deployment", NAME)["spec"]["template"]["spec"]["volumes"]
    assert {source["secret"]["name"] for source in volume["projected"]["sources"]} == {"tokens"}


def test_it_has_no_right_in_the_cluster_and_runs_locked_down(offline: Helm) -> None:
    objects = dashboard(offline)
    pod = find(objects, "Deployment", NAME)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dashboard": {"enabled": True}}, "dashboard.enabled needs a Redis"),
        (
            {
                "dashboard": {
                    "enabled": True,
                    "redis": {"existingSecret": "a"},
                    "proxy": {"userHeader": "X-User"},
                }
            },
            "needs dashboard.proxy.from",
        ),
        (
            {"dashboard": {"enabled": True, "redis": {"existingSecret": "a"}, "ingress": {"enabled": True}}},
            "dashboard.ingress.host",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(offline: Helm, values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        render(offline, values=values)
    assert words in str(refused.value)
