"""What leader and follower say to each other, and what neither believes."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from penstock.errors import ProtocolError
from penstock.replication.messages import (
    PIECE_MOST,
    SIDE_MOST,
    Ack,
    Beat,
    Begin,
    Bye,
    Bytes,
    File,
    Hello,
    Here,
    Keep,
    Look,
    Message,
    Refusal,
    Retire,
    SegmentFile,
    Welcome,
    decode,
    encode,
)
from penstock.replication.terms import Written
from penstock.server.cluster.log_sending import Gone, Piece, Place, after, next_piece

MESSAGES: list[Message] = [
    Hello("c", 7, "m-1", 2, True, (Written(1, 1, 50), Written(3, 90, 99))),
    Welcome(3, 1, 50, False),
    Begin(3, 1, 4096),
    Refusal(3, "another cluster"),
    Bytes(3, 1, 4096, b"\0\1\2"),
    File(3, "accounts.json", 10, 0, 0xFFFF_FFFF, 120, b"0123456789"),
    Ack(3, 99, 12_000, 4),
    Ack(3, 99, 12_000, 4, intact=False, full=True),
    Begin(3, 1, 4096, (f"stage/{7:032x}.arrows",)),
    Keep(3, (f"stage/{7:032x}.arrows", f"stage/{8:032x}.arrows")),
    Beat(3, 17, 120, 99, 1_700_000_000_000_000),
    Retire(3, 80, 60),
    Bye("stopped"),
    Look(),
    Here("m-1", "following", "0.1.0", 1_700_000_000_000_000),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_what_is_said_is_what_is_heard(message: Message) -> None:
    assert decode(*encode(message)) == message


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        (b"{", b"", "is no JSON"),
        (b'{"say": "shout"}', b"", "says 'shout'; known: hello"),
        (b'{"say": "ack", "term": 1, "synced": -1, "received": 0}', b"", "synced is -1"),
        (b'{"say": "ack", "term": 1, "synced": 1}', b"", "received is missing"),
        (b'{"say": "ack", "term": 1, "synced": 1, "received": 1, "x": 1}', b"", "unknown field 'x'"),
        (b'{"say": "ack", "term": 1, "synced": 1, "received": 1}', b"x", "1 bytes follow; at most 0"),
        (b'{"say": "bytes", "term": 1, "segment": 1, "offset": 0}', bytes(PIECE_MOST + 1), "at most 1048576 may"),
    ],
)
def test_what_is_not_said_as_agreed_ends_the_stream(head: bytes, body: bytes, told: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(head, body)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../accounts.json", "log/../../x", "/etc/passwd", "lock", "checkpoints/.hidden", "checkpoints/a/b", "cut/x",
     "log/", "log/00000000000000000001.arrows", "stage/a"],
)  # fmt: skip
def test_a_leader_writes_where_it_may(name: str) -> None:
    head, body = encode(File(3, name, 1, 0, 0, 1, b"x"))
    with pytest.raises(ProtocolError, match="no file that a leader may send"):
        decode(head, body)


def test_a_file_that_would_take_the_memory_does_not_come() -> None:
    head, body = encode(File(3, "checkpoints/7", SIDE_MOST + 1, 0, 0, 1, b"x"))
    with pytest.raises(ProtocolError, match="at most 67108864 may come"):
        decode(head, body)


def test_a_piece_lies_within_its_file() -> None:
    head, body = encode(File(3, "accounts.json", 10, 8, 0, 1, b"123"))
    with pytest.raises(ProtocolError, match="8 and 3 bytes, of 10"):
        decode(head, body)


def test_any_damage_is_told_or_is_another_message() -> None:
    rng = Random(3)
    for _ in range(3000):
        head, body = encode(rng.choice(MESSAGES))
        broken = bytearray(head)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.choice(b'0123456789[]{},:"ntx-.e')
        try:
            found = decode(bytes(broken), body)
        except ProtocolError:
            continue
        assert orjson.loads(encode(found)[0]).keys() <= {"say", *type(found)._fields}


# where a copy stands

FILES = [SegmentFile(1, 99, 3_000_000, 0), SegmentFile(100, 180, 2_000_000, 0), SegmentFile(181, 180, 4096, 0)]


def test_a_follower_gets_each_byte_once_and_in_order() -> None:
    place, got = Place(1, 0), list[Piece]()
    while (piece := next_piece(place, FILES)) is not None:
        got.append(piece)
        place = after(piece)
    assert all(piece.size <= PIECE_MOST for piece in got)
    for file in FILES:
        mine = [piece for piece in got if piece.segment == file.first]
        assert [piece.offset for piece in mine] == [sum(one.size for one in mine[:n]) for n in range(len(mine))]
        assert sum(piece.size for piece in mine) == file.bytes
    assert place == Place(181, 4096)
    grown = [*FILES[:2], SegmentFile(181, 190, 5000, 0)]
    assert next_piece(place, grown) == Piece(181, 0, 4096, 904)


def test_what_is_no_longer_there_is_told() -> None:
    with pytest.raises(Gone, match="LSN 1 is no longer kept"):
        next_piece(Place(1, 500), FILES[1:])
    with pytest.raises(Gone, match="which has 2000000"):
        next_piece(Place(100, 2_000_001), FILES)


def test_what_is_as_it_was_before_there_was_a_field_for_it_is_not_said() -> None:
    """Members of the version before know nothing of these fields, and refuse what they do not know."""
    plain = Hello("c", 7, "m", 1, True, ())
    told = orjson.loads(encode(plain)[0])
    assert set(told) == {"say", "cluster", "origin", "member", "reads", "intact", "terms"}
    assert set(orjson.loads(encode(Ack(3, 99, 12_000))[0])) == {"say", "term", "synced", "received"}
    full = plain._replace(term=65, maker="p", name="n", address="a:1", starts=2, process="q", numbers=3)
    assert [decode(*encode(one)) for one in (plain, full)] == [plain, full]
