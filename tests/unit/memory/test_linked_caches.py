"""The linked caches, sentence by sentence: `docs/proofs/massive-queues.md` names these tests."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Any

import pytest

from penstock.memory import READ_ROWS, arrived_batches, caches
from penstock.memory.arrived_batches import PLACED_MOST
from penstock.memory.loader import READS
from penstock.memory.slab import ROW_OVERHEAD, Slab
from penstock.records.chunks import Chunk, as_chunk
from unit.memory.world import ModelLine, World

ROW = 1000 + 10 + ROW_OVERHEAD
"""About what a row with 1,000 bytes of body costs."""


def deep(world: World, messages: int, queues: tuple[int, ...] = (1,), size: int = 1000) -> None:
    """So many messages in batches of ten, each batch durable before the next."""
    for _ in range(messages // 10):
        world.publish([size] * 10, queues)
        world.commit()
        world.check()


def begun() -> tuple[World, ModelLine]:
    """A queue far larger than memory, and a consumer that has taken one message of it."""
    world = World(400_000)
    deep(world, 2000)
    line = world.consumer()
    world.dispatch(line, 1)
    world.run()
    return world, line


def even(lsn: int) -> bool:
    return lsn % 2 == 0


def odd(lsn: int) -> bool:
    return lsn % 2 == 1


def rare(lsn: int) -> bool:
    return lsn % 97 == 0


def test_consumption_at_several_points_of_a_queue_far_larger_than_memory() -> None:
    """Filters that match scattered messages, and consumers that come and go, get everything that is theirs."""
    world = World(100_000)
    deep(world, 2000, size=200)
    lines = [world.consumer(1, "even", even), world.consumer(1, "rare", rare)]
    for _ in range(40):
        for line in lines:
            world.dispatch(line, 20)
        world.run()
        world.check()
    world.leave(lines[0])
    late = world.consumer()
    world.caches.sweep()
    while late.upcoming():
        world.dispatch(late, 100)
        world.run()
        world.check()
    assert sorted({lsn for _, lsn in world.got}) == list(range(1, 2001))
    assert len(world.got) == 2000
    assert world.queue().ready == []


def test_a_list_holds_what_arrives_for_its_consumer() -> None:
    """An arriving message that a list wants is direct at once when the list has room: nothing is read."""
    world = World(200_000)
    line = world.consumer(1, "even", even)
    world.list_of(line)
    deep(world, 300)
    assert world.watermark(line) > 40
    world.dispatch(line, 30)
    assert [lsn for _, lsn in world.got] == list(range(2, 62, 2))
    assert world.rows_read == 0


def test_an_entry_is_a_direct_body_or_a_reference() -> None:
    """Beyond the watermark a list has positions alone, and a delivery of them waits for the loader."""
    world = World(60_000)
    deep(world, 300)
    line = world.consumer()
    world.dispatch(line, 50)
    sent = len(world.got)
    assert sent < 50
    assert world.waiting[line] == list(range(sent + 1, 51))
    world.run()
    assert [lsn for _, lsn in world.got] == list(range(1, 51))


def test_the_watermark_is_at_the_high_water_mark_when_nothing_else_is_to_do() -> None:
    world, line = begun()
    one = world.list_of(line)
    assert one.bytes > world.caches.high * 3 // 4
    assert one.bytes <= world.caches.high + ROW
    assert world.watermark(line) == one.watermark


def test_the_loader_raises_the_watermark_ahead_of_dispatch() -> None:
    """Nobody asks for the next messages yet, and their bodies are read all the same; then dispatch is immediate."""
    world, line = begun()
    before, direct = world.rows_read, world.watermark(line)
    assert direct > 50
    world.dispatch(line, direct)
    assert len(world.got) == direct + 1
    assert world.rows_read == before


def test_what_came_back_is_looked_at_once_for_many_that_are_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is fetched ahead, and yet nobody goes through it for each message that is given out."""
    world = World(4_000_000)
    deep(world, 2000, size=100)
    line = world.consumer()
    for lsn in range(1, 1200):
        line.of.main.remove(lsn)
        line.of.back.append(lsn)
    world.caches.sweep()
    world.caches.shrink(4_000_000)
    looks: list[int] = []
    returned = ModelLine.returned

    def counted(line: ModelLine, count: int) -> Chunk:
        looks.append(count)
        return returned(line, count)

    monkeypatch.setattr(ModelLine, "returned", counted)
    stops = 0
    for _ in range(1000):
        world.dispatch(line, 1)
        stops += len(world.waiting[line])
        world.run()
        world.check()
    assert [lsn for _, lsn in world.got] == list(range(1, 1001))
    assert stops == 1, "the first alone was waited for"
    assert len([count for count in looks if count > 1]) < 40


def test_the_loader_begins_at_the_present_watermark_and_reads_nothing_twice() -> None:
    world = World(400_000)
    deep(world, 2000)
    line = world.consumer()
    while line.upcoming():
        world.dispatch(line, 37)
        world.run()
        world.check()
    assert [lsn for _, lsn in world.got] == list(range(1, 2001))
    assert world.rows_read <= 2000


def test_the_loader_takes_the_list_that_needs_it_most() -> None:
    """Waiting consumers first, then those with credit; of these the one with the lowest watermark."""
    world = World(400_000, queues=3)
    for queue in (1, 2, 3):
        deep(world, 500, (queue,))
    stalled, poor, waiting = (world.consumer(queue) for queue in (1, 2, 3))
    stalled.stalled = True
    world.caches.shrink(400_000)
    for line in (stalled, poor):
        world.loader.look_after(world.list_of(line), 0)
    lsns = waiting.upcoming()[:5]
    for lsn in lsns:
        waiting.of.main.remove(lsn)
    world.waiting[waiting] = lsns
    world.send(waiting)
    world.loader.step()
    first, second = (reading[0] for reading in world.loader.reading)
    assert first == lsns[0]
    assert second == poor.upcoming()[0]


def test_a_step_with_all_reads_under_way_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a drain of 10 GB with fifty filters: each ack looked 64 times at a list that waited for a read."""
    world = World(400_000)
    deep(world, 2_000)
    mine = [range(1_300 + place, 2_001, 10) for place in range(10)]  # none of it is in the head cache
    lines = [world.consumer(1, f"{part.start}", lambda lsn, part=part: lsn in part) for part in mine]
    for line in lines:
        world.dispatch(line, 5)
    assert len(world.cold) == READS
    assert world.caches.heads.shelves
    asked = [0]
    after = ModelLine.after

    def counted(line: ModelLine, lsn: int, count: int) -> Chunk:
        asked[0] += 1
        return after(line, lsn, count)

    monkeypatch.setattr(ModelLine, "after", counted)
    world.loader.step()
    assert asked[0] <= 2
    world.run()
    assert sorted(lsn for _, lsn in world.got) == sorted(lsn for part in mine for lsn in part[:5])


def test_what_is_above_the_high_water_mark_becomes_pending() -> None:
    world = World(400_000)
    line = world.consumer()
    world.list_of(line)
    deep(world, 700)
    caches = world.caches
    assert caches.area.account.bytes <= caches.high
    assert caches.pending.account.bytes > 0
    assert caches.heads.account.bytes == 0
    last_direct = world.list_of(line).shelf.last
    assert caches.pending.shelves[1].first > last_direct


def test_the_loader_moves_pending_bodies_to_the_list_before_it_reads() -> None:
    world = World(400_000)
    line = world.consumer()
    one = world.list_of(line)
    deep(world, 700)
    pending = world.caches.pending.account.bytes
    direct = world.watermark(line)
    world.dispatch(line, one.watermark)
    assert world.rows_read == 0
    assert world.caches.pending.account.bytes < pending
    assert world.watermark(line) >= direct // 2
    world.check()


def test_what_is_not_pending_is_read_from_the_queue() -> None:
    world = World(100_000)
    line = world.consumer()
    world.list_of(line)
    deep(world, 1000)
    while line.upcoming():
        world.dispatch(line, 25)
        world.run()
        world.check()
    assert [lsn for _, lsn in world.got] == list(range(1, 1001))
    assert 0 < world.rows_read < 1000


def test_a_pending_body_is_shared_by_all_lists() -> None:
    """Two filters that want the same message share its body, and whoever comes first gets it."""
    world = World(200_000)
    lines = [world.consumer(1, "even", even), world.consumer(1, "all", lambda lsn: True)]
    for line in lines:
        world.list_of(line)
    deep(world, 400)
    shelf = world.caches.pending.shelves[1]
    lsns = [lsn for slab in shelf for lsn in slab.chunk]
    assert len(lsns) == len(set(lsns))
    assert any(map(even, lsns))


def test_the_body_that_is_needed_latest_leaves_the_pending_cache_first() -> None:
    world = World(400_000)
    line = world.consumer()
    world.list_of(line)
    deep(world, 700)
    shelf = world.caches.pending.shelves[1]
    first, last = shelf.first, shelf.last
    world.caches.pending.evict()
    assert shelf.first == first
    assert shelf.last < last


def test_the_head_cache_is_a_fifo_bound_by_memory() -> None:
    """Without consumers the oldest stay, up to what the budget leaves; newer ones find no room."""
    world = World(100_000)
    deep(world, 1000)
    shelf = world.caches.heads.shelves[1]
    assert shelf.first == 1
    lsns = [lsn for slab in shelf for lsn in slab.chunk]
    assert lsns == list(range(1, len(lsns) + 1))
    assert 50 < len(lsns) < 100


def test_newer_bodies_leave_the_head_cache_first_and_it_stays_contiguous() -> None:
    world = World(100_000)
    deep(world, 500)
    shelf = world.caches.heads.shelves[1]
    last = shelf.last
    world.caches.heads.evict()
    assert shelf.first == 1
    assert shelf.last < last
    before = shelf.last
    deep(world, 100)
    assert shelf.last == before, "what comes after a gap does not follow on"


def test_a_new_consumer_begins_with_the_head_cache_and_reads_nothing() -> None:
    world = World(100_000)
    deep(world, 1000)
    held = world.caches.heads.shelves[1].rows
    line = world.consumer()
    world.dispatch(line, held)
    assert len(world.got) == held
    assert world.rows_read == 0


def test_all_caches_together_keep_to_a_fixed_amount() -> None:
    """Whatever the mixture, the sum of what is held is within the budget after each step."""
    world = World(150_000, queues=3)
    one = world.consumer(1, "even", even)
    two = world.consumer(2)
    for line in (one, two):
        world.list_of(line)
    for step in range(60):
        world.publish([500] * 20, (1, 2, 3) if step % 3 else (3,))
        world.commit()
        world.dispatch(one, 3)
        world.dispatch(two, 5)
        if step % 2:
            world.run()
        world.check()
        assert world.caches.budget.used <= 150_000


def test_as_the_pending_cache_grows_the_head_cache_shrinks() -> None:
    world = World(200_000, queues=2)
    deep(world, 400, (1,))
    heads = world.caches.heads.account.bytes
    assert heads > 100_000
    line = world.consumer(2)
    world.list_of(line)
    seen: list[tuple[int, int]] = []
    for _ in range(40):
        deep(world, 10, (2,))
        seen.append((world.caches.pending.account.bytes, world.caches.heads.account.bytes))
    assert seen[-1][0] > 0
    assert seen[-1][1] < heads
    for (pending, head), (more, less) in pairwise(seen):
        if more > pending > 0:
            assert less <= head


def test_the_head_cache_goes_to_zero_under_sufficient_load() -> None:
    world = World(200_000, queues=2)
    deep(world, 400, (1,))
    line = world.consumer(2)
    world.list_of(line)
    deep(world, 800, (2,))
    assert world.caches.heads.account.bytes == 0
    assert world.caches.pending.account.bytes > 0


def test_the_head_cache_is_for_queues_without_consumers() -> None:
    world = World(100_000)
    line = world.consumer()
    world.list_of(line)
    deep(world, 500)
    assert world.caches.heads.account.bytes == 0


def test_after_a_start_the_heads_are_filled_first() -> None:
    """Nobody consumes yet: the oldest bodies come back into memory by themselves."""
    world = World(2_000_000)
    restarted(world, 3000)
    world.run()
    shelf = world.caches.heads.shelves[1]
    assert shelf.first == 1
    assert shelf.bytes > 400_000
    read = world.rows_read
    line = world.consumer()
    world.dispatch(line, 100)
    assert len(world.got) == 100
    assert world.rows_read == read


def test_a_read_for_heads_looks_at_few_more_positions_than_it_brings() -> None:
    """However many queues are how deep: each read sorted all that was left of them all."""
    queues, each = 50, 2000
    world = World(400_000_000, queues)
    looked = list[int]()

    class Counted(ModelLine):
        def after(self, lsn: int, count: int) -> Chunk:
            chunk = super().after(lsn, count)
            looked.append(len(chunk))
            return chunk

    last = queues * each
    for lsn in range(1, last + 1):
        world.bodies[lsn] = b"%d" % lsn
        # the first in turns, the next ten one behind the other, the others as a block each
        number = lsn % queues if lsn < last // 3 else (lsn // 1000) % 10 if lsn < last // 2 else lsn * queues // last
        world.queues[number % queues].main.append(lsn)
    world.next, world.durable = last + 1, last
    world.caches.arrivals.lacking = last
    world.loader.heads.fill([Counted(queue, "", None) for queue in world.queues])
    while True:
        before = sum(looked)
        world.loader.step()
        assert sum(looked) - before < 3 * READ_ROWS
        if not world.cold:
            break
        world.answer()
        world.check()
    assert world.rows_read > 10 * READ_ROWS / 2
    for queue in world.queues:
        shelf = world.caches.heads.shelves[queue.id]
        assert (shelf.first, shelf.rows) == (queue.main[0], bisect_right(queue.main, shelf.last))


def test_the_heads_fade_when_deliveries_begin() -> None:
    world = World(2_000_000)
    restarted(world, 3000)
    world.run()
    line = world.consumer()
    while line.upcoming():
        world.dispatch(line, 100)
        world.run()
        world.check()
    assert world.caches.heads.account.bytes == 0
    assert [lsn for _, lsn in world.got] == list(range(1, 3001))
    assert world.rows_read == 3000


def restarted(world: World, messages: int) -> None:
    """A process that has just started: a backlog in the log, nothing in memory."""
    for lsn in range(1, messages + 1):
        world.bodies[lsn] = b"%d:" % lsn + b"x" * 1000
    world.queue().main.extend(range(1, messages + 1))
    world.next, world.durable = messages + 1, messages
    world.caches.arrivals.lacking = messages
    world.loader.heads.fill([ModelLine(world.queue(), "", None)])


def test_heads_grow_again_from_free_budget_alone() -> None:
    """A head that had to give way is read again when half the budget is free."""
    world = World(2_000_000, queues=2)
    deep(world, 3000, (1,))
    line = world.consumer(2)
    world.list_of(line)
    deep(world, 3000, (2,))
    assert world.caches.heads.account.bytes == 0
    assert 1 in world.caches.trimmed
    while line.upcoming():
        world.dispatch(line, 200)
        world.run()
    world.caches.sweep()
    assert -world.caches.budget.over > 1_000_000
    world.loader.heads.fill(world.caches.trimmed.values())
    world.run()
    world.check()
    assert world.caches.heads.shelves[1].first == 1
    assert world.caches.heads.account.bytes <= 500_000 + ROW


# -- what the document leaves open


def test_competing_lists_skip_what_another_has_claimed() -> None:
    world = World(300_000)
    deep(world, 600)
    filtered, plain = world.consumer(1, "even", even), world.consumer()
    for line in (filtered, plain):
        world.dispatch(line, 1)
    world.run()
    direct = world.list_of(filtered).bytes
    assert direct
    while plain.upcoming():
        world.dispatch(plain, 50)
        world.run()
    world.dispatch(filtered, 10)
    world.caches.sweep()
    world.run()
    assert sorted(lsn for _, lsn in world.got) == list(range(1, 601))


def test_what_comes_back_is_read_again_and_goes_first() -> None:
    world = World(300_000)
    deep(world, 600)
    line = world.consumer()
    world.dispatch(line, 20)
    world.run()
    world.give_back(line, 3)
    world.give_back(line, 7)
    world.run()
    assert world.watermark(line) > 2
    read = world.rows_read
    world.dispatch(line, 5)
    assert [lsn for _, lsn in world.got[-5:]] == [3, 7, 21, 22, 23]
    assert world.rows_read == read


def test_when_consumers_go_away_their_bodies_fall_back_to_the_head() -> None:
    world, line = begun()
    direct = world.list_of(line).bytes
    world.leave(line)
    world.caches.sweep()
    world.check()
    assert world.caches.area.account.bytes == 0
    assert world.caches.heads.account.bytes >= direct
    again = world.consumer()
    read = world.rows_read
    world.dispatch(again, 20)
    assert len(world.got) == 21
    assert world.rows_read == read


def test_a_stalled_consumer_keeps_nobody_waiting() -> None:
    """One takes nothing and its granted messages wait; the other's are brought all the same."""
    world = World(60_000, queues=2)
    deep(world, 300, (1,))
    deep(world, 300, (2,))
    stalled, other = world.consumer(1), world.consumer(2)
    world.dispatch(stalled, 1)
    world.run()
    stalled.stalled = True
    while other.upcoming():
        world.dispatch(other, 30)
        world.run()
        world.check()
    assert [lsn for _, lsn in world.got if lsn > 300] == list(range(301, 601))


def test_one_queues_backlog_never_slows_another_queues_head() -> None:
    """A queue keeps a share of its own at its head, however much another has."""
    world = World(400_000, queues=2)
    deep(world, 2000, (1,))
    assert world.caches.heads.held(2) == 0
    deep(world, 10, (2,))
    deep(world, 500, (1,))
    assert world.caches.heads.held(2) > 0
    line = world.consumer(2)
    world.dispatch(line, 10)
    assert len(world.got) == 10
    assert world.rows_read == 0


def test_a_list_keeps_its_minimum_whatever_others_need() -> None:
    """Room is made at the back of the longest list, and each keeps the bodies it begins with."""
    world = World(400_000, queues=2)
    deep(world, 1000, (1,))
    deep(world, 1000, (2,))
    lines = [world.consumer(1), world.consumer(2)]
    for line in lines:
        world.dispatch(line, 1)
    world.run()
    firsts = [line.upcoming()[0] for line in lines]
    assert not world.caches.shrink(10_000_000)
    world.check()
    for line, first in zip(lines, firsts, strict=True):
        one = world.list_of(line)
        assert one.shelf.first == first
        assert world.caches.least // 2 <= one.bytes <= 2 * world.caches.least


def test_a_body_larger_than_the_budget_is_delivered() -> None:
    world = World(10_000)
    world.publish([50_000])
    world.publish([10])
    world.commit()
    line = world.consumer()
    world.dispatch(line, 2)
    world.run()
    assert [lsn for _, lsn in world.got] == [1, 2]


def test_many_lists_share_what_one_had() -> None:
    """The high-water mark comes down as lists come, and what lies above it is pending for later."""
    world = World(400_000, queues=10)
    deep(world, 1000, (1,))
    first = world.consumer(1)
    world.dispatch(first, 1)
    world.run()
    alone = world.list_of(first).bytes
    for queue in range(2, 11):
        world.list_of(world.consumer(queue))
    world.caches.sweep()
    world.check()
    assert world.list_of(first).bytes < alone // 2
    assert world.caches.pending.account.bytes > 0


def test_a_burst_to_many_queues_is_not_sorted_in_one_go() -> None:
    """What does not get a place is in the log alone, and is delivered from there."""
    world = World(400_000, queues=2 * PLACED_MOST)
    everybody = range(1, 2 * PLACED_MOST + 1)
    for number in everybody:
        world.publish([1000], (number,))
    placed, put = list[int](), world.caches.heads.put

    def counted(queue: int, slab: Slab) -> None:
        placed.append(queue)
        put(queue, slab)

    world.caches.heads.put = counted  # type: ignore[method-assign]
    world.commit()
    assert 0 < len(placed) <= PLACED_MOST
    assert world.caches.budget.over <= 0
    world.check()
    for number in everybody:
        line = world.consumer(number)
        world.dispatch(line, 1)
        world.run()
    assert sorted(lsn for _, lsn in world.got) == list(range(1, world.next))


@pytest.mark.parametrize("told", [False, True], ids=["a queue is gone", "half has left each"])
def test_a_look_at_arrivals_asks_a_bounded_number_of_queues_at_a_time(told: bool, monkeypatch: Any) -> None:
    """Found by a fanout to 8,000 queues: whenever a queue was deleted, one beat asked each of them about each batch."""
    queues, batches, most = 40, 60, 100
    monkeypatch.setattr(caches, "ASKED_MOST", most)
    world = World(1 << 20, queues)
    for _ in range(batches):
        world.publish([10], tuple(range(1, queues + 1)))
    world.commit()
    asked = [0]
    needed = ModelLine.needed

    def counted(line: ModelLine, first: int, stop: int) -> Chunk | None:
        asked[0] += 1
        return needed(line, first, stop)

    monkeypatch.setattr(ModelLine, "needed", counted)
    for queue in world.queues:
        queue.main.clear()
        if told:
            world.caches.arrivals.left([1, world.next])
    if not told:
        world.caches.look_over()
    looks = list[int]()
    for _ in range(2 * batches):
        before = asked[0]
        world.caches.thin() if told else world.caches.sweep()
        looks.append(asked[0] - before)
    assert max(looks) <= most + queues
    assert sum(looks) <= 2 * queues * batches
    assert world.caches.arrivals.bytes == 0


@pytest.mark.parametrize("size", [1000, 20_000])
def test_what_is_waited_for_first_comes_first_wherever_it_lies(size: int) -> None:
    """Found by 96,000 messages of ten priorities: those behind the first filled the list, which gave up the first.

    It was read, given up and read again without an end, and nothing was delivered any more.
    """
    world = World(1 << 20)
    deep(world, 1200, size=size)
    line = world.consumer()
    line.of.main.clear()  # all are granted, by priority, and none is in memory
    levels = [range(level, 1201, 10) for level in range(1, 11)]
    granted = [as_chunk(list(level[at : at + 40])) for level in levels for at in range(0, len(level), 40)]
    got = list[int]()

    def drain() -> None:
        while granted:
            done = 0
            for piece in world.caches.pieces(granted[0], line, line.queue):
                if piece.bodies is None:
                    granted[0] = granted[0][done:]
                    world.loader.want(world.list_of(line), granted, drain)
                    return
                got.extend(piece.chunk)
                done += len(piece.chunk)
            del granted[0]

    drain()
    for _ in range(1200):
        world.loader.step()
        if world.cold:
            world.answer()
    assert got == [lsn for level in levels for lsn in level]
    assert world.rows_read <= 2 * 1200
    world.check()


def test_a_batch_that_very_many_queues_took_is_not_asked_about_but_goes_when_all_have_done_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by a fanout to 8,000 queues: each of its batches was 60 to 130 ms of a beat whenever a queue had gone."""
    monkeypatch.setattr(arrived_batches, "LINES_MOST", 10)
    world = World(1 << 20, 11)
    for queues in (tuple(range(1, 12)), tuple(range(1, 11))):
        world.publish([10], queues)
    world.commit()
    for queue in world.queues[:6]:
        queue.main.clear()
    world.caches.look_over()
    asked = list[int]()
    needed = ModelLine.needed
    monkeypatch.setattr(ModelLine, "needed", lambda line, *span: (asked.append(span[0]), needed(line, *span))[1])
    world.caches.sweep()
    assert set(asked) == {2}
    assert [batch and batch.wanted for batch in world.caches.arrivals.batches] == [11, 4]
    for _ in world.queues:
        world.caches.arrivals.left([1, 2])
    world.caches.thin()
    assert [batch and batch.wanted for batch in world.caches.arrivals.batches] == [None, 4]
