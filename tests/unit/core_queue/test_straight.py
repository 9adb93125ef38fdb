"""What arrives where somebody has room, and acks of what one holds alone, take a short way: nothing of it shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from choices import EFFORT, SEED
from penstock.core.effects import Effect, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue import flow
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling import several
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Moves, singly
from penstock.records.queue_settings import QueueSettings

SETTINGS: tuple[dict[str, object], ...] = (
    {}, {}, {"consumer_timeout": 40}, {"lease_period": 30}, {"max_backlog": 3}, {"max_leased": (2, 0)},
    {"deliver": "durable"}, {"semantics": "at-most-once"}, {"single_active_consumer": True}, {"max_length": 4},
    {"consumers_before_dispatch": 2}, {"purge_on_no_consumers": True}, {"fairness_model": "fast"},
    {"message_ttl": 60}, {"max_per_subscription_backlog": 1}, {"rate_limit": (3, 20, 0, 1)},
)  # fmt: skip


class Side:
    """A queue, and all that comes of it."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.queue = Queue(1, "/", "q", QueueSettings(**{"fairness_model": "round-robin", **settings}))  # type: ignore[arg-type]
        self.sink = Outbox[Effect](10)
        self.mono = 1
        self.workers: list[Consumer] = []
        self.held: list[tuple[Consumer, int]] = []
        self.short = 0

    @property
    def now(self) -> Now:
        return Now(self.mono, self.mono)

    def publish(self, count: int) -> None:
        lsns = range(self.sink.next_lsn, self.sink.next_lsn + count)
        self.sink.next_lsn += count
        self.queue.arrive(self.now, lsns, self.sink)

    def ack(self, places: Sequence[int]) -> None:
        done = [self.held[place] for place in places]
        self.held = [one for one in self.held if one not in done]
        self.queue.settle_several(self.now, [(consumer, [range(lsn, lsn + 1)]) for consumer, lsn in done], self.sink)

    def come(self, **options: Any) -> None:
        tag = f"c{len(self.workers) % 3}{len(self.workers)}"
        self.workers.append(self.queue.subscribe(self.now, self.sink, tag=tag, holder=self, client=tag[:2], **options))

    def leave(self, place: int) -> None:
        gone = self.workers[place]
        if not gone.closed:
            self.held = [one for one in self.held if one[0] is not gone]
            self.queue.unsubscribe(self.now, [gone], self.sink, requeue=True)

    def choke(self, place: int) -> None:
        one = self.workers[place]
        if one.choked:
            self.queue.unchoke(self.now, one, self.sink)
        else:
            self.queue.choke(one)

    def give_back(self, place: int) -> None:
        consumer, lsn = self.held.pop(place)
        self.queue.settle(self.now, [range(lsn, lsn + 1)], Verb.RELEASE, self.sink, by=consumer)

    def wait(self, span: int) -> None:
        self.mono += span
        if self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)

    def pause(self, until: int) -> None:
        self.queue.pause(self.now, until and self.mono + until, self.sink, "")

    def told(self) -> list[object]:
        """All that a command has brought, and what it leaves."""
        queue, sent = self.queue, list[object]()
        for one in delivered(self.sink.take_effects()):
            sent.append((one.consumer.tag, [*one.chunk], one.attempt, one.redelivered, one.after, one.until, one.sends))
            self.held += [(one.consumer, lsn) for lsn in one.chunk if not one.consumer.no_ack]
        records = [(one.kind, one.header, one.body, one.lsn) for one in singly(self.sink.take_journal())]  # type: ignore[union-attr]
        told = queue.so_far
        counts = (queue.ready, queue.leased, queue.outstanding, told.delivered, told.acked, queue.roster.turn)
        return [sent, records, counts, queue.next_deadline(), [one.outstanding for one in self.workers]]


def step(dice: random.Random, side: Side) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """What happens next, to both sides alike."""
    held, workers = range(len(side.held)), [n for n, one in enumerate(side.workers) if not one.closed]
    verbs = ["publish"] * (6 if side.queue.ready < 3 else 1) + ["wait"] + ["pause"] * (dice.random() < 0.03)
    verbs += ["ack"] * 9 + ["give_back"] if held else []
    verbs += ["choke"] + ["leave"] * (dice.random() < 0.2) if workers else []
    verbs += ["come"] * 3 if len(workers) < 4 else []
    match verb := dice.choice(verbs):
        case "publish":
            return verb, (dice.choice([1, 1, 1, 2, 3]),), {}
        case "ack":
            return verb, (dice.sample(held, dice.randint(1, min(3, len(held)))),), {}
        case "give_back":
            return verb, (dice.choice(held),), {}
        case "leave" | "choke":
            return verb, (dice.choice(workers),), {}
        case "come":
            backlog, rank = dice.choice([1, 1, 1, 2, None]), int(dice.random() < 0.03)
            return verb, (), {"max_backlog": backlog, "no_ack": dice.random() < 0.05, "priority": rank}
        case "wait":
            return verb, (dice.choice([1, 15, 45]),), {}
        case _:
            return verb, (dice.choice([0, 0, 0, 9]),), {}


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_the_short_way_and_the_long_one_write_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(SEED * 100 + number)
    ways = [(flow, "straight"), (several, "acknowledge_lone")]
    short, taken = {name: getattr(module, name) for module, name in ways}, 0
    for _ in range(3 * EFFORT):
        sides = quick, slow = Side(SETTINGS[number]), Side(SETTINGS[number])
        for _ in range(120):
            verb, given, options = step(dice, quick)
            for side in sides:
                for module, name in ways:

                    def way(*asked: Any, short: Any = short[name], on: bool = side is quick) -> bool:
                        nonlocal taken
                        done = on and short(*asked)
                        taken += done
                        return bool(done)

                    monkeypatch.setattr(module, name, way)
                getattr(side, verb)(*given, **options)
            assert quick.told() == slow.told(), (SEED, number, verb, given, options)
        quick.queue.check()
    if not SETTINGS[number]:
        assert taken > 50


def chunk(lsn: int) -> Chunk:
    return range(lsn, lsn + 1)


def test_records_of_many_queues_go_to_the_log_as_columns() -> None:
    sink = Outbox[Effect](10)
    queue_list = [Queue(n, "/", f"q{n}", QueueSettings(fairness_model="round-robin")) for n in range(1, 5)]
    now = Now(5, 5)
    workers = [one.subscribe(now, sink, tag="c", holder=sink, client="me", max_backlog=1) for one in queue_list]
    sink.take_journal()
    sink.next_lsn = 104  # the messages are 100 to 103
    sink.at(now)
    for lsn, queue in enumerate(queue_list, 100):
        queue.arrive(now, chunk(lsn), sink)
    for lsn, queue in enumerate(queue_list, 100):
        queue.settle_several(now, [(workers[lsn - 100], [chunk(lsn)])], sink)
    [moves] = sink.take_journal()
    assert isinstance(moves, Moves)
    assert len(moves) == 8
    assert [(one.kind.name, one.name, one.lsn, one.time) for one in moves.singly()] == [
        *[("GRANT", f"q{n}", 103 + n, 5) for n in range(1, 5)],
        *[("SETTLE", f"q{n}", 107 + n, 5) for n in range(1, 5)],
    ]
    assert {one.header for one in moves.singly()} == {b'{"consumer":"c","client":"me","attempt":1}', b'{"by":"me"}'}


def test_a_record_of_another_moment_or_behind_another_begins_anew() -> None:
    sink = Outbox[Effect](10)
    queue = Queue(1, "/", "q", QueueSettings(fairness_model="round-robin"))
    worker = queue.subscribe(Now(1, 1), sink, tag="c", holder=sink, max_backlog=2)
    for wall in (5, 5, 7):
        now = sink.at(Now(wall, wall))
        lsn, sink.next_lsn = sink.next_lsn, sink.next_lsn + 1  # of a message, which is an entry between two records
        queue.arrive(now, chunk(lsn), sink)
        queue.settle_several(now, [(worker, [chunk(lsn)])], sink)
    assert [len(one) for one in sink.take_journal()] == [2, 2, 2]
