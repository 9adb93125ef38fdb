"""The pauses of the loop, as `/metrics` tells them."""

from __future__ import annotations

import asyncio
import time

from penstock.server.rounds import BOUNDS, Pulse


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


def test_sleep_beyond_what_was_meant_is_a_pause() -> None:
    pulse = Pulse()
    start = time.monotonic()
    pulse.turned(start, start + 0.5, 0.1, found=False)
    pulse.turned(start + 0.5, start + 9.0, None, found=True)
    assert 0.35 < pulse.pauses().longest <= 0.4
    pulse.begin_anew()
    pulse.turned(start + 9.0, start + 9.2, 0, found=False)
    assert pulse.pauses().longest == 0.0
    pulse.turned(start + 9.2, start + 9.2, 0, found=False)
    assert pulse.pauses().longest > 0.19
