"""What a worker finds out about its CPUs, from file trees as kernels show them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rrq.runtime.allotment import CpuAllotment, read_cpu_allotment

if TYPE_CHECKING:
    from pathlib import Path

MANY = 64  # CPUs of a machine large enough that only the quota counts

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU = "33 32 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
V1_CPU_CPUACCT = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct"
V1_CPUSET = "34 32 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"
HYBRID_V2 = "41 32 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
ROOT_DISK = "23 1 254:0 / / rw,relatime - ext4 /dev/vda rw"

CPU = "sys/fs/cgroup/cpu"


def show(root: Path, *, mounts: list[str], groups: list[str], files: dict[str, str]) -> Path:
    """Lay out what one process sees of its control groups."""
    for name, lines in {"mountinfo": [ROOT_DISK, *mounts], "cgroup": groups}.items():
        write(root / "proc/self" / name, "\n".join(lines) + "\n")
    for name, text in files.items():
        write(root / name, text)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def show_v2(root: Path, cpu_max: str) -> Path:
    return show(root, mounts=[V2_MOUNT], groups=["0::/"], files={"sys/fs/cgroup/cpu.max": cpu_max})


def v1_quota(folder: str, quota: str, period: str = "100000") -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


# What was allotted, and how it is told


@pytest.mark.parametrize(
    ("cpu_max", "cpus", "processes"),
    [
        ("10000 100000", 0.1, 1),
        ("190000 100000", 1.9, 1),
        ("200000 100000", 2.0, 2),
        ("25000 10000", 2.5, 2),
    ],
)
def test_a_fraction_of_a_cpu_is_rounded_down_to_at_least_one_process(
    tmp_path: Path, cpu_max: str, cpus: float, processes: int
) -> None:
    allotment = read_cpu_allotment(show_v2(tmp_path, cpu_max + "\n"), MANY)
    assert (allotment.cpus, allotment.processes) == (cpus, processes)


@pytest.mark.parametrize(
    ("cpu_max", "affinity", "expected"),
    [
        ("150000 100000", 2, CpuAllotment(1.5, 1, "cgroup v2 cpu.max 150000/100000 = 1.5 CPUs")),
        ("100000 100000", 2, CpuAllotment(1.0, 1, "cgroup v2 cpu.max 100000/100000 = 1 CPU")),
        ("max 100000", 2, CpuAllotment(2.0, 2, "cpuset of 2 CPUs, no quota")),
        ("max 100000", 1, CpuAllotment(1.0, 1, "cpuset of 1 CPU, no quota")),
        (
            "400000 100000",
            2,
            CpuAllotment(2.0, 2, "cpuset of 2 CPUs, within cgroup v2 cpu.max 400000/100000 = 4 CPUs"),
        ),
    ],
)
def test_the_smallest_limit_is_named_as_the_source(
    tmp_path: Path, cpu_max: str, affinity: int, expected: CpuAllotment
) -> None:
    assert read_cpu_allotment(show_v2(tmp_path, cpu_max), affinity) == expected


# Where the limits are


@pytest.mark.parametrize(
    ("mounts", "groups", "folder"),
    [
        (
            ["33 32 0:29 /kubepods/pod1/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu"],
            ["4:memory:/kubepods/pod1/abc", "1:cpu:/kubepods/pod1/abc"],
            CPU,
        ),
        ([V1_CPU], ["1:cpu:/system.slice/rrq.service"], f"{CPU}/system.slice/rrq.service"),
        ([V1_CPUSET, V1_CPU_CPUACCT], ["7:cpuset:/", "3:cpu,cpuacct:/b"], "sys/fs/cgroup/cpu,cpuacct/b"),
        ([V1_CPU], ["1:cpu:/outer/gone (deleted)"], f"{CPU}/outer"),
    ],
    ids=[
        "of a container",
        "further down on a host",
        "cpu and cpuacct as one mount",
        "removed, the one around it",
    ],
)
def test_the_v1_group_of_a_process_is_found(
    tmp_path: Path, mounts: list[str], groups: list[str], folder: str
) -> None:
    root = show(tmp_path, mounts=mounts, groups=groups, files=v1_quota(folder, "150000"))
    assert read_cpu_allotment(root, MANY).source == "cgroup v1 cpu.cfs_quota_us 150000/100000 = 1.5 CPUs"


@pytest.mark.parametrize(
    ("own", "around", "outermost"), [("max", 400, 250), ("250", 400, "max"), (400, 250, 300)]
)
def test_the_smallest_quota_on_the_way_up_counts(
    tmp_path: Path, own: object, around: object, outermost: object
) -> None:
    def limit(percent: object) -> str:
        return "max 100000" if percent == "max" else f"{percent}000 100000"

    top = "sys/fs/cgroup"
    files = {
        f"{top}/a/b/c/cpu.max": limit(own),
        f"{top}/a/b/cpu.max": limit(around),
        f"{top}/a/cpu.max": limit(outermost),
        f"{top}/a/b/c/below/cpu.max": limit(1),
        f"{top}/a/beside/cpu.max": limit(1),
    }
    root = show(tmp_path, mounts=[V2_MOUNT], groups=["0::/a/b/c"], files=files)
    assert read_cpu_allotment(root, MANY).cpus == 2.5


@pytest.mark.parametrize(
    ("mounted", "place", "own_group"),
    [
        ("/pods", "groups\\040here", "/pods/one"),
        ("/pods/one", "sys/fs/cgroup", "/../elsewhere"),
        ("/pods/one", "sys/fs/cgroup", "/other/group"),
    ],
    ids=["below a bind mount", "above the mount", "beside the mount"],
)
def test_a_group_is_found_from_where_it_is_mounted(
    tmp_path: Path, mounted: str, place: str, own_group: str
) -> None:
    mount = f"50 23 0:26 {mounted} /{place} rw - cgroup2 cgroup2 rw"
    folder = place.replace("\\040", " ")
    files = {f"{folder}/one/cpu.max": "300000 100000", f"{folder}/cpu.max": "200000 100000"}
    files["sys/fs/elsewhere/cpu.max"] = "100000 100000"
    root = show(tmp_path, mounts=[mount], groups=[f"0::{own_group}"], files=files)
    assert read_cpu_allotment(root, MANY).cpus == 2.0


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        (v1_quota(f"{CPU}/pod", "150000"), 1.5),
        ({"sys/fs/cgroup/unified/user/cpu.max": "250000 100000"}, 2.5),
        (v1_quota(f"{CPU}/pod", "-1") | {"sys/fs/cgroup/unified/user/cpu.max": "max 100000"}, MANY),
    ],
)
def test_a_hybrid_layout_is_read_in_both_versions(tmp_path: Path, files: dict[str, str], cpus: float) -> None:
    root = show(tmp_path, mounts=[V1_CPU, HYBRID_V2], groups=["1:cpu:/pod", "0::/user"], files=files)
    assert read_cpu_allotment(root, MANY).cpus == cpus


# What is no limit


def test_a_file_with_invalid_content_is_no_limit(tmp_path: Path) -> None:
    for number, cpu_max in enumerate(
        ["", "\n", "max", "max max", "-1 100000", "0 100000", "100000 0", "100000", "1e5 100000", "1_0 1", "a b c",
         "\uff19 \uff19", f"{10**18}0000 1", f"{2**63} 1", "\x00\xff", "9" * 5000 + " 1"]
    ):  # fmt: skip
        found = read_cpu_allotment(show_v2(tmp_path / f"v2-{number}", cpu_max), 2)
        assert found == CpuAllotment(2.0, 2, "cpuset of 2 CPUs, no quota"), cpu_max
    for quota, period in (("-1", "100000"), ("", ""), ("x", "100000"), ("100000", "0"), ("1 2", "100000")):
        files = v1_quota(CPU, quota, period)
        root = show(tmp_path / f"v1-{quota}-{period}", mounts=[V1_CPU], groups=["1:cpu:/"], files=files)
        assert read_cpu_allotment(root, 2).source == "cpuset of 2 CPUs, no quota"


@pytest.mark.parametrize(
    ("mounts", "groups"),
    [
        ([], []),
        ([V2_MOUNT], []),
        ([], ["0::/"]),
        ([V2_MOUNT], ["0:/", "", "::", "nonsense", "0::/a\x00b"]),
        (
            ["- cgroup2", " - ", "1 2 3 4 - cgroup2 x y", "1 2 3 \\777 \x00 rw - cgroup2 x rw", "\x00"],
            ["0::/"],
        ),
        (["30 23 0:26 //x //y rw - cgroup2 cgroup2 rw"], ["0:://x", "1:cpu:"]),
        (["30 23 0:26 here there rw - cgroup2 cgroup2 rw"], ["0::nowhere"]),
    ],
)
def test_a_proc_that_cannot_be_understood_is_no_limit(
    tmp_path: Path, mounts: list[str], groups: list[str]
) -> None:
    root = show(tmp_path, mounts=mounts, groups=groups, files={"sys/fs/cgroup/cpu.cfs_quota_us": "1"})
    assert read_cpu_allotment(root, 2).source == "cpuset of 2 CPUs, no quota"


def test_without_control_groups_the_cpus_of_the_process_count_and_off_linux_those_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_cpu_allotment(tmp_path).cpus == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    for cpu_count, processes in ((8, 8), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cpu_count=cpu_count: cpu_count)
        assert read_cpu_allotment(tmp_path).processes == processes
