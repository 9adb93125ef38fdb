"""What goes to a follower beside the log: as fast as its connection takes it, and no more than memory may hold."""

from __future__ import annotations

from contextlib import suppress

from crc32c import crc32c

from penstock.log import checkpoints
from penstock.log.simdisk import SimDisk
from penstock.replication.messages import PIECE_MOST, SIDE_MOST, Begin, File, Hello, Message
from penstock.replication.register import ClusterState, Member
from penstock.server.cluster.sending import ACCOUNTS, Files, Log, Sending

STATE = ClusterState(
    "c", 7, in_sync=frozenset("ab"), members={name: Member(name, f"{name}:8817", 1) for name in "ab"}
).led_by("a", 0)  # fmt: skip


class Narrow:
    """A connection that takes so many messages."""

    def __init__(self) -> None:
        self.room = 0
        self.said = list[Message]()

    @property
    def full(self) -> bool:
        return self.room <= 0

    def send(self, message: Message) -> None:
        self.room -= 1
        self.said.append(message)

    def close(self) -> None:
        """It ends."""


def put(disk: SimDisk, name: str, content: bytes) -> None:
    with suppress(FileNotFoundError):
        disk.remove(name)
    file = disk.open(name, create=True)
    file.pwrite(content, 0)
    file.sync()
    file.close()


def follower(disk: SimDisk) -> tuple[Narrow, Sending]:
    """One that stands where the log begins."""
    link, files = Narrow(), Files(disk)
    files.told(Log(segment=1, end=0, last=0))
    sending = Sending(link, Hello("c", 7, "b", 1, True, ()), files, STATE)
    sending.begin(Begin(STATE.term, 1, 0))
    return link, sending


def pieces(link: Narrow) -> list[File]:
    return [one for one in link.said if isinstance(one, File)]


def test_a_file_goes_piece_by_piece_as_the_connection_takes_it() -> None:
    disk, content = SimDisk(), bytes(range(256)) * (5 * PIECE_MOST // 256)
    put(disk, ACCOUNTS, content)
    link, sending = follower(disk)
    link.room = 3  # one of them is a beat
    sending.beat(1, 0, 1_000_000, 1)
    assert len(pieces(link)) == 2
    sending.beat(1, 0, 2_000_000, 1)
    assert len(pieces(link)) == 2
    link.room = 100
    sending.pump()
    assert b"".join(one.data for one in pieces(link)) == content
    assert {(one.name, one.size, one.crc) for one in pieces(link)} == {(ACCOUNTS, len(content), crc32c(content))}
    sending.beat(1, 0, 3_000_000, 1)
    assert len(pieces(link)) == 5, "it has not changed"
    put(disk, ACCOUNTS, b"another")
    sending.beat(1, 0, 4_000_000, 1)
    assert pieces(link)[5:][0].offset == 0


def test_a_checkpoint_that_is_too_large_stays_at_home() -> None:
    disk = SimDisk()
    disk.mkdir("checkpoints")
    link, sending = follower(disk)
    sending.acked = 9
    link.room = 1000
    put(disk, checkpoints.name_of(5), bytes(SIDE_MOST + 1))
    sending.beat(1, 0, 1_000_000, 1)
    assert pieces(link) == []
    put(disk, checkpoints.name_of(6), b"small")
    sending.beat(1, 0, 2_000_000, 1)
    assert [(one.name, one.lsn, one.data) for one in pieces(link)] == [(checkpoints.name_of(6), 6, b"small")]
