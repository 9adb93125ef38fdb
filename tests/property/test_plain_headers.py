"""Headers looked at together: the same answer as one by one, and a run says what each of its headers says."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from penstock.records import properties as codec
from penstock.records.properties import Properties, encode, plain_mode, plain_mode_of_all
from penstock.wire.amqp.events import PublishRun
from unit.amqp.peer import opened, publish

texts = st.none() | st.text("ab", max_size=3)
some = st.builds(
    Properties, content_type=texts, content_encoding=texts, delivery_mode=st.sampled_from([None, 1, 2, 2, 7]),
    priority=st.sampled_from([None, None, None, 1]), correlation_id=texts, reply_to=texts, message_id=texts, type=texts,
    user_id=st.sampled_from([None, None, None, "guest"]), app_id=texts,
)  # fmt: skip


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Headers of one client, which differ by their ids; some of them broken."""
    first = draw(some)
    headers = list[bytes]()
    for _ in range(draw(st.integers(1, 6))):
        names = ("message_id", "correlation_id", "app_id", "type", "reply_to", "content_type")
        for name in names:
            if getattr(first, name) is not None:
                setattr(first, name, draw(st.text("ab", max_size=4)))
        headers.append(encode(first))
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(headers) - 1))
        data = bytearray(headers[place])
        change = draw(st.sampled_from(["cut", "more", "byte", "empty"]))
        if change == "cut":
            data = data[:-1]
        elif change == "more":
            data += draw(st.binary(min_size=1, max_size=3))
        elif change == "byte":
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        else:
            data = bytearray()
        headers[place] = bytes(data)
    return headers


@given(alike())
def test_what_is_said_of_all_headers_holds_for_each(headers: list[bytes]) -> None:
    with patch.object(codec, "MANY", 1):
        said = plain_mode_of_all(headers)
    each = {plain_mode(header) for header in headers}
    if said >= 0:
        assert each == {said}
    elif len({header[:2] for header in headers}) == 1:  # nothing is missed where the flags are the same
        assert len(each) > 1 or each == {-1}


def test_few_headers_are_looked_at_one_by_one() -> None:
    assert plain_mode_of_all([encode(Properties(delivery_mode=2, message_id="a"))] * (codec.MANY - 1)) == -1
    assert plain_mode_of_all([encode(Properties(delivery_mode=2, message_id="a"))] * codec.MANY) == 2


@given(
    st.lists(st.tuples(alike(), st.sampled_from([False, False, True]), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 4000),
)
def test_a_run_says_only_what_holds_for_all_of_its_rows(parts: list[tuple[list[bytes], bool, bool]], cut: int) -> None:
    """Messages with new keys and of several frames come by another way than those that are walked."""
    data = b""
    for headers, known, long in parts:
        for place, header in enumerate(headers):
            if plain_mode(header) >= 0:
                key = "known" if known else f"key{place}"
                data += publish(1, b"x" * (5000 if long else 10), key, properties=header, frame_max=4096)
    with patch.object(codec, "MANY", 1):
        connection = opened()
        connection.receive(publish(1, b"x", "known"))
        runs = [*connection.receive(data[:cut]), *connection.receive(data[cut:])]
    for run in runs:
        assert isinstance(run, PublishRun)
        rows = [run.properties] if isinstance(run.properties, bytes) else run.properties
        if run.plain >= 0:
            assert {plain_mode(header) for header in rows} == {run.plain}


def test_a_read_of_many_ids_is_told_as_a_whole() -> None:
    headers = [encode(Properties(delivery_mode=2, message_id=str(number))) for number in range(200)]
    [run] = opened().receive(b"".join(publish(1, b"body", properties=header) for header in headers))
    assert isinstance(run, PublishRun)
    assert run.properties == headers
    assert run.plain == 2


def test_nothing_is_told_of_a_run_that_a_message_of_several_frames_has_joined() -> None:
    headers = [encode(Properties(delivery_mode=2, message_id=str(number))) for number in range(200)]
    other = encode(Properties(delivery_mode=1, message_id="x"))
    data = b"".join(publish(1, b"body", properties=header) for header in headers)
    [run] = opened().receive(data + publish(1, bytes(5000), properties=other, frame_max=4096))
    assert isinstance(run, PublishRun)
    assert len(run.bodies) == 201
    assert run.plain == -1
