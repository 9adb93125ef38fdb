"""How fast a replay goes."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.records.entries import Topic
from penstock.server.replaying.log_source import Pace, Rate, parse_rate
from penstock.server.replaying.page import Page

S = 1_000_000


def page(times: list[int], size: int = 10) -> Page:
    rows = len(times)
    return Page(range(1, rows + 1), Topic("/", "", "t"), b"", [b"x" * size] * rows, times)


def played(rate: Rate, times: list[int], step: int, until: int, size: int = 10) -> list[int]:
    """When each message went."""
    pace, rest, out, now = Pace(rate), page(times, size), list[int](), 0
    while now <= until and len(rest):
        count = pace.admit(rest, now)
        out += [now] * count
        rest = rest.part(count, len(rest)) if count < len(rest) else page([])
        now += step
    return out


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", Rate(messages=1000)),
        ("1000/s", Rate(messages=1000)),
        ("0.5", Rate(messages=0.5)),
        ("500KB", Rate(size=500_000)),
        ("500kb/s", Rate(size=500_000)),
        ("2MiB", Rate(size=2 << 20)),
        ("2X", Rate(speed=2)),
        ("0.5x", Rate(speed=0.5)),
    ],
)
def test_rates_as_they_are_written(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "-3", "3Q", "X", "1 000"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InvalidArgument, match="rate"):
        parse_rate(text)


def test_a_gap_belongs_to_a_speed() -> None:
    assert parse_rate("2X", 10 * S) == Rate(speed=2, max_gap=10 * S)
    with pytest.raises(InvalidArgument, match="rate_max_gap"):
        parse_rate("100", 10 * S)


def test_messages_a_second() -> None:
    went = played(Rate(messages=10), [0] * 100, S // 100, 2 * S)
    assert len(went) == 21, "the first at once, then ten a second"
    assert went[1] - went[0] == S // 10


def test_a_late_timer_costs_no_message_and_a_pause_gives_none() -> None:
    went = played(Rate(messages=100), [0] * 1000, 60_000, 3 * S)
    assert len(went) == pytest.approx(300, abs=10)
    pace = Pace(Rate(messages=100))
    assert pace.admit(page([0] * 500), 0) == 1
    assert pace.admit(page([0] * 500), 60 * S) == pytest.approx(11, abs=1), (
        "a tenth of a second's worth, not a minute's"
    )


def test_bytes_a_second() -> None:
    went = played(Rate(size=1000), [0] * 100, S // 100, 2 * S, size=100)
    assert len(went) == 21


def test_as_they_came() -> None:
    went = played(Rate(speed=2), [0, S, 3 * S, 3 * S, 7 * S], S // 100, 10 * S)
    assert went == [0, S // 2, S * 3 // 2, S * 3 // 2, S * 7 // 2]


def test_long_gaps_are_shortened() -> None:
    went = played(Rate(speed=1, max_gap=2 * S), [0, S, 3600 * S, 3601 * S], S // 100, 10 * S)
    assert went == [0, S, 3 * S, 4 * S]
