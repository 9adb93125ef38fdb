"""Whatever strangers leave lying in memory is given up once it has been short for a while, and honest clients go on.

`LEFT` has a row for each account whose holders can be cut; a test names the one that has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from penstock.log.simdisk import SimDisk
from penstock.memory import PATIENCE_US
from penstock.server.amqp.holding import READ_ON
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import BODY, HEADER, METHOD, frame
from sim.serverkit import Client, Life, clock

BUDGET = 4 << 20
SECOND = 1_000_000
PATIENCE = PATIENCE_US // SECOND


def fresh(budget: int = BUDGET) -> Life:
    life = Life(SimDisk(), clock(), budget=budget)
    life.declare("q")
    life.declare("full", **{"x-max-length": 1, "x-overflow": "block"})
    return life


def beats(life: Life, seconds: int) -> None:
    for _ in range(seconds):
        life.advance(SECOND)
        life.run()
        life.door.beat()
        life.engine.tending.beat()
        life.run()


def unread(life: Life) -> list[Client]:
    """Many connections, each with less than any may leave unread."""
    clients = [life.client() for _ in range(100)]
    for client in clients:
        client.waiting = 60_000
    return clients


def begun(life: Life) -> list[Client]:
    """Bodies that were announced, by connections that are always read."""
    clients = [life.client() for _ in range(8)]
    for client in clients:
        client.consume("q")
        life.run()
        publish = frame(METHOD, 1, m.BasicPublish(exchange="", routing_key="q").encode())
        client.send(publish + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 700_000, 0)) + frame(BODY, 1, b"a"))
        life.run()
    return clients


def held(life: Life) -> list[Client]:
    """Publishes to a full queue that holds its publishers up."""
    clients = [life.client() for _ in range(90)]
    for client in clients:
        client.publish("full", b"x" * READ_ON)
        life.run()
    return clients


def transactions(life: Life) -> list[Client]:
    """Transactions that are never committed, of several users."""
    clients = [life.client() for _ in range(10)]
    for number, client in enumerate(clients):
        client.session.user = f"user {number}"
        client.method(m.TxSelect())
        life.run()
        for _ in range(9):
            client.publish("q", b"x" * 10_000)
        life.run()
    life.engine.bodies.budget.account("somebody's").add(BUDGET)
    return clients


LEFT: dict[str, Callable[[Life], list[Client]]] = {
    "sending": unread, "partial": begun, "held": held, "transactions": transactions,
}  # fmt: skip


def test_each_account_has_a_row() -> None:
    assert set(fresh().engine.relief.rows) == set(LEFT)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_lying_is_given_up(name: str) -> None:
    life = fresh()
    clients = LEFT[name](life)
    for client in clients:
        client.got.clear()
    beats(life, 1)
    before = life.engine.bodies.budget.by_name()[name]
    assert life.engine.bodies.tight
    beats(life, PATIENCE - 1)
    assert life.engine.relief.counts()[name] == 0
    beats(life, 3)
    assert life.engine.relief.counts()[name] > 0
    life.engine.bodies.budget.account("somebody's").bytes = 0
    beats(life, 1)
    assert not life.engine.bodies.tight
    assert life.engine.bodies.budget.by_name()[name] < before
    told = [one for client in clients for one in client.got if isinstance(one, m.ChannelClose)]
    gone = sum(client.closed for client in clients)
    assert gone + len(told) == life.engine.relief.counts()[name]
    for one in told:
        assert one.reply_code == 506
        assert "there is no memory for it" in one.reply_text
        assert str(BUDGET >> 20) in one.reply_text
    publisher = life.client(confirm=True)
    publisher.publish("q", b"m")
    life.run()
    assert [one[:2] for one in publisher.confirms()] == [(True, 1)]


@pytest.mark.parametrize("name", LEFT)
def test_it_stays_while_there_is_room(name: str) -> None:
    life = fresh(8 * BUDGET)
    clients = LEFT[name](life)
    life.engine.bodies.budget.account("somebody's").bytes = 0
    beats(life, 3 * PATIENCE)
    assert sum(life.engine.relief.counts().values()) == 0
    assert not any(client.closed for client in clients)


def test_one_user_has_half_of_what_transactions_may_have_but_for_his_only_one() -> None:
    life = fresh()
    first, second, other = (life.client() for _ in range(3))
    other.session.user = "other"
    for client in (first, second, other):
        client.method(m.TxSelect())
        life.run()
        client.got.clear()
    most = BUDGET // 4
    first.publish("q", b"x" * (most * 5 // 8))
    second.publish("q", b"x" * 1000)
    other.publish("q", b"x" * (most // 4))
    life.run()
    told = second.take(m.ChannelClose)
    assert told.reply_code == 506
    assert f"may have {most // 2} bytes of memory together" in told.reply_text
    assert not [one for one in first.got + other.got if isinstance(one, m.ChannelClose)]


def test_nobody_gives_way_to_a_user_who_has_his_share() -> None:
    """Room of others would not help: he is refused for what he has himself."""
    life = fresh()
    most = BUDGET // 4
    honest, greedy = life.client(), life.client()
    honest.session.user = "honest"
    for client, size in ((honest, most * 7 // 16), (greedy, most * 6 // 16)):
        client.method(m.TxSelect())
        life.run()
        client.got.clear()
        client.publish("q", b"x" * size)
        life.run()
    for _ in range(PATIENCE):
        more = life.client()
        more.method(m.TxSelect())
        life.run()
        more.got.clear()
        more.publish("q", b"x" * (most // 4))
        life.run()
        assert f"may have {most // 2} bytes" in more.take(m.ChannelClose).reply_text
        beats(life, 2)
    assert not life.engine.relief.counts()["transactions"]
    assert not honest.got


def test_who_cannot_make_the_room_that_is_lacking_is_not_cut_for_it() -> None:
    """Who has it moves: each of his transactions is over before its time."""
    life = fresh()
    greedy, honest = [life.client(), life.client()], life.client()
    for number, client in enumerate((*greedy, honest)):
        client.session.user = f"user {number}"
        client.method(m.TxSelect())
        life.run()
    honest.publish("q", b"x" * 10_000)
    life.run()
    honest.got.clear()
    for _ in range(3):
        for client in greedy:
            client.method(m.TxRollback())
            client.publish("q", b"x" * (BUDGET // 4 * 47 // 100))
            life.run()
        other = life.client()
        other.session.user = "other"
        other.method(m.TxSelect())
        life.run()
        other.got.clear()
        other.publish("q", b"x" * 100_000)
        life.run()
        assert "may have" in other.take(m.ChannelClose).reply_text
        beats(life, PATIENCE - 2)
    assert not life.engine.relief.counts()["transactions"]
    assert not honest.got


def test_a_transaction_that_others_find_no_room_beside_gives_way_after_a_while() -> None:
    """Though there is memory enough for everything else."""
    life = fresh()
    hoard, others = life.client(), []
    hoard.method(m.TxSelect())
    life.run()
    hoard.publish("q", b"x" * (BUDGET // 4 - 10_000))
    life.run()
    hoard.got.clear()
    taken = []
    for number in range(4):
        other = life.client()
        other.session.user = f"user {number}"
        other.method(m.TxSelect())
        life.run()
        other.got.clear()
        other.publish("q", b"x" * 100_000)
        life.run()
        others.append(other)
        taken.append(not other.got)
        beats(life, PATIENCE // 2)
    assert not life.engine.bodies.tight
    assert taken == [False, False, False, True]
    told = hoard.take(m.ChannelClose)
    assert told.reply_code == 506
    assert f"the account may have {BUDGET // 4} bytes" in told.reply_text
