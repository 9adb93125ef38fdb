"""Length limits, one transition a test: what gives way to whom, and what is written of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from penstock.core.effects import Verb
from penstock.core.queue.order.returned import PriorityReturned
from penstock.core.queue.order.runs import Run
from penstock.core.queue.order.sorted_rows import SortedRows
from penstock.core.queue.refusing import Reckoning
from penstock.errors import QueueFull
from penstock.expr import compile_filter
from penstock.records.entries import Control, Publishes
from penstock.records.kinds import Kind
from penstock.records.queue_settings import MODES, Overflow
from unit.core.world import DURABLE, START, World, header


def dropped(world: World) -> list[tuple[str, int]]:
    """Reason and number of pairs of each DROP record."""
    return [
        (orjson.loads(entry.header)["reason"], len(entry.body) // 16)
        for entry in world.entries
        if isinstance(entry, Control) and entry.kind is Kind.DROP
    ]


def test_every_mode_says_what_gives_way() -> None:
    """What it does, its sentence of the settings, and its line in the guide."""
    modes = set(get_args(Overflow))
    assert modes == MODES.keys()
    guide = (Path(__file__).resolve().parents[3] / "docs/limits.md").read_text()
    assert {mode for mode in modes if f"\n| `{mode}`" not in guide} == set()
    assert all(one.victim and one.drops_head != one.rejects for one in MODES.values())


def test_drop_head_keeps_the_newest() -> None:
    world = World()
    queue = world.declare("q", max_length=3)
    for number in range(5):
        world.publish("q", b"%d" % number)
    assert world.contents(queue) == [b"2", b"3", b"4"]
    assert queue.ready == 3
    assert world.core.stats(queue, world.now)["dropped"] == 2


def test_many_give_way_in_one_record_of_the_group_that_caused_it() -> None:
    world = World()
    world.declare("q", max_length=3)
    world.publish("q", *[b"%d" % number for number in range(100)])
    assert dropped(world) == [("maxlen", 1)]


def test_a_queue_exactly_at_its_limit_is_fine() -> None:
    world = World()
    queue = world.declare("q", max_length=2)
    world.publish("q", b"a", b"b")
    assert queue.ready == 2
    assert not dropped(world)


def test_leased_messages_do_not_count() -> None:
    world = World()
    queue = world.declare("q", max_length=2)
    world.subscribe(queue, max_backlog=3)
    world.publish("q", b"a", b"b", b"c", b"d", b"e")
    assert (queue.leased, queue.ready) == (3, 2)
    assert not dropped(world)
    world.publish("q", b"f", b"g")  # as many give way as are too many of those that are ready
    assert (queue.leased, queue.ready) == (3, 2)
    assert dropped(world) == [("maxlen", 1)]  # one range
    assert world.contents(queue) == [b"a", b"b", b"c", b"f", b"g"]


def test_leased_messages_take_no_room_from_newcomers_that_could_be_refused() -> None:
    world = World()
    queue = world.declare("q", max_length=2, overflow="reject-publish")
    world.subscribe(queue, max_backlog=3)
    refused = [len(world.publish("q", b"%d" % number).refused) for number in range(6)]
    assert (queue.leased, queue.ready) == (3, 2)
    assert refused == [0, 0, 0, 0, 0, 1]


def test_leased_messages_have_nobody_wait_for_room() -> None:
    world = World()
    queue = world.declare("q", max_length=2, overflow="block")
    world.subscribe(queue, max_backlog=3)
    held_up = []
    for number in range(5):
        held_up.append(queue.holds_up(1))
        world.publish("q", b"%d" % number)
    assert (queue.leased, queue.ready, queue.holds_up(1)) == (3, 2, True)
    assert not any(held_up)


def test_a_newcomer_is_offered_before_the_head_gives_way() -> None:
    """A consumer with prefetch 1 on a queue of 2 gets the first of ten, and the last two stay."""
    world = World()
    queue = world.declare("q", max_length=2)
    consumer = world.subscribe(queue, max_backlog=1)
    published = world.publish("q", *[b"%d" % number for number in range(10)])
    assert world.inbox[consumer] == [published.first]
    world.core.settle(world.now, queue, [range(published.first, published.first + 1)], Verb.ACK, by=consumer)
    world.turn()
    assert world.inbox[consumer] == [published.first, published.first + 8]
    assert queue.ready == 1


def test_a_dispatch_that_goes_in_steps_comes_before_the_head_gives_way() -> None:
    world = World()
    queue = world.declare("q", max_length=10)
    consumer = world.subscribe(queue)
    queue.dispatch_most = 4
    world.publish("q", *[b"x"] * 100)
    world.advance(0)
    assert len(world.inbox[consumer]) == 100
    assert not dropped(world)


def test_limit_zero_is_a_pipe() -> None:
    world = World()
    queue = world.declare("q", max_length=0)
    assert world.publish("q", b"a").refused == ()
    assert queue.ready == 0
    consumer = world.subscribe(queue, max_backlog=1)
    world.publish("q", b"b", b"c")
    assert (len(world.inbox[consumer]), queue.ready) == (1, 0)


def test_what_returns_takes_its_place_and_the_oldest_give_way() -> None:
    world = World()
    queue = world.declare("q", max_length=2)
    consumer = world.subscribe(queue)
    world.publish("q", *[b"%d" % number for number in range(1, 6)])
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()
    assert world.contents(queue) == [b"4", b"5"]
    assert queue.ready == 2


def test_a_returned_message_gives_way_to_younger_ones() -> None:
    world = World()
    queue = world.declare("q", max_length=3)
    consumer = world.subscribe(queue, passive=True)
    world.publish("q", b"0", b"1", b"2")
    world.core.pull(world.now, consumer, 1)
    world.turn()
    world.publish("q", b"3")
    world.core.settle(
        world.now, queue, [range(world.inbox[consumer][0], world.inbox[consumer][0] + 1)], Verb.RELEASE, by=consumer
    )
    world.turn()
    assert world.contents(queue) == [b"1", b"2", b"3"]


def test_of_returned_ones_with_priorities_one_gives_way_to_one() -> None:
    """Those that stand beside it by number stay, whatever their level."""
    world = World()
    queue = world.declare("q", max_length=3, max_priority=5)
    consumer = world.subscribe(queue)
    world.publish("q", b"a", b"b", properties=header(priority=0))
    world.publish("q", b"c", properties=header(priority=5))
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()
    world.publish("q", b"d", properties=header(priority=3))
    assert world.contents(queue) == [b"b", b"c", b"d"]


def test_of_many_returned_ones_with_priorities_each_level_gives_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest level first, in each the oldest, also where some were never delivered."""
    world = World()
    queue = world.declare("q", max_priority=3)
    consumer = world.subscribe(queue, max_backlog=900)
    bodies = [b"%d" % number for number in range(1200)]
    for number, body in enumerate(bodies):
        world.publish("q", body, properties=header(priority=number % 4))
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()
    taken, take = list[int](), PriorityReturned.take_of

    def counted(*given: Any) -> list[Run]:
        runs = take(*given)
        taken.append(sum(len(run.chunk) for run in runs))
        return runs

    monkeypatch.setattr(PriorityReturned, "take_of", counted)
    world.core.alter_queue(world.now, queue, replace(queue.settings, max_length=700))
    while queue.busy:
        world.turn()
    assert world.contents(queue) == sorted(sorted(bodies, key=lambda body: (int(body) % 4, int(body)))[500:], key=int)
    assert sum(taken) <= 500
    assert len(taken) < 20


@pytest.mark.parametrize("back", [0, 600, 1200])
@pytest.mark.parametrize("ways", [7, 40_000])
def test_where_each_has_a_priority_of_its_own_they_give_way_together(
    ways: int, back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a limit set below 20,000 with a `priority_expression`: 1.4 s in one turn of the core."""
    world = World()
    letters = world.declare("l")
    queue = world.declare("q", priority_expression="/p", dead_letter_exchange="", dead_letter_routing_key="l")
    chance = random.Random(back + ways)
    urgency = [chance.randrange(ways) - ways // 2 for _ in range(1200)]
    world.publish("q", *(b'{"p": %d, "n": %d}' % (p, n) for n, p in enumerate(urgency)))
    if back:
        consumer = world.subscribe(queue, max_backlog=back)
        world.core.unsubscribe(world.now, consumer, requeue=True)
        world.turn()
    steps, take = list[object](), SortedRows.take_between

    def counted(rows: SortedRows, *given: Any) -> Any:
        steps.append(given)
        return take(rows, *given)

    monkeypatch.setattr(SortedRows, "take_between", counted)
    world.core.alter_queue(world.now, queue, replace(queue.settings, max_length=200))
    world.turn()
    while queue.busy:
        world.turn()
    order = sorted(range(1200), key=lambda n: (urgency[n], n))
    assert sorted(orjson.loads(body)["n"] for body in world.contents(letters)) == sorted(order[:1000])
    assert sorted(orjson.loads(body)["n"] for body in world.contents(queue)) == sorted(order[1000:])
    assert len(steps) < 30


def test_dead_letters_of_a_limit_in_the_order_of_their_death() -> None:
    world = World()
    letters = world.declare("letters")
    world.declare("q", max_length=2, dead_letter_exchange="", dead_letter_routing_key="letters")
    world.publish("q", *[b"%d" % number for number in range(50)])
    assert world.contents(letters) == [b"%d" % number for number in range(48)]
    [death] = world.headers(min(lsn for chunk in letters.snapshot()[0] for lsn in chunk))["x-death"]  # type: ignore[misc, union-attr]
    assert death["reason"] == "maxlen"  # type: ignore[index, call-overload]


def test_reject_publish_refuses_the_newcomer_even_beside_an_idle_consumer() -> None:
    world = World()
    queue = world.declare("q", max_length=0, overflow="reject-publish")
    consumer = world.subscribe(queue)
    published = world.publish("q", b"a", b"b")
    assert [row for row, _ in published.refused] == [0, 1]
    assert isinstance(published.refused[0][1], QueueFull)
    assert "'q'" in str(published.refused[0][1])
    assert "max_length is 0" in str(published.refused[0][1])
    assert not world.inbox[consumer]
    assert world.core.stats(queue, world.now)["refused"] == 2


def test_a_rejecting_queue_counts_bytes_row_by_row() -> None:
    """What is too large is refused, and a smaller one behind it is not."""
    world = World()
    queue = world.declare("q", max_length_bytes=100, overflow="reject-publish")
    published = world.publish("q", b"x" * 60, b"y" * 60, b"z" * 40, b"", b"!")
    assert [row for row, _ in published.refused] == [1, 4]
    assert "max_length_bytes is 100" in str(published.refused[0][1])
    assert queue.weight == queue.ready_bytes == 100
    assert [row for row, _ in world.publish("q", b"", b"x").refused] == [1]


def test_a_body_larger_than_the_limit_empties_a_queue_that_drops() -> None:
    world = World()
    letters = world.declare("letters")
    queue = world.declare("q", max_length_bytes=100, dead_letter_exchange="", dead_letter_routing_key="letters")
    world.publish("q", b"a" * 30, b"b" * 30, b"c" * 30)
    assert queue.ready == 3
    world.publish("q", b"d" * 101)
    assert queue.ready == 0
    assert [len(body) for body in world.contents(letters)] == [30, 30, 30, 101]


def test_empty_messages_weigh_nothing() -> None:
    world = World()
    queue = world.declare("q", max_length_bytes=100)
    world.publish("q", b"x" * 100, b"", b"", b"")
    assert queue.ready == 4


def test_what_is_dispatched_makes_room_for_the_next_of_a_batch() -> None:
    world = World()
    queue = world.declare("q", max_length=2, overflow="reject-publish")
    consumer = world.subscribe(queue, max_backlog=3)
    published = world.publish("q", *[b"%d" % number for number in range(8)])
    assert len(world.inbox[consumer]) == 3
    assert [row for row, _ in published.refused] == [5, 6, 7]
    assert published.stored == 5


@pytest.mark.parametrize(
    ("settings", "halted"),
    [
        ({}, False),
        ({}, True),
        ({"rate_limit": (1, 10_000_000, 0, 1)}, False),
        ({"consumers_before_dispatch": 2}, False),
        ({"max_leased": (1, 0)}, False),
        ({"max_backlog": 1}, False),
        ({"max_priority": 5}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("overflow", ["reject-publish", "drop-newest", "drop-head"])
def test_a_batch_is_within_a_limit_as_its_messages_one_by_one(
    settings: dict[str, object], halted: bool, overflow: str
) -> None:
    """Whatever keeps the consumer, which has room for all, from being given some of them."""
    outcomes = list[tuple[list[bytes], int]]()
    for together in (True, False):
        world = World()
        queue = world.declare("q", max_length=2, overflow=overflow, **settings)
        consumer = world.subscribe(queue, max_backlog=100)
        if halted:
            world.core.pause_queue(world.now, queue)
            world.turn()
        bodies = [b"%d" % number for number in range(8)]
        for some in [bodies] if together else [[body] for body in bodies]:
            world.publish("q", *some)
        assert queue.ready <= 2
        outcomes.append((world.contents(queue), len(world.inbox[consumer])))
    assert outcomes[0] == outcomes[1]


def test_one_of_two_queues_refuses_and_the_other_keeps_its_copy() -> None:
    world = World()
    full = world.declare("full", underlying_topic="t", max_length=1, overflow="reject-publish")
    other = world.declare("other", underlying_topic="t")
    published = world.publish("t", b"a", b"b", b"c")
    assert [row for row, _ in published.refused] == [1, 2]
    assert list(published.kept) == [1, 2]
    assert published.stored == 3
    assert world.contents(full) == [b"a"]
    assert world.contents(other) == [b"a", b"b", b"c"]


def test_a_return_is_never_refused_and_the_queue_may_exceed_its_limit() -> None:
    world = World()
    queue = world.declare("q", max_length=2, overflow="reject-publish")
    consumer = world.subscribe(queue, max_backlog=2)
    world.publish("q", b"a", b"b", b"c", b"d")
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()
    assert queue.ready == 4
    assert len(world.publish("q", b"e").refused) == 1


def test_a_lower_limit_trims_at_once_unless_newcomers_are_refused() -> None:
    world = World()
    queue = world.declare("q")
    world.publish("q", *[b"%d" % number for number in range(10)])
    world.core.alter_queue(world.now, queue, replace(queue.settings, max_length=5, overflow="reject-publish"))
    world.turn()
    assert queue.ready == 10
    world.core.alter_queue(world.now, queue, replace(queue.settings, max_length=5, overflow="drop-head"))
    world.turn()
    assert world.contents(queue) == [b"5", b"6", b"7", b"8", b"9"]


def test_a_start_applies_the_limits_to_what_it_finds() -> None:
    world = World()
    queue = world.declare("q", max_length=2)
    world.subscribe(queue)
    world.publish("q", *[b"%d" % number for number in range(5)])
    world.restart(clean=False)
    queue = world.core.find_queue("/", "q")  # type: ignore[assignment]
    assert world.contents(queue) == [b"3", b"4"]


def test_a_scheduled_message_counts_when_it_is_due_and_is_offered_like_a_newcomer() -> None:
    world = World()
    queue = world.declare("q", max_length=1)
    world.publish("q", b"later", properties=header(headers={"x-delay": 1000}))
    world.publish("q", b"now")
    assert (queue.ready, queue.delayed) == (1, 1)
    world.advance(2)
    assert world.contents(queue) == [b"later"]
    assert world.wall > START


def test_a_refused_newcomer_becomes_a_dead_letter_and_is_refused_still() -> None:
    world = World()
    letters = world.declare("letters")
    queue = world.declare(
        "q",
        max_length=1,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="letters",
    )
    published = world.publish("q", b"a", b"b", b"c")
    assert [row for row, _ in published.refused] == [1, 2]
    assert world.contents(queue) == [b"a"]
    assert world.contents(letters) == [b"b", b"c"]
    lsn = min(lsn for chunk in letters.snapshot()[0] for lsn in chunk)
    [death] = world.headers(lsn)["x-death"]  # type: ignore[misc, union-attr]
    assert (death["reason"], death["queue"], death["count"]) == ("maxlen", "q", 1)  # type: ignore[index, call-overload]
    folded, living = world.folded().queues[letters.id], world.core.durable_state().queues[letters.id]
    assert "letter" in folded.columns
    assert folded == living


def test_refusals_go_through_a_chain_of_full_queues_without_recursion() -> None:
    world = World()
    count = 100
    for number in range(count):
        world.declare(
            f"q{number}",
            max_length=0,
            overflow="reject-publish-dlx",
            dead_letter_exchange="",
            dead_letter_routing_key=f"q{number + 1}",
        )
    last = world.declare(f"q{count}")
    assert len(world.publish("q0", b"far").refused) == 1
    assert world.contents(last) == [b"far"]
    [lsn] = [lsn for chunk in last.snapshot()[0] for lsn in chunk]
    assert len(world.headers(lsn)["x-death"]) == count  # type: ignore[arg-type]


def test_a_full_queue_that_is_its_own_target_loses_the_newcomer() -> None:
    world = World()
    queue = world.declare(
        "q", max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="q"
    )
    assert len(world.publish("q", b"a", b"b").refused) == 1
    assert world.contents(queue) == [b"a"]


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-newest"])
def test_a_dead_letter_of_a_newcomer_that_a_full_target_turns_away_is_lost_and_counted(overflow: str) -> None:
    world = World()
    target = world.declare("graveyard", max_length=1, overflow=overflow)
    queue = world.declare(
        "q", max_length=0, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="graveyard"
    )
    assert len(world.publish("q", b"a", b"b", b"c").refused) == 3
    assert world.contents(target) == [b"a"]
    assert world.core.stats(queue, world.now)["dead_letter_refused"] == 2
    assert (world.core.dead_letters_refused, world.core.dead_lettered) == (2, {"maxlen": 1})


def test_a_numbered_message_that_was_refused_may_come_again() -> None:
    world = World()
    queue = world.declare("q", max_length=2, overflow="reject-publish")
    topic = world.core.topic("/", "", "q")

    def publish(sequence: int, *bodies: bytes) -> tuple[int, int, int]:
        batch = Publishes(topic, DURABLE, list(bodies))
        published = world.core.publish(world.now, batch, publisher="p", sequence=sequence)
        world.turn()
        return published.stored, len(published.refused), published.duplicates

    assert publish(1, b"1", b"2", b"3", b"4") == (2, 2, 0)
    world.core.purge_queue(world.now, queue)
    world.turn()
    assert publish(5, b"5") == (1, 0, 0)
    assert publish(1, b"1", b"2", b"3") == (1, 0, 2)
    assert publish(3, b"3") == (0, 0, 1)
    assert world.folded().publishers == world.core.durable_state().publishers == {"p": 3}
    world.restart(clean=False)
    topic = world.core.topic("/", "", "q")
    queue = world.core.find_queue("/", "q")  # type: ignore[assignment]
    world.core.purge_queue(world.now, queue)
    assert publish(4, b"4") == (1, 0, 0)


def test_what_is_written_as_a_whole_is_reckoned_over_its_batches() -> None:
    """Neither count nor bytes: each batch alone would fit."""
    world = World()
    queue = world.declare("q", max_length=3, max_length_bytes=100, overflow="reject-publish")
    topic, reckoning = world.core.topic("/", "", "q"), Reckoning()
    for sizes, refused in (((40,), []), ((61, 40, 10, 1), [0, 3]), ((1,), [0])):
        batch = Publishes(topic, DURABLE, [b"x" * size for size in sizes])
        assert reckoning.refused(queue, world.now, batch, range(len(sizes))) == refused
    assert reckoning.taken(queue) == 3


def test_what_gave_way_is_nobodys_target() -> None:
    """It had come back, and whoever's filter wants it had no room yet."""
    world = World()
    queue = world.declare("q", priority_expression="/p", max_length=2)
    picky = world.subscribe(queue, "picky", max_backlog=1, filter=compile_filter("/t = 1"))
    world.publish("q", b'{"t": 1, "p": 9}')
    [held] = world.inbox[picky]
    other = world.subscribe(queue, "other", max_backlog=1)
    world.publish("q", b'{"t": 1, "p": 1}')
    [back] = world.inbox[other]
    world.core.unsubscribe(world.now, other, requeue=True)
    world.turn()
    assert queue.ready == 1
    for rank in (2, 3):
        world.publish("q", b'{"t": 0, "p": %d}' % rank)
    assert queue.ready == 2
    world.core.settle(world.now, queue, [range(held, held + 1)], Verb.ACK, by=picky)
    world.turn()
    queue.check()
    assert world.inbox[picky] == [held]
    assert not queue.lives(back)
