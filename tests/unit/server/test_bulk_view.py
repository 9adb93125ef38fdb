"""A reader without the lock: what a server lists, up to the durable LSN, whatever becomes of the files meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bulk_lab import Writer, rows
from penstock.errors import LogDamaged
from penstock.history.view import Folder, Listing, Moved, View, listing, stand_alone
from penstock.log.disk import OsDisk
from penstock.log.name_index import build
from penstock.log.rewrite import Old, Order, rewrite
from penstock.records.entries import Control
from penstock.records.kinds import Kind


def test_a_view_shows_what_the_log_shows(writer: Writer) -> None:
    writer.write(200)
    assert len(writer.log.segments()) > 3
    sent = Listing.of(listing(writer.log).plain())  # as it goes through JSON
    view = Folder(OsDisk(writer.folder)).view(sent)
    assert rows(view.batches(0, 1 << 60)) == rows(writer.log.batches(0, 1 << 60))
    assert rows(view.batches(500, 700, ["lsn"])) == rows(writer.log.batches(500, 700, ["lsn"]))
    assert (view.first_lsn, view.durable, view.origin) == (writer.log.first_lsn, writer.log.durable, 77)


def test_a_view_ends_where_it_was_listed_however_the_log_grows(writer: Writer) -> None:
    folder = Folder(OsDisk(writer.folder))
    writer.write(3)
    early = folder.view(listing(writer.log))
    seen = writer.log.durable
    writer.write(100)
    late = folder.view(listing(writer.log))
    assert rows(early.batches(0, 1 << 60, ["lsn"]))[-1] == {"lsn": seen}
    assert rows(late.batches(0, 1 << 60)) == rows(writer.log.batches(0, 1 << 60))


def test_a_listing_of_a_range_holds_the_segments_of_that_range(writer: Writer) -> None:
    writer.write(200)
    names = [place.name for place in listing(writer.log, 900, 901).segments]
    assert len(names) == 1
    view = Folder(OsDisk(writer.folder)).view(listing(writer.log, 900, 901))
    assert rows(view.batches(900, 901, ["lsn"])) == [{"lsn": 900}]


def test_what_is_open_stays_readable_when_the_file_is_replaced_or_deleted(writer: Writer) -> None:
    writer.write(200)
    folder = Folder(OsDisk(writer.folder))
    view = folder.view(listing(writer.log))
    expected = rows(writer.log.batches(0, 1 << 60))
    first, second = (writer.folder / one.name for one in writer.log.segments()[:2])
    content = first.read_bytes()
    other = writer.folder / "other"
    other.write_bytes(b"something else")
    other.replace(first)
    second.rename(second.with_suffix(".gone"))
    assert rows(view.batches(0, 1 << 60)) == expected
    first.write_bytes(content)
    second.with_suffix(".gone").rename(second)


def test_what_the_log_has_deleted_or_joined_is_not_kept_open(writer: Writer) -> None:
    """Its room on the disk is free when nobody has it open any more."""

    def unnamed() -> int:
        links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return sum(link.startswith(str(writer.folder)) and link.endswith("(deleted)") for link in links)

    writer.write(400)
    folder = Folder(OsDisk(writer.folder))
    whole = listing(writer.log)
    folder.view(whole)
    joined = tuple(Old(one.first, one.last, one.generation, one.rows) for one in whole.segments[4:7])
    swap = writer.log.swap(rewrite(OsDisk(writer.folder), Order(joined), lambda _: False))
    swap.prepare()
    swap.enter()
    swap.finish()
    floor = whole.segments[2].first
    writer.log.append([writer.log.base_group(writer.lsn, 0, floor, b"state")])
    writer.log.flush()
    assert len(writer.log.retire(floor)) == 2
    del swap
    assert unnamed() == 5
    last = whole.segments[-1]
    folder.view(listing(writer.log, last.first, last.first + 1))
    assert unnamed() == 3, "what begins before the log does went, whatever was asked for"
    folder.view(listing(writer.log))
    assert unnamed() == 0


def test_a_file_that_is_gone_before_it_was_opened_is_listed_again(writer: Writer) -> None:
    writer.write(200)
    old = listing(writer.log)
    victim = writer.folder / old.segments[1].name
    victim.rename(victim.with_suffix(".gone"))
    with pytest.raises(Moved):
        Folder(OsDisk(writer.folder)).view(old)
    victim.with_suffix(".gone").rename(victim)


def test_segments_that_are_rewritten_meanwhile(writer: Writer) -> None:
    writer.write(200)
    folder = Folder(OsDisk(writer.folder))
    expected = rows(writer.log.batches(0, 1 << 60))
    old = listing(writer.log)
    early = folder.view(old)
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in old.segments[:3])
    swap = writer.log.swap(rewrite(OsDisk(writer.folder), Order(olds), lambda _: False))
    swap.prepare()
    Folder(OsDisk(writer.folder)).view(old)  # the old files are there under their names
    swap.enter()
    with pytest.raises(Moved):  # the server lists the new file, and the name is still the old one's
        Folder(OsDisk(writer.folder)).view(listing(writer.log))
    swap.finish()
    with pytest.raises(Moved):
        Folder(OsDisk(writer.folder)).view(old)
    late = folder.view(listing(writer.log))
    assert len(late.listed.segments) == len(old.segments) - 2
    assert rows(early.batches(0, 1 << 60)) == rows(late.batches(0, 1 << 60)) == expected


@pytest.mark.parametrize("joined", [1, 2])
@pytest.mark.parametrize("seen", [0, 52_000, 1 << 20])
def test_a_segment_that_grew_and_was_rewritten_since_it_was_seen_is_read_anew(
    writer: Writer, joined: int, seen: int
) -> None:
    """seen: bytes after which nobody looks at it any more.

    The file of one batch that it became is shorter than what was seen of it, which passed for all of it: a stream
    of Spark left out what had come between, and so did whatever the bulk child reads.  Or it passed for damage.
    """
    folder = Folder(OsDisk(writer.folder))
    while len(writer.log.segments()) < 3:
        writer.write(1)
        folder.view(listing(writer.log))
    writer.write(5)
    half = folder.view(listing(writer.log))
    grown = half.listed.segments[-1]
    assert not grown.closed
    while writer.log.segments()[-1].name == grown.name:
        if writer.log.segments()[-1].bytes < seen:
            folder.view(listing(writer.log))
        writer.write(1)
    expected = rows(writer.log.batches(0, 1 << 60))
    closed = listing(writer.log).segments
    at = next(at for at, one in enumerate(closed) if one.name == grown.name)
    some = closed[at + 1 - joined : at + 1]
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in some)
    swap = writer.log.swap(rewrite(OsDisk(writer.folder), Order(olds), lambda _: False))
    swap.prepare()
    swap.enter()
    swap.finish()
    late = folder.view(listing(writer.log))
    assert rows(late.batches(0, 1 << 60)) == expected
    assert rows(late.batches(some[-1].first, some[-1].last + 1)) == expected[some[-1].first - 1 : some[-1].last]


def test_a_flipped_bit_is_named_and_not_shown(writer: Writer) -> None:
    writer.write(200)
    listed = listing(writer.log)
    name = listed.segments[1].name
    with open(writer.folder / name, "r+b") as file:
        file.seek(-3000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    view = Folder(OsDisk(writer.folder)).view(listed)
    with pytest.raises(LogDamaged, match=name):
        rows(view.batches(0, 1 << 60))


def test_a_folder_of_another_log_is_refused(writer: Writer, tmp_path: Path) -> None:
    writer.write(1)
    listed = listing(writer.log)._replace(origin=78)
    with pytest.raises(LogDamaged, match="another data folder"):
        Folder(OsDisk(writer.folder)).view(listed)


@pytest.mark.parametrize(("batches", "then"), [(10, 3), (3, 10), (60, 60), (10, 60)])
def test_a_folder_that_was_made_anew_under_its_name_is_another(writer: Writer, batches: int, then: int) -> None:
    """A session of Spark outlives the server that it reads, and the data folder of one that somebody tries out."""

    def of_t1(view: View) -> list[dict[str, object]]:
        return [row for row in rows(view.batches(0, 1 << 60, ["lsn", "name"], "t1")) if row["name"] == "t1"]

    def indexed(one: Writer) -> None:
        for place in listing(one.log).segments:
            if place.closed:
                build(OsDisk(one.folder), place.first)

    writer.write(batches)
    indexed(writer)
    kept = Folder(OsDisk(writer.folder))
    of_t1(kept.view(listing(writer.log)))
    writer.log.close()
    for name in ("log", "index"):
        shutil.rmtree(writer.folder / name, ignore_errors=True)
    other = Writer(writer.folder, origin=78)
    other.lsn += 1
    other.write(then)
    indexed(other)
    view = kept.view(listing(other.log))
    assert rows(view.batches(0, 1 << 60)) == rows(other.log.batches(0, 1 << 60))
    assert of_t1(view) == [row for row in rows(other.log.batches(0, 1 << 60, ["lsn", "name"])) if row["name"] == "t1"]
    other.log.close()


def test_a_folder_without_a_server_is_read_to_its_last_whole_batch(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(200)
    writer.log.append([Control(Kind.VIA, "e", b'{"vhost": "v", "exchange": "e"}', b"", writer.lsn, 7, via=4)])
    writer.log.flush()
    expected = rows(writer.log.batches(0, 1 << 60))
    writer.log.close(clean=False)
    with open(tmp_path / writer.log.segments()[-1].name, "ab") as file:
        file.write(b"\xff\xff\xff\xff torn")
    view: View = stand_alone(OsDisk(tmp_path))
    assert rows(view.batches(0, 1 << 60)) == expected
    assert view.vias.known[4] == ("v", "e")
    view.close()
