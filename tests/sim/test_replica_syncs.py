"""What a follower's copy costs its disk: what came at once is written once, and synced with the end of its batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.log.log import Log
from penstock.log.replica import PART, Beside, Replica
from penstock.log.segment import segment_name
from penstock.log.simdisk import SimDisk
from penstock.ports import File
from penstock.replication.messages import Ack, Beat, Bytes, Message, Welcome
from penstock.server.cluster.following import Following, Mine
from sim.logkit import SMALL, commit, messages, opened

PIECE = 1 << 20
AHEAD = 4 << 20


class Syncer:
    """Says when a sync has ended, and never before it is asked."""

    def begin(self, file: File) -> None:
        file.sync()

    def end(self) -> None:
        """It has."""


class Link:
    """Of a follower: what it said."""

    full = False

    def __init__(self) -> None:
        self.said = list[Message]()

    def send(self, message: Message) -> None:
        self.said.append(message)

    def close(self) -> None:
        """It ends."""

    @property
    def acks(self) -> list[Ack]:
        return [one for one in self.said if isinstance(one, Ack)]


def leader() -> tuple[SimDisk, Log]:
    disk = SimDisk()
    return disk, opened(disk, replace(SMALL, segment=1 << 30))


def grown(disk: SimDisk, log: Log, *bodies: bytes) -> bytes:
    """What a commit of these adds to the log's one file."""
    [segment] = log._catalog.segments
    before = segment.end if segment.rows else 0
    commit(log, messages(log.appended + 1, *bodies))
    return disk.open(segment.name, readonly=True).pread(segment.end - before, before)


def pieces(data: bytes, at: int) -> list[tuple[int, bytes]]:
    return [(at + start, data[start : start + PIECE]) for start in range(0, len(data), PIECE)]


@pytest.mark.parametrize("beside", [True, False])
def test_what_comes_in_bulk_is_not_written_over_zeros_that_were_written_for_it(beside: bool) -> None:
    """Though its last piece is short, and looks like a commit that is."""
    disk, log = leader()
    ours = SimDisk()
    replica, data = Replica(ours, 0, Beside(Syncer() if beside else None, AHEAD)), grown(disk, log, b"the first one")
    replica.write(1, 0, data)
    replica.sync()
    at, begun = len(data), len(ours.files()[segment_name(1)])
    for _ in range(4):
        data = grown(disk, log, *[bytes(150)] * 10_000)
        assert 2 * PIECE < len(data) < 2 * PIECE + (1 << 18), "the last piece is short"
        for offset, piece in pieces(data, at):
            replica.write(1, offset, piece)
        at += len(data)
        if replica.begin_sync():
            assert replica.end_sync() == log.appended
        assert replica.sync() == log.appended
        assert len(ours.files()[segment_name(1)]) == max(at, begun), "no more zeros"
    assert at > begun
    for _ in range(3):
        data = grown(disk, log, b"one that comes alone")
        replica.write(1, at, data)
        replica.sync()
        at += len(data)
        assert len(ours.files()[segment_name(1)]) >= at + AHEAD // 2, "the next one finds zeros"


def test_a_part_of_a_batch_is_synced_with_its_end_unless_it_is_long() -> None:
    disk, log = leader()
    ours, link = SimDisk(), Link()
    replica = Replica(ours, 0, Beside(Syncer()))
    following = Following(link, replica, Mine("b", "c", True, ()), lambda term: True, lambda intact: True)
    following.heard(Welcome(1, 1, 0, False))
    for count in (10_000, 10_000, 50_000):
        [segment] = log._catalog.segments
        at, had = (segment.end if segment.rows else 0), len(link.acks)
        data = grown(disk, log, *[bytes(150)] * count)
        *parts, (offset, end) = pieces(data, at)
        unsynced = 0
        for place, piece in parts:
            following.heard(Bytes(1, 1, place, piece))
            following.gathered()
            unsynced += len(piece)
            assert replica.syncing == (unsynced >= PART), "as long as it is, a part is not left to the end"
            if replica.syncing:
                unsynced = 0
                replica.end_sync()
                following.synced()
        assert all(one.synced < log.appended for one in link.acks[had:])
        assert len(link.acks) - had == len(data) // PART
        following.heard(Bytes(1, 1, offset, end))
        following.gathered()
        assert replica.syncing
        replica.end_sync()
        following.synced()
        assert link.acks[-1].synced == log.appended == replica.synced


def test_a_part_that_comes_while_the_batch_before_it_is_synced_begins_no_sync() -> None:
    disk, log = leader()
    ours, link = SimDisk(), Link()
    replica = Replica(ours, 0, Beside(Syncer()))
    following = Following(link, replica, Mine("b", "c", True, ()), lambda term: True, lambda intact: True)
    following.heard(Welcome(1, 1, 0, False))
    first = grown(disk, log, *[bytes(150)] * 4_000)
    following.heard(Bytes(1, 1, 0, first))
    following.gathered()
    assert replica.syncing
    second = grown(disk, log, *[bytes(150)] * 10_000)
    following.heard(Bytes(1, 1, len(first), second[:PIECE]))
    following.gathered()
    replica.end_sync()
    following.synced()
    assert not replica.syncing
    assert [one.received for one in link.acks] == [len(first)]
    following.heard(Beat(1, 1, log.appended, 0, 0))
    following.gathered()
    assert replica.syncing, "who has to say something syncs what there is"
    replica.end_sync()
    following.synced()
    assert link.acks[-1].received == len(first) + PIECE
    assert link.acks[-1].synced < log.appended
