"""A member that has the secret and lies: its stream ends, nobody else does, and all find together when it has gone.

It says what it should with other numbers, names and bytes, twice, at the wrong time or not at all; of the log it sends
batches whose sums are right and whose headers are not.  What a leader decides is its to say, so a lie that empties a
copy, or has it drop what a base stands for, is not told here.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from random import Random
from typing import Any

import orjson
import pytest

from choices import SEED, examples
from penstock.errors import InvalidArgument, PreconditionFailed, ProtocolError
from penstock.log.frame import Layout, NotAFrame, message_size, stamp
from penstock.replication.messages import Bytes, File, Message, Retire, Welcome, decode, encode
from penstock.replication.register import TERM_LSNS, ClusterState, Member, compared, end_of_line, written
from penstock.replication.register import decode as read_state
from penstock.replication.terms import Written, first_base, in_stretches
from sim.members_links import SimLink
from sim.members_machine import Host
from sim.members_world import World
from unit.core_links.test_lies import lies

HEX = (
    b"ffffffffffffffff",
    b"7fffffffffffffff",
    b"-000000000000001",
    b"0000000000000000",
    b" 0000000000_0001",
    b"z" * 16,
)
NUMBERS = (0, 1, 8, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
NAMES = ("", "x" * 255, "\0", "../x", "é" * 100, f"stage/{'0' * 32}.arrows", "accounts.json", "checkpoints/..", "m-p0")


def empties(message: Message) -> bool:
    """Whether who hears it begins with nothing."""
    return isinstance(message, Welcome) and message.seed


class Lying:
    """Whatever one host sends, and what becomes of it on its way."""

    def __init__(self, rng: Random, *, forges: bool) -> None:
        self.rng, self.forges = rng, forges
        self.who: Host | None = None
        self.told = Counter[str]()
        self._last = list[Message]()

    def send(self, link: SimLink, message: Message) -> None:
        if link.closed or link.other.closed or link.other.cut:
            return
        said, rng = [message], self.rng
        self._last = [*self._last[-40:], message]
        if link.host is self.who and not isinstance(message, Retire) and rng.random() < 0.2:
            said = rng.choice([[self.other(message)], [self.other(message)], [message, rng.choice(self._last)], []])
            said = [one for one in said if one is message or not empties(one)]
            self.told[type(message).__name__] += 1
        for one in said:
            try:
                link.other.inbox.append(decode(*encode(one)))
            except (ProtocolError, TypeError):  # the second: JSON of ours has no such number
                link.host.later(link.end)
                link.other.host.later(link.other.end)

    def other(self, message: Message) -> Message:
        fields, rng = message._asdict(), self.rng
        if isinstance(message, Bytes) and self.forges:
            return message._replace(data=self.forged(bytearray(message.data), message.offset))
        name = (
            rng.choice(["data"] * 3 + list(fields)) if isinstance(message, Bytes | File) else rng.choice(list(fields))
        )
        return type(message)(**{**fields, name: self.value(fields[name])})

    def value(self, value: Any) -> Any:
        rng = self.rng
        match value:
            case bool():
                return not value
            case int():
                return rng.choice(
                    [*NUMBERS, value + 1, value + 1000, max(0, value - 1), rng.getrandbits(rng.randint(1, 53))]
                )
            case str():
                return rng.choice(NAMES)
            case tuple():
                one = Written(*(rng.getrandbits(rng.randint(1, 53)) for _ in range(3)))
                return rng.choice([(one, one), value[::-1], value * 2, ()])
            case _:
                data, at = bytearray(value), rng.randint(0, len(value))
                if at < len(data) and rng.random() < 0.5:
                    data[at] ^= 1 << rng.randrange(8)
                    return bytes(data)
                return rng.choice(
                    [bytes(data[:at]), bytes(data) + rng.randbytes(at), rng.randbytes(rng.randint(0, 200))]
                )

    def forged(self, data: bytearray, offset: int) -> bytes:
        """The same batches, some with headers that lie, and with the sums that they then have."""
        at, rng = 0, self.rng
        while at + 8 <= len(data):
            try:
                size = message_size(bytes(data[at : at + 8]))
                layout = Layout(bytes(data[at : at + size]))
                end = at + layout.frame(layout.header, offset + at).length
            except NotAFrame:  # the beginning of a file, or of a batch that goes on in the next piece
                break
            message = data[at:end]
            places = [(layout.rows, 8), (layout.body, 8), (rng.randrange(8, size - 8), 1)]
            places += [(layout.buffers + 8 * n, 8) for n in range(2 * layout.n_buffers)]
            if rng.random() < 0.4:
                for place in (layout.lsn, layout.durable, *([layout.last] if layout.last else [])):
                    message[place : place + 16] = rng.choice(HEX)
                message[size : size + 8] = struct.pack("<q", rng.choice((-1, 2**63 - 1, 2**53)))
            elif rng.random() < 0.9:
                place, width = rng.choice(places)
                message[place : place + width] = rng.choice(NUMBERS).to_bytes(8, "little")[:width]
            stamp(message, layout.crc, offset + at)
            data[at:end] = message
            at = end
        return bytes(data)


def lied(monkeypatch: pytest.MonkeyPatch, seed: int, *, leads: bool, forges: bool = False) -> Counter[str]:
    """One schedule in which a member lies; nobody ends, and when it lies no more all have the same."""
    rng = Random(seed)
    world, lying = World(seed, members=rng.choice((2, 3)), min_in_sync=1), Lying(rng, forges=forges)
    world.answers = world.told_of_ends = 1.0
    world.failing_syncs = world.loses = 0.0
    monkeypatch.setattr(SimLink, "send", lambda link, one: lying.send(link, one))
    world.turns(world.hosts.values(), 30)
    leader = world.leader()
    assert leader is not None
    lying.who = leader if leads else next(one for one in world.hosts.values() if one is not leader)
    for _ in range(30):
        world.turn(world.hosts.values(), publishes=True)
        leader.stage()
        assert not world.seen["ended"], seed
    lying.who = None
    for link in world.links:
        link.host.later(link.end)
    if not forges:
        world.quiet()
        world.compare()
    assert not world.seen["ended"], seed
    return lying.told


@pytest.mark.parametrize("how", ["a leader", "a follower", "a leader that forges"])
def test_a_member_that_lies_ends_nobody_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    logging.getLogger("penstock.cluster").disabled = True
    told = Counter[str]()
    try:
        for seed in range(1000 * (SEED - 1), 1000 * (SEED - 1) + examples(12, 2)):
            told += lied(monkeypatch, seed, leads=how != "a follower", forges=how.endswith("forges"))
    finally:
        logging.getLogger("penstock.cluster").disabled = False
    wanted = {"Hello", "Begin", "Ack"} if how == "a follower" else {"Welcome", "Bytes", "Beat", "File", "Keep"}
    assert wanted <= told.keys()


def test_a_welcome_to_a_term_that_the_register_does_not_tell_of_raises_no_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that is kept is kept for ever: with this one nobody could be followed, or could lead, from that folder."""
    world = World(0, members=2, min_in_sync=1)
    world.answers = world.told_of_ends = 1.0
    world.loses = 0.0
    send = SimLink.send

    def lies_once(link: SimLink, message: Message) -> None:
        if isinstance(message, Welcome) and not world.seen["lies"]:
            world.seen["lies"] += 1
            message = message._replace(term=2**53 - 1)
        send(link, message)

    monkeypatch.setattr(SimLink, "send", lies_once)
    world.quiet()
    assert world.seen["lies"] == 1
    member = world.hosts["p1"].member
    assert member is not None
    assert (member.known.highest_term, world.seen["ended"]) == (1, 0)


def copy_of_two() -> ClusterState:
    """A copy of the register, in its second term."""
    members = {"a": Member("a", "a:1", 1, 0, "pa", 1)}
    state = ClusterState("c", 7, base=first_base(1), ceiling=TERM_LSNS, members=members, numbers=1, to="a").counting(
        "a"
    )
    state = state.led_by("a", 0, 0).with_member("b", Member("b", "b:1", 1, 3, "pb")).counting("ab")
    return state.led_by("b", state.ceiling - 10, 1).counting("ab").beaten(5)


def test_a_copy_of_the_register_that_is_taken_can_be_gone_on_with() -> None:
    """What comes in one is anybody's.  What is kept is read back at each start: nothing may be made that cannot be."""
    ours, taken = copy_of_two(), 0
    for _, lie in lies(ours.encode()):
        try:
            theirs = read_state(lie)
        except InvalidArgument:
            continue
        taken += 1
        compared(ours, theirs)
        compared(theirs, ours)
        end_of_line(theirs, in_stretches(ours.base, [2, 3, 200], 10))
        written(theirs, 2**34)
        for key in theirs.members if theirs.manual else ():
            try:
                wanted = read_state(theirs.told_to_lead(key, lose=theirs.committed).encode())
            except PreconditionFailed:
                continue
            if key in wanted.in_sync:
                wanted.led_by(key, wanted.committed, wanted.term).encode()
    assert taken > 100


def test_a_copy_that_cannot_be_is_named() -> None:
    plain = orjson.loads(copy_of_two().encode())
    for change, why in (
        ({"terms": []}, "its last term is not 2"),
        (
            {"terms": [plain["terms"][0], [2, 2**53 - 1, None]], "ceiling": 2**53 - 1},
            "starts at its ceiling",
        ),
        ({"term": 3, "terms": [[3, plain["terms"][1][1], None]]}, "term 3 starts at LSN"),
        ({"numbers": 64}, "64 were given"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            read_state(orjson.dumps({**plain, **change}))
