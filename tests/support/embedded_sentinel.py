"""A Redis Sentinel that watches a server of the tests."""

from __future__ import annotations

from rrq.embedded import HOST, EmbeddedRedis


class EmbeddedSentinel(EmbeddedRedis):
    """A Sentinel that watches one server under `master_name`."""

    def __init__(self, master: EmbeddedRedis, *, master_name: str = "mymaster") -> None:
        super().__init__()
        self.master = master
        self.master_name = master_name

    def _build_command(self) -> list[str]:
        # Sentinel pings once a second, and skips a server that was just promoted or has just come back. With
        # less patience than two pings it would take such a server for dead and fail over again.
        # Sentinel needs a configuration file, because it writes what it learns into it.
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"bind {HOST}\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor {self.master_name} {HOST} {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {self.master_name} 2500\n"
            f"sentinel failover-timeout {self.master_name} 2000\n"
        )
        return [str(self._binary), str(config), "--sentinel"]
