"""A time without a zone is UTC, wherever somebody writes or passes one, and whatever the zone of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from penstock.cli.messages import when_of
from penstock.client.outgoing import when
from penstock.records.queue_settings import time_of
from penstock.units import moment
from penstock.wire.flight.bookmarks import parse_point

NAIVE = datetime.fromisoformat("2026-07-01T12:30:15.250001")
MICROS = 1_782_909_015_250_001


def _typed(naive: datetime) -> int | None:
    found = when_of(naive.isoformat())
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
