"""Which node of a Redis Cluster to send to, and what the refusals of a node mean.

A hash-tagged prefix keeps all keys in one slot, so it is enough to find the node that owns this slot. Decisions only:
``connector.py`` connects, ``pipelined_connection.py`` sends.

While a slot moves from one node to another, each of them has some of its keys, and a script on either node would miss
the others. Redis notices this only for the keys that a script declares, and ours find most of their keys by
themselves. Therefore each script declares one key more, which never exists. The node that gives the slot away then
refuses the script before it runs (ASK or TRYAGAIN), and so would the node that gets it. Following ASK would not help:
the call is sent again until the slot has moved.
"""

from collections.abc import Container
from functools import cache
from typing import Any

from redis.asyncio import RedisCluster
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ResponseError,
    TryAgainError,
)

from rrq.broker.keys import Keys
from rrq.broker.scripts import Script, build_script
from rrq.broker.server_risks import SlotPlace
from rrq.runtime.masking import clean_foreign_text

#: A call that is refused like this did not run, so it may be sent again.
REFUSALS = (AskError, TryAgainError, ClusterDownError)
MOST_REDIRECTS = 5
#: Nodes that one attempt to connect tries in vain; each may cost the whole timeout of a connection.
MOST_UNREACHABLE = 3
_MOST_NODES = 100

Address = tuple[str, int]


def describe_cluster(address: str) -> str:
    """Return what to do about a URL that does not say that Redis is a cluster."""
    return (
        f"Redis at {address} is part of a Redis Cluster, which needs redis+cluster:// in redis_dsn and a key_prefix "
        "with a hash tag, such as '{shop}:'"
    )


@cache
def gate(script: Script) -> Script:
    """Return the script for calls whose last key is ``SlotRoute.gate_key``, which the script itself does not see."""
    return build_script(script.name, f"table.remove(KEYS)\n{script.source}")


class SlotRoute:
    """The nodes of a cluster as far as they are known, and the owner of the slot of one prefix."""

    def __init__(self, key_prefix: str, named: Address) -> None:
        self.slot = key_slot(key_prefix.encode())
        #: Never exists, because each job has an id. Each user that runs scripts may read the keys of jobs.
        self.gate_key = Keys(key_prefix).job_key("")
        self.owner: Address | None = None
        self._replicas = 0
        self._named = named
        self._nodes = [named]

    @property
    def place(self) -> SlotPlace | None:
        """Where the slot is, once a node has answered."""
        if self.owner is None:
            return None
        return SlotPlace(self.slot, "{}:{}".format(*self.owner), self._replicas)

    def choose(self, unreachable: Container[Address]) -> Address | None:
        """Return the node to connect to: the owner, else one that may know it. None when no node is left."""
        candidates = self._nodes if self.owner is None else [self.owner, *self._nodes]
        return next((address for address in candidates if address not in unreachable), None)

    def learn(self, slots: Any, asked: Address) -> None:
        """Read an answer to CLUSTER SLOTS. The owner is None when the slot has none."""
        found: list[Address] = []
        self.owner = None
        for first, last, *nodes in slots:
            addresses = [_read_address(node[0], node[1], asked) for node in nodes]
            found += addresses
            if first <= self.slot <= last:
                self.owner, self._replicas = addresses[0], len(addresses) - 1
        # The address from the settings stays: its name may lead to any node.
        self._nodes = list(dict.fromkeys([asked, *found[:_MOST_NODES], self._named]))

    def redirect(self, moved: MovedError, asked: Address) -> None:
        """Ask the named owner first from now on."""
        self.owner = None
        self._nodes = list(dict.fromkeys([_read_address(moved.host, moved.port, asked), *self._nodes]))

    def doubt(self, address: Address) -> None:
        """Ask this node last who owns the slot."""
        if self.owner == address:
            self.owner = None
        if address in self._nodes:
            self._nodes.remove(address)
            self._nodes.append(address)

    def describe(self, refusal: ResponseError) -> str:
        """Return what is wrong with a cluster that refuses a call again and again."""
        if isinstance(refusal, MovedError):
            return f"slot {self.slot} of the Redis Cluster moved to {clean_foreign_text(refusal.host)}:{refusal.port}"
        if isinstance(refusal, ClusterDownError):
            return f"the Redis Cluster is down ({clean_foreign_text(str(refusal))})"
        return f"slot {self.slot} of the Redis Cluster is moving to another node; calls work again when it has moved"


def _read_address(host: Any, port: Any, asked: Address) -> Address:
    name = host.decode() if isinstance(host, bytes) else host
    # A node that does not know its own address leaves it out: it has the address that was asked.
    return (asked[0] if name in (None, "", "?") else str(name), int(port))


class ClusterClient(RedisCluster):
    """The ordinary client of a cluster; the connections of a store share its ``route``."""

    route: SlotRoute
