"""Which settings of a Redis server may lose jobs, in words. Pure.

``JobStore.read_server_facts`` reads the facts; a worker logs the warnings when it starts, and ``rrq check`` shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SlotPlace:
    """Where in a Redis Cluster the keys of one prefix are."""

    slot: int
    node: str
    replicas: int


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself; None where it does not answer."""

    maxmemory_bytes: int | None
    maxmemory_policy: str | None
    appendonly: bool | None
    snapshots: str | None
    place: SlotPlace | None = None


def parse_server_facts(
    info: Mapping[str, object], snapshots: str | None, place: SlotPlace | None = None
) -> ServerFacts:
    """Read the facts out of INFO and of CONFIG GET save, which managed servers may refuse."""
    maxmemory, appendonly = info.get("maxmemory"), info.get("aof_enabled")
    policy = info.get("maxmemory_policy")
    return ServerFacts(
        int(str(maxmemory)) if maxmemory is not None else None,
        str(policy) if policy is not None else None,
        bool(int(str(appendonly))) if appendonly is not None else None,
        snapshots,
        place,
    )


def describe_risks(facts: ServerFacts) -> list[str]:
    """Return one sentence per setting under which Redis may lose jobs. Unknown is no risk."""
    risks = []
    policy = facts.maxmemory_policy
    if facts.maxmemory_bytes and policy is not None and policy != "noeviction":
        risks.append(
            f"Redis may evict jobs when its memory is full (maxmemory-policy {policy}). "
            "Set maxmemory-policy noeviction."
        )
    if facts.appendonly is False and facts.snapshots == "":
        risks.append(
            "Redis persists nothing, so a restart loses every job (appendonly no, no save points). "
            "Set appendonly yes."
        )
    if facts.place is not None and facts.place.replicas == 0:
        risks.append(
            f"Node {facts.place.node} of the Redis Cluster, which has all jobs, has no replica, so no job runs while it "
            "is down. Give it a replica."
        )
    return risks
