"""What is read of `cut/` to be published again: what the log lacks alone, where it went, and nothing damaged."""

from __future__ import annotations

from pathlib import Path
from random import Random

import orjson
import pytest

from penstock.cli.republishing import Tails
from penstock.errors import NotFound
from penstock.log.disk import OsDisk
from penstock.records.entries import Control, Group, Topic
from penstock.records.kinds import Kind
from penstock.replication.register import ClusterState, Member, Tenure
from sim.logkit import SMALL, T0, commit, messages, opened

AUDIT = Topic("shop", "audit", "paid", 3)
FILE = "00000000000000000001.arrows-0-0"
STATE = ClusterState(
    "c", 7, term=2, ceiling=2000, members={"a": Member("a", "a:1", 1)},
    terms=(Tenure(1, 1, 4), Tenure(2, 1000, None)),
)  # fmt: skip
"""The second leader found records up to LSN 4."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder whose one cut file has LSNs 1 to 9, of which 7 is a dead letter."""
    disk = OsDisk(tmp_path / "was")
    log = opened(disk, SMALL)
    commit(log, messages(1, b"a", b"b", b"c"))
    said = orjson.dumps({"vhost": "shop", "exchange": "audit", "bcc": ["secret"]})
    via = Control(Kind.VIA, "", said, b"", 4, T0, via=3)
    commit(log, via)
    commit(log, messages(5, b"d", topic=AUDIT))
    expired = Control(Kind.EXPIRE, "orders", b'{"reason": "rejected", "dead": [[2, 7]]}', bytes(8), 6, T0)
    commit(log, Group([expired, messages(7, b"dead")]))
    commit(log, messages(8, b"e", b"f"))
    log.close()
    [segment] = (tmp_path / "was" / "log").glob("*.arrows")
    (tmp_path / "cut").mkdir()
    segment.rename(tmp_path / "cut" / FILE)
    return tmp_path


def read(folder: Path, known: dict[int, tuple[str, str, tuple[str, ...]]] | None = None) -> list[tuple[int, object]]:
    tails = Tails(folder, STATE, [])
    return [(said.lsn, place) for _, some in tails.each(known or {}) for said, place in some]


def test_only_what_the_log_goes_on_without_is_published_and_where_it_was(folder: Path) -> None:
    here = ("/", "", ())
    assert read(folder) == [(5, ("shop", "audit", ("secret",))), (8, here), (9, here)]
    tails = Tails(folder, STATE, [])
    for _, some in tails.each({}):
        assert len(list(some)) == 3
    [one] = tails.lost
    assert (one.messages, one.there, one.made, one.expired) == (3, 3, 1, 0)
    with pytest.raises(NotFound, match="no file 'other'"):
        Tails(folder, STATE, ["other"])


def test_the_same_records_kept_twice_are_published_once(folder: Path) -> None:
    content = (folder / "cut" / FILE).read_bytes()
    (folder / "cut" / FILE.replace("-0-0", "-0-1")).write_bytes(content)
    assert [lsn for lsn, _ in read(folder)] == [5, 8, 9]


def test_an_exchange_that_no_record_of_the_tail_names_is_the_logs(folder: Path) -> None:
    there = {3: ("other", "of the log", ())}
    assert read(folder, there)[0] == (5, ("shop", "audit", ("secret",))), "what the tail says is newer"


def test_a_file_that_is_marked_stays_so(folder: Path) -> None:
    tails = Tails(folder, STATE, [])
    [one] = tails.lost
    assert not tails.is_marked(one)
    tails.mark(one)
    again = Tails(folder, STATE, [])
    assert [again.is_marked(one) for one in again.lost] == [True]


@pytest.mark.parametrize("seed", range(6))
def test_of_a_damaged_file_what_is_before_the_damage_comes(folder: Path, seed: int) -> None:
    rng, path = Random(seed), folder / "cut" / FILE
    whole, content = read(folder), bytearray(path.read_bytes())
    if rng.random() < 0.4:
        del content[rng.randrange(len(content)) :]
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    found = read(folder)
    assert found == whole[: len(found)]
