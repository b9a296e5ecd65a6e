"""A real Redis Cluster: three masters, and two replicas of the one that owns the slot of the tests.

Made of servers alone, as `redis-cli --cluster create` and `reshard` would make and change it.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from redis.crc import key_slot

from rrq.embedded import EmbeddedRedis
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

PREFIX = "{shop}:"
SLOT = key_slot(PREFIX.encode())
_SLOTS = 16_384
_MASTERS = 3
_REPLICAS = 2
_FAILOVER_SECONDS = 2.0
_OPTIONS = (
    *("--cluster-enabled", "yes"),
    # What a dead node is noticed after; the default is 15 s.
    *("--cluster-node-timeout", "1000"),
    *("--cluster-replica-validity-factor", "0"),
    # Or a replica would leave for a master that has none.
    *("--cluster-migration-barrier", "10"),
    *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
)


class RedisCluster:
    """Starts, changes and ends the cluster; what it does to nodes is done when a method returns."""

    def __init__(self) -> None:
        self._nodes = [EmbeddedRedis(extra_args=_OPTIONS) for _ in range(_MASTERS + _REPLICAS)]
        self._running: list[EmbeddedRedis] = []
        self._open = contextlib.ExitStack()
        self._connections: dict[int, redis.Redis] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for epoch, node in enumerate(self._nodes, 1):
                started.enter_context(node)
                self._running.append(node)
                # Nodes of one age would settle by themselves who is newer, which takes seconds.
                self.do(node, "CLUSTER SET-CONFIG-EPOCH", epoch)
            self._form()
            self._open = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._open.close()

    def do(self, node: EmbeddedRedis, command: str, *args: Any) -> Any:
        """Send a command to one node, whatever its slots."""
        if node.port not in self._connections:
            self._connections[node.port] = redis.Redis(port=node.port, decode_responses=True, protocol=2)
        connection: Any = self._connections[node.port]
        return connection.execute_command(*command.split(), *args)

    @property
    def masters(self) -> list[EmbeddedRedis]:
        return [node for node in self._running if self.do(node, "ROLE")[0] == "master"]

    @property
    def owner(self) -> EmbeddedRedis:
        """The node that owns the slot of the tests, by its own account."""
        (owner,) = [node for node in self.masters if self._owns(node)]
        return owner

    @property
    def others(self) -> list[EmbeddedRedis]:
        """The masters that do not."""
        owner = self.owner
        return [node for node in self.masters if node is not owner]

    @property
    def replicas(self) -> list[EmbeddedRedis]:
        return [node for node in self._running if self.do(node, "ROLE")[0] == "slave"]

    def settings(self, node: EmbeddedRedis | None = None, **options: Any) -> RRQSettings:
        """Settings that name one node: by default one that does not own the slot."""
        named = node or self.others[0]
        return RRQSettings(redis_dsn=f"redis+cluster://127.0.0.1:{named.port}", key_prefix=PREFIX, **options)

    def empty(self) -> None:
        for node in self.masters:
            self.do(node, "FLUSHALL")

    # Fail-overs

    def hand_over(self) -> EmbeddedRedis:
        """Promote a replica with the consent of its master; returns the old master."""
        old, heir = self.owner, self.replicas[0]
        asked_at = 0.0

        def is_promoted() -> bool:
            nonlocal asked_at
            if self._owns(heir) and not self._owns(old):
                return True
            # Once more, because a master that has just changed its role may not know the replica as its own yet.
            if time.monotonic() - asked_at > _FAILOVER_SECONDS:
                asked_at = time.monotonic()
                with contextlib.suppress(redis.ResponseError):  # it is promoted already
                    self.do(heir, "CLUSTER FAILOVER")
            return False

        wait_until(is_promoted, "the replica was not promoted")
        self.wait_until_replicated()
        return old

    def kill_owner(self) -> EmbeddedRedis:
        """Kill the master, so that the others promote a replica; returns the dead node."""
        old = self.owner
        self._running.remove(old)
        old.kill()
        wait_until(lambda: any(map(self._owns, self.masters)), "no replica was promoted")
        return old

    def revive(self, node: EmbeddedRedis) -> None:
        """Start a node again that was killed; it becomes a replica."""
        node.start()
        self._connections.pop(node.port).close()
        self._running.append(node)
        self.wait_until_replicated()

    # A slot that moves, step by step

    def begin_move(self, target: EmbeddedRedis) -> None:
        """From here on until `end_move` the slot is half at its owner and half at the target."""
        source = self.owner
        self.do(target, "CLUSTER SETSLOT", SLOT, "IMPORTING", self.do(source, "CLUSTER MYID"))
        self.do(source, "CLUSTER SETSLOT", SLOT, "MIGRATING", self.do(target, "CLUSTER MYID"))

    def move_keys(self, target: EmbeddedRedis, most: int, *named: str) -> int:
        """Move these keys of the slot, and up to so many others; returns how many."""
        source = self._source_of_move(target)
        keys = [*named, *self.do(source, "CLUSTER GETKEYSINSLOT", SLOT, most)]
        if keys:
            self.do(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, target: EmbeddedRedis) -> None:
        source, target_id = self._source_of_move(target), self.do(target, "CLUSTER MYID")
        for node in (target, source, *self.masters):
            self.do(node, "CLUSTER SETSLOT", SLOT, "NODE", target_id)

    def move_slot(self, target: EmbeddedRedis) -> None:
        self.begin_move(target)
        while self.move_keys(target, 100):
            pass
        self.end_move(target)

    def _source_of_move(self, target: EmbeddedRedis) -> EmbeddedRedis:
        return next(node for node in self.masters if node is not target and self._owns(node))

    # How it comes about

    def _form(self) -> None:
        first, *rest = self._nodes
        size = -(-_SLOTS // _MASTERS)
        for number, node in enumerate(self._nodes[:_MASTERS]):
            self.do(node, "CLUSTER ADDSLOTS", *range(number * size, min(_SLOTS, (number + 1) * size)))
        for node in rest:
            self.do(node, "CLUSTER MEET", "127.0.0.1", first.port)
        wait_until(
            lambda: all(
                self._state(node)["cluster_known_nodes"] == str(len(self._nodes)) for node in self._nodes
            ),
            "the nodes do not know each other",
        )
        owner_id = self.do(self._nodes[SLOT // size], "CLUSTER MYID")
        for node in self._nodes[_MASTERS:]:
            wait_until(partial(self._replicate, node, owner_id), "a replica does not know its master")
        self.wait_until_replicated()

    def _replicate(self, node: EmbeddedRedis, master_id: str) -> bool:
        try:
            self.do(node, "CLUSTER REPLICATE", master_id)
        except redis.ResponseError:
            return False
        return True

    def wait_until_replicated(self) -> None:
        replicas = len(self._running) - _MASTERS

        def is_replicated() -> bool:
            roles = [self.do(node, "ROLE") for node in self._running]
            following = sum(role[0] == "slave" and role[3] == "connected" for role in roles)
            return following == replicas and self._is_agreed()

        wait_until(is_replicated, "the replicas do not follow")

    def _is_agreed(self) -> bool:
        is_ok = all(self._state(node)["cluster_state"] == "ok" for node in self._running)
        first, *rest = map(self._map, self._running)
        return is_ok and all(other == first for other in rest)

    def _state(self, node: EmbeddedRedis) -> dict[str, str]:
        return dict(line.split(":") for line in self.do(node, "CLUSTER INFO").splitlines())

    def _map(self, node: EmbeddedRedis) -> set[tuple[int, int, str, frozenset[str]]]:
        """Which slots belong to whom and to which replicas, as this node sees it."""
        ranges = self.do(node, "CLUSTER SLOTS")
        return {
            (first, last, owner[2], frozenset(replica[2] for replica in replicas))
            for first, last, owner, *replicas in ranges
        }

    def _owns(self, node: EmbeddedRedis) -> bool:
        own_id = self.do(node, "CLUSTER MYID")
        return any(first <= SLOT <= last and own_id == owner for first, last, owner, _ in self._map(node))


def wait_until(is_true: Callable[[], bool], complaint: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.02)
