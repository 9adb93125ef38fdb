"""What goes to a follower beside the log: as fast as its connection takes it, and no more than memory may hold."""

from __future__ import annotations

from contextlib import suppress

import pytest
from crc32c import crc32c

from penstock.errors import ProtocolError
from penstock.log import checkpoints
from penstock.log.replica import Replica
from penstock.log.simdisk import SimDisk
from penstock.replication.messages import (
    PIECE_MOST,
    SIDE_MOST,
    STAGES_MOST,
    Ack,
    Begin,
    File,
    Hello,
    Keep,
    Message,
    Welcome,
)
from penstock.replication.register import ClusterState, Member
from penstock.server.cluster import log_sending as sendings
from penstock.server.cluster import side_sending
from penstock.server.cluster.following import Following, Mine
from penstock.server.cluster.log_sending import Sending
from penstock.server.cluster.side_sending import ACCOUNTS, Files, Log

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


def follower(disk: SimDisk, *, begins: bool = True) -> tuple[Narrow, Sending]:
    """One that stands where the log begins, or has not said yet where."""
    link, files = Narrow(), Files(disk)
    files.told(Log(segment=1, end=0, last=0))
    sending = Sending(link, Hello("c", 0, "b", 1, True, ()), files, STATE)
    if begins:
        sending.begin(Begin(STATE.term, 1, 0))
    return link, sending


def pieces(link: Narrow) -> list[File]:
    return [one for one in link.said if isinstance(one, File)]


@pytest.mark.parametrize("lie", [{"term": 9}, {"synced": 51}, {"received": 1}, {"files": 1}], ids=str)
def test_what_was_never_sent_cannot_be_acked_and_nobody_begins_unasked(lie: dict[str, int]) -> None:
    """Such an ack would stand for all that is written later."""
    _, sending = follower(SimDisk())
    sending._files.told(Log(segment=1, end=0, last=50))
    sending.ack(Ack(STATE.term, 50, 0))
    (what, said), last = *lie.items(), sending.acked
    words = {"term": "term", "synced": "LSN", "received": "byte", "files": "file"}
    with pytest.raises(ProtocolError, match=rf"b acks {words[what]} {said}, and \d+ is the last there is"):
        sending.ack(Ack(STATE.term, 50, 0)._replace(**lie))
    assert sending.acked == last
    with pytest.raises(ProtocolError, match="b begins in term 1, and was not welcomed to that"):
        sending.begin(Begin(STATE.term, 1, 0))


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
    assert {(one.name, one.size) for one in pieces(link)} == {(ACCOUNTS, len(content))}
    ends = [one.offset + len(one.data) for one in pieces(link)]
    assert [one.crc for one in pieces(link)] == [crc32c(content[:end]) for end in ends], "each says the sum so far"
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


def test_a_hand_over_waits_for_accounts_and_the_newest_checkpoint_to_be_there() -> None:
    disk, ours = SimDisk(), SimDisk()
    put(ours, ACCOUNTS, b"users")
    link, sending = follower(ours)
    link.room = 100
    assert not sending.finish(), "it is on its way"
    back, found = following(disk)

    def arrives() -> None:
        for one in pieces(link):
            found.heard(one)
        link.said.clear()
        found.gathered()
        [*_, ack] = [one for one in back.said if isinstance(one, Ack)]
        sending.ack(ack)

    arrives()
    assert sending.finish()
    assert disk.files()[ACCOUNTS] == b"users"
    sending.acked = 9
    put(ours, checkpoints.name_of(5), b"state")
    assert not sending.finish()
    assert [one.name for one in pieces(link)] == [checkpoints.name_of(5)]
    assert not sending.finish()
    arrives()
    assert sending.finish()


STAGES = [f"stage/{number:032x}.arrows" for number in range(3)]


def following(disk: SimDisk) -> tuple[Narrow, Following]:
    """A follower that was welcomed."""
    link = Narrow()
    found = Following(link, Replica(disk, 0), Mine("b", "c", True, ()), lambda term: True, lambda intact: None)
    found.heard(Welcome(1, 1, 0, False))
    return link, found


def test_what_a_follower_puts_into_place_is_acked_and_said_at_the_next_welcome() -> None:
    disk, ours = SimDisk(), SimDisk()
    ours.mkdir("stage")
    content = bytes(range(256)) * (2 * PIECE_MOST // 256 + 1)
    put(ours, STAGES[1], content)
    link, sending = follower(ours)
    link.room = 100
    sending._files.beside.keep(STAGES[1], 1)
    assert (sending.kept, sending.level) == (0, True), "it is on its way"
    for beat in range(side_sending.STEADY_BEATS):
        sending.beat(1, 0, 1_000_000 * (1 + beat), 1)
    assert not sending.level, "it has been for a while"
    sending.pump()
    back, found = following(disk)
    for one in pieces(link):
        found.heard(one)
    found.gathered()
    assert disk.files()[STAGES[1]] == content
    [ack] = [one for one in back.said if isinstance(one, Ack)]
    assert ack.files == 1
    sending.ack(ack)
    assert sending.kept == 1
    begin = following(disk)[0].said[-1]
    assert begin == Begin(1, 0, 0, (STAGES[1],))
    assert isinstance(begin, Begin)
    again, anew = follower(ours, begins=False)
    anew._files.beside.keep(STAGES[1], 1)
    again.room = 100
    anew.begin(begin)
    anew.pump()
    assert (anew.kept, pieces(again)) == (1, [])


def test_stages_that_do_not_count_go() -> None:
    disk = SimDisk()
    disk.mkdir("stage")
    for name in STAGES:
        put(disk, name, b"x")
    _, found = following(disk)
    found.heard(Keep(1, (STAGES[2],)))
    assert [name for name in disk.files() if name.startswith("stage/")] == [STAGES[2]]


def test_a_piece_that_is_not_what_was_sent_ends_the_stream() -> None:
    disk = SimDisk()
    _, found = following(disk)
    with pytest.raises(ProtocolError, match=r"accounts\.json is not what was sent"):
        found.heard(File(1, ACCOUNTS, 4, 0, crc32c(b"abcd"), 0, b"abce"))
    with pytest.raises(ProtocolError, match=r"byte 2 of accounts\.json came out of turn"):
        found.heard(File(1, ACCOUNTS, 4, 2, 0, 0, b"cd"))
    assert ACCOUNTS not in disk.files()


def test_a_connection_that_takes_all_does_not_keep_the_leader_from_its_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_sending, "SIDE_PIECE", 100)
    disk, name = SimDisk(), f"stage/{7:032x}.arrows"
    put(disk, name, bytes(100 * 50))
    link, sending = follower(disk)
    sending._files.beside.keep(name, 1)
    link.room = 1 << 30
    turns = 0
    while sum(isinstance(one, File) for one in link.said) < 50:
        before = len(link.said)
        sending.pump()
        assert 0 < len(link.said) - before <= sendings.PIECES_MOST
        turns += 1
    assert turns > 5


def test_a_stage_stays_at_a_follower_until_its_log_has_what_says_that_it_may_go() -> None:
    """It may have to lead, with the decision and without the copy: then it needs the stage."""
    disk, name, other = SimDisk(), f"stage/{1:032x}.arrows", f"stage/{2:032x}.arrows"
    put(disk, other, b"rows")
    link, files = Narrow(), Files(disk)
    link.room = 100
    files.told(Log(segment=1, end=0, last=50))  # the copy of the stage is there, and not in sync
    sending = Sending(link, Hello("c", 0, "b", 1, True, ()), files, STATE)
    sending.begin(Begin(STATE.term, 1, 0, (name,)))
    sending.ack(Ack(STATE.term, 49, 0))
    sending.beat(1, 0, 1_000_000, 1)
    assert not [one for one in link.said if isinstance(one, Keep)]
    files.beside.keep(other, 1)
    sending.ack(Ack(STATE.term, 50, 0))
    sending.beat(1, 0, 2_000_000, 1)
    assert [one.stages for one in link.said if isinstance(one, Keep)] == [(other,)], "what came meanwhile stays"


def test_which_stages_count_is_said_to_who_has_them_and_what_else_counts() -> None:
    """One that lacked what it had acked may lead again by that word."""
    disk = SimDisk()
    put(disk, STAGES[0], b"rows")
    link, files = Narrow(), Files(disk)
    link.room = 100
    files.told(Log(segment=1, end=0, last=50))
    files.beside.keep(STAGES[0], 1)
    sending = Sending(link, Hello("c", 0, "b", 1, True, ()), files, STATE)
    sending.begin(Begin(STATE.term, 1, 0))
    sending.ack(Ack(STATE.term, 50, 0))
    sending.beat(1, 0, 1_000_000, 1)
    sending.pump()
    assert [one.name for one in pieces(link)] == STAGES[:1]
    assert not [one for one in link.said if isinstance(one, Keep)]
    sending.ack(Ack(STATE.term, 50, 0, 1))
    sending.beat(1, 0, 2_000_000, 1)
    assert [one.stages for one in link.said if isinstance(one, Keep)] == [(STAGES[0],)]


def test_a_file_that_changed_on_its_way_is_sent_again_and_one_that_was_dropped_holds_nothing_up() -> None:
    disk = SimDisk()
    disk.mkdir("stage")
    for name in STAGES:
        put(disk, name, name.encode())
    put(disk, ACCOUNTS, b"before")
    link, sending = follower(disk)
    link.room, beside = 1000, sending._files.beside
    beside.keep(ACCOUNTS, 1)
    beside.keep(STAGES[0], 2)
    sending.pump()
    put(disk, ACCOUNTS, b"after")
    beside.keep(ACCOUNTS, 3)
    beside.keep(STAGES[1], 4)
    sending.pump()
    assert [one.data for one in pieces(link)] == [b"before", STAGES[0].encode(), b"after", STAGES[1].encode()]
    sending.ack(Ack(STATE.term, 0, 0, 1))
    assert sending.kept == 1, "the one before the change is not what counts"
    beside.forget(STAGES[0])
    assert sending.kept == 2
    sending.ack(Ack(STATE.term, 0, 0, 3))
    assert sending.kept == 3
    sending.ack(Ack(STATE.term, 0, 0, 4))
    assert sending.kept == 4


def test_of_more_stages_than_a_message_names_nothing_is_said() -> None:
    """A follower keeps what it has until there are fewer."""
    disk = SimDisk()
    link, sending = follower(disk)
    link.room, beside = 1 << 30, sending._files.beside
    many = [f"stage/{number:032x}.arrows" for number in range(STAGES_MOST + 1)]
    for number, name in enumerate(many, 1):
        beside.keep(name, number)
    sending.beat(1, 0, 1_000_000, 1)
    assert [one.stages for one in link.said if isinstance(one, Keep)] == [()]
    beside.forget(many[0])
    sending.beat(1, 0, 2_000_000, 1)
    assert [len(one.stages) for one in link.said if isinstance(one, Keep)] == [0, STAGES_MOST]
