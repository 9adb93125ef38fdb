"""A follower's copy is the leader's log, byte by byte, whatever dies in between and however the bytes are cut."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random

import pytest

from choices import spread
from penstock.errors import ProtocolError
from penstock.log.log import Log
from penstock.log.mending import cut_files
from penstock.log.replica import Beside, Replica
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.segment import header_in
from penstock.log.simdisk import SimDisk
from penstock.ports import File
from penstock.replication.messages import SegmentFile
from penstock.server.cluster.log_sending import Gone, Place, next_piece
from sim.logkit import SMALL, Steps, commit, content, messages, opened

SETTINGS = replace(SMALL, segment=6000)


class Leader:
    """A log that grows, is closed, killed and opened again."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.disk = SimDisk()
        self.log = opened(self.disk, SETTINGS)

    def go_on(self) -> None:
        """A commit, or now and then another start."""
        if self.rng.random() < 0.1:
            if self.rng.random() < 0.5:
                self.log.close()
            else:
                self.disk.kill()
            self.log = opened(self.disk, SETTINGS)
        first = max(self.log.appended + 1, self.log.recovery.next_lsn)
        bodies = [self.rng.randbytes(self.rng.randint(0, 900)) for _ in range(self.rng.randint(1, 4))]
        commit(self.log, messages(first, *bodies))

    def files(self) -> list[SegmentFile]:
        """What may be sent."""
        segments = self.log._catalog.segments
        sizes = [one.file.size() for one in segments[:-1]] + [segments[-1].end]
        pairs = zip(segments, sizes, strict=True)
        return [SegmentFile(one.first, one.last, size, one.header.identity) for one, size in pairs]

    def send(self, replica: Replica, place: Place, most: int) -> Place | None:
        """Send what comes at a place; where the next begins."""
        piece = next_piece(place, self.files())
        if piece is None:
            return None
        size = min(piece.size, most)
        data = self.disk.open(f"log/{piece.segment:020d}.arrows", readonly=True).pread(size, piece.offset)
        replica.write(piece.segment, piece.offset, data)
        return Place(piece.segment, piece.offset + size)

    def level(self, replica: Replica, most: int = 1 << 20) -> None:
        """Send all there is."""
        files = self.files()
        at: Place | None = Place(*replica.place) if replica.place != (0, 0) else Place(files[0].first, 0)
        while at is not None:
            at = self.send(replica, at, most)
        replica.sync()


def ahead(seed: int) -> Beside:
    """Every other copy writes zeros ahead."""
    return Beside(ahead=700 * (seed % 2))


def same(leader: Leader, disk: SimDisk) -> bool:
    """Whether a copy has the leader's files and each batch at its place; the mark that closes a file may be torn."""
    ours, theirs = leader.disk.files(), disk.files()
    for segment in leader.log._catalog.segments:
        end = segment.offsets[-1] + segment.lengths[-1]
        if theirs[segment.name][:end] != ours[segment.name][:end]:
            return False
    return len(theirs.keys() & ours.keys()) == len(leader.log._catalog.segments)


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_is_the_same_bytes_at_the_same_places(seed: int) -> None:
    rng = Random(seed)
    leader, disk = Leader(rng), SimDisk()
    replica = Replica(disk, 0, ahead(seed))
    for _ in range(30):
        leader.go_on()
        if rng.random() < 0.7:
            leader.level(replica, rng.choice((7, 64, 1000, 1 << 20)))
    leader.level(replica)
    assert same(leader, disk)
    assert replica.synced == leader.log.appended
    assert len(leader.files()) > 3, "files were closed"
    disk.kill()
    assert content(opened(disk, SETTINGS)) == content(leader.log)


@pytest.mark.parametrize("seed", range(14))
def test_a_power_cut_at_any_step_leaves_a_copy_that_goes_on(seed: int) -> None:
    rng = Random(seed)
    leader, disk = Leader(rng), Steps(seed)
    for _ in range(20):
        leader.go_on()
    replica = Replica(disk, 0, ahead(seed))
    safe = 0
    for _ in range(6):
        disk.last = disk.step + rng.randint(1, 40)
        try:
            leader.level(replica, rng.choice((100, 3000, 1 << 20)))
            safe = replica.synced
        except OSError:
            safe = max(safe, replica.synced)
        disk.last = -1
        disk.crash()
        replica = Replica(disk, leader.log.origin, ahead(seed))
        assert replica.last >= safe, "what it acked is there"
        leader.go_on()
    leader.level(replica)
    assert same(leader, disk)
    disk.kill()
    assert content(opened(disk, SETTINGS)) == content(leader.log)


def test_a_stream_that_breaks_off_anywhere_is_gone_on_with() -> None:
    rng = Random(5)
    leader, disk = Leader(rng), SimDisk()
    for _ in range(12):
        leader.go_on()
    replica, first = Replica(disk, 0), leader.files()[0].first
    at: Place | None = Place(first, 0)
    breaks = 0
    while at is not None:
        at = leader.send(replica, at, rng.randint(1, 900))
        if at is not None and rng.random() < 0.3:
            breaks += 1
            if rng.random() < 0.5:
                replica.drop_part()
            else:
                disk.kill()
                replica = Replica(disk, leader.log.origin)
            at = Place(*replica.place) if replica.place != (0, 0) else Place(first, 0)
    assert breaks > 5
    assert content(opened_copy(disk)) == content(leader.log)


def opened_copy(disk: SimDisk) -> Log:
    disk.kill()
    return opened(disk, SETTINGS)


def test_bytes_that_cannot_stand_there_are_refused_and_change_nothing_that_counts() -> None:
    rng = Random(11)
    leader = Leader(rng)
    for _ in range(10):
        leader.go_on()
    files = leader.files()
    refused = 0
    for _ in range(300):
        data = bytearray(leader.disk.files()[f"log/{files[-1].first:020d}.arrows"][: files[-1].bytes])
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        replica, at = Replica(SimDisk(), 0), Place(files[0].first, 0)
        while at.segment != files[-1].first and (piece := next_piece(at, files)) is not None:
            if piece.segment == files[-1].first:
                break
            following = leader.send(replica, at, 1 << 20)
            assert following is not None
            at = following
        try:
            replica.write(files[-1].first, 0, bytes(data))
        except ProtocolError:
            refused += 1
        replica.drop_part()  # a batch that claims to be longer is still to come
        last = [one for one in content(leader.log) if one[0] <= replica.last]
        leader.level(replica)
        assert replica.last == leader.log.appended
        assert last == content(leader.log)[: len(last)]
    assert refused > 250


def test_bytes_of_another_place_or_log_are_refused() -> None:
    leader, other = Leader(Random(1)), Leader(Random(2))
    for _ in range(10):
        leader.go_on()
        other.go_on()
    disk = SimDisk()
    replica = Replica(disk, 0)
    first = leader.files()[0].first
    with pytest.raises(ProtocolError, match="came, and 0 of"):
        replica.write(first, 8, b"x" * 8)
    assert leader.send(replica, Place(first, 0), 3000) is not None
    with pytest.raises(ProtocolError, match="was next"):
        replica.write(first, 0, b"x" * 8)
    with pytest.raises(ProtocolError, match="was next"):
        replica.write(leader.files()[1].first, 0, b"x" * 8)


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_takes_what_lies_above_and_keeps_it_aside(seed: int) -> None:
    rng = Random(seed)
    leader, disk = Leader(rng), Steps(seed)
    ends = [0]
    for _ in range(25):
        leader.go_on()
        ends.append(leader.log.appended)
    whole = content(leader.log)
    replica = Replica(disk, 0, ahead(seed))
    leader.level(replica)
    at = rng.choice(ends)
    disk.last = disk.step + rng.randint(1, 30)
    try:
        replica.cut(at)
    except OSError:
        disk.last = -1
        disk.crash()
        replica = Replica(disk, leader.log.origin, ahead(seed))
        assert replica.last in (at, ends[-1]), "all of the cut or nothing of it"
        replica.cut(at)
    disk.last = -1
    assert replica.last == at
    if at < ends[-1]:
        kept = cut_files(disk)
        cut = [lsn for lsn, _ in whole if lsn > at]
        count = sum(one.records for one in kept)
        assert count == sum(one.messages for one in kept) >= len(cut), "twice, if it died over it"
        assert (min(one.first for one in kept if one.records), max(one.last for one in kept)) == (cut[0], cut[-1])
    leader.level(replica)
    assert same(leader, disk)
    assert content(opened_copy(disk)) == whole


def test_marks_behind_the_last_batch_go_without_being_kept() -> None:
    """Another leader need not have written them: it goes on where the last batch ends."""
    leader, disk = Leader(Random(3)), SimDisk()
    for _ in range(8):
        leader.go_on()
    leader.log.close()
    size = leader.disk.files()[f"log/{leader.files()[-1].first:020d}.arrows"]
    replica = Replica(disk, 0)
    files = leader.files()
    whole = [*files[:-1], files[-1]._replace(bytes=leader.log._appender._offset)]
    at: Place | None = Place(files[0].first, 0)
    while at is not None and (piece := next_piece(at, whole)) is not None:
        data = leader.disk.open(f"log/{piece.segment:020d}.arrows", readonly=True).pread(piece.size, piece.offset)
        replica.write(piece.segment, piece.offset, data)
        at = Place(piece.segment, piece.offset + piece.size)
    before = replica.place
    replica.cut(replica.last)
    segment = leader.log._catalog.segments[-1]
    assert replica.place == (segment.first, segment.offsets[-1] + segment.lengths[-1])
    assert replica.place < before
    assert not any(name.startswith("cut/") for name in disk.files())
    assert replica.last == leader.log.appended
    assert len(size) >= before[1]


def test_a_file_that_was_begun_and_has_no_batch_goes_with_the_mark_of_the_one_before() -> None:
    rng = Random(9)
    leader, disk = Leader(rng), SimDisk()
    while len(leader.files()) < 3:
        leader.go_on()
    files = leader.files()
    replica, at = Replica(disk, 0), Place(files[0].first, 0)
    while at.segment != files[-1].first:
        piece = next_piece(at, files)
        assert piece is not None
        size = 4096 if piece.segment != files[-1].first else leader.log._catalog.segments[-1].start
        data = leader.disk.open(f"log/{piece.segment:020d}.arrows", readonly=True).pread(
            min(size, piece.size), piece.offset
        )
        replica.write(piece.segment, piece.offset, data)
        at = Place(piece.segment, piece.offset + len(data))
    assert replica.place[0] == files[-1].first
    replica.cut(replica.last)
    assert replica.place[0] == files[-2].first
    assert not any(name.startswith("cut/") for name in disk.files())
    leader.level(replica)
    assert same(leader, disk)
    assert content(opened_copy(disk)) == content(leader.log)


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_is_emptied_and_copied_anew(seed: int) -> None:
    leader, disk = Leader(Random(seed)), Steps(seed)
    for _ in range(25):
        leader.go_on()
    replica = Replica(disk, 0, ahead(seed))
    leader.level(replica)
    disk.last = disk.step + seed
    try:
        replica.empty()
    except OSError:
        disk.last = -1
        disk.crash()
        replica = Replica(disk, leader.log.origin, ahead(seed))
        replica.empty()
    disk.last = -1
    assert (replica.place, replica.last) == ((0, 0), 0)
    assert not any(name.startswith(("cut/", "log/")) for name in disk.files())
    leader.level(replica)
    assert same(leader, disk)
    assert content(opened_copy(disk)) == content(leader.log)


def test_closed_files_below_a_floor_are_retired() -> None:
    leader, disk = Leader(Random(4)), SimDisk()
    while len(leader.files()) < 4:
        leader.go_on()
    replica = Replica(disk, 0)
    leader.level(replica)
    files = leader.files()
    assert replica.retire(files[1].last) == 1
    assert replica.retire(files[1].last) == 0
    assert replica.retire(1 << 60) == len(files) - 2
    assert [name for name in disk.files() if name.startswith("log/")] == [f"log/{files[-1].first:020d}.arrows"]
    leader.go_on()
    leader.level(replica)
    assert replica.last == leader.log.appended


class Syncer:
    """Syncs a file as it is when it is asked to, and is slow to tell."""

    def __init__(self) -> None:
        self.ended = 0

    def begin(self, file: File) -> None:
        file.sync()

    def end(self) -> None:
        self.ended += 1


def test_what_comes_while_a_file_is_synced_is_not_taken_for_synced() -> None:
    leader, disk, syncer = Leader(Random(7)), SimDisk(), Syncer()
    while len(leader.files()) < 3:
        leader.go_on()
    first = leader.files()[0]
    replica, at = Replica(disk, 0, Beside(syncer, short=200)), Place(first.first, 0)

    def go_on() -> None:
        nonlocal at
        before = replica.last
        while replica.last == before:
            following = leader.send(replica, at, 200)
            assert following is not None
            at = following

    go_on()
    assert replica.begin_sync()
    begun = replica.last
    assert not replica.begin_sync(), "one at a time"
    go_on()
    assert replica.last > begun > replica.synced
    assert replica.end_sync() == begun
    assert not replica.syncing
    assert replica.begin_sync()
    while replica.place[0] == first.first:  # a file that ends waits for its sync
        go_on()
    assert not replica.syncing
    assert replica.synced >= first.last
    assert replica.begin_sync()
    replica.cut(begun)
    assert not replica.syncing
    assert (replica.last, replica.synced, syncer.ended) == (begun, begun, 3)


class Compacted(Leader):
    """One that writes closed files anew: joined, compressed, without rows that a base stands for."""

    def compact(self) -> None:
        log, rng = self.log, self.rng
        closed = log.segments()[:-1]
        start = rng.randrange(len(closed))
        olds = closed[start : start + rng.randint(1, 3)]
        floor, keep = 0, None
        if rng.random() < 0.5 and olds[-1].last < closed[-1].last:
            floor = olds[-1].last + 1
            commit(log, log.base_group(log.appended + 1, 0, floor, b"state below %d" % floor))
            floor, keep = log.base_floor, struct.pack("<2q", olds[0].first, olds[0].first + rng.randint(0, 9))
        made = tuple(Old(one.first, one.last, one.generation, one.rows) for one in olds)
        swap = log.swap(rewrite(log.disk, Order(made, keep, floor, rng.random() < 0.5)))
        swap.prepare()
        swap.enter()
        swap.finish()

    def retire(self) -> None:
        log = self.log
        floor = self.rng.choice(log.segments()[:-1]).last + 1
        commit(log, log.base_group(log.appended + 1, 0, floor, b"state below %d" % floor))
        log.retire(floor)

    def step(self, replica: Replica, at: Place | None, most: int) -> Place | None:
        """Send a piece; where the next begins.  What is no longer there as it was begun is copied anew."""
        files = self.files()
        if at is None:
            replica.drop_part()
            at = Place(*replica.place, replica.identity) if replica.place != (0, 0) else Place(files[0].first, 0)
        try:
            piece = next_piece(at, files)
        except Gone:
            replica.empty()
            return None
        if piece is None:
            return at
        file = self.disk.open(f"log/{piece.segment:020d}.arrows", readonly=True)
        size = min(most, piece.size)
        replica.write(piece.segment, piece.offset, file.pread(size, piece.offset))
        return Place(piece.segment, piece.offset + size, piece.identity)


@pytest.mark.parametrize("seed", spread(range(40), 10))
def test_a_log_that_was_compacted_is_copied_while_it_is_compacted_on_whatever_dies(seed: int) -> None:
    rng = Random(seed)
    leader, disk = Compacted(rng), Steps(seed)
    while len(leader.files()) < 9:
        leader.go_on()
    replica, at, ever = Replica(disk, 0, ahead(seed)), None, set(content(leader.log))
    for _ in range(3):
        leader.compact()
    for n in range(300):
        disk.last = disk.step + rng.randint(10, 60) if n < 60 and disk.last < 0 else disk.last
        try:
            at = leader.step(replica, at, rng.choice((500, 3000, 1 << 20)))
            if rng.random() < 0.5:
                replica.sync()
        except OSError:
            disk.last = -1
            disk.crash()
            replica, at = Replica(disk, leader.log.origin, ahead(seed)), None
        if n < 60 and rng.random() < 0.1:
            rng.choice((leader.compact, leader.retire) if len(leader.files()) > 3 else (leader.go_on,))()
            ever.update(content(leader.log))
        elif n == 60:
            disk.last = -1
    replica.sync()
    ever.update(content(leader.log))
    assert replica.last == leader.log.appended
    assert set(content(leader.log)) <= set(content(opened_copy(disk))) <= ever, "it may have what the leader dropped"


def test_the_first_bytes_of_a_rewritten_file_may_be_torn_too() -> None:
    """They are more than those of any other."""
    leader = Compacted(Random(5))
    while len(leader.files()) < 9:
        leader.go_on()
    leader.compact()
    name, content = next(
        (name, data) for name, data in leader.disk.files().items() if name.startswith("log/") and b"generation" in data
    )
    start = header_in(content)
    assert start is not None
    for size in range(0, start[1], 7):
        replica = Replica(SimDisk({name: content[: size // 2] + bytes(size - size // 2)}), 0)
        assert replica.place == (0, 0)


def test_the_end_that_is_told_is_the_end_whatever_lies_behind() -> None:
    """What is lacking of a batch may be zeros, and zeros are written ahead: it would be whole without having come."""
    leader, disk = Leader(Random(1)), SimDisk()
    replica = Replica(disk, 0, Beside(ahead=700))
    leader.level(replica)
    at = replica.place
    for size in range(200):  # until one ends with zeros
        commit(leader.log, messages(leader.log.appended + 1, bytes(size)))
        [*_, file] = leader.files()
        data = leader.disk.open(f"log/{at[0]:020d}.arrows", readonly=True).pread(file.bytes - at[1], at[1])
        assert file.first == at[0]
        if data.endswith(bytes(8)):
            break
        leader.level(replica)
        at = replica.place
    before = replica.last
    replica.write(*at, data[:-8])
    assert replica.last == before
    assert replica.end() == before
    replica.close()
    assert opened(disk, SETTINGS).recovery.last_lsn == before
