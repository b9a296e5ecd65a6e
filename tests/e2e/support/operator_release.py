"""The operator as the chart installed it: its pods, who of them leads, and how long a story may wait for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from container_killer import kill_container
from diagnosis import OPERATOR_NAMESPACE
from story import is_ready, read_labelled
from waiting import eventually

if TYPE_CHECKING:
    from pools import PoolDesk
    from story_watch import Change

NAME_LABEL, NAME = "app.kubernetes.io/name", "rrq-operator"
LEASE = "rrq-operator"


@dataclass(frozen=True)
class OperatorRelease:
    """What a person with kubectl sees of the operator."""

    desk: PoolDesk

    @classmethod
    def of(cls, desk: PoolDesk) -> OperatorRelease:
        """The operator of the cluster that somebody with a desk anywhere in it looks at."""
        return cls(replace(desk, namespace=OPERATOR_NAMESPACE))

    def pods(self) -> list[dict[str, Any]]:
        """All that are not told to go."""
        pods = read_labelled(self.desk, "pods", NAME_LABEL, NAME)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> str:
        """The identity in the Lease: name of the pod, and what makes this process different from all others."""
        spec = self.desk.get("lease", LEASE).get("spec", {})
        return str(spec.get("holderIdentity", ""))

    def leading_pod(self) -> dict[str, Any]:
        """The pod that leads, or an empty one."""
        name = self.leader().rpartition("_")[0]
        return next((pod for pod in self.pods() if pod["metadata"]["name"] == name), {})

    async def wait_for_leader(
        self, count: int = 1, not_this: str = "", timeout_seconds: float = 60
    ) -> dict[str, Any]:
        """Wait until so many pods are ready and one of them leads, other than the given identity; return that pod."""
        await eventually(
            lambda: [is_ready(pod) for pod in self.pods()] == [True] * count,
            timeout_seconds,
            f"there were never {count} operator pods, all ready",
            interval_seconds=0.3,
        )
        return await eventually(
            lambda: {} if self.leader() == not_this else self.leading_pod(),
            timeout_seconds,
            "no operator pod took the lead",
            interval_seconds=0.3,
        )

    async def wait_until_restarted(self, pod: dict[str, Any]) -> None:
        """Wait until the kubelet tells of one more container in a pod, which may lead before that."""
        name, expected = pod["metadata"]["name"], restarts(pod) + 1
        await eventually(
            lambda: (
                {other["metadata"]["name"]: restarts(other) for other in self.pods()}.get(name) == expected
            ),
            60,
            f"{name} was not restarted once",
            interval_seconds=0.3,
        )

    def kill(self, pod: dict[str, Any]) -> None:
        """End the process of an operator as a crash does."""
        kill_container(self.desk, pod["metadata"]["name"])

    def remove(self, pod: dict[str, Any], *arguments: str) -> None:
        self.desk.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false", *arguments)


@dataclass(frozen=True)
class Takeover:
    """Who leads now, and how long nobody did, at most: by the times that the leaders themselves wrote."""

    leader: str
    seconds: float


def find_takeover(changes: list[Change], before: str) -> Takeover | None:
    """The takeover from a leader in the history of the Lease, or None while there was none."""
    renewed_at: datetime | None = None
    for change in changes:
        spec = change.body["spec"]
        holder = spec.get("holderIdentity", "")
        if change.name != LEASE or not holder:  # who goes in peace leaves it without a holder
            continue
        if holder == before:
            renewed_at = datetime.fromisoformat(spec["renewTime"])
        elif renewed_at is not None:
            acquired_at = datetime.fromisoformat(spec["acquireTime"])
            return Takeover(holder, (acquired_at - renewed_at).total_seconds())
    return None


def restarts(pod: dict[str, Any]) -> int:
    return sum(int(entry["restartCount"]) for entry in pod["status"].get("containerStatuses", []))
