"""Clients that do not read keep the memory that they fill only while nobody else wants it."""

from __future__ import annotations

import pytest

from penstock.log.simdisk import SimDisk
from penstock.memory import PATIENCE_US
from penstock.wire.amqp.frames import frame
from sim.serverkit import Client, Life, clock

MIB = 1 << 20
SECOND = 1_000_000
FULL = 20


@pytest.fixture(params=[False, True], ids=["in the core", "at a door of its own"])
def life(request: pytest.FixtureRequest) -> Life:
    return Life(SimDisk(), clock(), budget=16 * MIB, apart=request.param)


def crowd(life: Life, waiting: int = MIB) -> list[Client]:
    """More clients than there is memory for what waits for each."""
    clients = [life.client() for _ in range(FULL)]
    for client in clients:
        client.waiting = waiting
    return clients


def beats(life: Life, seconds: int, reading: list[Client] | None = None) -> None:
    """Seconds go by, in which these read what comes to them."""
    for _ in range(seconds):
        life.advance(SECOND)
        for client in reading or ():
            client.mouth.receive(frame(8, 0, b""))
            if isinstance(sent := getattr(client.mouth, "sent", None), int):
                client.mouth.sent = sent + 1000  # type: ignore[union-attr]
            else:
                client.session.outgoing.sent += 1000
        for door in life.doors:
            door.host.beat()
        life.run()
        life.door.beat()
        life.engine.tending.beat()
        life.run()


def test_who_reads_nothing_gives_way_to_publishers_after_a_while(life: Life) -> None:
    clients = crowd(life)
    beats(life, 2)
    assert life.engine.bodies.tight
    beats(life, PATIENCE_US // SECOND - 2)
    assert not any(client.closed for client in clients)
    beats(life, 3)
    assert not life.engine.bodies.tight
    gone = sum(client.closed for client in clients)
    assert 4 <= gone <= 8, "as many as there have to be"
    publisher = life.client(confirm=True)
    life.declare("q")
    publisher.publish("q", b"m")
    life.run()
    assert [one[:2] for one in publisher.confirms()] == [(True, 1)]


def test_who_reads_slowly_stays(life: Life) -> None:
    clients = crowd(life)
    beats(life, 60, clients)
    assert not any(client.closed for client in clients)


def test_who_reads_nothing_stays_while_there_is_room(life: Life) -> None:
    clients = crowd(life, MIB // 8)
    beats(life, 600)
    assert not life.engine.bodies.tight
    assert not any(client.closed for client in clients)


def test_a_silent_client_is_cut_though_it_has_not_read_all(life: Life) -> None:
    client = life.client(heartbeat=2)
    client.waiting = 1000
    beats(life, 10)
    assert client.closed
