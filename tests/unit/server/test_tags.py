"""Delivery tags of a channel, against a dict that nobody doubts."""

from __future__ import annotations

import tracemalloc
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.chunks import Chunk, as_chunk
from penstock.server.amqp import tags as tags_module
from penstock.server.amqp.tag_index import places
from penstock.server.amqp.tags import Settled, Tags, UnknownTag, singly


@dataclass(eq=False)
class Name:
    """A consumer, as far as tags know one."""

    queue: str


A, B, C = (cast("Any", Name(queue)) for queue in "qqr")


def plain(settled: Settled) -> list[tuple[Any, int]]:
    return [(consumer, lsn) for consumer, chunk in singly(settled) for lsn in chunk]


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_all_that_is_outstanding_is_taken_however_little_it_is(count: int) -> None:
    tags = Tags()
    for lsn in range(count):
        tags.give(A, range(lsn, lsn + 1), True)
    assert plain(tags.all()) == [(A, lsn) for lsn in range(count)]
    assert tags.count == 0
    assert tags.all() == []
    assert tags.give(A, range(1000, 1001), True) == count + 1
    assert plain(tags.all()) == [(A, 1000)]


def test_acks_in_order_cut_the_front() -> None:
    tags = Tags()
    assert tags.give(A, range(10, 20), True) == 1
    assert plain(tags.settle(1, 3)) == [(A, 10), (A, 11), (A, 12)]
    assert tags.count == 7
    assert plain(tags.settle(0, 5)) == [(A, 13), (A, 14)]


def test_zero_and_multiple_settle_everything_even_nothing() -> None:
    tags = Tags()
    assert tags.settle(0, 0) == []
    tags.give(A, range(1, 3), True)
    tags.give(B, range(5, 6), True)
    assert plain(tags.settle(0, 0)) == [(A, 1), (A, 2), (B, 5)]
    assert tags.count == 0


def test_a_tag_is_settled_once() -> None:
    tags = Tags()
    tags.give(A, range(1, 4), True)
    tags.settle(2, 2)
    for low, high in ((2, 2), (0, 2), (4, 4), (0, 9)):
        with pytest.raises(UnknownTag):
            tags.settle(low, high)
    assert plain(tags.settle(0, 3)) == [(A, 1), (A, 3)]


def test_tags_without_ack_are_unknown_but_counted() -> None:
    tags = Tags()
    tags.give(A, range(1, 3), False)
    assert tags.give(B, range(7, 8), True) == 3
    with pytest.raises(UnknownTag):
        tags.settle(1, 1)
    assert plain(tags.settle(3, 3)) == [(B, 7)]


def test_a_message_that_comes_again_after_its_tag_was_settled_makes_no_unknown_tag_known() -> None:
    """Found by a random order of what a channel does: an ack of a tag that was settled before was taken in silence."""
    for each in (False, True):
        tags = Tags()
        if each:
            tags.give_each([A, A], as_chunk([100, 102]))
        else:
            tags.give(A, as_chunk([100, 102]), True)
        tags.settle(1, 1)
        tags.supersede(A, range(100, 101))
        assert tags.count == 1
        with pytest.raises(UnknownTag):
            tags.settle(1, 1)
        tags.supersede(A, as_chunk([101, 102]))
        tags.settle(2, 2)  # its lease ended by itself
        assert tags.count == 0


OPERATION = st.one_of(
    st.tuples(st.just("give"), st.integers(0, 1), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("each"), st.lists(st.integers(0, 1), min_size=1, max_size=6), st.booleans(), st.none()),
    st.tuples(st.just("again"), st.integers(0, 1), st.integers(0, 40), st.none()),
    st.tuples(st.just("one"), st.integers(0, 30), st.integers(0, 3), st.none()),
    st.tuples(st.just("alone"), st.integers(1, 31), st.none(), st.none()),
    st.tuples(st.just("upto"), st.integers(0, 30), st.none(), st.none()),
)


@given(st.lists(OPERATION, max_size=40), st.booleans())
def test_any_order_agrees_with_a_dict(operations: list[tuple[str, Any, Any, Any]], tiny: bool) -> None:
    with ExitStack() as stack:
        if tiny:
            stack.enter_context(patch.object(tags_module, "EACH_MOST", 4))
            stack.enter_context(patch.object(tags_module, "IDLE_MOST", 0))
            stack.enter_context(patch.object(tags_module, "BLOCK_MOST", 4))
            stack.enter_context(patch.object(tags_module, "UNINDEXED_MOST", 1))
        any_order(operations)


def any_order(operations: list[tuple[str, Any, Any, Any]]) -> None:
    tags, model, lsn = Tags(), dict[int, tuple[Any, int]](), 100
    lenient = False  # some tags mean nothing, and to settle what is not outstanding is no mistake
    for what, a, b, c in operations:
        if what == "each":
            chunk = range(lsn, lsn + len(a)) if b else as_chunk([lsn + 2 * place for place in range(len(a))])
            first = tags.give_each([(A, B)[one] for one in a], chunk)
            model.update({first + i: ((A, B)[one], chunk[i]) for i, one in enumerate(a)})
            lsn = chunk[-1] + 1 + len(a) % 2
            continue
        if what == "again":
            found = [tag for tag, held in model.items() if held == ((A, B)[a], 100 + b)]
            lenient = lenient or bool(found)
            tags.supersede((A, B)[a], range(100 + b, 101 + b))
            for tag in found:
                del model[tag]
            assert tags.count == len(model)
            continue
        if what == "alone":
            settled = tags.settle_one(a)
            assert plain([] if settled is None else [settled]) == ([model.pop(a)] if a in model else [])
            assert tags.count == len(model)
            continue
        if what == "give":
            consumer = (A, B)[a]
            first = tags.give(consumer, range(lsn, lsn + b), c)
            if c:
                model.update({first + i: (consumer, lsn + i) for i in range(b)})
            lsn += b + b % 2  # a stranger's message now and then
            continue
        if what == "one":
            wanted = range(a + 1, a + 2 + b)
            known = all(tag in model for tag in wanted)
            low, high = a + 1, a + 1 + b
        else:
            wanted = [tag for tag in model if tag <= a or a == 0]
            known = a == 0 or a in model
            low, high = 0, a
        if known:
            expected = [model.pop(tag) for tag in sorted(wanted)]
            assert plain(tags.settle(low, high)) == expected
        elif lenient and high < tags.next:
            expected = [model.pop(tag) for tag in sorted(model) if low <= tag <= high]
            assert plain(tags.settle(low, high)) == expected
        else:
            with pytest.raises(UnknownTag):
                tags.settle(low, high)
        assert tags.count == len(model)


def test_a_million_single_deliveries_cost_bytes_and_acks_in_any_order_are_quick() -> None:
    tags, lsn = Tags(), 1
    tracemalloc.start()
    for number in range(50_000):
        tags.give(A, range(lsn, lsn + 1), True)
        lsn += 1 + number % 3
    used = tracemalloc.get_traced_memory()[0]
    for tag in range(2, 50_000, 2):
        tags.settle(tag, tag)
    more = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 50_000 < 12
    assert more / 50_000 < 14
    assert tags.count == 50_000 - 24_999


def test_what_a_step_gave_to_many_is_one_block_and_of_one_queue() -> None:
    tags = Tags()
    assert tags.give_each([A, B], range(10, 12)) == 1
    assert tags.give_each([B, A], range(12, 14)) == 3
    assert tags.give_each([C, C], range(14, 16)) == 5
    assert tags.settle(0, 6) == [([A, B, B, A], range(10, 14)), ([C, C], range(14, 16))]
    assert tags.count == 0


def test_many_consumers_with_much_outstanding_cost_bytes_and_acks_in_any_order_are_quick() -> None:
    tags, workers = Tags(), [cast("Any", Name("q")) for _ in range(20)]
    tracemalloc.start()
    for number in range(2500):
        tags.give_each(workers, range(21 * number, 21 * number + 20))
    used = tracemalloc.get_traced_memory()[0]
    for tag in range(2, 50_000, 2):
        assert tags.settle(tag, tag)[0][0] is workers[(tag - 1) % 20]
    more = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 50_000 < 24
    assert more / 50_000 < 26
    assert tags.count == 50_000 - 24_999


def test_skipped_tags_are_settled_without_effect_and_without_mistake() -> None:
    tags = Tags()
    tags.give(A, range(10, 12), True)
    assert tags.skip(3) == 3
    tags.give(B, range(20, 22), True)
    assert tags.next == 8
    assert tags.count == 4
    assert tags.settle(4, 4) == []
    assert plain(tags.settle(2, 6)) == [(A, 11), (B, 20)]
    assert tags.settle(6, 6) == [], "twice is no mistake on such a channel"
    assert plain(tags.settle(0, 5)) == [(A, 10)]
    for low, high in ((0, 8), (8, 8)):
        with pytest.raises(UnknownTag):
            tags.settle(low, high)
    assert plain(tags.settle(0, 0)) == [(B, 21)]
    assert tags.settle(0, 0) == []


@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8),
    st.lists(
        st.tuples(
            st.sampled_from(("one", "up to", "all", "give", "settle", "all for good", "again", "keep", "back")),
            st.integers(0, 60),
        ),
        max_size=25,
    ),
    st.booleans(),
    st.booleans(),
)
def test_what_is_taken_back_is_outstanding_as_if_it_had_never_been_lent(
    given_out: list[tuple[int, bool]], steps: list[tuple[str, int]], each: bool, tiny: bool
) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.object(tags_module, "SMALL", 4))
        stack.enter_context(patch.object(tags_module, "UNINDEXED_MOST", 0 if tiny else 64))
        if tiny:
            stack.enter_context(patch.object(tags_module, "IDLE_MOST", 0))
        tags, model = Tags(), dict[int, tuple[Any, int]]()
        lsn = 0

        def give(count: int, whose: bool) -> None:
            nonlocal lsn
            chunk = range(lsn, lsn + count) if whose else [lsn + 2 * n for n in range(count)]
            owners = [A, B, B][count % 3 :] * count if each else [A if whose else B] * count
            if each:
                first = tags.give_each(owners[:count], as_chunk(chunk))
            else:
                first = tags.give(owners[0], as_chunk(chunk), True)
            model.update({first + i: (owners[i], at) for i, at in enumerate(chunk)})
            lsn += 2 * count + 1

        for count, whose in given_out:
            give(count, whose)
        settled = dict[int, tuple[Any, int]]()
        lenient = False
        for what, number in steps:
            left = [tag for tag in model if tag not in settled]
            match what:
                case "give":
                    give(number % 7 + 1, bool(number % 2))
                case "keep" | "back":
                    if what == "keep":
                        tags.keep()
                        model = {tag: model[tag] for tag in left}
                    else:
                        tags.take_back()
                    settled.clear()
                case "again":  # its lease ended by itself, be it lent or not
                    if (one := model.get(number)) is not None:
                        tags.supersede(one[0], range(one[1], one[1] + 1))
                        del model[number]
                        settled.pop(number, None)
                        lenient = True
                case "all for good":
                    assert plain(tags.all()) == [model[tag] for tag in left]
                    model = dict(settled)
                case _:
                    low, high = (number, number) if what in ("one", "settle") else (0, 0 if what == "all" else number)
                    wanted = [tag for tag in left if low <= tag <= (high or tags.next)]
                    end = tags.settle if what == "settle" else tags.lend
                    if what != "all" and (number not in left and not (lenient and 0 < number < tags.next)):
                        if number:
                            with pytest.raises(UnknownTag):
                                end(low, high)
                        continue
                    assert plain(end(low, high)) == [model[tag] for tag in wanted]
                    if what == "settle":  # something else of the channel that is not to be undone
                        model = {tag: one for tag, one in model.items() if tag not in wanted}
                    else:
                        settled.update({tag: model[tag] for tag in wanted})
            assert tags.count == len(model) - len(settled)
        tags.take_back()
        assert tags.count == len(model)
        for tag in sorted(model, key=lambda tag: (tag % 3, tag)):
            assert plain(tags.settle(tag, tag)) == [model[tag]]
        assert tags.count == 0


def test_very_many_that_are_lent_one_by_one_cost_a_byte_each_and_are_back_at_once() -> None:
    """Each was an object of its own, and to take it back sorted all that was outstanding: 300,000 stood for minutes."""
    tags = Tags()
    tags.give(A, range(10_000), True)
    tracemalloc.start()
    for tag in range(1, 10_001, 2):
        tags.lend(tag, tag)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 2 * 10_000
    assert tags.count == 5_000
    for tag in range(2, 10_001, 2):
        tags.lend(tag, tag)
    block = tags_module._Block  # pyright: ignore[reportPrivateUsage] - how often one is gone over
    with patch.object(block, "end_lent", autospec=True, side_effect=block.end_lent) as ended:
        tags.take_back()
    assert ended.call_count == 1
    assert plain(tags.all()) == [(A, lsn) for lsn in range(10_000)]


def test_a_tag_whose_message_was_given_again_to_its_consumer_means_nothing() -> None:
    tags = Tags()
    tags.give(A, range(10, 13), True)
    tags.give(B, range(20, 22), True)
    tags.supersede(A, range(11, 12))
    assert tags.give(A, range(11, 12), True) == 6
    assert tags.count == 5
    assert tags.settle(2, 2) == []
    assert plain(tags.settle(6, 6)) == [(A, 11)]
    tags.supersede(A, as_chunk([10, 12]))
    tags.give(A, as_chunk([10, 12]), True)
    assert plain(tags.settle(0, 5)) == [(B, 20), (B, 21)]
    assert plain(tags.settle(0, 0)) == [(A, 10), (A, 12)]
    assert tags.count == 0


def test_what_is_given_again_while_very_much_is_outstanding_has_few_blocks_looked_at() -> None:
    """Of 100,000 deliveries that a client held each that it gave back went over all: 6 ms, and all others waited."""
    tags, consumers, looks = Tags(), [cast("Any", Name("q")) for _ in range(50)], 0

    def counted(held: Chunk, wanted: Chunk) -> list[int]:
        nonlocal looks
        looks += 1
        return places(held, wanted)

    for lsn in range(0, 20_000, 2):  # each a block, and those of a consumer reach over one another
        tags.give(consumers[lsn // 2 % 50], as_chunk([lsn, lsn + 40_000]), True)
    model = {
        tag: (consumers[(tag - 1) // 2 % 50], (tag - 1) // 2 * 2 + (tag - 1) % 2 * 40_000) for tag in range(1, 20_001)
    }
    assert tags.count == len(model)
    with patch.object(tags_module, "places", counted):
        for n in range(1000):
            tag = n * 7 % 10_000 * 2 + 1
            who, lsn = model.pop(tag)
            if n % 3:
                assert plain(tags.settle(tag, tag)) == [(who, lsn)]
            who = who if n % 3 < 2 else consumers[n % 50]
            tags.supersede(who, range(lsn, lsn + 1))  # its lease ended, or it was given back, also to another
            assert tags.count == len(model)
            model[tags.give(who, range(lsn, lsn + 1), True)] = (who, lsn)
    assert looks < 70 * 1000
    assert sorted(plain(tags.all()), key=lambda one: one[1]) == sorted(model.values(), key=lambda one: one[1])


@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40), min_size=1))
def test_where_messages_are_among_others(held: set[int], wanted: set[int]) -> None:
    some = as_chunk(sorted(held))
    assert [some[place] for place in places(some, as_chunk(sorted(wanted)))] == sorted(held & wanted)
