"""Dying messages whose bodies are large: a letter becomes several, each a group of its own."""

from __future__ import annotations

from array import array

from penstock.core.queue.order.runs import Run
from penstock.core.queue.settling.letters import Letter, portions
from penstock.records.entries import Rows, Topic

TOPIC = Topic("/", "", "jobs")


def rows(sizes: dict[int, int]) -> Rows:
    lsns = sorted(sizes)
    zeros, count = [0] * len(lsns), len(lsns)
    return Rows(lsns, [TOPIC] * count, [b""] * count, [b"x" * sizes[lsn] for lsn in lsns], zeros, zeros, zeros)


def cut(runs: list[Run], sizes: dict[int, int], most: int) -> list[list[list[int]]]:
    return [
        [list(run.chunk) for run in one.runs]
        for one in portions(Letter(runs, "max_deliveries", "me"), rows(sizes), most)
    ]


def test_one_that_is_small_enough_stays_whole() -> None:
    runs = [Run(range(5, 8), True)]
    assert cut(runs, {5: 10, 6: 10, 7: 10}, 30) == [[[5, 6, 7]]]


def test_parts_have_at_most_so_many_bytes_in_the_order_of_death() -> None:
    runs = [Run(range(20, 23), True), Run(array("q", [5, 9, 12]), False)]
    sizes = {5: 10, 9: 10, 12: 10, 20: 10, 21: 10, 22: 10}
    assert cut(runs, sizes, 20) == [[[20, 21]], [[22], [5]], [[9, 12]]]


def test_a_message_above_the_bound_is_a_part_of_its_own() -> None:
    assert cut([Run(range(1, 4), True)], {1: 5, 2: 100, 3: 5}, 20) == [[[1]], [[2]], [[3]]]


def test_what_was_not_fetched_weighs_nothing_and_is_there() -> None:
    assert cut([Run(range(1, 5), True)], {1: 15, 4: 15}, 20) == [[[1, 2, 3]], [[4]]]


def test_pairs_of_parts_name_all_and_nothing_else() -> None:
    scattered = Run(array("q", [5, 9, 12, 13]), False)
    parts = list(portions(Letter([scattered], "time_limit"), rows(dict.fromkeys((5, 9, 12, 13), 10)), 20))
    assert [part.pairs for part in parts] == [[5, 6, 9, 10], [12, 14]]
    assert {(part.reason, part.by) for part in parts} == {("time_limit", "")}
