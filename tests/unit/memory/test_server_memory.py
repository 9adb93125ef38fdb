"""The budget in the server: what waits for a peer, what was announced, what is read, and how it all is shown."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from penstock.log.simdisk import SimDisk
from penstock.memory import READ_ROWS
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows
from penstock.server.amqp.links import SEND_MOST
from penstock.server.amqp.session import SEND_FREE
from penstock.server.asking.scanning import JOIN_SHARE
from penstock.server.base.rounds import Turns
from penstock.server.gates import Gates
from penstock.server.http.exposition import exposition
from penstock.server.http.metrics import Metrics
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import HEADER, METHOD, frame
from sim.serverkit import PERSISTENT, Client, Content, Life, clock

T = TypeVar("T")

LARGE = 100_000


def filled(messages: int, *, budget: int = 64 << 20, size: int = LARGE) -> Life:
    life = Life(SimDisk(), clock(), budget=budget)
    life.declare("q")
    client = life.client()
    for number in range(messages):
        client.publish("q", b"%d:" % number + b"x" * size)
        life.run()
    client.lose()
    life.run()
    return life


def numbers(client: Client) -> list[int]:
    return [int(one.body.partition(b":")[0]) for one in client.take_all() if isinstance(one, Content)]


class Slow(Client):
    """A peer that takes nothing more after the first megabyte or so."""

    taken = 0

    def write(self, data: bytes) -> None:
        super().write(data)
        self.taken += len(data)
        if self.taken > SEND_MOST and not self.session.outgoing.blocked:
            self.session.pause_writing()


def test_a_peer_that_does_not_read_gets_no_more_than_may_wait_for_it() -> None:
    """It was granted everything at once; what its connection does not take is sent when it reads again, in order."""
    life = filled(60)
    client = Slow(life)
    client.channel()
    client.consume("q")
    life.run()
    first = numbers(client)
    assert first == list(range(len(first)))
    assert len(first) * LARGE <= SEND_MOST + 3 * LARGE
    while client.session.outgoing.blocked:
        client.taken = 0
        client.session.resume_writing()
        life.run()
        first += numbers(client)
    assert first == list(range(60))


def test_what_waited_for_a_lost_peer_goes_to_another() -> None:
    life = filled(40)
    client = Slow(life)
    client.channel()
    client.consume("q")
    life.run()
    taken = numbers(client)
    client.lose()
    other = life.client()
    other.consume("q", "d")
    life.run()
    assert sorted(numbers(other)) == list(range(40))
    assert len(taken) < 40
    assert life.engine.bodies.sending.bytes == 0


def test_all_bytes_that_wait_for_a_peer_count() -> None:
    """Found by resident memory under load: of each connection 64 KiB were in no account."""
    life = filled(3)
    client = life.client()
    client.waiting = 300_000
    client.consume("q")
    life.run()
    sending = life.engine.bodies.sending
    assert sending.bytes == 300_000
    client.waiting = 20_000
    client.session.outgoing.count_unsent()
    assert sending.bytes == 20_000
    client.waiting = 0
    client.session.outgoing.count_unsent()
    assert sending.bytes == 0
    client.waiting = 200_000
    client.session.outgoing.count_unsent()
    client.lose()
    assert sending.bytes == 0


def test_what_is_left_of_the_budget_is_compared_with_what_the_process_has() -> None:
    """Full caches take nothing of it, what is held does, and nothing is left while publishers wait."""
    life = filled(30, budget=64 << 20)
    bodies = life.engine.bodies
    assert bodies.used > 0
    assert bodies.spare_bytes == bodies.budget.limit - (bodies.budget.used - bodies.used)
    before = bodies.spare_bytes
    bodies.sending.add(1_000_000)
    assert bodies.spare_bytes == before - 1_000_000
    bodies.tight = True
    assert bodies.spare_bytes == 0


def test_when_the_budget_is_short_less_may_wait_for_each_peer() -> None:
    life = filled(1)
    client = life.client()
    client.waiting = 300_000
    life.engine.bodies.tight = True
    client.session.outgoing.count_unsent()
    assert client.below == SEND_FREE
    life.engine.bodies.tight = False
    client.session.outgoing.count_unsent()
    assert client.below == SEND_MOST
    client.waiting = SEND_FREE
    life.engine.bodies.tight = True
    client.session.outgoing.count_unsent()
    assert client.below == SEND_MOST


def test_what_a_scan_of_the_log_holds_counts_while_it_runs() -> None:
    """Found by resident memory under load: batches that are joined for filters were in no account."""
    life = filled(3)
    later: list[Callable[[], None]] = []
    sizes: list[int] = []

    def off(work: Callable[[], T], done: Callable[[T], None]) -> None:
        later.append(lambda: done(work()))

    budget = life.engine.bodies.budget
    life.engine.scans.off = off
    client = life.client()
    client.consume("q", **{"x-filter": "/x = 1"})
    life.run()
    while later:
        sizes.append(budget.by_name()["scanning"])
        later.pop(0)()
        life.run()
    assert set(sizes) == {2 * budget.limit // JOIN_SHARE}
    assert budget.by_name()["scanning"] == 0


def announce(client: Client, size: int, channel: int = 1) -> None:
    """The beginning of a message: its body is still to come."""
    client.send(
        frame(METHOD, channel, m.BasicPublish(exchange="", routing_key="q").encode())
        + frame(HEADER, channel, struct.pack(">HHQ", 60, 0, size) + PERSISTENT)
    )


def test_a_body_counts_when_its_header_announces_it() -> None:
    life = filled(1)
    partial = life.engine.bodies.partial
    client, other = life.client(), life.client()
    announce(client, 1_000_000)
    assert partial.bytes == 1_000_000
    announce(other, 500_000)
    assert partial.bytes == 1_500_000
    other.lose()
    life.turn()
    assert partial.bytes == 1_000_000
    for _ in range(10):
        client.send(frame(3, 1, b"y" * 100_000))
    life.run()
    assert partial.bytes == 0
    assert life.ready("q") == 2


def test_a_body_that_does_not_fit_waits_until_others_have_come() -> None:
    life = Life(SimDisk(), clock(), budget=1 << 20)
    life.declare("q")
    first, second = life.client(), life.client()
    announce(first, 900_000)
    assert first.reading
    announce(second, 900_000)
    assert not second.reading
    life.engine.tending.beat()
    assert not second.reading
    for _ in range(9):
        first.send(frame(3, 1, b"y" * 100_000))
    life.run()
    life.engine.tending.beat()
    life.run()
    assert second.reading
    for _ in range(9):
        second.send(frame(3, 1, b"z" * 100_000))
    life.run()
    assert life.ready("q") == 2


def test_a_connection_that_consumes_is_read_on_so_that_its_acks_pass() -> None:
    """Its own body does not fit and waits in part; the acks behind it are taken."""
    life = Life(SimDisk(), clock(), budget=1 << 20)
    life.declare("q")
    publisher, first, both = life.client(), life.client(), life.client()
    publisher.publish("q", b"a")
    both.consume("q")
    life.run()
    (got,) = [one for one in both.take_all() if isinstance(one, Content)]
    announce(first, 900_000)
    both.channel(2)
    announce(both, 900_000, 2)
    assert both.reading
    both.ack(got.tag)
    life.run()
    assert life.core.queue("/", "q").leased == 0
    for _ in range(9):
        both.send(frame(3, 2, b"z" * 100_000))
    life.run()
    assert life.core.queue("/", "q").leased == 1, "its own message came and was delivered to it"


def test_what_a_connection_that_consumes_has_begun_is_bounded() -> None:
    """Beyond the bound the channel is closed, as on the disk's alarm, and counts no more."""
    life = Life(SimDisk(), clock(), budget=1 << 20)
    life.declare("q")
    first, both = life.client(), life.client()
    both.consume("q")
    announce(first, 900_000)
    both.channel(2)
    announce(both, 3_000_000, 2)
    life.turn()
    assert both.reading
    assert both.take(m.ChannelClose).reply_code == 506
    assert life.engine.bodies.partial.bytes == 900_000


def test_a_deep_backlog_is_delivered_within_the_budget() -> None:
    """Far more than fits, in batches of all sizes: each body comes, in order, and the sum of accounts stays bounded."""
    budget = 1 << 20
    life = Life(SimDisk(), clock(), budget=budget)
    life.declare("q")
    publisher = life.client(confirm=True)
    sizes = (10, 100, 3000, 40_000)
    for number in range(400):
        publisher.publish("q", b"%d:" % number + b"x" * sizes[number % 4])
        life.run()
        assert life.engine.bodies.budget.used <= budget
    client = life.client(prefetch=20)
    client.consume("q")
    got = list[int]()
    for _ in range(200):
        life.run()
        fresh = [one for one in client.take_all() if isinstance(one, Content)]
        if not fresh:
            break
        got += [int(one.body.partition(b":")[0]) for one in fresh]
        client.ack(fresh[-1].tag, multiple=True)
        assert life.engine.bodies.budget.used <= budget
    assert got == list(range(400))


def test_the_heads_are_in_memory_after_a_start() -> None:
    """Nobody consumes: the oldest bodies are read in the background, and the first consumer waits for no disk."""
    life = filled(30, size=1000)
    life.stop()
    again = Life(life.disk, life.clock, budget=64 << 20)
    again.engine.tending.fill_heads()
    again.run()
    assert again.engine.bodies.heads.account.bytes > 30 * 1000
    client = again.client()
    client.consume("q")
    again.turn()
    assert not again.cold
    assert numbers(client) == list(range(30))
    assert again.engine.bodies.heads.account.bytes == 0


def test_a_queue_that_is_deleted_leaves_nothing_in_memory() -> None:
    life = filled(30, budget=1 << 20)
    assert life.engine.bodies.heads.account.bytes
    client = life.client()
    client.method(m.QueueDelete(queue="q"))
    life.run()
    life.engine.tending.beat()
    assert life.engine.bodies.heads.account.bytes == 0
    life.declare("r")
    publisher = life.client()
    publisher.publish("r", b"x" * 1000)
    life.run()
    assert life.engine.bodies.used > 0


def test_every_account_is_a_metric() -> None:
    life = filled(1)
    names = life.engine.bodies.budget.by_name()
    assert set(names) >= {
        "arrivals", "direct", "pending", "heads", "loading", "sending", "partial", "commits", "decoded",
    }  # fmt: skip
    text = b"".join(exposition(Metrics(memory=names, gave_way={"sending": 3}))).decode()
    assert 'penstock_memory_gave_way_total{account="sending"} 3.0' in text
    for name, size in names.items():
        assert f'penstock_memory_bytes{{account="{name}"}} {float(size)}' in text


def test_a_broken_log_keeps_no_publisher_waiting_for_room() -> None:
    """Found by the simulator: the budget was short when the log broke, and no commit would ever have ended the wait."""
    life = filled(1)
    client = life.client(confirm=True)
    life.engine.bodies.tight = True
    life.disk.fail_next("sync")
    client.publish("q", b"x")
    life.turn()
    life.commit()
    assert life.engine.broken
    assert client.reading
    assert client.confirms() == [(False, 1, True)]
    client.publish("q", b"y")
    life.turn()
    assert client.reading
    assert client.confirms() == [(False, 2, False)]


def test_a_read_ends_after_so_many_bytes_and_has_at_least_one_row() -> None:
    life = filled(20, size=1000)
    lsns = [lsn for chunk in life.core.queue("/", "q").main.chunks() for lsn in chunk]
    assert life.log.read(lsns, most=1).lsns == lsns[:1]
    some = life.log.read(lsns, most=5000)
    assert some.lsns == lsns[:4]
    assert life.log.read(lsns[4:], most=1 << 20).lsns == lsns[4:]
    solid = range(lsns[0], lsns[-1] + 1)
    assert life.log.read(solid, most=5000).bodies == some.bodies
    assert life.log.read(solid).lsns == lsns


def test_dead_letters_are_read_in_portions_whatever_their_size() -> None:
    """A thousand large bodies die at once: each becomes a letter, in order, and no more than a portion is read."""
    budget = 1 << 20
    life = Life(SimDisk(), clock(), budget=budget)
    life.declare("dead")
    life.declare("q", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1000})
    client = life.client(confirm=True)
    for number in range(60):
        client.publish("q", b"%d:" % number + b"x" * 50_000)
        life.run()
    asked = list[int]()
    read = life.engine.read_cold

    def counted(lsns: Chunk, answer: Callable[[Rows], None], most: int = 0) -> None:
        asked.append(most)
        read(lsns, answer, most)

    life.engine.read_cold = counted
    life.advance(2_000_000)
    for _ in range(200):
        life.run()
        assert life.engine.bodies.budget.used <= budget
    assert life.ready("dead") == 60
    assert asked
    assert all(0 < most <= budget // 8 for most in asked)
    assert [int(body.partition(b":")[0]) for body in life.contents("dead")] == list(range(60))


def test_heads_of_queues_that_one_read_does_not_reach_wait_for_the_next() -> None:
    """More is at the heads together than one read takes: whoever asks meanwhile what is being read is told."""
    life = Life(SimDisk(), clock(), budget=64 << 20)
    life.declare("first", "second")
    publisher = life.client()
    publisher.publish("first", *(b"%d:" % number for number in range(READ_ROWS + 100)))
    life.run()
    publisher.publish("second", *(b"%d:" % number for number in range(50)))
    life.run()
    life.stop()
    again = Life(life.disk, life.clock, budget=64 << 20)
    again.engine.tending.fill_heads()
    again.turn()
    assert len(again.cold) == 1
    assert again.engine.held() == min(again.cold[0][0])
    again.run()
    assert again.engine.bodies.heads.held(again.core.queue("/", "second").id) > 0


def test_what_waited_for_bodies_goes_on_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by messages of ten priorities that came back: a megabyte of single rows went in one turn, 450 ms."""
    messages, levels = 600, 200
    monkeypatch.setattr(Turns, "over", lambda turns, until: True)
    life = Life(SimDisk(), clock())
    life.declare("q", **{"x-max-priority": levels})
    publisher = life.client()
    for number in range(messages):
        publisher.publish("q", b"%d:" % number, properties=b"\x18\x00\x02" + bytes([number % levels]))
    life.run()
    client = life.client()
    client.consume("q")
    life.run()
    assert len(numbers(client)) == messages
    client.method(m.BasicRecover(True))
    handed = list[int]()
    hand, drain = Gates._hand, Gates._drain

    def counted_hand(one: Gates, *what: Any) -> None:
        handed[-1] += 1
        hand(one, *what)

    def counted_drain(one: Gates, key: object) -> None:
        handed.append(0)
        drain(one, key)

    monkeypatch.setattr(Gates, "_hand", counted_hand)
    monkeypatch.setattr(Gates, "_drain", counted_drain)
    life.run()
    assert numbers(client) == sorted(range(messages), key=lambda number: (-(number % levels), number))
    assert sum(handed) >= levels - 1
    assert max(handed) <= messages // levels
