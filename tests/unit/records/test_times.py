"""A time without a zone is UTC, wherever somebody writes or passes one, and whatever the zone of the machine.

Numbers in ages, times, sizes and bookmarks are written in ASCII: what looks like none is refused as none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from penstock.cli.output import when_of
from penstock.client.outgoing import when
from penstock.errors import InvalidArgument
from penstock.records.queue_settings import parse_recovery_point, time_of
from penstock.units import format_size, moment, parse_age, parse_duration, parse_size
from penstock.wire.flight.bookmarks import parse_mark, parse_point

NAIVE = datetime.fromisoformat("2026-07-01T12:30:15.250001")
MICROS = 1_782_909_015_250_001


def _typed(naive: datetime) -> int | None:
    found = when_of(naive.isoformat(), "WHEN")
    assert isinstance(found, datetime)
    return moment(found, "until")[0]


READERS: list[Callable[[datetime], int | None]] = [
    lambda naive: moment(naive, "until")[0],
    lambda naive: when("not_before", naive, "delay", None)["not_before"],
    lambda naive: time_of(naive.isoformat()),
    lambda naive: parse_point(naive.isoformat()).time,
    _typed,
]


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("read", READERS, ids=["pause", "publish", "recovery point", "bookmark", "command line"])
def test_a_time_without_a_zone_is_utc(read: Callable[[datetime], int | None]) -> None:
    assert read(NAIVE) == read(NAIVE.replace(tzinfo=UTC)) == MICROS


OF_DIGITS: list[tuple[Callable[[str], object], str]] = [
    (parse_age, "3D"), (parse_duration, "3s"), (parse_size, "3KiB"), (parse_recovery_point, "3|3|"),
    (parse_point, "3|3|"), (parse_mark, "3|3|"),
]  # fmt: skip


@pytest.mark.parametrize(
    "three", ["\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT THREE}", "\N{SUPERSCRIPT THREE}"]
)
@pytest.mark.parametrize(("read", "text"), OF_DIGITS)
def test_other_digits_are_no_number(read: Callable[[str], object], text: str, three: str) -> None:
    read(text)
    with pytest.raises((ValueError, InvalidArgument), match=three):
        read(text.replace("3", three))


@pytest.mark.parametrize("read", [parse_duration, parse_size])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9" * 5000 + "{}", "has 5000 digits, 40 are allowed"), ("1." + "9" * 5000 + "{}", "has 5001 digits"),
        ("9" * 40 + "{}", "is too large"), ("9" * 5000, "needs a unit"), ("1" + "x" * 5000, "unknown unit 'xxx"),
        ("x" * 5000, "is not a "),
    ],
)  # fmt: skip
def test_what_is_too_long_is_told_in_short(read: Callable[[str], int], text: str, why: str) -> None:
    """Of five thousand digits Python's own word came, of what to set to read them; all of a text was told again."""
    with pytest.raises(ValueError, match=why) as caught:
        read(text.format("s" if read is parse_duration else "B"))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (999 << 10, "999 KiB"),
        (1000 << 10, "1000 KiB"), (1020 << 10, "1020 KiB"), ((1 << 20) - 1, "1 MiB"), (1010 << 20, "1010 MiB"),
        (50_000 << 40, "50000 TiB"),
    ],
)  # fmt: skip
def test_a_size_for_people_has_no_exponent(size: int, told: str) -> None:
    assert format_size(size) == told
