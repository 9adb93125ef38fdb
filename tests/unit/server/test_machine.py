"""What a server takes of a machine whose cgroups give it less than there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.cli import checkup
from penstock.config.load import chosen
from penstock.config.settings import Settings
from penstock.server.base.allowed import BASE, Machine, budget_within
from penstock.server.launching import within

MIB = 1 << 20
NO_BOUND = {2: "max", 1: "9223372036854771712"}


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


class Hosted:
    """A machine of 16 GiB in files, whose kernel has one version of cgroups."""

    def __init__(self, folder: Path, version: int, group: str) -> None:
        self.version, self.folder = version, folder
        self.machine = Machine(folder / "proc", folder / "cgroup")
        names = {2: f"0::{group}\n", 1: f"9:name=systemd:/x\n4:memory:{group}\n3:cpu,cpuacct:{group}\n0::/\n"}
        self.write("proc/self/cgroup", names[version])
        self.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def memory(self, group: str, most: str, used: int = 0, idle: int = 0) -> None:
        names = {2: ("", "max", "current", ""), 1: ("memory/", "limit_in_bytes", "usage_in_bytes", "total_")}
        root, bound, usage, prefix = names[self.version]
        place = f"cgroup/{root}{group}/memory"
        self.write(f"{place}.{bound}", f"{most}\n")
        self.write(f"{place}.{usage}", f"{used}\n")
        self.write(f"{place}.stat", f"anon 5\n{prefix}inactive_file {idle}\n{prefix}active_file 3\n")

    def quota(self, group: str, quota: int | None, period: int = 100_000) -> None:
        if self.version == 2:
            self.write(f"cgroup/{group}/cpu.max", f"{quota or 'max'} {period}\n")
        else:
            self.write(f"cgroup/cpu/{group}/cpu.cfs_quota_us", f"{quota or -1}\n")
            self.write(f"cgroup/cpu/{group}/cpu.cfs_period_us", f"{period}\n")


@pytest.fixture(params=[1, 2])
def hosted(request: pytest.FixtureRequest, tmp_path: Path) -> Hosted:
    found = Hosted(tmp_path, request.param, "/pods/a")
    if found.version == 1:  # where each controller has a folder of its own or shares one
        (tmp_path / "cgroup" / "cpu").mkdir(parents=True)
    return found


def test_without_a_bound_all_of_the_machine_is_there(hosted: Hosted) -> None:
    assert (hosted.machine.cores(), hosted.machine.memory_most(), hosted.machine.memory_left()) == (
        16,
        None,
        8192 * MIB,
    )
    hosted.memory("pods/a", NO_BOUND[hosted.version])
    hosted.quota("pods/a", None)
    assert (hosted.machine.cores(), hosted.machine.memory_most(), hosted.machine.memory_left()) == (
        16,
        None,
        8192 * MIB,
    )


def test_the_tightest_of_a_group_and_those_above_it_counts(hosted: Hosted) -> None:
    hosted.memory("pods/a", f"{1024 * MIB}", used=600 * MIB, idle=200 * MIB)
    hosted.quota("pods/a", 800_000)
    assert (hosted.machine.cores(), hosted.machine.memory_most(), hosted.machine.memory_left()) == (
        8,
        1024 * MIB,
        624 * MIB,
    )
    hosted.memory("pods", f"{768 * MIB}", used=700 * MIB)
    hosted.quota("pods", 250_000)
    assert (hosted.machine.cores(), hosted.machine.memory_most(), hosted.machine.memory_left()) == (
        2,
        768 * MIB,
        68 * MIB,
    )


def test_a_quota_of_less_than_a_core_is_one(hosted: Hosted) -> None:
    hosted.quota("pods/a", 50_000)
    assert hosted.machine.cores() == 1


def test_in_a_container_the_own_group_may_be_the_root_that_it_sees(hosted: Hosted) -> None:
    """Its name is told as the machine knows it, where the names of groups are not its own."""
    hosted.memory(".", f"{512 * MIB}")
    hosted.quota(".", 400_000)
    assert (hosted.machine.cores(), hosted.machine.memory_most()) == (4, 512 * MIB)


@pytest.mark.parametrize("text", ["", "nonsense", "0::relative/../path\n", "1:memory:/../..\n0::/../..\n"])
def test_what_tells_nothing_bounds_nothing(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path / "proc", tmp_path / "cgroup")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(text)
    assert (machine.cores(), machine.memory_most(), machine.memory_left()) == (16, None, None)


@pytest.mark.parametrize(
    ("most", "budget", "taken"),
    [
        (None, 512, 512),
        (2048, 512, 512),
        (1024, 512, 512),
        (768, 512, 384),
        (512, 512, 213),
        (512, 64, 64),
        (128, 64, 8),
    ],
)
def test_a_budget_leaves_room_in_its_group_for_all_else(most: int | None, budget: int, taken: int) -> None:
    assert budget_within(None if most is None else most * MIB, budget * MIB) == taken * MIB


def test_a_server_takes_what_its_group_has_room_for_and_says_so() -> None:
    settings = Settings.model_validate({"server": {"memory": "1GiB"}}).with_origins(
        {"server.memory": "penstock.toml:3"}
    )
    taken = within((512 * MIB, "its cgroup may have"), settings)
    assert taken.server.memory == 213 * MIB
    assert ("server.memory", "213 MiB", "its cgroup may have 512 MiB; 1 GiB by penstock.toml:3") in [
        (name, value.strip('"'), origin) for name, value, origin in chosen(taken)
    ]
    assert within((4096 * MIB, "its cgroup may have"), settings) is settings
    assert within(None, settings) is settings


def test_a_budget_that_the_machine_does_not_have_is_bounded_by_it(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: {4 << 20} kB\n")
    machine = Machine(tmp_path, tmp_path / "cgroup")
    assert machine.bound(4 << 30) is None
    settings = Settings.model_validate({"server": {"memory": "100GiB"}})
    taken = within(machine.bound(settings.server.memory), settings)
    assert taken.server.memory == ((4 << 30) - BASE) * 2 // 3 >> 20 << 20
    assert "the machine has 4 GiB; 100 GiB by default" in [origin for _, _, origin in chosen(taken)]


def test_doctor_looks_at_the_group_as_well(hosted: Hosted) -> None:
    assert checkup.memory(512 * MIB, hosted.machine) == ("memory", "good", "8 GiB available, budget 512 MiB", "")
    hosted.memory("pods/a", f"{512 * MIB}", used=112 * MIB)
    assert checkup.memory(512 * MIB, hosted.machine) == (
        "memory",
        "poor",
        "400 MiB available, budget 512 MiB, of which 213 MiB are taken: its cgroup may have 512 MiB",
        "raise that limit, or lower server.memory to what is taken",
    )
    assert checkup.memory(64 * MIB, hosted.machine).verdict == "good"
