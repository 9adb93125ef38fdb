"""Many consumers of which few get something: whose turn it is is found without asking them all, and is the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from choices import spread
from penstock.core.effects import Effect, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching import dispatch, granting, roster
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings
from unit.core.world import World

SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"lease_period": 30, "max_leased": (9, 100)},
    {"semantics": "at-most-once", "deliver": "durable"},
    {"max_backlog": 12},
    {"fairness_model": "fast"},
    {"fairness_model": "proportional"},
)
VERBS = {"ack": Verb.ACK, "back": Verb.RELEASE}


class Side:
    """A queue whose deliveries are kept by tag."""

    def __init__(self, settings: dict[str, object], many: int, spare: int) -> None:
        self.many = many
        self.spare = spare
        self.queue = Queue(1, "/", "q", QueueSettings(**{"fairness_model": "round-robin", **settings}))  # type: ignore[arg-type]
        self.sink = Outbox[Effect](10)
        self.mono = 1
        self.quick = 0  # times that few were looked at
        self.known = 0  # times that it was known who may have room
        self.workers: list[Consumer] = []
        self.got: dict[str, list[tuple[int, int, bool]]] = {}

    @property
    def now(self) -> Now:
        return Now(self.mono, self.mono)

    def look(self) -> None:
        while self.sink.effects or self.queue.next_deadline()[1] == 0:
            if not self.sink.effects:
                self.queue.tick(self.now, self.sink)
            for one in delivered(self.sink.take_effects()):
                sent = [(lsn, one.attempt, one.redelivered) for lsn in one.chunk]
                self.got.setdefault(one.consumer.tag, []).extend(sent)
        self.sink.take_journal()


def turns(sides: list[Side]) -> Iterator[Side]:
    name = "_one_each"
    original: Any = getattr(dispatch, name)
    for side in sides:

        def counted(queue: Queue, *given: Any, side: Side = side) -> None:
            side.quick += 1
            original(queue, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, name, counted)
            patch.setattr(dispatch, "MANY", side.many)
            patch.setattr(granting, "EACH_LEAST", 2)
            for module in (dispatch, roster):
                patch.setattr(module, "SPARE_MOST", side.spare)
            yield side
            side.look()
        side.known += side.queue.roster.spare is not None


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("seed", spread(range(12), 6))
def test_few_messages_for_many_go_where_they_would_if_all_were_asked(seed: int, *, deep: bool) -> None:
    """deep: nearly always more wait than all may have."""
    dice = random.Random(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    nobody, all = 1 << 30, 1  # from so many consumers on
    sides = [Side(dict(settings), *which) for which in ((all, nobody), (nobody, nobody), (nobody, 0), (all, 3))]
    for side in sides if seed % 2 else ():
        side.queue.dispatch_most = 3  # the rest in a step of its own
    holders = [object(), object()] if seed % 4 == 3 else [object()]
    lsn = 10
    for step in range(90):
        what = (
            "join"
            if step < 12
            else dice.choice(["publish"] * 4 + ["ack"] * 6 + ["back", "pause", "go", "go", "go", "join", "join"])
        )
        chance = dice.randrange(1 << 30)
        count = dice.choice((1, 3, 5, 8) if dice.random() < 0.97 else (40,)) * (5 if deep else 1)
        for side in turns(sides):
            own = random.Random(chance)
            queue, now, sink, workers = side.queue, side.now, side.sink, side.workers
            if what == "join" and len(workers) < 24:
                shared = Credit(own.choice((1, 3))) if seed % 8 == 5 and own.random() < 0.2 else None
                side.workers.append(
                    queue.subscribe(
                        now, sink, tag=f"c{len(workers)}", holder=own.choice(holders), client="peer", shared=shared,
                        max_backlog=own.choice((1, 1, 2, 5)), priority=own.choice((0, 0, 0, 1)),
                        no_ack=not deep and not {"max_backlog", "max_leased"} & settings.keys() and own.random() < 0.1,
                    )
                )  # fmt: skip
            elif what == "publish":
                queue.arrive(now, range(lsn, lsn + count), sink)
            elif what in ("ack", "back"):
                holding = [one for one in workers if one.leases.count]
                for one in own.sample(holding, min(len(holding), 4 * count if what == "ack" else 1)):
                    chunks = [run.chunk for run in one.leases.held()]
                    queue.settle(now, chunks[: own.choice((1, 9))], VERBS[what], sink, by=one)
            elif what == "pause":
                queue.choke(own.choice(workers))
            elif what == "go":
                side.mono += own.choice((0, 20))
                queue.unchoke(side.now, own.choice(workers), sink)
        lsn += count
        for side in sides[1:]:
            assert side.got == sides[0].got
            assert side.queue.ready == sides[0].queue.ready
    assert sides[0].got
    if deep:
        alone = (
            not {"max_backlog", "max_leased"} & settings.keys() and not sides[0].queue.sharing
        )  # by their own limits
        assert [side.known > 0 for side in sides] == [False, False, alone, alone]
    else:
        assert (sides[0].quick > 3, sides[1].quick) == ("fairness_model" not in settings, 0)
    for side in sides:
        side.queue.check()


def test_of_many_that_hold_all_they_may_only_who_has_room_again_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side({}, 1, roster.SPARE_MOST)
    queue, sink = side.queue, side.sink
    for at in range(200):
        side.workers.append(queue.subscribe(side.now, sink, tag=f"c{at}", holder=side, max_backlog=1))
    queue.arrive(side.now, range(10, 510), sink)
    asked = list[Consumer]()

    def spare_of(self: roster.Roster, level: list[Consumer], of: Any = roster.Roster.spare_of) -> list[Consumer]:
        asked.extend(found := of(self, level))
        return found

    monkeypatch.setattr(roster.Roster, "spare_of", spare_of)
    done = side.workers[150:] + side.workers[:20]
    for one in done:
        queue.settle(side.now, [one.leases.oldest()], Verb.ACK, sink, by=one)
    assert (asked, queue.ready) == (done, 500 - 200 - 70)
    queue.check()


class Listed(dict[Consumer, None]):
    """Consumers of a queue, and how often somebody went over all of them."""

    walks = 0

    def __iter__(self) -> Iterator[Consumer]:
        self.walks += 1
        return super().__iter__()


def test_many_consumers_that_end_one_by_one_do_not_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand connections of a consumer each that a network ends, each looked at all that were left: 2.4 s."""
    world, looked = World(), list[int]()
    queue, count = world.declare("q"), 4 * roster.SPARE_MOST
    consumers = [world.subscribe(queue, tag=f"c{n}", max_backlog=1) for n in range(count)]
    world.publish("q", *[b"x"] * count)
    queue.all_consumers = everyone = Listed(queue.all_consumers)
    with_room = dispatch._with_room

    def look(some: Sequence[Consumer]) -> list[Consumer]:
        looked.append(len(some))
        return with_room(some)

    monkeypatch.setattr(dispatch, "_with_room", look)
    for one in consumers[: count // 2]:
        world.core.unsubscribe(world.now, one, requeue=True, lost=True)
        world.turn()
    assert queue.ready == queue.leased == count // 2
    assert everyone.walks == 0
    assert sum(looked) <= 2 * count
