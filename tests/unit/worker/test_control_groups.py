"""The memory of a process is that left by its tightest control group."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tputfind.record.spec import read_spec
from tputfind.units import GIB
from tputfind.worker import inspect
from tputfind.worker.devices import host as host_module
from tputfind.worker.devices.host import MemoryLimit, core_quota, memory_limit

V1_UNLIMITED = 9223372036854771712


class Group(NamedTuple):
    """One control group: ``high`` exists in v2 only, and None stands for no limit."""

    limit: int | None = None
    used: int = 0
    cache: int = 0
    high: int | None = None


def host(
    root: Path,
    *groups: Group,
    version: int = 2,
    mounted: str = "/",
    own: str | None = None,
    mount: str = "sys/fs/cgroup",
) -> Path:
    """Make a folder like the Linux view of a process in the last of nested groups, and return it."""
    folder = root / mount / ("memory" if version == 1 else "")
    path = ""
    for depth, group in enumerate(groups):
        if depth:
            path += f"/level{depth}.slice"
            folder /= f"level{depth}.slice"
        folder.mkdir(parents=True)
        if version == 1:
            (folder / "memory.limit_in_bytes").write_text(f"{V1_UNLIMITED if group.limit is None else group.limit}\n")
            (folder / "memory.usage_in_bytes").write_text(f"{group.used}\n")
            (folder / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {group.cache}\n")
        elif depth or mounted != "/":  # the root group has no limit in v2
            (folder / "memory.max").write_text(f"{'max' if group.limit is None else group.limit}\n")
            (folder / "memory.high").write_text(f"{'max' if group.high is None else group.high}\n")
            (folder / "memory.current").write_text(f"{group.used}\n")
            (folder / "memory.stat").write_text(f"anon 5\ninactive_file {group.cache}\n")
    own = own or f"{'' if mounted == '/' else mounted}{path}" or "/"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"4:memory:{own}\n1:cpu:/else\n0::/\n" if version == 1 else f"0::{own}\n")
    where = f"/{mount}".replace(" ", "\\040")
    kinds = {1: f"{where}/memory rw - cgroup cgroup rw,memory", 2: f"{where} rw,nosuid shared:9 - cgroup2 cgroup2 rw"}
    (root / "proc/self/mountinfo").write_text(
        f"22 1 0:20 / /proc rw - proc proc rw\n33 31 0:30 {mounted} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        f"31 23 0:28 {mounted} {kinds[version]}\n"
    )
    return root


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert memory_limit(tmp_path) == MemoryLimit(None, None)


@pytest.mark.parametrize("version", [1, 2])
def test_container_at_root_of_the_mount_has_its_own_limit(tmp_path, version):
    """As in Docker without a cgroup namespace: the path is the host's, the mount shows the container's."""
    root = host(tmp_path, Group(2 * GIB, used=GIB), version=version, mounted="/docker/4f2a")

    assert memory_limit(root) == MemoryLimit(2 * GIB, GIB)


@pytest.mark.parametrize("own", ["/../..", "/another", "/docker/../.."])
def test_a_path_outside_of_the_mount_leaves_the_root_of_the_mount(tmp_path, own):
    root = host(tmp_path, Group(2 * GIB, used=GIB), mounted="/docker", own=own)
    (root / "sys/fs/memory.max").write_text("1")

    assert memory_limit(root) == MemoryLimit(2 * GIB, GIB)


def test_a_mount_with_a_blank_in_its_name_is_found(tmp_path):
    root = host(tmp_path, Group(), Group(2 * GIB, used=GIB), mount="my groups")

    assert memory_limit(root) == MemoryLimit(2 * GIB, GIB)


def test_rubbish_in_the_files_is_no_limit(tmp_path):
    root = host(tmp_path, Group(), Group(2 * GIB))
    (root / "sys/fs/cgroup/level1.slice/memory.max").write_text("many")
    with (root / "proc/self/mountinfo").open("a") as file:
        file.write("\n1 2\nx - y\n - \n")

    assert memory_limit(root) == MemoryLimit(None, None)


def test_smallest_quota_of_cores_of_nested_groups_counts(tmp_path):
    root = host(tmp_path, Group(), Group(), Group())
    group = root / "sys/fs/cgroup/level1.slice"
    (group / "cpu.max").write_text("250000 100000\n")
    (group / "level2.slice" / "cpu.max").write_text("max 100000\n")

    assert core_quota(root) == 2.5


@pytest.mark.parametrize(("quota", "cores"), [("150000", 1.5), ("-1", None)])
def test_quota_of_version_1_is_a_part_of_its_period(tmp_path, quota, cores):
    root = host(tmp_path, Group(), version=1)
    group = root / "sys/fs/cgroup/cpu/else"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")

    assert core_quota(root) == cores


def test_quota_below_the_threads_is_a_notice(monkeypatch):
    spec = read_spec("resnet18", {"device": "cpu"})
    monkeypatch.setattr(inspect, "core_quota", lambda: 0.5)

    assert [notice.kind for notice in inspect.inspect(spec).caveats] == ["core_quota"]
    monkeypatch.setattr(inspect, "core_quota", lambda: 64.0)
    assert not inspect.inspect(spec).caveats


@pytest.mark.parametrize("given", [True, False])
def test_threads_of_all_instances_count_if_the_user_sets_them(monkeypatch, given):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", f"{torch.get_num_threads()}")
    monkeypatch.setattr(inspect, "core_quota", lambda: torch.get_num_threads() + 0.5)

    assert bool(inspect.inspect(read_spec("resnet18", {"device": "cpu", "instances": 2})).caveats) is given


SIZES = st.integers(0, 2**50)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.lists(st.builds(Group, st.none() | SIZES, SIZES, SIZES, st.none() | SIZES), min_size=1, max_size=6),
    version=st.sampled_from([1, 2]),
)
def test_memory_limit_and_remainder_are_the_least_of_all_groups(tmp_path_factory, groups, version):
    root = host(tmp_path_factory.mktemp("root"), Group(), *groups, version=version)

    found = memory_limit(root)

    kinds = [(group.limit, group.high if version == 2 else None) for group in groups]
    limits = [min((limit for limit in kind if limit is not None), default=None) for kind in kinds]
    left = [
        max(0, limit - max(0, group.used - group.cache))
        for limit, group in zip(limits, groups, strict=True)
        if limit is not None
    ]
    assert found.limit_bytes == min((limit for limit in limits if limit is not None), default=None)
    assert found.left_bytes == min(left, default=None)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (MemoryLimit(None, None), (8 * GIB, 5 * GIB)),
        (MemoryLimit(4 * GIB, 3 * GIB), (4 * GIB, 3 * GIB)),
        (MemoryLimit(4 * GIB, 0), (4 * GIB, 0)),
        (MemoryLimit(16 * GIB, 15 * GIB), (8 * GIB, 5 * GIB)),
    ],
)
def test_cpu_memory_is_least_of_machine_and_groups(monkeypatch, limit, expected):
    class Machine(NamedTuple):
        total: int = 8 * GIB
        available: int = 5 * GIB

    monkeypatch.setattr(host_module.psutil, "virtual_memory", Machine)
    monkeypatch.setattr(host_module, "memory_limit", lambda: limit)

    assert host_module.host_memory() == expected
