"""Classes of headers: what a header is said to ask for is what reading it as a whole says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.publishing.published import read_traits
from penstock.errors import ProtocolError
from penstock.records import properties
from penstock.records.properties import ASKING, ASKS, HeaderClasses, Properties, decode, encode, peek

texts = st.none() | st.text("ab", max_size=3)
rarely = st.none() | st.none() | st.none() | st.text("1", min_size=1, max_size=2)
tables = st.none() | st.dictionaries(
    st.sampled_from(["tenant", "attempt", "x-death", *sorted(ASKING)]), st.sampled_from([1, 2, "a", True]), max_size=3
)
answers = st.none() | st.sampled_from(["q", "amq.gen-é", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply-to.secret"])
some = st.builds(
    Properties, content_type=texts, content_encoding=texts, headers=tables,
    delivery_mode=st.sampled_from([None, 1, 2, 2, 7]), priority=st.sampled_from([None, None, None, 1]),
    correlation_id=texts, reply_to=answers, expiration=rarely, message_id=texts, type=texts, user_id=rarely,
    app_id=texts, cluster_id=rarely, timestamp=st.none() | st.integers(0, 2**64 - 1),
)  # fmt: skip


def said(data: bytes) -> int:
    """The definition."""
    try:
        told = peek(data)
        reply_to = decode(data).reply_to or ""
    except ProtocolError:
        return ASKS
    direct, user_id = reply_to.startswith("amq.rabbitmq.reply-to"), (data[0] << 8 | data[1]) & 0x0010
    if told.priority is not None or told.expiration is not None or direct or user_id:
        return ASKS
    return ASKS if told.headers and ASKING & told.headers.keys() else told.delivery_mode


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Headers of one client, which differ behind their beginning; some of them broken."""
    first = draw(some)
    out: list[bytes] = []
    for _ in range(draw(st.integers(1, 5))):
        for name in ("message_id", "correlation_id", "app_id", "type", "timestamp"):
            if getattr(first, name) is not None:
                value = st.integers(0, 2**64 - 1) if name == "timestamp" else st.text("abé", max_size=4)
                setattr(first, name, draw(value))
        data = bytearray(encode(first))
        change = draw(st.sampled_from(["", "", "", "cut", "more", "byte"]))
        if change == "cut":
            del data[draw(st.integers(0, len(data))) :]
        elif change == "more":
            data += draw(st.binary(min_size=1, max_size=9))
        elif change == "byte":
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        out.append(bytes(data))
    return out


@given(st.lists(alike(), max_size=4))
def test_a_class_says_what_the_header_says(clients: list[list[bytes]]) -> None:
    classes = HeaderClasses()
    for data in [data for headers in clients for data in headers]:
        assert classes.mode(data) == said(data)


@given(alike())
def test_what_asks_for_nothing_has_the_traits_of_its_mode(headers: list[bytes]) -> None:
    classes = HeaderClasses()
    for data in headers:
        if (mode := classes.mode(data)) >= 0:
            traits = read_traits(data)
            assert traits.plain
            assert traits.refusal is None
            assert traits.transient == (mode != 2)
            assert (traits.priority, traits.ttl, traits.delay, traits.deliver_at) == (None,) * 4
            assert (traits.keys, traits.publisher, traits.dedup, traits.cleaned) == ((), None, 0, None)


@pytest.mark.parametrize("name", sorted(ASKING))
def test_each_name_by_which_something_is_asked_is_read(name: str) -> None:
    data = encode(Properties(headers={"tenant": "a", name: ["no", 1]}, delivery_mode=2))
    assert HeaderClasses().mode(data) == ASKS
    traits = read_traits(data)
    assert traits.refusal is not None  # none of them may be a list of mixed things
    assert not traits.plain


def test_what_is_remembered_is_bounded() -> None:
    (known := properties._known).clear()
    classes = HeaderClasses()
    for number in range(properties._STARTS_MOST + 10):
        assert classes.mode(encode(Properties(headers={"n": number}, delivery_mode=2, message_id="x"))) == 2
    assert len(known) <= properties._STARTS_MOST
    known.clear()
    assert classes.mode(encode(Properties(headers={"n": "long" * 1000}, delivery_mode=2))) == 2
    assert not known
