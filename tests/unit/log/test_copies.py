"""What is told of folders that should hold copies of one log: what is the same, behind, given up, or wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import command as built
from penstock.errors import InvalidArgument
from penstock.log.copies import Compared, compare
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.replica import Replica
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.writer import LogSettings
from penstock.records.entries import Control, Publishes, Topic
from penstock.records.kinds import Kind
from unit.cli.forging import T0, Still

TERM = 1 << 33
SETTINGS = LogSettings(ahead=0, reserve=0, low_space=0, origin=7)


def write(folder: Path, *commits: list[Control | Publishes], settings: LogSettings = SETTINGS) -> Path:
    """Each is a commit of its own, and claims what the ones before it hold."""
    folder.mkdir(parents=True, exist_ok=True)
    log = Log.open(OsDisk(folder), Still(), settings)
    for entries in commits:
        log.append(entries)
        log.flush()
    log.close(clean=False)
    return folder


def boot(term: int, before: int) -> Control:
    header = json.dumps({"clean": False, "term": term, "member": f"m-{term}", "before": before}).encode()
    return Control(Kind.BOOT, "", header, b"", term * TERM, T0)


def message(lsn: int) -> Publishes:
    return Publishes([Topic("/", "", "a")], [b"\x10\0\x02"], [b"body %d" % lsn], lsn, T0)


def compared(*folders: Path) -> Compared:
    return compare([(one.name, OsDisk(one)) for one in folders])


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A log of term 1 with three messages, of which the last one is claimed by nobody."""
    return write(tmp_path / "first", [boot(1, 0)], *([message(TERM + n)] for n in (1, 2, 3)))


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.with_name(name)))


def test_copies_are_the_same(first: Path) -> None:
    report = compared(first, copied(first, "second"), copied(first, "third"))
    assert not report.wrong
    assert [(one.term, one.last - TERM, one.committed - TERM) for one in report.copies] == [(1, 3, 2)] * 3
    assert all(one.lacks == one.unconfirmed == 0 for one in report.copies)
    assert [(one.term, one.member, one.before) for one in report.terms] == [(1, "m-1", 0)]
    assert report.bytes > 1000


def test_one_that_is_behind_lacks_records_and_nothing_is_wrong(first: Path) -> None:
    behind = copied(first, "behind")
    write(first, [message(TERM + 4)], [message(TERM + 5)])
    report = compared(behind, first)
    assert not report.wrong
    assert [one.lacks for one in report.copies] == [2, 0]


def test_what_a_former_leader_alone_has_was_never_confirmed(first: Path) -> None:
    former = copied(first, "former")
    write(former, [message(TERM + 4)])  # it claims the one before
    write(first, [boot(2, TERM + 3)], [message(2 * TERM + 1)])
    report = compared(former, first)
    assert not report.wrong
    [former_copy, _] = report.copies
    assert (former_copy.parts_at, former_copy.unconfirmed, former_copy.lacks) == (TERM + 4, 1, 2)
    assert [one.term for one in report.terms] == [1, 2]


def test_what_its_leader_claims_to_be_committed_must_be_in_the_newest(first: Path) -> None:
    former = copied(first, "former")
    write(former, [message(TERM + 4)], [message(TERM + 5)])
    write(first, [boot(2, TERM + 3)], [message(2 * TERM + 1)])
    [(said, lsns)] = compared(former, first).wrong
    assert f"former says that all up to LSN {TERM + 4} was committed" in said
    assert lsns == [TERM + 4, TERM + 4]


def test_what_a_leader_found_and_claims_by_its_own_disk_is_no_proof(first: Path) -> None:
    """Its boot record claims what lay before it on its own disk; it was over before the others had that."""
    lost = copied(first, "lost")
    write(lost, [message(TERM + 4)])
    write(lost, [boot(2, TERM + 4)])
    write(first, [boot(3, TERM + 3)], [message(3 * TERM + 1)])
    report = compared(lost, first)
    assert not report.wrong
    assert report.copies[0].unconfirmed == 2


def test_the_mark_of_a_closed_file_tells_what_its_own_disk_has_and_no_other(first: Path) -> None:
    """A leader may begin another file before the others have all of the one before."""
    small = LogSettings(ahead=0, reserve=0, low_space=0, origin=7, segment=1)
    former = copied(first, "former")
    write(former, [message(TERM + 4)], settings=small)
    write(former, [message(TERM + 5)], settings=small)
    former_log = sorted((former / "log").glob("*.arrows"))
    assert len(former_log) >= 2
    for one in former_log[2:]:
        one.unlink()
    write(first, [boot(2, TERM + 3)], [message(2 * TERM + 1)])
    report = compared(former, first)
    assert not report.wrong
    assert report.copies[0].committed < TERM + 4


def test_a_flipped_bit_is_found(first: Path) -> None:
    other = copied(first, "other")
    [file] = (other / "log").glob("*.arrows")
    data = bytearray(file.read_bytes())
    data[data.index(b"body %d" % (TERM + 2))] ^= 1
    file.write_bytes(data)
    [(said, lsns)] = compared(first, other).wrong
    assert lsns[0] == TERM + 2
    assert "something else" in said


def test_what_was_cut_is_read(first: Path) -> None:
    former = copied(first, "former")
    write(former, [message(TERM + 4)])
    replica = Replica(OsDisk(former), 7)
    replica.cut(TERM + 3)
    replica.close()
    write(first, [boot(2, TERM + 3)])
    report = compared(former, first)
    assert not report.wrong
    [kept] = report.copies[0].kept
    assert (kept.first, kept.last, kept.rows) == (TERM + 4, TERM + 4, 1)


def test_other_logs_are_no_copies(first: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [boot(1, 0)], settings=LogSettings(ahead=0, reserve=0, low_space=0, origin=8))
    [(said, _)] = compared(first, other).wrong
    assert "holds another log: it is of origin 8" in said
    (tmp_path / "empty/log").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="empty holds no log"):
        compared(first, tmp_path / "empty")


def test_the_command_tells_it(first: Path) -> None:
    former = copied(first, "former")
    write(former, [message(TERM + 4)])
    write(first, [boot(2, TERM + 3)])
    done = CliRunner().invoke(built("audit"), ["audit", "--members", str(first), str(former)])
    assert done.exit_code == 0, done.output
    assert "was never confirmed" in done.output
    write(former, [message(TERM + 5)])
    done = CliRunner().invoke(built("audit"), ["audit", "--members", str(first), str(former), "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["findings"][0]["lsns"] == [TERM + 4, TERM + 4]
    assert [one["unconfirmed"] for one in told["copies"]] == [0, 2]


def test_of_a_rewritten_file_the_rows_that_both_have_are_compared(tmp_path: Path) -> None:
    settings = LogSettings(ahead=0, reserve=0, low_space=0, origin=7, segment=2048)
    commits = [[message(TERM + n)] for n in range(1, 9)]
    folder = write(tmp_path / "first", [boot(1, 0)], *commits, settings=settings)
    other = copied(folder, "other")
    log = Log.open(OsDisk(other), Still(), settings)
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in log.segments()[1:4])
    exchange = log.swap(rewrite(log.disk, Order(olds)))
    exchange.prepare()
    exchange.enter()
    exchange.finish()
    log.close(clean=False)
    for one, another in ((folder, other), (other, folder)):
        report = compared(one, another)
        assert not report.wrong
        assert report.records >= 3
