"""A reader of a follower's copy: rows up to what is committed, whatever is being written behind it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bulk_lab import Writer, rows
from penstock.errors import Unavailable
from penstock.history.copied import Copied, Copy
from penstock.history.view import listing
from penstock.log.disk import OsDisk
from penstock.log.rewrite import Old, Order, rewrite
from penstock.records.entries import Control
from penstock.records.kinds import Kind

ALL = 1 << 60


def copied(writer: Writer) -> Copied:
    return Copied(OsDisk(writer.folder))


def test_a_copy_shows_what_the_log_shows_up_to_what_is_committed(writer: Writer) -> None:
    writer.write(200)
    assert len(writer.log.segments()) > 3
    upto = writer.log.segments()[-1].first - 7  # in a segment that is closed
    copy = copied(writer)
    view = copy.view(1, Copy(upto))
    assert rows(view.batches(0, ALL)) == rows(writer.log.batches(0, upto + 1))
    assert (view.origin, view.durable, view.first_lsn) == (77, upto, writer.log.first_lsn)
    assert rows(copy.view(500, Copy(upto)).batches(500, 700)) == rows(writer.log.batches(500, 700))


def test_a_copy_grows_and_earlier_views_stay_as_they_were(writer: Writer) -> None:
    copy = copied(writer)
    writer.write(3)
    early, seen = copy.view(1, Copy(writer.log.durable)), writer.log.durable
    for _ in range(20):
        writer.write(10)
        late = copy.view(1, Copy(writer.log.durable))
    assert rows(early.batches(0, ALL, ["lsn"]))[-1] == {"lsn": seen}
    assert rows(late.batches(0, ALL)) == rows(writer.log.batches(0, ALL))


def test_a_torn_tail_behind_what_is_committed_is_not_looked_at(writer: Writer) -> None:
    writer.write(3)
    upto, last = writer.log.durable, listing(writer.log).segments[-1]
    with (writer.folder / last.name).open("r+b") as file:
        file.seek(last.end)
        file.write(b"\xff\xff\xff\xff\x80\0\0\0 half of a batch")
    copy = copied(writer)
    assert rows(copy.view(1, Copy(upto)).batches(0, ALL)) == rows(writer.log.batches(0, ALL))
    with pytest.raises(Unavailable, match="cannot be read now"):
        copy.view(1, Copy(upto + 1))


def test_what_the_files_do_not_have_is_refused_and_not_left_out(writer: Writer) -> None:
    writer.write(200)
    copy, upto = copied(writer), writer.log.durable
    with pytest.raises(Unavailable, match="cannot be read now"):
        copy.view(1, Copy(upto + 1))
    assert rows(copy.view(1, Copy(upto)).batches(0, ALL)) == rows(writer.log.batches(0, ALL))
    victim = writer.folder / writer.log.segments()[-2].name
    victim.rename(victim.with_suffix(".gone"))
    with pytest.raises(Unavailable):
        copied(writer).view(1, Copy(writer.log.segments()[-2].last))
    victim.with_suffix(".gone").rename(victim)


def test_files_that_were_written_anew_are_read_instead(writer: Writer) -> None:
    writer.write(200)
    copy, upto, expected = copied(writer), writer.log.durable, rows(writer.log.batches(0, ALL))
    early = copy.view(1, Copy(upto))
    assert copy.begins(Copy(upto)) == writer.log.first_lsn
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in writer.log.segments()[:3])
    swap = writer.log.swap(rewrite(OsDisk(writer.folder), Order(olds), lambda _: False))
    swap.prepare()
    swap.enter()
    between = copy.view(1, Copy(upto))  # the new file and those that it stands for are there
    swap.finish()
    late = copy.view(1, Copy(upto))
    assert rows(early.batches(0, ALL)) == rows(between.batches(0, ALL)) == rows(late.batches(0, ALL)) == expected


def replace(writer: Writer, number: int, floor: int) -> int:
    """The last LSN of a segment that is written anew without its first rows; its other rows stay."""
    one = writer.log.segments()[number]
    keep = np.array([[one.first + 5, one.last + 1]], "<i8").tobytes()
    order = Order((Old(one.first, one.last, one.generation, one.rows),), keep, floor)
    swap = writer.log.swap(rewrite(OsDisk(writer.folder), order, lambda _: False))
    swap.prepare()
    swap.enter()
    swap.finish()
    return one.last


def test_a_copy_begins_behind_the_last_segment_that_lost_rows(writer: Writer) -> None:
    writer.write(200)
    copy, upto = copied(writer), writer.log.durable
    assert copy.begins(Copy(upto)) == writer.log.first_lsn
    last = replace(writer, 0, 1)
    assert copy.begins(Copy(upto)) == copied(writer).begins(Copy(upto)) == writer.log.whole_from == last + 1
    last = replace(writer, 1, 1)
    assert copy.begins(Copy(upto)) == writer.log.whole_from == last + 1


@pytest.mark.parametrize("looked", [True, False])
def test_a_file_that_has_the_inode_of_one_that_went_is_read_anew(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    writer.write(200)
    copy, upto = copied(writer), writer.log.durable
    name = writer.folder / writer.log.segments()[0].name
    assert copy.begins(Copy(upto)) == writer.log.first_lsn
    reused = name.stat()
    last = replace(writer, 0, 1)
    if looked:
        assert copy.begins(Copy(upto)) == last + 1
    new = name.stat().st_ino

    class Entry:
        """One of the folder's, where the new file got the inode of the old one."""

        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self._entry = entry.name, entry

        def inode(self) -> int:
            return self.stat().st_ino

        def stat(self) -> os.stat_result:
            found = self._entry.stat()
            return os.stat_result((*found[:1], reused.st_ino, *found[2:])) if found.st_ino == new else found

    listed = os.scandir

    @contextmanager
    def scandir(path: Path) -> Generator[Iterator[Entry]]:
        with listed(path) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr("penstock.history.copied.os.scandir", scandir)
    assert copy.begins(Copy(upto)) == last + 1


def test_a_copy_of_another_state_is_read_anew(writer: Writer) -> None:
    writer.write(200)
    copy, upto = copied(writer), writer.log.durable
    copy.view(1, Copy(upto, (1,)))
    last = writer.folder / writer.log.segments()[-1].name
    content = last.read_bytes()
    with last.open("r+b") as file:  # cut, in the same file
        file.truncate(listing(writer.log).segments[-1].end - 500)
    with pytest.raises(Unavailable):
        copy.view(1, Copy(upto, (2,)))
    last.write_bytes(content)
    assert rows(copy.view(1, Copy(upto, (2,))).batches(0, ALL)) == rows(writer.log.batches(0, ALL))


def test_exchanges_are_known_by_the_records_there_are(writer: Writer) -> None:
    copy = copied(writer)
    writer.write(3)
    assert 4 not in copy.view(1, Copy(writer.log.durable)).vias.known
    writer.log.append([Control(Kind.VIA, "e", b'{"vhost": "v", "exchange": "e"}', b"", writer.lsn, 7, via=4)])
    writer.log.flush()
    upto = writer.log.durable
    assert copy.view(upto, Copy(upto)).vias.known[4] == ("v", "e")
