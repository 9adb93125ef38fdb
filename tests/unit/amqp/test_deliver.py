"""What the server writes of messages, read back by pika's own decoder."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pika import frame as pika_frame
from pika import spec

from penstock.records.entries import Topic
from penstock.records.properties import EMPTY, Properties, encode
from penstock.wire.amqp.deliver import Contents, DeliveryEncoder, encode_each, get_ok, returned

TOPIC = Topic("/", "ex", "key.1")
OTHER = Topic("/", "", "é")
PERSISTENT = encode(Properties(delivery_mode=2))


def read(data: bytes) -> list[tuple[object, spec.BasicProperties, bytes]]:
    """Messages in frames, as pika sees them."""
    frames: list[pika_frame.Frame] = []
    while data:
        used, value = pika_frame.decode_frame(data)
        assert value is not None
        frames.append(value)
        data = data[used:]
    out: list[tuple[object, spec.BasicProperties, bytes]] = []
    starts = [i for i, f in enumerate(frames) if isinstance(f, pika_frame.Method)] + [len(frames)]
    for start, stop in pairwise(starts):
        method, head = frames[start], frames[start + 1]
        body = b"".join(f.fragment for f in frames[start + 2 : stop])
        assert head.body_size == len(body)
        assert {f.channel_number for f in frames[start:stop]} == {method.channel_number}
        out.append((method.method, head.properties, body))
    return out


def deliveries(data: bytes) -> list[tuple[int, bool, str, str, int | None, bytes]]:
    out: list[tuple[int, bool, str, str, int | None, bytes]] = []
    for method, properties, body in read(data):
        assert isinstance(method, spec.Basic.Deliver)
        assert method.consumer_tag == "tag"
        place = (method.delivery_tag, method.redelivered, method.exchange, method.routing_key)
        out.append((*place, properties.delivery_mode, body))
    return out


@pytest.mark.parametrize("rounds", [1, 2])
def test_like_deliveries(rounds: int) -> None:
    encoder = DeliveryEncoder(3, "tag", 4096)
    bodies = [b"a", b"", b"bc", b"x" * 4088, b"y" * 4089, b"z" * 20_000, b"a"]
    for _ in range(rounds):
        data = b"".join(encoder.encode(7, True, TOPIC, PERSISTENT, bodies))
        assert deliveries(data) == [(7 + i, True, "ex", "key.1", 2, body) for i, body in enumerate(bodies)]


def test_mixed_deliveries() -> None:
    encoder = DeliveryEncoder(3, "tag", 4096)
    bodies = [b"a", b"", b"c" * 9000, b"d"]
    columns = ([True, False, True, False], [TOPIC, OTHER, TOPIC, OTHER], [PERSISTENT, EMPTY, PERSISTENT, EMPTY])
    expected = [
        (1, True, "ex", "key.1", 2, b"a"),
        (2, False, "", "é", None, b""),
        (3, True, "ex", "key.1", 2, b"c" * 9000),
        (4, False, "", "é", None, b"d"),
    ]
    assert deliveries(b"".join(encoder.encode(1, *columns, bodies))) == expected
    assert encoder.encode(1, False, TOPIC, EMPTY, []) == []


@pytest.mark.parametrize("topics", [TOPIC, [TOPIC, OTHER] * 4])
@pytest.mark.parametrize("properties", [PERSISTENT, b"\x20\x00" + bytes(2000), [PERSISTENT, EMPTY] * 4])
def test_one_to_each_of_many_is_what_their_own_encoders_say(
    topics: Topic | list[Topic], properties: bytes | list[bytes]
) -> None:
    bodies = [b"a", b"", b"bc", b"x" * 4088, b"y" * 4089, b"z" * 20_000, b"a", b"d"]
    tags = ["", "tag", "t" * 255, "c1", "c2", "c1", "tag", "c3"]
    shared = Contents(3, 4096)
    encoders = [DeliveryEncoder(3, tag, 4096, shared) for tag in tags]
    each = b"".join(encode_each(encoders, 7, topics, properties, bodies))
    alone = b""
    for row, (tag, body) in enumerate(zip(tags, bodies, strict=True)):
        topic = topics if isinstance(topics, Topic) else topics[row]
        header = properties if isinstance(properties, bytes) else properties[row]
        alone += b"".join(DeliveryEncoder(3, tag, 4096).encode(7 + row, False, topic, header, [body]))
    assert each == alone


def test_consumers_of_a_channel_share_what_is_remembered() -> None:
    shared = Contents(3, 4096)
    for number in range(100):
        DeliveryEncoder(3, f"c{number}", 4096, shared).encode(1, False, TOPIC, PERSISTENT, [b"body"])
    assert shared.room == 2048 - 3  # the names, the properties, the size


def test_column_of_the_wrong_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        DeliveryEncoder(1, "tag", 4096).encode(1, False, [TOPIC], EMPTY, [b"a", b"b"])


def test_caches_are_bounded() -> None:
    encoder = DeliveryEncoder(3, "tag", 131_072)
    for size in range(3000):
        data = b"".join(encoder.encode(1, False, TOPIC, PERSISTENT, [bytes(size)] * 2))
        assert data.endswith(b"\xce")
        assert 0 <= encoder.contents.room <= 2048
    for number in range(3000):
        encoder.encode(1, False, Topic("/", "", str(number)), PERSISTENT, [b"x"])
        encoder.encode(1, False, [Topic("/", "", str(number))], PERSISTENT, [b"x"])
        assert 0 <= encoder.contents.room <= 2048
    remembered = encoder.contents.room
    for number in range(10):
        encoder.encode(1, False, OTHER, encode(Properties(headers={str(number): "x" * 2000})), [b"x"])
    assert encoder.contents.room >= remembered - 1


def test_get_ok() -> None:
    [(method, properties, body)] = read(b"".join(get_ok(2, 9, True, TOPIC, 5, PERSISTENT, b"x" * 10_000, 4096)))
    assert isinstance(method, spec.Basic.GetOk)
    assert (method.delivery_tag, method.redelivered, method.message_count) == (9, True, 5)
    assert (method.exchange, method.routing_key) == ("ex", "key.1")
    assert properties.delivery_mode == 2
    assert body == b"x" * 10_000


def test_return() -> None:
    [(method, _, body)] = read(b"".join(returned(2, 312, "ex", "nowhere", EMPTY, b"", 4096)))
    assert isinstance(method, spec.Basic.Return)
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key, body) == ("ex", "nowhere", b"")


@pytest.mark.parametrize("name", ["k" * 263, "é" * 128, "\U0001f41d" * 64])
def test_names_that_are_longer_than_amqp_can_say_are_told_by_their_beginning(name: str) -> None:
    """A key that no client brought may be: of a dead letter, or of a trace."""
    topic, told = Topic("/", name, name), name.encode()[:255].decode(errors="ignore")
    encoder = DeliveryEncoder(3, "tag", 4096)
    for data in (encoder.encode(1, False, topic, EMPTY, [b"x"]), encoder.one(1, Contents(3, 4096).head(False, topic),
                 EMPTY, b"x"), encode_each([encoder], 1, [topic], [EMPTY], [b"x"])):  # fmt: skip
        assert deliveries(b"".join(data)) == [(1, False, told, told, None, b"x")]
    [(method, _, body)] = read(b"".join(get_ok(3, 1, False, topic, 0, EMPTY, b"x", 4096)))
    assert isinstance(method, spec.Basic.GetOk)
    assert (method.exchange, method.routing_key, body) == (told, told, b"x")


def test_of_a_large_body_no_second_copy_is_made() -> None:
    """Frames are written together, which is a copy; one more would hold everybody up for as long again."""
    body, encoder = bytes(range(256)) * 512, DeliveryEncoder(1, "tag", 4096)
    for pieces in (
        encoder.encode(1, False, TOPIC, PERSISTENT, [body]),
        encoder.encode(1, [False], [TOPIC], [PERSISTENT], [body]),
        encoder.one(1, encoder.contents.head(False, TOPIC), PERSISTENT, body),
        get_ok(1, 1, False, TOPIC, 0, PERSISTENT, body, 4096),
        returned(1, 312, "ex", "key.1", PERSISTENT, body, 4096),
    ):
        [(_, _, told)] = read(b"".join(pieces))
        assert told == body
        assert sum(len(one) for one in pieces if isinstance(one, bytes)) < 16 * len(pieces)
