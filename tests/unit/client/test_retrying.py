"""When a server that is away is tried again, and when it is given up."""

from __future__ import annotations

import random
import threading
import time

import pytest

from penstock.client.link import PAUSE_S, Outage, patience
from penstock.errors import NotFound, Unavailable
from penstock.wire.flight.bookmarks import resumed


def test_what_does_not_pass_is_raised_at_once() -> None:
    with pytest.raises(NotFound):
        Outage(None).failed(NotFound("no queue 'q'"))
    with pytest.raises(Unavailable, match="gone"):
        Outage(0.0).failed(Unavailable("gone"))


def test_pauses_grow_to_a_bound_and_begin_anew() -> None:
    outage = Outage(None, chance=random.Random(1))
    pauses = list[float]()
    for _ in range(12):
        outage.failed(Unavailable("gone"))
        pauses.append(outage.pause)
    assert all(PAUSE_S[0] / 4 < pause <= 1.5 * PAUSE_S[1] for pause in pauses)
    assert min(pauses[8:]) > 5 * max(pauses[:2])
    assert outage.over()
    assert not outage.over(), "there was none"
    outage.failed(Unavailable("gone"))
    assert outage.pause < 2 * PAUSE_S[0]


def test_it_is_given_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    outage = Outage(10.0)
    outage.failed(Unavailable("gone"))
    now += 9.9
    outage.failed(Unavailable("still gone"))
    assert outage.pause <= PAUSE_S[0] + 1e-9, "the last try is when the time ends"
    now += 0.2
    with pytest.raises(Unavailable, match=r"away for 10 s and is given up: no one there"):
        outage.failed(Unavailable("no one there"))


def test_waiting_ends_with_the_moment_or_the_event() -> None:
    outage, ended = Outage(None), threading.Event()
    outage.failed(Unavailable("gone"))
    assert outage.wait(None, ended)
    outage.failed(Unavailable("gone"))
    assert not outage.wait(time.monotonic(), ended)
    ended.set()
    assert not outage.wait(None, ended)


def test_durations() -> None:
    assert (patience(None), patience("2m"), patience(0)) == (None, 120.0, 0.0)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("EPOCH", "1|7|"),
        ("1|2|,1|3|", "1|7|"),
        ("[1|2|:1|9|)", "(1|7|:1|9|)"),
        ("[2026-11-20T08:00:00:2026-11-20T09:00:00]", "(1|7|:2026-11-20T09:00:00]"),
        ("(MOST_RECENT:1|9|,1|8|)", "(1|7|:1|9|,1|8|)"),
    ],
)
def test_a_range_that_goes_on_keeps_its_end(text: str, rest: str) -> None:
    assert resumed(text, "1|7|") == rest
