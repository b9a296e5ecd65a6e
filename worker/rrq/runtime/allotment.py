"""How many CPUs this process may use, and which limit decides that.

A container that may use 1.5 CPUs of a machine with 64 still sees all 64. The real limit is the smallest of three: the
quota of its control group (cgroup v2 or v1), the quotas of the groups around it, and the set of CPUs it may run on.
`CpuAllotment.processes` is the number of processes that fit.

Pure functions parse the text of /proc and of the limit files; only `read_…` opens files. A missing or unreadable limit
counts as no limit, because a worker must start on any kernel.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

V1, V2 = 1, 2
# The largest value of the kernel; a longer number is invalid.
_LARGEST_MICROSECONDS = 2**63 - 1


@dataclass(frozen=True)
class CpuAllotment:
    """The CPUs that this process may use, and the limit that decides it, as one line."""

    cpus: float
    processes: int
    source: str


@dataclass(frozen=True)
class CpuQuota:
    """The CPU time that a control group may use in each period."""

    cgroup_version: int
    quota_us: int
    period_us: int

    @property
    def cpus(self) -> float:
        return self.quota_us / self.period_us

    def __str__(self) -> str:
        file = "cpu.max" if self.cgroup_version == V2 else "cpu.cfs_quota_us"
        ratio = f"{self.quota_us}/{self.period_us}"
        return f"cgroup v{self.cgroup_version} {file} {ratio} = {_count(self.cpus)}"


@dataclass(frozen=True)
class CgroupMount:
    """A mount that shows control groups with CPU limits: `root` is the group at `mount_point`."""

    cgroup_version: int
    root: PurePosixPath
    mount_point: PurePosixPath


@dataclass(frozen=True)
class CgroupFolder:
    """The folder of one control group, which contains its limit files."""

    cgroup_version: int
    path: PurePosixPath


def read_cpu_allotment(root: Path = Path("/"), affinity: int | None = None) -> CpuAllotment:
    """Read how many CPUs this process may use. Never fails.

    `root`: the folder with /proc and the mount points. `affinity`: the number of CPUs that the process may run on; None
    reads it from the kernel.
    """
    mounts = parse_cgroup_mounts(_read_text(root / "proc/self/mountinfo"))
    own_groups = parse_own_groups(_read_text(root / "proc/self/cgroup"))
    quotas = [_read_quota(root, folder) for folder in build_folders(mounts, own_groups)]
    if affinity is None:
        affinity = _read_affinity()
    return decide_allotment(affinity, [quota for quota in quotas if quota is not None])


def decide_allotment(affinity: int, quotas: Sequence[CpuQuota]) -> CpuAllotment:
    """Return the smallest of the limits. Fractions are rounded down, because one process too many would be throttled in the
    middle of a job; there is always at least one process."""
    cpuset = f"cpuset of {_count(affinity)}"
    if not quotas:
        return CpuAllotment(float(affinity), affinity, f"{cpuset}, no quota")
    quota = min(quotas, key=lambda quota: quota.cpus)
    if quota.cpus < affinity:
        return CpuAllotment(quota.cpus, max(1, math.floor(quota.cpus)), str(quota))
    return CpuAllotment(float(affinity), affinity, f"{cpuset}, within {quota}")


def parse_own_groups(text: str) -> dict[int, PurePosixPath]:
    """Parse /proc/self/cgroup: the group of this process in the hierarchy that limits CPU time, by cgroup version.

    The hybrid layout has both versions, and only one of them has the limit files.
    """
    groups = {}
    for line in text.split("\n"):
        # hierarchy:controllers:path, where v2 has neither number nor controllers; a path may contain colons.
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        hierarchy, controllers, path = fields
        if hierarchy == "0" and not controllers:
            groups[V2] = PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            groups[V1] = PurePosixPath(path)
    return groups


def parse_cgroup_mounts(text: str) -> list[CgroupMount]:
    """Parse /proc/self/mountinfo: the mounts of control groups that may limit CPU time."""
    mounts = []
    for line in text.split("\n"):
        # The number of optional fields before the dash varies, so fields are counted from the start of each half.
        place, dash, kind = line.partition(" - ")
        place_fields, kind_fields = place.split(), kind.split()
        if not dash or len(place_fields) < 5 or len(kind_fields) < 3:
            continue
        filesystem, super_options = kind_fields[0], kind_fields[2].split(",")
        if filesystem == "cgroup2":
            version = V2
        elif filesystem == "cgroup" and "cpu" in super_options:
            version = V1
        else:
            continue
        mounts.append(
            CgroupMount(version, _parse_mount_path(place_fields[3]), _parse_mount_path(place_fields[4]))
        )
    return mounts


def build_folders(
    mounts: Sequence[CgroupMount], own_groups: Mapping[int, PurePosixPath]
) -> list[CgroupFolder]:
    """Return the folders of the group of this process and of all visible groups around it, innermost first.

    Each of them is a limit: a group can never use more than the one around it.
    """
    folders: list[CgroupFolder] = []
    for mount in mounts:
        own_group = own_groups.get(mount.cgroup_version)
        if own_group is None:
            continue
        if own_group.is_relative_to(mount.root) and ".." not in own_group.parts:
            below = own_group.relative_to(mount.root)
        else:
            # The path of the group lies outside of this mount, as in a container that has the mount without its own
            # cgroup namespace. Then the group of the mount is the best guess.
            below = PurePosixPath()
        path = mount.mount_point / below
        enclosing = (path, *path.parents)[: len(below.parts) + 1]
        folders.extend(CgroupFolder(mount.cgroup_version, folder) for folder in enclosing)
    return folders


def parse_cpu_max(text: str) -> CpuQuota | None:
    """Parse cpu.max of cgroup v2, "150000 100000" or "max 100000"; None is no limit."""
    fields = text.split()
    return _build_quota(V2, *fields) if len(fields) == 2 else None


def parse_cfs_quota(quota: str, period: str) -> CpuQuota | None:
    """Parse cpu.cfs_quota_us (-1 is no limit) and cpu.cfs_period_us of cgroup v1; None is no limit."""
    return _build_quota(V1, quota.strip(), period.strip())


def _build_quota(version: int, quota: str, period: str) -> CpuQuota | None:
    # "max", -1 and invalid text are all no limit.
    quota_us, period_us = _parse_microseconds(quota), _parse_microseconds(period)
    return CpuQuota(version, quota_us, period_us) if quota_us and period_us else None


def _parse_microseconds(text: str) -> int | None:
    if not re.fullmatch(r"[0-9]{1,19}", text):
        return None
    microseconds = int(text)
    return microseconds if 0 < microseconds <= _LARGEST_MICROSECONDS else None


def _parse_mount_path(field: str) -> PurePosixPath:
    # The kernel writes white space inside a path as an octal number, because spaces separate the fields.
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field))


def _read_quota(root: Path, folder: CgroupFolder) -> CpuQuota | None:
    path = root / str(folder.path).lstrip("/")
    if folder.cgroup_version == V2:
        return parse_cpu_max(_read_text(path / "cpu.max"))
    return parse_cfs_quota(_read_text(path / "cpu.cfs_quota_us"), _read_text(path / "cpu.cfs_period_us"))


def _read_affinity() -> int:
    # The kernel already applies the cpusets of all enclosing groups here, so their files need not be read.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_text(path: Path) -> str:
    try:
        # A path may have any bytes, and must be opened by exactly these bytes.
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):  # ValueError: a path from an invalid file may contain a zero byte
        return ""


def _count(cpus: float) -> str:
    return "1 CPU" if cpus == 1 else f"{round(cpus, 3):g} CPUs"
