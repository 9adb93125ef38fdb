"""Every kind of file of the data folder meets every kind of damage, on real files: named or repaired, nothing deleted.

Of each kind the first, the last or one between them is damaged, each in a third of the ways, with `PENSTOCK_EFFORT`
all in all ways.  And bits that flip anywhere: 80, with `PENSTOCK_EFFORT` 200 times as many as it says.
`PENSTOCK_SEED` chooses others.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest

from damage import MENU, Folder, Verdict, built, damage, gathered, judged, kind_of, spread, start
from penstock.log.disk import OsDisk, OsFile
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.segment import rewrite_name
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from penstock.testing.instance import FakeClock
from sim.judge import T0
from sim.upkeep_house import House

SEED = int(os.environ.get("PENSTOCK_SEED", "0")) or 20
OPTIONAL = ("cut tail", "unfinished index", "unfinished checkpoint", "unfinished rewriting", "reserve")
"""Kinds that not every folder has."""
KINDS = ("open segment", "closed segment", "compacted segment", "checkpoint", "index", "stage", "lock", *OPTIONAL)
DERIVED = {"index", "stage", "lock", *OPTIONAL}
"""Kinds of which no queue and no state depends."""


class ReadOnly(OsDisk):
    """A real folder with one file that may not be written, whoever asks."""

    protected = ""

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> OsFile:
        if name == self.protected and not readonly:
            raise PermissionError(13, "Permission denied", name)
        return super().open(name, create=create, readonly=readonly)


@pytest.fixture(scope="module")
def folders() -> dict[bool, Folder]:
    """One that was stopped in peace, and one that was killed."""
    return {clean: built(clean) for clean in (True, False)}


def names_of(folder: Folder, kind: str) -> list[str]:
    return [name for name in sorted(folder.files) if kind_of(name, folder.files) == kind]


def some(names: list[str], turn: int, chance: random.Random, effort: int) -> list[str]:
    """Of files of one kind the first, the last and one between them in turn; all, where there is time."""
    if effort > 1 or len(names) < 2:
        return names
    return [(names[0], chance.choice(names[1:-1] or names), names[-1])[turn % 3]]


def start_damaged(path: Path, folder: Folder, files: dict[str, bytes], name: str, *, read_only: bool) -> Verdict:
    """Start on these files, and judge what every start must keep to."""
    disk = spread(files, path)
    if read_only:
        disk = ReadOnly(path)
        disk.protected = name
    verdict = start(disk, folder)
    judged(files, gathered(path), name, folder, verdict)
    return verdict


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", MENU)
def test_the_menu_of_damage(tmp_path: Path, folders: dict[bool, Folder], effort: int, kind: str, what: str) -> None:
    seen = 0
    for clean, folder in folders.items():
        turn = KINDS.index(kind) + MENU.index(what) + clean
        names = some(names_of(folder, kind), turn, random.Random(f"{SEED} {kind} {what}"), effort)
        for number, name in enumerate(names):
            files = dict(folder.files)
            damage(files, name, what, random.Random(f"{kind} {what} {number}"))
            place = tmp_path / f"{clean}{number}"
            verdict = start_damaged(place, folder, files, name, read_only=what == "read-only")
            seen += 1
            unchanged = files.items() >= folder.files.items() and what in ("swapped", "read-only")
            if kind in DERIVED or unchanged:
                assert not verdict.refused or kind == "open segment"
                assert not verdict.unreadable
                assert not verdict.lost_tail
            if kind == "checkpoint" and files.get(name) != folder.files[name]:
                assert not verdict.refused, "a checkpoint only saves time"
            if "segment" in kind and what == "missing" and name != min(names_of(folder, kind)):
                assert verdict.refused, "a gap in the log"
    assert seen or kind in OPTIONAL


def test_bits_that_flip(tmp_path: Path, folders: dict[bool, Folder], effort: int) -> None:
    chance = random.Random(SEED)
    outcomes = {"refused": 0, "unreadable": 0, "tail": 0, "harmless": 0}
    for number in range(40 if effort == 1 else 200 * effort):
        folder = folders[chance.random() < 0.5]
        files = dict(folder.files)
        kind = chance.choice([kind for kind in KINDS if any(files[name] for name in names_of(folder, kind))])
        name = chance.choice([name for name in names_of(folder, kind) if files[name]])
        data = bytearray(files[name])
        bit = chance.randrange(8 * len(data))
        data[bit >> 3] ^= 1 << (bit & 7)
        files[name] = bytes(data)
        place = tmp_path / str(number)
        try:
            verdict = start_damaged(place, folder, files, name, read_only=False)
        except AssertionError as error:
            error.add_note(f"PENSTOCK_SEED={SEED}, flip {number}: bit {bit} of {name}, a {kind}, clean {folder.clean}")
            raise
        if kind in DERIVED or kind == "checkpoint":
            assert not verdict.unreadable
            assert not verdict.refused
        outcome = "refused" if verdict.refused else "unreadable" if verdict.unreadable else "tail"
        outcomes[outcome if verdict.refused or verdict.unreadable or verdict.lost_tail else "harmless"] += 1
        for path in sorted(place.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    assert min(outcomes["refused"], outcomes["unreadable"], outcomes["harmless"]) > 0, outcomes


def cut_short(folder: Folder) -> tuple[dict[str, bytes], str, str]:
    """A rewriting of two segments that a crash ended after its rename: files, the new one, the old one still there."""
    disk = SimDisk(folder.files)
    log = Log.open(disk, FakeClock(T0), House.log_settings())
    lines = log.segments()
    log.close(clean=False)
    pair = max(itertools.pairwise(lines[:-1]), key=lambda two: sum(one.rows for one in two))
    before = disk.files()
    rewrite(disk, Order(tuple(Old(one.first, one.last, one.generation, one.rows) for one in pair)))
    disk.rename(rewrite_name(pair[0].first), pair[0].name)
    return {**before, pair[0].name: disk.files()[pair[0].name]}, pair[0].name, pair[1].name


def test_an_old_file_stays_until_the_new_one_is_known_to_be_sound(
    tmp_path: Path, folders: dict[bool, Folder], effort: int
) -> None:
    """A crash left both, and a bit of the new one flips: then the old one is the last copy of its rows."""
    chance = random.Random(SEED)
    folder = folders[True]
    files, new, old = cut_short(folder)
    sound = start_damaged(tmp_path / "sound", folder, {k: v for k, v in files.items() if k != old}, "", read_only=False)
    assert not sound.refused
    assert not sound.unreadable
    for number in range(40 * effort):
        data = bytearray(files[new])
        bit = chance.randrange(8 * len(data))
        data[bit >> 3] ^= 1 << (bit & 7)
        damaged = {**files, new: bytes(data)}
        place = tmp_path / str(number)
        disk = spread(damaged, place)
        start(disk, folder)
        kept = files[old] in gathered(place).values()
        assert kept or verify(disk).good, f"bit {bit} of {new}"  # a sum in capital digits says the same
