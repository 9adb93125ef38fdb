"""What a queue counts beside its messages, and how old an LSN is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.limits import BUCKETS, EVERY, FIRST, Figures, bucket, upper
from penstock.core.queue.order.runs import Run
from penstock.core.state.stamps import GRAIN_US, LEVELS, MOMENTS, Stamps


@given(st.integers(0, 2**41))
def test_a_duration_is_in_the_bucket_that_ends_above_it(micros: int) -> None:
    place = bucket(micros)
    assert micros <= upper(place)
    assert place == 0 or micros > upper(place - 1)
    assert upper(place) <= micros * 1.25


def test_what_is_longer_than_all_buckets_is_in_the_last() -> None:
    assert bucket(2**60) == BUCKETS - 1
    assert bucket(-5) == 0


def leased(at: int) -> Run:
    run = Run(range(1, 2), True)
    run.granted = at
    return run


def acked(figures: Figures, mono: int, count: int, run: Run) -> None:
    """As `settle` does."""
    figures.unsampled += count
    if figures.unsampled >= figures.step:
        figures.sample(mono, run)


def test_percentiles_weigh_by_messages() -> None:
    figures = Figures(1)
    acked(figures, 1_001, 98, leased(1))
    acked(figures, 1_000_001, 2, leased(1))
    found = figures.quantiles()
    assert found[0.5] == pytest.approx(0.001, rel=0.25)
    assert found[0.9] == found[0.5]
    assert found[0.99] == found[0.999] == pytest.approx(1.0, rel=0.25)


def test_after_the_first_hundreds_one_of_several_is_looked_at() -> None:
    figures = Figures(1)
    for turn in range(2 * FIRST + EVERY):
        acked(figures, 100 + turn, 1, leased(1))
    assert figures.step == EVERY
    assert figures.sampled == 2 * FIRST + EVERY - figures.unsampled
    assert figures.unsampled < EVERY


def test_a_delivery_of_an_earlier_process_counts_for_the_rate_alone() -> None:
    figures = Figures(0)
    acked(figures, 1_000_000, 10, leased(0))
    assert figures.quantiles() == {}
    assert figures.rate(1_000_000) > 0


def test_the_rate_comes_near_what_it_is_and_fades() -> None:
    figures, mono = Figures(0), 0
    for _ in range(600):
        mono += 100_000
        acked(figures, mono, 50, leased(1))
    assert figures.rate(mono) == pytest.approx(500, rel=0.02)
    assert figures.rate(mono + 60_000_000) < 5


def test_expirations_count_for_each_of_their_reasons() -> None:
    figures = Figures()
    figures.expired("time_limit,max_cancels", 2)
    figures.expired("time_limit", 1)
    assert figures.expirations == {"time_limit": 3, "max_cancels": 2}


def test_the_age_of_an_lsn_is_that_of_its_turn() -> None:
    stamps = Stamps()
    assert stamps.of(7, 50) == 50
    stamps.note(10, 1_000)
    stamps.note(20, 1_000 + GRAIN_US)
    stamps.note(25, 1_001 + GRAIN_US)
    stamps.note(30, 1_000 + 3 * GRAIN_US)
    now = 10 * GRAIN_US
    assert [stamps.of(lsn, now) - 1_000 for lsn in (0, 10, 11, 20, 25, 26, 99)] == [
        0, 0, GRAIN_US, GRAIN_US, GRAIN_US, 3 * GRAIN_US, 3 * GRAIN_US,
    ]  # fmt: skip


def test_stamps_keep_to_their_bound_and_old_ones_get_coarse() -> None:
    stamps = Stamps()
    turns = 40 * MOMENTS
    for turn in range(1, turns + 1):
        stamps.note(turn, turn * GRAIN_US)
    assert sum(len(level.times) for level in stamps._levels) <= 2 * MOMENTS * LEVELS
    now = turns * GRAIN_US
    for lsn in (1, turns // 100, turns // 2, turns - 10):
        age, said = (turns - lsn) * GRAIN_US, now - stamps.of(lsn, now)
        assert age <= said <= 1.005 * age + GRAIN_US
