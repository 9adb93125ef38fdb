"""What a start says of itself while it recovers."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.cli.child_process import Line
from penstock.server.base.progress import STAGES, Lines, Progress, Stopped

SECOND = 1_000_000


class Time:
    """A clock that is told."""

    def __init__(self) -> None:
        self.now = 5 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def progress(time: Time) -> Progress:
    return Progress(time)


def a_start(progress: Progress) -> list[float]:
    """The shares of a start with two segments and a thousand records."""
    steps = [("checking", 0, 2), ("checking", 1, 2), ("checking", 2, 2), ("checkpoint", 0, 1)]
    steps += [("folding", done, 1000) for done in (0, 400, 900, 1100)]
    steps += [("queues", 0, 1), ("finishing", 0, 1), ("finishing", 1, 3), ("opening", 0, 1)]
    shares = list[float]()
    for step in steps:
        progress.watch(*step)
        shares.append(progress.share)
    progress.ready()
    return [*shares, progress.share]


def test_the_share_never_falls_and_ends_at_one(progress: Progress) -> None:
    shares = a_start(progress)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert max(shares[:-1]) < 1
    assert progress.done
    assert progress.over
    assert (progress.seconds_left, progress.doing) == (0.0, "ready")


def test_stages_follow_each_other() -> None:
    ends = [end for _, end in STAGES.values()]
    assert ends == sorted(ends)
    assert ends[-1] == 1


def test_an_estimate_comes_with_the_share_and_a_rate_with_the_fold(progress: Progress, time: Time) -> None:
    progress.watch("checking", 0, 4)
    time.now += SECOND
    assert progress.seconds_left is None
    progress.watch("checkpoint", 0, 1)
    progress.watch("folding", 0, 1_000_000)
    time.now += 2 * SECOND
    progress.watch("folding", 500_000, 1_000_000)
    assert progress.rate == 250_000
    share = progress.share
    assert progress.seconds_left == pytest.approx(3 * (1 - share) / share)
    plain = progress.plain()
    assert (plain["records_folded"], plain["records"], plain["records_per_second"]) == (500_000, 1_000_000, 250_000)
    assert (plain["doing"], plain["seconds"]) == ("folding records", 3.0)
    assert "500,000 of about 1,000,000 records folded, 250,000 a second" in progress.line()
    progress.watch("queues", 0, 1)
    assert progress.rate == 0


def test_a_start_that_is_called_off_ends_at_its_next_step(progress: Progress) -> None:
    progress.watch("checking", 0, 3)
    progress.stop()
    with pytest.raises(Stopped):
        progress.watch("checking", 1, 3)
    assert progress.over
    assert not progress.done


def test_a_log_gets_a_line_a_second(progress: Progress, time: Time) -> None:
    said = list[str]()
    lines = Lines(said.append)
    for _ in range(35):
        lines(progress)
        time.now += SECOND // 10
    assert len(said) == 3
    assert said[0].startswith("penstock is recovering, 0%: checking segments")
    progress.ready()
    time.now += 5 * SECOND
    lines(progress)
    assert len(said) == 3


def test_a_terminal_gets_one_line_that_goes_away(progress: Progress, time: Time) -> None:
    drawn = io.StringIO()
    line = Line(Console(file=drawn, force_terminal=True, width=150))
    progress.watch("checking", 3, 4)
    line(progress)
    assert drawn.getvalue() == ""  # it may be over in a moment
    time.now += SECOND
    line(progress)
    assert "checking segments  3/4" in drawn.getvalue()
    progress.watch("checkpoint", 0, 1)
    progress.watch("folding", 10, 40)
    time.now += SECOND
    line(progress)
    assert "folding records  10/40 records  10/s  about 3 s left" in drawn.getvalue()
    progress.ready()
    line(progress)
    length = len(drawn.getvalue())
    line(progress)
    assert len(drawn.getvalue()) == length
