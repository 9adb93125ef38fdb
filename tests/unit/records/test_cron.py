"""Schedules of pipelines: what is read, and when it comes next."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from penstock.errors import InvalidArgument
from penstock.records.cron import parse_cron


def after(text: str, now: str, zone: str = "UTC") -> str:
    start = int(datetime.fromisoformat(now).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1e6)
    at = parse_cron(text).after(start, ZoneInfo(zone))
    return datetime.fromtimestamp(at / 1e6, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("text", "now", "then"),
    [
        ("*/15 * * * *", "2026-11-20 10:00", "2026-11-20 10:15"),
        ("*/15 * * * *", "2026-11-20 23:50", "2026-11-21 00:00"),
        ("30 2 * * 1-5", "2026-11-20 02:30", "2026-11-23 02:30"),  # Friday -> Monday
        ("0 6 1,15 * *", "2026-11-20 00:00", "2026-12-01 06:00"),
        ("0 0 13 * 5", "2026-11-20 00:00", "2026-11-27 00:00"),  # the 13th or a Friday
        ("0 0 29 feb *", "2026-11-20 00:00", "2028-02-29 00:00"),
        ("5/20 9 * * SUN", "2026-11-20 00:00", "2026-11-22 09:05"),
        ("0 12 * * 7", "2026-11-20 00:00", "2026-11-22 12:00"),
        ("every 90m", "2026-11-20 10:00", "2026-11-20 11:30"),
        ("02:00", "2026-11-20 10:00", "2026-11-21 02:00"),
        ("Saturday at 11:00", "2026-11-20 10:00", "2026-11-21 11:00"),
    ],
)
def test_the_next_time(text: str, now: str, then: str) -> None:
    assert after(text, now) == then


def test_times_are_those_of_the_zone_unless_they_are_utc() -> None:
    assert after("0 2 * * *", "2026-11-20 01:30", "Europe/Vienna") == "2026-11-20 02:00"
    assert after("0 2 * * * Z", "2026-11-20 01:30", "Europe/Vienna") == "2026-11-20 03:00"
    # The hour that is skipped in spring.
    assert after("30 2 * * *", "2026-03-29 00:00", "Europe/Vienna") in ("2026-03-29 01:30", "2026-03-29 03:30")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("61 * * * *", "'61' is no minute from 0 to 59"),
        ("* * 31 2 *", "never comes"),
        ("5-1 * * * *", "'5-1' is no range"),
        ("* * * * funday", "'funday' is no weekday"),
        ("*/0 * * * *", "is no range"),
        ("now and then", "write every 5m, 02:00"),
        ("every now", "'every now' is no schedule: write every 5m, 02:00, Saturday at 11:00, or the five fields of"),
        ("25:00", "'25:00': there is no 25:00 in a day"),
        ("Funday at 11:00", "'Funday' is no day of the week"),
    ],
)
def test_what_is_no_schedule(text: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told.replace("*", r"\*")):
        parse_cron(text)


def test_it_always_moves_on() -> None:
    cron = parse_cron("*/7 3-5 * * *")
    at = int(datetime(2026, 3, 28, tzinfo=UTC).timestamp() * 1e6)
    for _ in range(60):
        then = cron.after(at, UTC)
        assert then > at
        at = then
