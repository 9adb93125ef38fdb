"""What a header asks for, and how impossible wishes are refused."""

from __future__ import annotations

import re

import pytest

from penstock.core.publishing.published import PERSISTENT, TRANSIENT, TraitsMemo, parse_expiration, read_traits
from penstock.errors import PreconditionFailed, ProtocolError
from unit.core.world import header


@pytest.mark.parametrize(
    ("text", "micros"), [("0", 0), ("+5", 5000), ("007", 7000), ("315360000000", 315_360_000_000_000)]
)
def test_expirations(text: str, micros: int) -> None:
    assert parse_expiration(text) == micros


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("abc", "no_integer"), ("", "no_integer"), (" 5", "no_integer"), ("-", "no_integer"), ("+x", "no_integer"),
        ("-1", "{value_negative,-1}"), ("1.5", '{leftover_string,".5"}'), ("5 ", '{leftover_string," "}'),
        ("315360000001", "{value_too_large,315360000001}"), ("9" * 50, "{value_too_large," + "9" * 50 + "}"),
        ("٣", "no_integer"),
    ],
)  # fmt: skip
def test_bad_expirations(text: str, detail: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"^{re.escape(f'invalid expiration {text!r}: {detail}')}$"):
        parse_expiration(text)


def test_plain_headers_share_their_traits() -> None:
    assert read_traits(header(message_id="m", content_type="text/plain")) is PERSISTENT
    assert read_traits(b"\x00\x00") is TRANSIENT
    assert read_traits(header(delivery_mode=1)) is TRANSIENT


def test_everything_at_once() -> None:
    data = header(priority=7, expiration="100", headers={"x-delay": -5, "x-deliver-at": 9, "CC": ["a"], "BCC": ["b"]})
    traits = read_traits(data)
    assert (traits.priority, traits.ttl, traits.delay, traits.deliver_at) == (7, 100_000, -5000, 9000)
    assert traits.keys == ("a", "b")
    assert not traits.transient
    assert traits.cleaned is not None
    assert b"BCC" not in traits.cleaned
    assert read_traits(header(headers={"_AMQ_SCHED_DELIVERY": 4})).deliver_at == 4000


@pytest.mark.parametrize(
    "headers",
    [
        {"x-delay": "5"},
        {"x-delay": 1.5},
        {"x-delay": True},
        {"x-deliver-at": 2**60},
        {"CC": "a"},
        {"BCC": [1]},
        {"CC": None},
        {"x-dedup-key": True},
        {"x-dedup-key": ""},
        {"x-delta": "yes"},
        {"x-delta": 1},
    ],
)
def test_headers_that_cannot_be_used(headers: dict[str, object]) -> None:
    assert isinstance(read_traits(header(headers=headers)).refusal, PreconditionFailed)


def test_a_header_that_cannot_be_used_is_refused_by_its_name() -> None:
    assert "'x-dedup-key': text or a number" in str(read_traits(header(headers={"x-dedup-key": None})).refusal)
    assert read_traits(header(headers={"x-dedup-key": "a"})).dedup
    assert "'x-delta': true or false is needed, not 'yes'" in str(
        read_traits(header(headers={"x-delta": "yes"})).refusal
    )
    assert read_traits(header(headers={"x-delta": False})).refusal is None


def test_a_broken_header_carries_the_protocol_error() -> None:
    assert isinstance(read_traits(b"\x20\x00\xff").refusal, ProtocolError)


def test_the_memo_is_bounded() -> None:
    memo = TraitsMemo(most=4)
    for n in range(20):
        assert memo[header(app_id=str(n))] is PERSISTENT
        assert len(memo) <= 4
    before = dict(memo)
    assert memo[header(message_id="unique")] is PERSISTENT
    assert memo == before
    large = header(message_id="x" * 200, headers={"pad": "y" * 2000})
    assert memo[large].headers is not None
    assert large not in memo
