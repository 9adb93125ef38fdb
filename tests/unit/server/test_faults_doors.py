"""A fault in what the core hears of an AMQP door ends the client that it is about, or that door, and nothing else.

One row a place.  Clients of another door go on, leases are back, and a start has all that was confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.log.simdisk import SimDisk
from penstock.server.amqp import way
from penstock.server.amqp.door import AmqpDoor, Reading
from penstock.server.amqp.doorway import Doorway
from penstock.server.amqp.far import Far
from penstock.server.amqp.incoming import Incoming
from penstock.server.amqp.links import AmqpLink
from penstock.server.base.faults import TOLD, reports
from penstock.server.doors.line import Broken
from penstock.server.engine import Engine
from penstock.server.sockets.listening import patient
from penstock.wire.amqp import methods as m
from planting import Fault
from sim.serverkit import Beside, Client, Content, Life, clock


class Place(NamedTuple):
    owner: Any
    name: str
    alone: bool  # it is about one client
    late: bool = False  # it has done its work


PLACES = {
    f"{name}{' late' * late}": Place(owner, name, alone, late)
    for owner, name, alone in (
        (way, "messages_of", False), (way, "rows_of", False), (way.Cutter, "feed", False),
        (Doorway, "_make_room", False), (Doorway, "_figures", False), (AmqpDoor, "open_far", True),
        (Incoming, "hold_reading", True), (Doorway, "_opened", False),
    )
    for late in (False, True)
    if not (alone and late)
}  # fmt: skip


class House:
    """A server with two doors, a client at each who holds a message, and a fault at what the first one says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        self.life = Life(SimDisk(), clock(), apart=True)
        self.life.declare("q", "beside")
        assert self.life.beside is not None
        self.doors = [self.life.beside, self.life.open_door()]
        publisher = self.life.client(confirm=True, door=self.doors[1])
        publisher.publish("q", b"1", b"2")
        self.life.run()
        assert publisher.confirms()[-1][:2] == (True, 2)
        self.clients = [self.asks(door) for door in self.doors]
        self.there = 0  # so many times it fails
        before: Callable[..., Any] = getattr(place.owner, place.name)

        def planted(*what: Any, **named: Any) -> Any:
            if not self.there or not self.ours():
                return before(*what, **named)
            self.there -= 1
            if place.late:
                before(*what, **named)
            raise Fault

        self.heard: Beside | None = None
        receive = Doorway.receive

        def noted(doorway: Doorway, data: bytes) -> None:
            self.heard = next((door for door in self.doors if door.doorway is doorway), None)
            try:
                receive(doorway, data)
            finally:
                self.heard = None

        monkeypatch.setattr(Doorway, "receive", noted)
        monkeypatch.setattr(place.owner, place.name, planted)
        if place.name == "hold_reading":
            monkeypatch.setattr(Engine, "has_room", lambda _: not self.ours())

    def ours(self) -> bool:
        return self.heard is self.doors[0]

    def asks(self, door: Beside) -> Client:
        client = self.life.client(confirm=True, prefetch=1, door=door)
        client.consume("q")
        self.life.run()
        client.take(m.BasicConsumeOk)
        return client


@pytest.mark.parametrize("name", PLACES)
def test_a_fault_in_what_a_door_says_ends_one_client_or_that_door(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = PLACES[name]
    house = House(monkeypatch, place)
    life, (at, beside) = house.life, house.clients
    assert at.bodies() == [b"1"]
    assert beside.bodies() == [b"2"]
    other = life.client(door=house.doors[0])
    life.run()
    before = reports.counts["amqp"]
    opens = place.name in ("open_far", "_opened")
    fails = at if not opens else None

    def act() -> None:
        nonlocal fails
        if fails is None:
            fails = Client(life, login=False, door=house.doors[0])
        else:
            fails.publish("beside", b"3")
            fails.ack(1)
            house.doors[0].host.beat()
        life.run()

    house.there = 1
    if place.alone:
        act()
    else:
        with pytest.raises(Broken, match=TOLD):
            act()
        house.doors[0].cut()  # as whoever has the socket does
    assert fails is not None
    assert house.there == 0
    assert reports.counts["amqp"] == before + 1
    assert life.engine.faults.fatal is None
    life.run()
    if place.alone:
        assert fails.closed or any(isinstance(one, m.ConnectionClose) for one in fails.got)
        assert not other.closed
        other.method(m.QueueDeclare(queue="q", passive=True))
        life.run()
        assert other.take(m.QueueDeclareOk)
    beside.publish("beside", b"4")
    beside.ack(1)
    life.run()
    came = beside.take_all()
    assert any(isinstance(one, m.BasicAck) for one in came)
    back = [one.body for one in came if isinstance(one, Content)] == [b"1"]
    assert back is not opens or not place.alone, "what who was ended had is given to others"
    life.core.queue("/", "q").check()
    again = life.client(door=house.doors[1])
    again.method(m.QueueDeclare(queue="q", passive=True))
    life.run()
    assert again.take(m.QueueDeclareOk)
    life.kill()
    last = Life(life.disk, life.clock, apart=False)
    assert last.contents("q") in ([b"1"], [])
    assert b"4" in last.contents("beside")


LARGE = b"x" * 600_000
"""Its door says when it has so many bytes."""

SAYING = {
    f"{owner.__name__}.{name}{' late' * late}": Place(owner, name, alone, late)
    for owner, name, alone in (
        (Doorway, "count_waiting", False), (Far, "mark", True),
    )
    for late in (False, True)
}  # fmt: skip


@pytest.mark.parametrize("name", SAYING)
def test_a_fault_in_what_a_door_is_told_ends_one_client_or_that_door(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the server: what a door has not heard was nobody's to be ended for."""
    place = SAYING[name]
    house = House(monkeypatch, Place(Doorway, "_figures", False))
    life, (at, beside), before = house.life, house.clients, getattr(place.owner, place.name)
    assert at.bodies() == [b"1"]
    assert beside.bodies() == [b"2"]
    other = life.client(door=house.doors[0])
    publisher = life.client(confirm=True, door=house.doors[1])
    life.run()
    there, doorway = 1, house.doors[0].doorway

    def planted(it: Any, *what: Any) -> Any:
        nonlocal there
        if not there or doorway not in (it, getattr(it, "_way", None)):
            return before(it, *what)
        there -= 1
        if place.late:
            before(it, *what)
        raise Fault

    monkeypatch.setattr(place.owner, place.name, planted)
    publisher.publish("q", LARGE)
    at.publish("beside", b"3")
    at.ack(1)
    life.run()
    assert not there
    assert life.engine.faults.fatal is None
    assert life.engine.faults.ended == 1
    other.method(m.QueueDeclare(queue="q", passive=True))
    life.run()
    assert bool([one for one in other.take_all() if isinstance(one, m.QueueDeclareOk)]) is place.alone
    beside.ack(1)
    life.run()
    assert beside.bodies() == [LARGE], "what who was ended had is given to others"
    life.core.queue("/", "q").check()
    life.kill()
    last = Life(life.disk, life.clock, apart=False)
    assert last.contents("q") in ([LARGE], [b"2", LARGE])  # the ack need not be on the disk
    assert last.contents("beside") == [b"3"]


async def test_a_client_here_whose_session_cannot_begin_is_closed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimDisk(), clock(), apart=False)
    other = life.client()

    class Transport:
        aborted = False

        def write(self, data: bytes) -> None: ...

        def set_write_buffer_limits(self, high: int, low: int) -> None: ...

        def get_extra_info(self, name: str) -> tuple[str, int] | None:
            return ("127.0.0.1", 5672) if name == "sockname" else None

        def abort(self) -> None:
            self.aborted = True

        def get_protocol(self) -> object:
            """It is not lost."""
            return self

    guards = patient(asyncio.get_running_loop()).guards
    link = AmqpLink(life.door.greet, guards.of("amqp").enter("127.0.0.1", 5000, print))
    transport = Transport()
    with monkeypatch.context() as patch:
        patch.setattr(Reading, "__init__", lambda *_: 1 // 0)
        link.connection_made(transport)  # type: ignore[arg-type]
    assert transport.aborted
    link.data_received(b"AMQP")
    link.pause_writing()
    link.resume_writing()
    link.session.connection_lost()
    assert life.engine.faults.fatal is None
    assert life.engine.faults.ended == 1
    other.method(m.QueueDeclare(queue="q"))
    life.run()
    assert other.take(m.QueueDeclareOk)
    life.kill()
