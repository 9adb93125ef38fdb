"""A header that a message may have can be written anew by the server, later, when nobody can be refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest

from penstock.core.publishing.dead_letters import Death, after_death
from penstock.core.publishing.delayed import negated
from penstock.core.publishing.published import read_traits
from penstock.operations.moving import of_header
from penstock.records import properties as header_codec
from penstock.records.field_tables import NESTING_LIMIT, FieldValue, Timestamp, Written
from penstock.server.amqp.consumer_arguments import informed
from unit.core.world import World, header

DEATH = Death("q" * 255, "expired", "e" * 255, ("k" * 255, "c" * 1000), 7, "why" * 100)


def nested(depth: int) -> FieldValue:
    value: FieldValue = 1
    for _ in range(depth):
        value = {"in": value}
    return value


VALUES: tuple[FieldValue, ...] = (
    Timestamp(5000), Timestamp(2**64 - 1), 5000, -(2**63), 2**63 - 1, Decimal(-(2**31)).scaleb(-255), float("nan"),
    True, None, "", "5", b"\xff", [], [[Timestamp(1)]], {}, {"count": Timestamp(2**64 - 1)},
    [{"count": 2**63 - 1, "queue": "q" * 255, "reason": "expired"}], nested(NESTING_LIMIT - 1),
)  # fmt: skip
NAMES = ("x-delay", "x-death", "x-first-death-queue", "x-last-death-reason", "CC", "x-delivery-count", "any")

REWRITES: tuple[Callable[[bytes], object], ...] = (
    negated,
    of_header,
    lambda data: after_death(data, DEATH, own=False),
    lambda data: informed(data, bookmark="b", time=7, attempt=3, until=9, offset=4, fence=5),
)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_message_says_can_be_written_anew(name: str) -> None:
    for value in VALUES:
        data = header(headers={name: value})
        if read_traits(data).refusal is not None:
            continue  # its publisher is told so
        for rewrite in REWRITES:
            rewrite(data)
        again, _ = after_death(data, DEATH, own=False)
        header_codec.decode(after_death(again, DEATH, own=True)[0])


def fields_of(data: bytes) -> Written:
    written: Written = {}
    header_codec.decode(data, written)
    return written


SENT = {
    "long": b"l" + bytes(7) + b"\1", "L": b"L" + bytes(7) + b"\1", "byte": b"b\1", "octet": b"B\1", "short": b"s\0\1",
    "u16": b"u\0\1", "u32": b"i\0\0\0\1", "int": b"I\0\0\0\1", "float": b"f\x3f\x80\0\0",
    "double": b"d\x3f\xf0" + bytes(6),
    "binary": b"S\0\0\0\1\xff", "bool": b"t\2", "in": b"F\0\0\0\x0b\1nl" + bytes(7) + b"\1",
    "all": b"A\0\0\0\5f\x3f\x80\0\0",
}  # fmt: skip
"""Types and values as clients of other languages send them."""


@pytest.mark.parametrize("rewrite", REWRITES)
def test_what_is_written_anew_keeps_the_types_that_were_sent(rewrite: Callable[[bytes], object]) -> None:
    """Found by walks beside RabbitMQ: a `Long` came back from Java's client as an `Integer`, and a cast failed."""
    fields = b"".join(bytes((len(name),)) + name.encode() + value for name, value in SENT.items())
    own = header(headers={"x-delay": 5, "x-death": [{"count": 1, "queue": "q", "reason": "expired"}]})
    table = fields + own[6 : 6 + int.from_bytes(own[2:6], "big")]
    data = own[:2] + len(table).to_bytes(4, "big") + table + own[6 + int.from_bytes(own[2:6], "big") :]
    header_codec.decode(data)
    again = rewrite(data)
    anew = next(one for one in (again if isinstance(again, tuple) else (again,)) if isinstance(one, bytes))
    found = fields_of(anew)
    assert {name: found[name][1] for name in SENT} == SENT


def test_counts_of_deaths_and_deliveries_and_offsets_are_long() -> None:
    """As RabbitMQ's are: clients cast them."""
    old = header(headers={"x-death": [{"count": 1, "queue": "other", "reason": "expired"}]})
    deaths = fields_of(after_death(old, DEATH, own=True)[0])["x-death"][1]
    assert deaths.count(b"\5countl") == 2
    told = fields_of(informed(old, attempt=3, offset=4))
    assert [told[name][1][:1] for name in ("x-delivery-count", "x-stream-offset")] == [b"l", b"l"]


def test_the_carbon_copies_of_a_letter_with_a_key_of_its_own_go_with_it() -> None:
    """Else they would count when it dies once more."""
    data = header(headers={"CC": ["a"], "n": 1})
    for carbon in (True, False):
        assert ("CC" in fields_of(after_death(data, DEATH, own=False, carbon=carbon)[0])) is carbon


def test_a_delay_that_is_written_as_a_time_is_a_delay() -> None:
    world = World()
    queue = world.declare("q")
    world.core.declare_exchange(world.now, "/", "d", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    world.core.bind(world.now, "/", "d", "q", "queue", "k")
    world.turn()
    world.publish("k", b"x", exchange="d", properties=header(headers={"x-delay": Timestamp(5000)}))
    world.advance(5)
    assert world.contents(queue) == [b"x"]
    (chunk,) = queue.chunks("ready")
    assert world.headers(chunk[0])["x-delay"] == -5000


@pytest.mark.parametrize("flags", [0x8000, 0x4000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010, 0x0008, 0x0004])
def test_a_property_that_is_no_text_can_be_written_anew(flags: int) -> None:
    """Nobody may publish it, but logs of older servers may hold it."""
    for size in range(252, 256):
        data = flags.to_bytes(2, "big") + bytes((size,)) + b"\xff" * size
        assert header_codec.decode(header_codec.encode(header_codec.decode(data))) == header_codec.decode(data)
        for rewrite in REWRITES:
            rewrite(data)
