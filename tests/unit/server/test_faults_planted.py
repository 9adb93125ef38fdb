"""A fault at any call of what a client asks for: it alone is ended, or the server ends and a start has all.

The fault is an exception that is raised as some function of ours is entered: the first, the second, and so on, over all
that an act of a client leads to.  Whatever it hits, one of four things is true afterwards.  Either nothing was half
changed: then the client is ended with 541 or cut off, the others go on, leases are back, and memory is what a start
would make of the log.  Or queues that the act was about are stopped, and the others go on.  Or a door is cut off, with
its clients.  Or the server has ended, which it does for what is about more than queues.  A start finds all that was
confirmed, once, and all that was declared, and nothing that was settled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, count
from types import FrameType

import pytest

from choices import stride
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.state.durable import canonical
from penstock.log.simdisk import SimDisk
from penstock.server.amqp.channel import Channel
from penstock.server.amqp.session import Session
from penstock.server.doors.line import Broken
from penstock.wire.amqp import methods as m
from planting import Plant, Planted
from sim.serverkit import Client, Life, clock, message, state_of

STRIDE = stride(73)
"""A fault is planted at the first call of an act, and at every so many after another one; 1: at every call."""

SESSION = "penstock.server.amqp.connection"
"""Where nothing that is asked for has begun."""

EVERYWHERE = ("penstock.core", "penstock.server", "penstock.wire", "penstock.records", "penstock.memory")


def served(frame: FrameType | None) -> bool:
    """Whether it is the server that calls, and not a client of a test with the same codecs, or who tells of a fault."""
    if frame is not None and frame.f_code.co_filename.endswith("faults.py"):
        return False
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.endswith(("serverkit", ".front", ".hosted")):
            return False  # a door that is a process has a loop of its own
        if name.startswith("penstock.server") and not name.endswith(".way"):  # both sides have that
            return True
        frame = frame.f_back
    return False


class Scene:
    """Two who get on with their work, and one who asks for something."""

    def __init__(self, *, apart: bool) -> None:
        self.clock = clock()
        self.life = Life(SimDisk(), self.clock, apart=apart)
        self.life.declare("work", "dead", "beside")
        asks = self.life.client()
        asks.method(m.QueueDeclare(queue="lettered", durable=True, arguments={
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
        }))  # fmt: skip
        asks.method(m.ExchangeDeclare(exchange="fan", type="fanout", durable=True))
        asks.method(m.QueueBind(queue="work", exchange="fan", routing_key=""))
        self.life.run()
        asks.lose()
        self.life.run()
        self.publisher = self.life.client(confirm=True)
        self.publisher.publish("work", b"1", b"2", b"3", b"4")
        self.publisher.publish("lettered", b"5", b"6")
        self.life.run()
        self.both = False  # the publisher is in the act, too
        self.act = ""
        self.confirmed = 0  # of what the asker has published
        assert self.publisher.confirms()[-1][1] == 6
        self.asker = self.life.client(confirm=True)
        self.consumer = self.life.client(prefetch=1)
        self.consumer.consume("work", "other")
        self.life.run()
        self.consumer.take(m.BasicConsumeOk)
        assert self.consumer.bodies() == [b"1"]


Act = Callable[[Scene], None]

SENT = {"publish": 1, "publish_some": 30, "publish_to_all": 1, "publish_beside_others": 1, "commit": 1, "commit_ack": 1}
"""By act, so many messages `x` are sent."""


def publish(scene: Scene) -> None:
    scene.asker.publish("work", b"x")


def publish_some(scene: Scene) -> None:
    scene.asker.publish("work", *[b"x"] * 30)


def publish_to_all(scene: Scene) -> None:
    scene.asker.publish("", b"x", exchange="fan")


def publish_to_nobody(scene: Scene) -> None:
    scene.asker.publish("none", b"x", mandatory=True)


def publish_beside_others(scene: Scene) -> None:
    scene.asker.publish("work", b"x")
    scene.publisher.publish("work", b"y")
    scene.both = True


def declare(scene: Scene) -> None:
    scene.asker.method(m.QueueDeclare(queue="new", durable=True))


def declare_own(scene: Scene) -> None:
    scene.asker.method(m.QueueDeclare(queue="own", exclusive=True))


def declare_exchange(scene: Scene) -> None:
    scene.asker.method(m.ExchangeDeclare(exchange="e", type="topic", durable=True))


def bind(scene: Scene) -> None:
    scene.asker.method(m.QueueBind(queue="lettered", exchange="fan", routing_key="k"))


def unbind(scene: Scene) -> None:
    scene.asker.method(m.QueueUnbind(queue="work", exchange="fan", routing_key=""))


def delete(scene: Scene) -> None:
    scene.asker.method(m.QueueDelete(queue="lettered"))


def purge(scene: Scene) -> None:
    scene.asker.method(m.QueuePurge(queue="lettered"))


def consume(scene: Scene) -> None:
    scene.asker.consume("lettered", "mine")


def get(scene: Scene) -> None:
    scene.asker.method(m.BasicGet(queue="lettered"))


def leased(scene: Scene) -> None:
    scene.asker.consume("lettered", "mine")
    scene.life.run()


def ack(scene: Scene) -> None:
    scene.asker.ack(1)


def nack(scene: Scene) -> None:
    scene.asker.method(m.BasicNack(1, requeue=True))


def reject(scene: Scene) -> None:
    scene.asker.method(m.BasicReject(1, requeue=False))


def cancel(scene: Scene) -> None:
    scene.asker.method(m.BasicCancel("mine"))


def close_channel(scene: Scene) -> None:
    scene.asker.method(m.ChannelClose(200, "", 0, 0))


def transacted(scene: Scene) -> None:
    scene.asker.method(m.ChannelOpen(), 2)
    scene.asker.method(m.TxSelect(), 2)
    scene.life.run()


def commit(scene: Scene) -> None:
    scene.asker.send(message(b"x", "work", channel=2) + message(b"y", "lettered", channel=2))
    scene.asker.method(m.TxCommit(), 2)


def transacted_ack(scene: Scene) -> None:
    transacted(scene)
    scene.asker.method(m.BasicConsume(queue="lettered", consumer_tag="c"), 2)
    scene.life.run()


def commit_ack(scene: Scene) -> None:
    scene.asker.send(message(b"x", "work", channel=2))
    scene.asker.method(m.BasicAck(1), 2)
    scene.asker.method(m.BasicReject(2, requeue=False), 2)
    scene.asker.method(m.TxCommit(), 2)


ACTS: Mapping[str, tuple[Act | None, Act]] = {
    one.__name__: (None, one)
    for one in (
        publish, publish_some, publish_to_all, publish_to_nobody, publish_beside_others, declare, declare_own,
        declare_exchange, bind, unbind, delete, purge, consume, get,
    )
} | {one.__name__: (leased, one) for one in (ack, nack, reject, cancel, close_channel)} | {
    "commit": (transacted, commit), "commit_ack": (transacted_ack, commit_ack)
}  # fmt: skip


def ended(client: Client) -> bool:
    """Whether the server has ended it: with 541, or its link was cut."""
    closes = [one for one in client.got if isinstance(one, m.ConnectionClose)]
    return client.closed or any(one.reply_code == 541 for one in closes)


def planted(name: str, at: int, *, apart: bool = False) -> tuple[str, bool] | None:
    """Play an act with a fault at a call: what it hit, and whether the server went on.  None: there is no such call."""
    before, act = ACTS[name]
    scene, plant = Scene(apart=apart), Plant(at, EVERYWHERE, served, SESSION)
    scene.act = name
    life, faults = scene.life, scene.life.engine.faults
    if before is not None:
        before(scene)
    life.run()
    scene.asker.take_all()

    def whole() -> None:
        act(scene)
        life.run()

    try:
        with plant.there():
            whole()
    except Planted as error:
        faults.give_up(error)  # as whoever has the loop does with what reaches it
        error.__traceback__ = None  # as a process that ends: nothing collects what its frames had
    except Broken:
        door_goes(scene, plant.hit)
        return plant.hit, True
    if not plant.hit:
        return None
    if life.beside is not None and life.beside.over:
        door_goes(scene, plant.hit)
        return plant.hit, True
    acked = [one.delivery_tag for one in scene.asker.got if isinstance(one, m.BasicAck)]
    scene.confirmed = max([*acked, *(1 for one in scene.asker.got if isinstance(one, m.TxCommitOk))], default=0)
    if faults.fatal is None:
        goes_on(scene, plant.hit)
    else:
        restarts(scene, plant.hit)
    return plant.hit, faults.fatal is None


def goes_on(scene: Scene, hit: str) -> None:
    life = scene.life
    life.run()
    faults = life.engine.faults
    if ended(scene.publisher) and scene.both:
        assert not ended(scene.asker), hit
        scene.publisher = life.client(confirm=True)
    elif faults.ended and not life.core.stopped:
        assert ended(scene.asker), f"{hit}: the asker goes on"
    if life.core.stopped:
        goes_on_beside(scene, hit)
        return
    scene.publisher.take_all()
    scene.publisher.publish("work", b"after")
    life.run()
    assert scene.publisher.confirms(), f"{hit}: the publisher waits for ever"
    assert not ended(scene.publisher), hit
    assert not ended(scene.consumer), hit
    scene.consumer.ack(1)
    life.run()
    assert scene.consumer.bodies(), f"{hit}: the consumer waits for ever"
    scene.asker.lose()
    life.run()
    for queue in life.core.queues():
        queue.check()
        assert all(session_of(one) is scene.consumer.session for one in queue.holders()), f"{hit}: leases"
        assert all(session_of(one) is scene.consumer.session for one in queue.consumers), f"{hit}: consumers"
    life.engine.finish_turn()
    life.log.flush()
    live = canonical(life.core.durable_state())
    life.kill()
    assert canonical(state_of(life.disk, scene.clock)) == live, f"{hit}: memory is not what the log says"


def session_of(consumer: Consumer) -> Session:
    assert isinstance(consumer.holder, Channel)
    return consumer.holder.session


def goes_on_beside(scene: Scene, hit: str) -> None:
    """Some queues are stopped: they take messages and settle what is held, and all others go on."""
    life = scene.life
    assert {one.name for one in life.core.stopped} <= {"work", "lettered", "new", "own", "dead"}, hit
    for queue in life.core.queues():
        if not queue.stopped:
            queue.check()
    assert not ended(scene.consumer), hit
    other = life.client(confirm=True)
    for name in ("beside", "work"):
        other.publish(name, b"after")
    life.run()
    assert other.confirms()[-1][:2] == (True, 2), f"{hit}: others wait for ever"
    other.consume("beside", "other")
    life.run()
    other.take(m.BasicConsumeOk)
    assert other.bodies() == [b"after"], hit
    other.ack(1)
    scene.consumer.ack(1)
    life.run()
    life.commit()
    scene.asker.lose()
    life.run()
    assert life.engine.faults.fatal is None
    again = restarts(scene, hit)
    assert again["beside"] == [], f"{hit}: what was settled is back"
    assert again["work"].count(b"after") == 1, hit
    assert b"1" not in again["work"], f"{hit}: what was settled is back"


def door_goes(scene: Scene, hit: str) -> None:
    """Nobody knows what of its words was heard, or what it has to hear: its clients are gone, what they held back."""
    life = scene.life
    assert life.beside is not None
    life.beside.cut()  # as whoever has the socket does
    life.run()
    assert life.engine.faults.fatal is None
    for queue in life.core.queues():
        if not queue.stopped:
            queue.check()
            assert not list(queue.holders()), f"{hit}: leases"
    door = life.open_door()
    other = life.client(confirm=True, door=door)
    other.publish("beside", b"after")
    life.run()
    assert other.confirms() == [(True, 1, True)], hit
    assert restarts(scene, hit)["beside"] == [b"after"], hit


def restarts(scene: Scene, hit: str) -> dict[str, list[bytes]]:
    """What a start finds in the queues."""
    scene.life.kill()
    again = Life(scene.life.disk, scene.clock, apart=False)
    there = {one.name: again.contents(one.name) for one in again.core.queues()}
    assert {"work", "dead"} <= there.keys(), hit
    for queue in again.core.queues():
        queue.check()
    found = [body for some in there.values() for body in some]
    for body in (b"2", b"3", b"4", *((b"1",) if scene.life.engine.faults.fatal is not None else ())):
        assert found.count(body) == 1, f"{hit}: {body!r} was confirmed and is there {found.count(body)} times"
    if sent := SENT.get(scene.act):
        assert scene.confirmed <= found.count(b"x") <= sent, f"{hit}: {scene.confirmed} were confirmed"
    assert max(found.count(b"5"), found.count(b"6")) <= 1, f"{hit}: twice"
    match scene.act:
        case "commit":
            assert (b"x" in found) == (b"y" in found), f"{hit}: half of a transaction"
        case "commit_ack":
            assert (b"x" in found) == (b"5" not in found) == (b"6" in there["dead"]), f"{hit}: half of a transaction"
            assert b"6" in found, hit
        case _ if scene.act.startswith(("publish", "declare", "get", "consume", "cancel", "nack", "bind", "unbind")):
            assert {b"5", b"6"} <= set(found), hit
        case _:
            pass
    again.kill()
    return there


@pytest.mark.parametrize("apart", [False, True], ids=["here", "at a door"])
@pytest.mark.parametrize("name", sorted(ACTS))
def test_a_fault_at_any_call_ends_who_asked_or_the_server(name: str, apart: bool) -> None:
    found = planted(name, 0, apart=apart)
    assert found is not None
    assert found[1], f"{found[0]}: it was not contained"
    for at in chain([1], count(2 + sorted(ACTS).index(name) % STRIDE, STRIDE)):
        if planted(name, at, apart=apart) is None:
            break
