"""Looks at a Redis server for settings that lose jobs, and says so in words.

Pure: ``store.py`` reads the facts, the worker logs the warnings when it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself; None where it would not tell."""

    maxmemory_bytes: int | None
    maxmemory_policy: str | None
    appendonly: bool | None
    snapshots: str | None


def parse_server_facts(info: Mapping[str, object], snapshots: str | None) -> ServerFacts:
    """Read the facts out of INFO and of CONFIG GET save, which managed servers may refuse."""
    maxmemory, appendonly = info.get("maxmemory"), info.get("aof_enabled")
    policy = info.get("maxmemory_policy")
    return ServerFacts(
        int(str(maxmemory)) if maxmemory is not None else None,
        str(policy) if policy is not None else None,
        bool(int(str(appendonly))) if appendonly is not None else None,
        snapshots,
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
    return risks
