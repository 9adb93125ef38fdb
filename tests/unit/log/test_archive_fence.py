"""An archive of several members is written by the newest leader alone, at whatever step an older one wakes up."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.errors import PreconditionFailed
from penstock.log.archive.manifest import Manifest, commit, read
from penstock.log.disk import OsDisk
from penstock.server.cluster.shared_archive import take, terms, token_of


def test_who_took_it_last_writes(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    first = take(tmp_path, 3)
    commit(disk, Manifest(7, 1), first)
    second = take(tmp_path, 5)
    assert terms(tmp_path) == [5]
    with pytest.raises(OSError, match="No such file"):
        commit(disk, Manifest(7, 9), first)
    commit(disk, Manifest(7, 2), second)
    with pytest.raises(PreconditionFailed, match="the leader of term 5 has the archive"):
        take(tmp_path, 4)
    assert terms(tmp_path) == [5]
    found = read(disk)
    assert found is not None
    assert found.number == 2
    assert take(tmp_path, 5) == second, "a start that was cut short"


def test_what_an_older_one_had_begun_goes(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    first = take(tmp_path, 1)
    (tmp_path / first / "manifest.json.part").write_bytes(b"half of it")
    second = take(tmp_path, 2)
    commit(disk, Manifest(7, 1), second)
    assert list((tmp_path / second).iterdir()) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_that_wakes_up_at_any_step_changes_nothing(tmp_path: Path, seed: int) -> None:
    """Its steps: the part is written, and moved; others take the archive in between."""
    rng, disk, written = Random(seed), OsDisk(tmp_path), 0
    sleepers = list[tuple[int, str]]()
    for term in range(1, 9):
        lead = take(tmp_path, term)
        if rng.random() < 0.5:
            written += 1
            commit(disk, Manifest(term, written), lead)
        if rng.random() < 0.5:
            (tmp_path / lead / "manifest.json.part").write_bytes(Manifest(99, 99).encode())
        sleepers.append((term, lead))
        for old, name in rng.sample(sleepers, len(sleepers)):
            if old < term:
                with pytest.raises(OSError, match="No such file"):
                    (tmp_path / name / "manifest.json.part").rename(tmp_path / "manifest.json")
                with pytest.raises(PreconditionFailed):
                    take(tmp_path, old)
        found = read(disk)
        assert (0 if found is None else found.number) == written
        assert terms(tmp_path) == [term]


def test_an_archive_has_one_token(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    token = token_of(tmp_path / "a")
    assert token_of(tmp_path / "a") == token != token_of(tmp_path / "b")
    assert [one.name for one in (tmp_path / "a").iterdir()] == [".shared"]
