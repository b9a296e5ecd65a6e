"""How large a chaos run is, and what follows from that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chaos_producer import LONGEST_SECONDS, SHORTEST_SECONDS

PROCESSES_PER_POD = 2
MEAN_JOB_SECONDS = (SHORTEST_SECONDS + LONGEST_SECONDS) / 2
SENTINEL_JOBS_PER_SECOND = 8.0
LEGACY_JOBS_PER_SECOND = 6.0
# The longest pause after a failed heartbeat, and half a second for a busy machine.
MOST_RETRY_SECONDS = 0.75 + 0.5
# By so much a renewal may come later than a third of a lease after the one before it, on a busy machine.
LATE_RENEWAL_SECONDS = 0.5


@dataclass(frozen=True)
class ChaosConfig:
    """One run. `room` stretches the bars on times, for a machine that has other things to do."""

    seed: int
    seconds: float
    faults: int
    most_outages: int
    lease_seconds: float
    jobs: int | None = None
    is_full: bool = False
    is_quick: bool = False
    room: float = 1.0
    durability: str = ""
    pods: int = 3
    concurrency: int = 4

    @property
    def capacity_jobs_per_second(self) -> float:
        """What the pods can do when nobody bothers them: by their slots, because handlers mostly wait."""
        return self.pods * PROCESSES_PER_POD * self.concurrency / MEAN_JOB_SECONDS

    @property
    def jobs_per_second(self) -> float:
        """Half of that, whoever produces it."""
        return self.capacity_jobs_per_second / 2

    @property
    def all_jobs_per_second(self) -> float:
        return self.jobs_per_second + SENTINEL_JOBS_PER_SECOND

    @property
    def socket_timeout_seconds(self) -> float:
        """The default of five seconds is a third of the default lease; a short lease has less to give away.

        A renewal that is lost costs this time-out and a pause before the next, and may begin a third of the lease after
        the one before: all of that has to fit into the lease, or a short silence would be the end of it.
        """
        return min(self.lease_seconds / 3, self.lease_seconds * 2 / 3 - MOST_RETRY_SECONDS)

    @property
    def least_lease_left_seconds(self) -> float:
        """Before this no lease can have ended of whoever is kept from renewing it from now on."""
        return self.lease_seconds * 2 / 3 - LATE_RENEWAL_SECONDS

    @property
    def job_timeout_seconds(self) -> int:
        """Longer than any fault may keep an innocent job waiting inside its process."""
        return max(12, round(2 * self.lease_seconds))

    @property
    def watch_seconds(self) -> float:
        """How long to wait until the jobs of the dead are given back: beyond every bar on that time."""
        return 30.0 + 4 * self.lease_seconds

    @property
    def settle_seconds(self) -> float:
        return 60.0 + 4 * self.lease_seconds


def quick_config(seed: int) -> ChaosConfig:
    """Half a minute of load, with no program that does not come with Python packages."""
    return ChaosConfig(
        seed, seconds=27.0, faults=19, most_outages=3, lease_seconds=3.0, is_quick=True, room=1.5
    )


def short_config(seed: int) -> ChaosConfig:
    """Two minutes with every kind of fault, for every change as well."""
    return ChaosConfig(seed, seconds=95.0, faults=40, most_outages=8, lease_seconds=3.0, room=1.5)


def full_config(seed: int, jobs: int = 100_000) -> ChaosConfig:
    """What docs/reliability.md reports: the default lease, and slots for a run of about half an hour."""
    config = ChaosConfig(
        seed,
        seconds=0.0,
        faults=500,
        most_outages=20,
        lease_seconds=15.0,
        jobs=jobs,
        is_full=True,
        concurrency=3,
    )
    return replace(config, seconds=jobs / config.all_jobs_per_second)
