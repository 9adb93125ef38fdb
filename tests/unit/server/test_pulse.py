"""The pauses of the loop, as `/metrics` tells them."""

from __future__ import annotations

import asyncio
import time
from selectors import EVENT_READ, SelectorKey
from types import SimpleNamespace

import pytest

from penstock.server.base import rounds
from penstock.server.base.rounds import BOUNDS, Pauses, Pulse


def _run(pulse: Pulse, spans: list[float]) -> None:
    async def turns() -> None:
        for span in spans:
            await asyncio.sleep(0.005)
            until = time.monotonic() + span
            while time.monotonic() < until:
                pass

    with asyncio.Runner(loop_factory=pulse.new_loop) as runner:
        runner.run(turns())


def test_the_longest_turn_is_found_and_sleep_is_no_pause() -> None:
    pulse = Pulse()
    _run(pulse, [0.001, 0.06, 0.001])
    pauses = pulse.pauses()
    assert pauses.longest >= 0.06
    assert pauses.longest_cpu > 0.0
    assert pauses.total >= 0.062
    assert sum(pauses.counts[BOUNDS.index(0.05) + 1 :]) >= 1
    assert sum(pauses.counts) >= 4


def test_what_was_longest_is_forgotten_and_what_was_counted_is_not() -> None:
    pulse = Pulse()
    _run(pulse, [0.03])
    before = pulse.pauses()
    pulse.begin_anew()
    after = pulse.pauses()
    assert (after.longest, after.longest_cpu) == (0.0, 0.0)
    assert after.counts == before.counts
    assert after.total == before.total > 0.0


def test_sleep_beyond_what_was_meant_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(SelectorKey(-1, -1, EVENT_READ, None), EVENT_READ)]
    now, looks = [1.0], list[tuple[float, bool]]()  # each look: how long it took, whether something was there

    def look(self: object, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        took, came = looks.pop()
        now[0] += took
        return list(found) if came else []

    monkeypatch.setattr(rounds.DefaultSelector, "select", look)
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time))
    pulse = Pulse()
    loop = pulse.new_loop()
    select = loop._selector.select  # type: ignore[attr-defined]

    def turn(timeout: float | None, took: float, *, came: bool) -> None:
        looks.append((took, came))
        select(timeout)

    turn(0.1, 0.5, came=False)
    turn(None, 8.5, came=True)
    assert 0.35 < pulse.pauses().longest <= 0.4
    pulse.begin_anew()
    turn(0, 0.2, came=False)
    assert pulse.pauses().longest == 0.0
    turn(0, 0.0, came=False)
    assert pulse.pauses().longest > 0.19
    loop.close()


def test_who_made_no_loop_has_no_pauses() -> None:
    pulse = Pulse()
    pulse.begin_anew()
    assert pulse.pauses() == Pauses()
