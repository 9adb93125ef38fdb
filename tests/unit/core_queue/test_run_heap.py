"""What came back, or waits for its time, one by one or many at once: each reader tells what a plain list would."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from penstock.core.queue.delays import Retries
from penstock.core.queue.order import run_heap, sorted_rows
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import PriorityReturned, Returned
from penstock.core.queue.order.run_heap import RunHeap
from penstock.core.queue.order.runs import END, Key, Run
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.settling.attempts import Tally
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.kinds import HEAD

Fate = tuple[Tally, int, int]
"""Tally, place and deadline of one message."""


def ranked() -> PriorityReturned:
    ranks = Ranks()
    ranks.add(range(1, 5000), [lsn % 7 for lsn in range(1, 5000)])
    return PriorityReturned(ranks)


KINDS = {"returned": Returned, "retries": Retries, "with priorities": ranked}


def fate(chance: random.Random, kind: str) -> Fate:
    tally = Tally(*(chance.randrange(3) for _ in Tally._fields))
    place = chance.choice((0, 0, 5000 + chance.randrange(1000), HEAD + 5000 + chance.randrange(1000)))
    return tally, place, 1 + chance.randrange(1000) if kind == "retries" else 0


def alone(lsn: int, told: Fate) -> Run:
    tally, place, deadline = told
    return Run(range(lsn, lsn + 1), False, tally, place, deadline)


def fates(runs: list[Run]) -> dict[int, Fate]:
    """Of each message; none is told twice."""
    found = [(lsn, (run.tally, run.place, run.deadline)) for run in runs for lsn in run.chunk]
    assert len(dict(found)) == len(found)
    return dict(found)


def of_columns(told: Told) -> dict[int, Fate]:
    columns = zip(*(column.tolist() for column in told[:4]), strict=True)
    return {lsn: (told.tallies[number], place, deadline) for lsn, place, deadline, number in columns}


def lsns(chunks: list[Chunk]) -> list[int]:
    assert all(list(chunk) == sorted(chunk) for chunk in chunks)
    return sorted(chain.from_iterable(chunks))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("loose", "alike"), [(3, 1), (3, 100), (10, 2), (1000, 4)])
def test_every_reader_tells_what_is_there(kind: str, loose: int, alike: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (run_heap, "LOOSE_MOST", loose), (run_heap, "ALIKE", alike), (run_heap, "SMALL", 4), (sorted_rows, "BLOCK", 4),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    for seed in range(3):
        chance = random.Random(seed)
        heap, there = KINDS[kind](), dict[int, Fate]()
        away = chance.sample(range(1, 5000), 400)

        def key(lsn: int, heap: RunHeap = heap, there: dict[int, Fate] = there) -> Key:
            return heap.key(alone(lsn, there[lsn]))

        for _ in range(60):
            match chance.choice(("push", "push", "push", "take", "take_at", "extract")):
                case "push" if away:
                    told, count = fate(chance, kind), min(len(away), chance.choice((1, 1, 1, 2, 9)))
                    some = sorted(away.pop() for _ in range(count))
                    heap.push(Run(as_chunk(some), False, *told))
                    there.update(dict.fromkeys(some, told))
                case "take" if there:
                    order = sorted(there, key=key)
                    limit = chance.choice((END, key(chance.choice(order))))
                    out = heap.take(chance.choice((1, 3, 100)), limit)
                    taken = [lsn for run in out for lsn in run.chunk]
                    assert taken == order[: len(taken)]
                    assert bool(taken) == (key(order[0]) < limit)
                    assert all(key(lsn) < limit for lsn in taken)
                    assert fates(out) == {lsn: there.pop(lsn) for lsn in taken}
                    away += taken
                case "take_at" if there:
                    order = sorted(there, key=key)
                    lsn = chance.choice((order[0], chance.choice(order)))
                    assert fates([heap.take_at(key(lsn))]) == {lsn: there.pop(lsn)}
                    away.append(lsn)
                case "extract":
                    some = sorted(chance.sample(range(1, 5000), 3) + chance.sample(sorted(there), len(there) // 5))
                    wanted = chance.choice((as_chunk(sorted(set(some))), range(min(some), min(some) + 50)))
                    out = heap.extract(wanted)
                    assert fates(out) == {lsn: there.pop(lsn) for lsn in wanted if lsn in there}
                    away += [lsn for run in out for lsn in run.chunk]
            assert heap.count == len(there)
            wanted = as_chunk(sorted(chance.sample(range(1, 5000), 400)))
            assert fates([*heap.among(wanted)]) == {lsn: there[lsn] for lsn in wanted if lsn in there}
            assert fates([*heap.runs()]) == there
            assert lsns([*heap.pieces()]) == sorted(there)
            runs, columns = heap.copies()
            assert fates(runs) | {lsn: told for one in columns for lsn, told in of_columns(one).items()} == there
            assert sum(len(run.chunk) for run in runs) + sum(len(one.lsns) for one in columns) == len(there)
            if there:
                order = sorted(there, key=key)
                assert heap.head() == key(order[0])
                assert heap.lowest() == min(there)
                assert heap.next_ones(5) == [key(lsn) for lsn in order[:5]]
            if isinstance(heap, Returned):
                assert sorted(heap.present(wanted)) == sorted(key(lsn) for lsn in wanted if lsn in there)
                heads = {lsn for lsn, (_, place, _) in there.items() if place >= HEAD}
                assert sorted(lsn for run in heap.heads() for lsn in run.chunk) == sorted(heads)
                others = sorted(key(lsn) for lsn in there if lsn not in heads)
                read = chance.choice(others or [(0, 0)])
                told = {lsn for run in heap.behind(read, 3) for lsn in run.chunk}
                assert told.issuperset([lsn for at, lsn in others if (at, lsn) > read][:3])


@pytest.mark.parametrize("kind", ["returned", "retries"])
def test_of_many_that_have_nothing_in_common_a_step_looks_at_few(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They became due, or failed, each in its own moment: to look at one, or to keep all, makes no run of each."""
    heap = KINDS[kind]()
    order = random.Random(1).sample(range(1, 40_000), 20_000)
    for at, lsn in enumerate(order):
        heap.push(alone(lsn, (Tally(1), 50_000 + at, at if kind == "retries" else 0)))
    made, make = list[Run](), Run.__init__

    def counted(run: Run, *args: object) -> None:
        made.append(run)
        make(run, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Run, "__init__", counted)
    for lsn in order[:10]:
        assert len(heap.among(range(lsn, lsn + 1))) == 1
        assert len(heap.extract(range(lsn, lsn + 1))) == 1
        assert heap.lowest() >= 1
    assert len(lsns([*heap.pieces()])) == heap.count
    assert len(heap.next_ones(100)) == 100
    if isinstance(heap, Returned):
        assert not heap.heads()
        assert len([*heap.behind((60_000, 0), 10)]) <= run_heap.LOOSE_MOST + 10
    columns = heap.copies()[1]
    assert sum(len(one.lsns) for one in columns) > 15_000
    monkeypatch.setattr(sorted_rows.SortedRows, "among", None)  # a look through all rows
    for key in heap.next_ones(100):
        assert [*heap.take_at(key).chunk] == [key[1]]
    assert len(made) <= 2 * run_heap.LOOSE_MOST, "there are not more than this beside the rows"
