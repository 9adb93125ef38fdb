"""Filters off the loop, seen from the wire: large bodies, dear filters, deep queues, new queues at the wrong moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from message_samples import SAMPLES, Sample
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Publishes
from penstock.records.properties import EMPTY
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Life, clock, message

LARGE = b'{"kind":"a","pad":"' + b"x" * 300_000 + b'"}'
OTHER = b'{"kind":"b","pad":"' + b"x" * 300_000 + b'"}'
ARRAY = b'{"kind":[' + b",".join(b"%d" % number for number in range(40_000)) + b"]}"


class Aside:
    """Somewhere off the loop: work waits until the test lets it be done."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        life.engine.judges.off = self.start
        life.engine.scans.off = self.start

    def start(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def work(self, pieces: int = 1) -> None:
        """Do the oldest pieces."""
        for _ in range(pieces):
            work, done = self.waiting.popleft()
            done(work())
        self.life.run()

    def work_off(self) -> None:
        """Do everything, and what follows from it."""
        while self.waiting:
            self.work()


@pytest.fixture
def life() -> Life:
    return Life(SimDisk(), clock(), budget=64 << 20)


@pytest.fixture
def aside(life: Life) -> Aside:
    return Aside(life)


def consumer(life: Life, queue: str, text: str | None = None, prefetch: int = 0) -> Client:
    client = life.client(prefetch=prefetch)
    client.consume(queue, **({} if text is None else {"x-filter": text}))
    life.run()
    client.take(m.BasicConsumeOk)
    return client


def test_a_large_body_is_judged_off_the_loop_while_its_connection_waits_and_others_go_on(
    life: Life, aside: Aside
) -> None:
    life.declare("a", **{"x-underlying-topic": "t", "x-filter": "/kind = 'a'"})
    life.declare("b", **{"x-underlying-topic": "t", "x-filter": "/kind = 'b'"})
    sender, other = life.client(confirm=True), life.client(confirm=True)
    sender.publish("t", LARGE)
    sender.publish("t", b'{"kind":"b"}')
    sender.method(m.QueueDeclare(queue="late"))
    other.publish("t", b'{"kind":"b","n":2}')
    life.run()
    assert not sender.reading
    assert sender.got == []
    assert other.confirms() == [(True, 1, True)]
    assert life.contents("b") == [b'{"kind":"b","n":2}']
    aside.work_off()
    assert sender.reading
    sender.take(m.QueueDeclareOk)  # a promise of nothing: it does not wait for the disk, as the confirms do
    assert sender.confirms() == [(True, 2, True)]
    assert life.contents("a") == [LARGE]
    assert life.contents("b") == [b'{"kind":"b","n":2}', b'{"kind":"b"}']
    assert life.engine.bodies.partial.bytes == 0


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_keys_of_large_bodies_are_read_off_the_loop(life: Life, aside: Aside, sample: Sample) -> None:
    """Those of other types than JSON sooner: eight of 250 KB of MessagePack kept everybody for a second."""
    settings = {"message_type": sample.name, "key": [sample.path("id")]}
    life.core.declare_topic(life.engine.now(), "/", "", "t", settings)
    pad = 300_000 if sample.name == "json" else 30_000
    small, large, other = (sample.body({"id": n, "note": "x" * size}) for n, size in ((1, 10), (2, pad), (1, pad)))
    sender = life.client(confirm=True)
    for body in (small, large, other):
        sender.publish("t", body, properties=sample.properties)
    life.run()
    assert sender.confirms() == [(True, 1, True)]
    aside.work_off()
    assert [last for _, last, _ in sender.confirms()][-1] == 3
    sow = life.core.sows.by_name["/", "", "t"]
    assert sow.index.count == 2


def test_a_batch_without_rows_asks_for_nothing(life: Life) -> None:
    life.core.declare_topic(life.engine.now(), "/", "", "t", {"key": ["/id"]})
    none = Publishes(life.core.topic("/", "", "t"), EMPTY, [])
    assert life.core.heavy(none, merging=False) == []
    assert life.core.publish(life.engine.now(), none).stored == 0


def test_a_queue_that_comes_while_a_body_is_judged_judges_it_too(life: Life, aside: Aside) -> None:
    life.declare("a", **{"x-underlying-topic": "t", "x-filter": "/kind = 'a'"})
    sender = life.client(confirm=True)
    sender.publish("t", OTHER)
    life.run()
    life.declare("b", **{"x-underlying-topic": "t", "x-filter": "/kind = 'b'"})
    aside.work()
    assert sender.got == []
    assert len(aside.waiting) == 1
    aside.work()
    assert sender.confirms() == [(True, 1, True)]
    assert (life.ready("a"), life.contents("b")) == (0, [OTHER])


def test_a_connection_that_goes_while_its_messages_are_judged_leaves_nothing(life: Life, aside: Aside) -> None:
    life.declare("a", **{"x-filter": "/kind = 'a'"})
    sender = life.client()
    sender.publish("a", LARGE)
    life.run()
    sender.lose()
    life.run()
    aside.work_off()
    assert life.ready("a") == 0
    assert life.engine.bodies.partial.bytes == 0


def test_a_cheap_filter_over_a_huge_array_does_not_hold_the_loop(life: Life, aside: Aside) -> None:
    life.declare("a", **{"x-filter": "/kind = 39999"})
    sender = life.client(confirm=True)
    sender.publish("a", b'{"kind":39999}', ARRAY, b'{"kind":1}')
    life.run()
    assert len(aside.waiting) == 1
    assert sender.got == []
    aside.work_off()
    assert life.contents("a") == [b'{"kind":39999}', ARRAY]


def test_bodies_of_usual_size_are_judged_in_place(life: Life, aside: Aside) -> None:
    life.declare("a", **{"x-filter": "/kind = 'a'"})
    sender = life.client(confirm=True)
    bodies = [b'{"kind":"%s","pad":"%s"}' % (kind, b"x" * 20_000) for kind in (b"a", b"b") * 4]
    sender.publish("a", *bodies)
    life.run()
    assert not aside.waiting
    assert life.contents("a") == bodies[::2]


def test_large_dead_letters_are_judged_off_the_loop(life: Life, aside: Aside) -> None:
    life.declare("work", **{"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    life.declare("dead", **{"x-filter": "/kind = 'a' AND /@headers/x-death[0] IS NULL"})
    sender = life.client()
    sender.publish("work", LARGE, OTHER, b'{"kind":"a"}')
    life.run()
    life.advance(2_000_000)
    assert life.ready("work") == 0
    assert life.ready("dead") == 0
    assert life.core.queue("/", "work").dying == 3
    aside.work_off()
    assert life.contents("dead") == [LARGE, b'{"kind":"a"}']
    assert life.core.queue("/", "work").dying == 0


def test_a_consumer_gets_large_bodies_that_its_filter_wants_in_their_order(life: Life, aside: Aside) -> None:
    life.declare("q")
    reader = consumer(life, "q", "/kind = 'a'")
    sender = life.client()
    sender.publish("q", b'{"kind":"a","n":1}', LARGE, OTHER)
    sender.publish("q", b'{"kind":"a","n":2}', b'{"kind":"b"}')
    life.turn()
    assert reader.got == []
    aside.work_off()
    assert reader.bodies() == [b'{"kind":"a","n":1}', LARGE, b'{"kind":"a","n":2}']
    sender.publish("q", b'{"kind":"a","n":3}')
    life.turn()
    assert not aside.waiting  # it has caught up, and follows again
    assert reader.bodies() == [b'{"kind":"a","n":3}']


def test_a_late_consumer_finds_its_messages_on_disk_and_in_memory(life: Life, aside: Aside) -> None:
    life.declare("q")
    sender = life.client()
    wanted = [b'{"kind":"a","n":%d}' % number for number in range(0, 900, 90)]
    for start in range(0, 900, 300):
        sender.publish(
            "q", *(b'{"kind":"%s","n":%d}' % (b"b" if n % 90 else b"a", n) for n in range(start, start + 300))
        )
        if start < 600:
            life.run()
    sender.publish("q", LARGE)
    life.turn()  # the last of them are gathered, and not on the disk
    assert life.log.durable < life.core.last_lsn
    reader = life.client()
    reader.consume("q", **{"x-filter": "/kind = 'a'"})
    life.turn()
    reader.take(m.BasicConsumeOk)
    while aside.waiting:
        work, done = aside.waiting.popleft()
        done(work())
        life.turn()
    assert reader.bodies() == [*wanted, LARGE]


def test_a_message_that_is_taken_during_a_scan_is_not_delivered_again(life: Life, aside: Aside) -> None:
    life.declare("q")
    sender = life.client()
    sender.publish("q", *(b'{"kind":"a","n":%d}' % number for number in range(4)))
    life.run()
    reader = consumer(life, "q", "/kind = 'a'")
    other = consumer(life, "q", prefetch=3)
    assert len(other.bodies()) == 3
    aside.work_off()
    assert reader.bodies() == [b'{"kind":"a","n":3}']
    other.lose()
    life.run()
    aside.work_off()
    assert [body[-2:-1] for body in reader.bodies()] == [b"0", b"1", b"2"]


def test_a_queue_deleted_during_a_scan(life: Life, aside: Aside) -> None:
    life.declare("q")
    sender = life.client()
    sender.publish("q", b'{"kind":"a"}')
    life.run()
    reader = consumer(life, "q", "/kind = 'a'")
    sender.method(m.QueueDelete(queue="q"))
    life.run()
    aside.work_off()
    reader.take(m.BasicCancel)
    assert reader.got == []


def test_what_a_scan_still_reads_is_not_retired(life: Life, aside: Aside) -> None:
    life.declare("q")
    sender = life.client()
    sender.publish("q", b'{"kind":"a"}')
    life.run()
    before = life.engine.floor()
    consumer(life, "q", "/kind = 'b'")
    other = consumer(life, "q")
    other.take_all()
    other.ack(1)
    life.run()
    assert life.ready("q") == 0
    assert life.engine.floor() <= before
    aside.work_off()
    assert life.engine.floor() > before


def test_a_split_read_keeps_its_order_while_it_waits(life: Life, aside: Aside) -> None:
    life.declare("a", **{"x-filter": "/kind = 'a'"})
    sender = life.client(confirm=True)
    data = message(LARGE, "a") + message(b'{"kind":"a","n":1}', "a")
    for start in range(0, len(data), 50_000):
        sender.send(data[start : start + 50_000])
    sender.publish("a", b'{"kind":"a","n":2}')
    life.run()
    aside.work_off()
    assert life.contents("a") == [LARGE, b'{"kind":"a","n":1}', b'{"kind":"a","n":2}']
