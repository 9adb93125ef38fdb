"""A sample of the soak, and the proof that it notices what it is there to notice.

`PENSTOCK_SAMPLE_SECONDS` sets the length of the sample (18, in a hunt 30).  `make soak` runs it for an hour.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from choices import EFFORT, SEED
from soak.books import ACKED, CONFIRMED, PROVEN, REFUSED, Books, body_of
from soak.slope import LIMITS, MIB, judge
from soak.soak import Soak, told

SAMPLE_S = float(os.environ.get("PENSTOCK_SAMPLE_SECONDS", "18" if EFFORT == 1 else "30"))
LEAK_S = 9.0
WARM_UP = 10.0


def points(rise_an_hour: float, *, noise: float, wild: float = 0.0, lives: int = 3, seconds: int = 120):  # type: ignore[no-untyped-def]
    """A series with noise, some wild points, and a jump at each start of a life."""
    chance = random.Random(1)
    out = list[tuple[int, float, float]]()
    for life in range(lives):
        base = 100 + 50 * life
        for at in range(seconds):
            value = base + rise_an_hour * at / 3600 + chance.gauss(0, noise)
            if chance.random() < wild:
                value += chance.uniform(0, 500)
            out.append((life, float(at), value * MIB))
    return out


def test_a_level_series_is_level_whatever_jumps() -> None:
    verdict = judge("memory", points(0, noise=3, wild=0.2), WARM_UP)
    assert verdict.good, verdict
    assert abs(verdict.risen) < 2
    assert verdict.points == 3 * 110


def test_a_slope_shows_through_noise_and_wild_points() -> None:
    verdict = judge("memory", points(3000, noise=3, wild=0.2), WARM_UP)
    assert not verdict.good
    assert verdict.an_hour == pytest.approx(3000, rel=0.15)


def test_a_long_run_notices_what_a_short_one_cannot_tell() -> None:
    assert judge("memory", points(60, noise=1, seconds=120), WARM_UP).good
    assert not judge("memory", points(60, noise=1, seconds=3600, lives=1), WARM_UP).good


def test_what_rises_before_the_warm_up_is_over_does_not_count() -> None:
    climbing = [(1, float(at), min(at, 20) * 10.0 * MIB) for at in range(120)]
    assert judge("memory", climbing, 25.0).good
    assert not judge("memory", climbing, 0.0).good or judge("memory", climbing, 0.0).risen < 1


def test_too_few_points_are_no_proof() -> None:
    assert not judge("memory", points(0, noise=0, lives=1, seconds=12), WARM_UP).good


@pytest.mark.parametrize(("processes", "good"), [((2, 3, 2, 3), True), ((2, 3, 2, 4), False)])
def test_a_usual_process_that_comes_and_goes_is_no_rise_and_one_too_many_is(
    tmp_path: Path, processes: tuple[int, ...], good: bool
) -> None:
    soak = Soak(tmp_path, 9.0, seed=1)
    soak.host.lives = 2
    for at in range(200):
        now = processes[at // 50]
        soak.note("memory", float(at), 70.0 * now * MIB, now)
        soak.note("disk", float(at), 0.0, now)
    assert judge("memory", soak.points["memory"], WARM_UP).good == good
    assert judge("disk", soak.points["disk"], WARM_UP).points == 190


@pytest.fixture
def books() -> Books:
    """Ten messages, all confirmed; the first five delivered and acked, two of them for good."""
    books = Books()
    mine = books.publisher("work")
    books.confirm(mine, books.send(mine, 10))
    ids = [books.deliver(body_of(mine, number), False) for number in range(5)]
    books.settle(ids)
    books.settle(ids[:2], PROVEN)
    return books


def test_the_books_balance(books: Books) -> None:
    assert books.waiting == [5]
    books.close(Counter({(0, number): 1 for number in range(5, 10)}))
    assert books.wrong == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({5: 1, 6: 1, 7: 1, 8: 1}, "0.9 of work was confirmed and is lost"),
        ({5: 2, 6: 1, 7: 1, 8: 1, 9: 1}, "0.5 of work is there 2 times"),
        ({1: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1}, "0.1 of work is there, and was acked for good"),
    ],
)
def test_the_books_notice(books: Books, found: dict[int, int], said: str) -> None:
    books.close(Counter({(0, number): count for number, count in found.items()}))
    assert books.wrong == [said]


def test_the_books_notice_a_changed_body_and_what_comes_back(books: Books) -> None:
    books.deliver(body_of(0, 7).replace(b"pad", b"bad"), False)
    assert "nobody sent" in books.wrong[0]
    books.deliver(body_of(0, 1), True)
    assert "came back from '' after its ack was on the disk" in books.wrong[1]
    assert [CONFIRMED, ACKED, PROVEN, REFUSED] == [1, 4, 8, 16]


def test_a_planted_leak_is_found(tmp_path: Path) -> None:
    soak = Soak(tmp_path, LEAK_S, seed=1, leak="memory,descriptors")
    verdicts = {one.name: one for one in soak.run()}
    assert not soak.books.wrong
    for name in ("memory", "descriptors"):
        assert verdicts[name].points >= 12
        assert verdicts[name].risen > verdicts[name].limit, told(list(verdicts.values()))


def test_a_sample(tmp_path: Path) -> None:
    with (tmp_path / "samples.jsonl").open("w") as out:
        soak = Soak(tmp_path, SAMPLE_S, SEED, out=out)
        verdicts = soak.run()
    table = f"PENSTOCK_SEED={SEED}\n{told(verdicts)}\n{dict(soak.books.counts)}"
    print(table)
    assert soak.books.wrong == [], "\n".join([*soak.books.wrong[:30], table])
    assert soak.books.counts["kills"] == 1
    assert soak.books.counts["squeezes"] == 1
    assert soak.books.counts["confirmed"] > 1000
    assert all(one.good for one in verdicts), table
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert sum(set(LIMITS) <= set(line) for line in lines) > len(lines) / 2  # a second without a confirm has no p99
    assert {line["life"] for line in lines} == {1, 2}
