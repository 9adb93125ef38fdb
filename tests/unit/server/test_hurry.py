"""When the log hurries: for whoever waits, for those who follow, and for much; not for messages that a start ends."""

from __future__ import annotations

import pytest

from penstock.log.simdisk import SimDisk
from penstock.records.properties import Properties, encode
from penstock.server import engine as engine_module
from penstock.server.opening import declare_views
from penstock.wire.amqp import methods as m
from sim.serverkit import PERSISTENT, Client, Life, clock

TRANSIENT = encode(Properties(delivery_mode=1, correlation_id="c", reply_to="answers"))
VIEW = {"name": "totals", "source": "q", "select": "/r AS /r, SUM(/n) AS /n", "group_by": ["/r"]}


def hurries(life: Life) -> bool:
    """Whether the log goes to the disk at once with what it has."""
    life.turn()
    before = life.log.durable
    assert before < life.core.last_lsn
    life.log.tick()
    return life.log.durable > before


def consumer(life: Life, queue: str = "q", *, no_ack: bool = False) -> Client:
    client = life.client()
    client.consume(queue, no_ack=no_ack)
    life.run()
    client.take(m.BasicConsumeOk)
    return client


def known(life: Life, client: Client) -> None:
    """Its topic and its route are in the log."""
    client.publish("q", b"{}", properties=PERSISTENT)
    life.advance(life.log.settings.ack_sync)
    life.turn()
    assert life.log.durable == life.core.last_lsn


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_transient_message_goes_at_once_and_its_record_with_the_next_commit(life: Life, no_ack: bool) -> None:
    client, worker = life.client(), consumer(life, no_ack=no_ack)
    known(life, client)
    worker.take_all()
    client.publish("q", b"request", properties=TRANSIENT)
    assert not hurries(life)
    assert worker.bodies() == [b"request"]
    life.advance(life.log.settings.ack_sync - 1)
    assert life.log.durable < life.core.last_lsn
    life.advance(1)
    assert life.log.durable == life.core.last_lsn


def test_whoever_waits_for_a_confirm_has_it_hurry(life: Life) -> None:
    client = life.client(confirm=True)
    known(life, client)
    client.take_all()
    client.publish("q", b"request", properties=TRANSIENT)
    assert hurries(life)
    assert client.confirms() == [(True, 2, True)]


def test_a_delivery_that_waits_for_its_message_has_it_hurry(life: Life) -> None:
    life.declare("late", **{"x-deliver": "durable"})
    client, worker = life.client(), consumer(life, "late")
    client.publish("late", b"first", properties=TRANSIENT)
    life.advance(life.log.settings.ack_sync)
    worker.take_all()
    client.publish("late", b"request", properties=TRANSIENT)
    assert hurries(life)
    assert worker.bodies() == [b"request"]


def test_at_most_once_has_it_hurry(life: Life) -> None:
    life.declare("once", **{"x-semantics": "at-most-once"})
    client, worker = life.client(), consumer(life, "once")
    client.publish("once", b"first", properties=TRANSIENT)
    life.advance(life.log.settings.ack_sync)
    worker.take_all()
    client.publish("once", b"request", properties=TRANSIENT)
    assert hurries(life)
    assert worker.bodies() == [b"request"]


def test_what_is_kept_hurries_alone_and_among_others(life: Life) -> None:
    client, other = life.client(), life.client()
    known(life, client)
    known(life, other)
    client.publish("q", b"kept", properties=PERSISTENT)
    assert hurries(life)
    client.publish("q", b"kept", properties=PERSISTENT)
    other.publish("q", b"not kept", properties=TRANSIENT)
    assert hurries(life)


def test_what_comes_behind_takes_with_it_what_did_not_hurry(life: Life) -> None:
    client, other = life.client(), life.client(confirm=True)
    known(life, client)
    client.publish("q", b"not kept", properties=TRANSIENT)
    assert not hurries(life)
    other.publish("q", b"kept", properties=PERSISTENT)
    assert hurries(life)
    assert life.log.durable == life.core.last_lsn


def test_where_somebody_follows_it_hurries(life: Life) -> None:
    client, reader = life.client(), life.client()
    reader.consume("q", **{"x-bookmark": "now"})
    life.run()
    known(life, client)
    reader.take_all()
    client.publish("q", b"event", properties=TRANSIENT)
    assert hurries(life)
    life.run()
    assert reader.bodies() == [b"event"]


def test_a_view_has_it_hurry() -> None:
    life = Life(SimDisk(), clock(), config={"queue": [{"name": "q"}], "view": [VIEW]})
    declare_views(life.engine.views, life.settings)
    client = life.client()
    known(life, client)
    client.publish("q", b'{"r": 1, "n": 1}', properties=TRANSIENT)
    assert hurries(life)


def test_much_hurries(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "UNHURRIED_MOST", 4000)
    client = life.client()
    known(life, client)
    hurried = []
    for _ in range(8):
        client.publish("q", b"x" * 1000, properties=TRANSIENT)
        hurried.append(hurries(life))
    assert hurried == [False, False, False, True] * 2


def test_who_waits_for_room_does_not_wait_for_the_next_commit(life: Life) -> None:
    client = life.client()
    known(life, client)
    life.engine.on_room.append(lambda: None)
    client.publish("q", b"x", properties=TRANSIENT)
    assert hurries(life)
