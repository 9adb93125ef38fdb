"""A step that gives messages to many consumers of one channel: they get what they would get one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from choices import spread
from penstock.core.queue.dispatching import granting
from penstock.log.simdisk import SimDisk
from penstock.server.amqp import session
from penstock.server.amqp.channel import Channel
from penstock.server.gates import Gates
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Content, Life, clock

NEVER = 1 << 30


class Side:
    """A server whose messages are known by their bodies, for tags differ with the order among consumers."""

    def __init__(self, least: int, *, budget: int = 1 << 20, filtered: bool = False, **arguments: Any) -> None:
        self.least = least
        self.life = Life(SimDisk(), clock(), budget=budget)
        self.life.declare("q", **arguments)
        self.publisher = self.life.client()
        self.client = self.life.client(prefetch=3)
        self.tags: dict[bytes, int] = {}
        self.got: list[tuple[str, bytes, bool, object]] = []
        self.filter = {"x-filter": "/n > 0"} if filtered else {}

    def consume(self, tag: str, **arguments: Any) -> None:
        self.client.consume("q", tag, **self.filter, **arguments)

    def look(self) -> None:
        """Run to the end, and note what came."""
        self.life.run()
        for one in self.client.take_all():
            if isinstance(one, Content) and isinstance(one.method, m.BasicDeliver):
                self.tags[one.body] = one.tag
                count = (one.properties.headers or {}).get("x-delivery-count")
                self.got.append((one.method.consumer_tag, one.body, one.redelivered, count))

    def told(self) -> object:
        queue, counters = self.life.core.queue("/", "q"), self.life.door.counted()
        queue.check()
        told = queue.so_far
        counts = (queue.ready, queue.leased, queue.outstanding, told.acked, told.stale, told.delivered)
        sent = (counters.delivered_consume_manual_ack, counters.redelivered, counters.acknowledged)
        held = {one.tag: sum(len(run.chunk) for run in one.leases.held()) for one in queue.all_consumers}
        return counts, sent, held, sorted(self.got, key=str), self.client.session.channels[1].tags.count


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way messages of many consumers went."""
    seen: list[str] = []
    for owner, name in ((Channel, "deliver_each"), (Channel, "deliver"), (Gates, "deliver_each")):
        original: Any = getattr(owner, name)

        def told(*given: Any, original: Any = original, what: str = f"{owner.__name__}.{name}") -> None:
            seen.append(what)
            original(*given)

        monkeypatch.setattr(owner, name, told)
    return seen


def turns(sides: list[Side]) -> Iterator[Side]:
    """One after the other, each with its bound."""
    for side in sides:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(granting, "EACH_LEAST", side.least)
            yield side


@pytest.mark.parametrize("seed", spread(range(12), 6))
def test_whatever_is_said_of_them(seed: int, monkeypatch: pytest.MonkeyPatch, parts: list[str]) -> None:
    chance = random.Random(seed)
    budget = 1 << 20 if seed % 3 else 1 << 14  # bodies that have to be read from the log
    arguments: dict[str, Any] = [{}, {"x-max-deliveries": 2}, {"x-fairness-model": "proportional"}][seed % 3]
    sides = [Side(least, budget=budget, filtered=seed % 2 > 0, **arguments) for least in (2, NEVER)]
    if seed % 4 == 1:
        monkeypatch.setattr(session, "PORTION", 1)
    size = 900 if seed % 3 == 0 else 10
    number = consumers = 0
    blocked = tx = False
    for step in range(60):
        what = (
            ["consume", "publish"][step]
            if step < 2
            else chance.choice(["publish", "publish", "ack", "ack", "nack", "all", "consume", "block", "tx", "recover"])
        )
        count, pick = chance.randrange(1, 30), chance.random()
        known = sorted(sides[0].tags)
        chosen = chance.sample(known, min(len(known), count)) if known else []
        if what == "consume" and consumers < 12:
            consumers += 3
            for side in turns(sides):
                for place in range(consumers - 3, consumers):
                    side.consume(f"c{place}", **({"x-info": True} if seed % 4 == 2 and place == 4 else {}))
        elif what == "publish":
            count = 1 + count % (consumers + 3)  # nearly always one each
            bodies = [b'{"n": %d, "x": "%s"}' % (n, b"y" * size) for n in range(number + 1, number + count + 1)]
            number += count
            for side in turns(sides):
                side.publisher.publish("q", *bodies)
        elif what in ("ack", "nack"):
            for side in turns(sides):
                ends = [
                    m.BasicAck(side.tags[body]) if what == "ack" else m.BasicNack(side.tags[body], False, pick < 0.5)
                    for body in chosen
                ]
                for end in ends:
                    side.client.method(end)
                for body in chosen:
                    del side.tags[body]
        elif what == "all" and known and not tx:
            for side in turns(sides):
                side.client.ack(0, multiple=True)
                side.tags.clear()
        elif what == "recover" and not tx and pick < 0.2:
            for side in turns(sides):
                side.client.method(m.BasicRecover(True))
                side.tags.clear()
        elif what == "block":
            blocked = not blocked
            for side in turns(sides):
                (side.client.session.pause_writing if blocked else side.client.session.resume_writing)()
        elif what == "tx" and seed % 4 == 3 and not blocked:
            for side in turns(sides):
                side.client.method(m.TxSelect() if not tx else m.TxCommit() if pick < 0.8 else m.TxRollback())
            if tx and pick >= 0.8:
                break  # what was rolled back is outstanding under its tags again, which only the server knows
            tx = True
        for side in turns(sides):
            side.look()
        assert sides[0].told() == sides[1].told()
    if blocked:
        for side in turns(sides):
            side.client.session.resume_writing()
            side.look()
        assert sides[0].told() == sides[1].told()
    for side in turns(sides):
        side.client.method(m.ChannelClose(200, "", 0, 0))
        side.life.run()
        queue = side.life.core.queue("/", "q")
        assert not queue.leased
        queue.check()
    assert sides[0].life.contents("q") == sides[1].life.contents("q")
    assert "Channel.deliver_each" in parts


def many(life: Life, count: int = 6, **arguments: Any) -> Client:
    client = life.client(prefetch=2)
    for place in range(count):
        client.consume("q", f"c{place}", **arguments)
    life.run()
    client.take_all()
    return client


def test_a_step_is_one_delivery_in_the_order_of_the_queue(parts: list[str]) -> None:
    life = Life(SimDisk(), clock())
    life.declare("q")
    client = many(life)
    for burst in range(2):
        client.publish("q", *(b"%d.%d" % (burst, n) for n in range(4)))
        life.run()
    assert parts == ["Gates.deliver_each", "Channel.deliver_each"] * 2
    got = client.messages()
    assert [one.body for one in got] == [b"%d.%d" % (burst, n) for burst in range(2) for n in range(4)]
    assert [one.tag for one in got] == list(range(1, 9))
    assert [one.method.consumer_tag for one in got if isinstance(one.method, m.BasicDeliver)] == [
        "c0", "c1", "c2", "c3", "c4", "c5", "c0", "c1",
    ]  # fmt: skip


def test_consumers_of_two_channels_get_theirs_on_their_own(parts: list[str]) -> None:
    life = Life(SimDisk(), clock())
    life.declare("q")
    first, second = many(life), many(life)
    first.publish("q", *(b"%d" % n for n in range(12)))
    life.run()
    assert [parts.count(f"{one}.deliver_each") for one in ("Gates", "Channel")] == [2, 2]
    assert first.bodies() == [b"%d" % n for n in range(6)]
    assert second.bodies() == [b"%d" % n for n in range(6, 12)]


def test_one_that_wants_to_know_of_its_leases_has_them_sent_one_by_one(parts: list[str]) -> None:
    life = Life(SimDisk(), clock())
    life.declare("q")
    client = many(life, **{"x-info": True})
    client.publish("q", *(b"%d" % n for n in range(5)))
    life.run()
    assert parts.count("Channel.deliver") == 5
    got = client.messages()
    assert [one.body for one in got] == [b"%d" % n for n in range(5)]
    assert len({(one.properties.headers or {})["x-bookmark"] for one in got}) == 5


def test_what_has_to_be_durable_first_goes_one_by_one_and_late(parts: list[str]) -> None:
    life = Life(SimDisk(), clock())
    life.declare("q", **{"x-deliver": "durable"})
    client = many(life)
    client.publish("q", *(b"%d" % n for n in range(5)))
    life.turn()
    assert client.bodies() == []
    life.run()
    assert sorted(client.bodies()) == [b"%d" % n for n in range(5)]
    assert "Gates.deliver_each" not in parts


def test_a_reader_of_a_stream_is_shown_nothing_that_a_crash_takes_back() -> None:
    life = Life(SimDisk(), clock())
    life.declare("s", **{"x-queue-type": "stream"})
    reader, publisher = life.client(prefetch=5), life.client()
    reader.consume("s", **{"x-stream-offset": "first"})
    life.run()
    reader.take_all()
    publisher.publish("s", b"0", b"1")
    life.turn()
    assert reader.bodies() == []
    life.run()
    assert reader.bodies() == [b"0", b"1"]


def test_what_a_broken_log_has_lost_is_shown_to_nobody() -> None:
    life = Life(SimDisk(), clock())
    life.declare("q")
    client = many(life)
    client.publish("q", *(b"%d" % n * 500 for n in range(5)))  # more than what ends its turn at once
    life.engine.break_down(OSError("no disk"))  # type: ignore[arg-type]
    life.turn()
    assert not [one for one in client.take_all() if isinstance(one, Content)]
