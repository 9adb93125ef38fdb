"""A fault at any call of the core in a command about queues: they are stopped, and the server goes on.

As `test_faults_planted`, of commands that come by any door, over queues of many kinds.  Who asked is told.  What a
start finds then is all that was confirmed, once each, nothing that was settled, and a command done whole or not at all.
Commands about more than queues end the server, and a start finds the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any, NamedTuple

import pytest

from choices import stride
from penstock.core.commands.transactions import Ending, Transaction
from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.expr import compile_filter
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.server.base.faults import Told
from penstock.wire.amqp import methods as m
from planting import Plant, Planted
from sim.auditing import audit
from sim.serverkit import PERSISTENT, Life, clock

STRIDE = stride(43)
"""A fault is planted at the first call of a command, and at every so many after another one; 1: at every call."""

LETTERS = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
CONFIG = {
    "queue": [
        {"name": "beside"},
        {"name": "plain", **LETTERS},
        {"name": "other"},
        {"name": "dead"},
        {"name": "ring", "max_length": 2},
        {"name": "full", "max_length": 2, "overflow": "reject-publish-dlx", **LETTERS},
        {"name": "once", "unique": True, "dedup_key": "/id"},
        {"name": "last", "last_value_key": "/id"},
        {"name": "ranked", "max_priority": 3},
        {"name": "shared", "fairness_key": "/id"},
    ],
    "topic": [{"name": "records", "key": ["/id"]}],
}
IN_RECORDS = b'{"id": 1, "a": 1}'


EARLY = (
    "penstock.core.outbox:Outbox.begin",
    "penstock.core.commands.transactions:TransactionCommands.transact.<locals>.<dictcomp>",
)
"""Calls at which nothing says yet which queues a command is about."""
OF_ALL = ("penstock.core.topology.", "penstock.core.sizes:", "penstock.core.links.ownership:ClaimsOf.__bool__")
"""Calls that change what all queues share, or ask whether what links told is known of any."""


class Scene:
    """Queues with messages, a consumer that holds some, and one who goes on beside."""

    def __init__(self) -> None:
        self.clock = clock()
        self.life = Life(SimDisk(), self.clock, config=CONFIG)
        self.core, self.engine = self.life.core, self.life.engine
        client = self.life.client(confirm=True)
        for name in ("plain", "ring", "full", "other"):
            client.publish(name, f"{name} 1".encode(), f"{name} 2".encode())
        client.publish("plain", *[f"plain {n}".encode() for n in range(3, 7)])
        for name in ("once", "last", "records"):
            client.publish(name, IN_RECORDS)
        self.life.run()
        assert client.confirms()[-1][:2] == (True, 15)
        self.holder = self.life.client(prefetch=2)
        self.holder.consume("plain")
        self.life.run()
        self.holder.take(m.BasicConsumeOk)
        assert self.holder.bodies() == [b"plain 1", b"plain 2"]
        self.told = 0

    def queue(self, name: str) -> Queue:
        return self.core.queue("/", name)

    @property
    def consumer(self) -> Consumer:
        [one] = self.queue("plain").consumers
        return one

    def lsns(self, name: str) -> list[int]:
        return sorted(lsn for chunk in self.queue(name).snapshot()[0] for lsn in chunk)

    def batch(self, key: str, *bodies: bytes, **how: object) -> Publishes:
        header = encode(Properties(delivery_mode=2, **how)) if how else PERSISTENT  # type: ignore[arg-type]
        return Publishes(self.core.topic("/", "", key), header, list(bodies))

    def publish(self, key: str, *bodies: bytes, **how: object) -> None:
        self.core.publish(self.engine.now(), self.batch(key, *bodies, **how))


def numbered(scene: Scene) -> None:
    scene.core.publish(scene.engine.now(), scene.batch("plain", b"x"), publisher="p", sequence=1)


def transact(scene: Scene) -> None:
    held = scene.lsns("plain")
    endings = [
        Ending(scene.queue("plain"), [[held[0]]], Verb.ACK, by=scene.consumer),
        Ending(scene.queue("plain"), [[held[1]]], Verb.CANCEL, by=scene.consumer),
    ]
    scene.core.transact(scene.engine.now(), Transaction(scene.batch("other", b"x"), endings))


def settle(scene: Scene, verb: Verb) -> None:
    scene.core.settle(scene.engine.now(), scene.queue("plain"), [scene.lsns("plain")[:1]], verb, by=scene.consumer)


def move(scene: Scene) -> None:
    lsns = scene.lsns("plain")[2:4]
    batch = scene.batch("other", b"plain 3", b"plain 4")
    scene.core.move_messages(scene.engine.now(), scene.queue("plain"), scene.queue("other"), lsns, batch, "moved")


def by_name(scene: Scene) -> None:
    marks = {scene.core.origin: scene.lsns("plain")[:1], 4711: range(5)}
    scene.core.acknowledge(scene.engine.now(), scene.queue("plain"), marks, client="c")


def by_filter(scene: Scene) -> None:
    wanted = compile_filter("TRUE")
    scene.core.settle_matching(scene.engine.now(), scene.queue("plain"), wanted, lambda many: None)


Do = Callable[[Scene], object]


class Act(NamedTuple):
    """A command."""

    do: Do
    gone: Sequence[bytes] = ()  # what may be gone by it
    beyond: bool = False  # it may be about more than queues


BOTH = (b"plain 1", b"plain 2")
WAITING = tuple(f"plain {n}".encode() for n in range(3, 7))

ACTS = {
    "publish": Act(lambda scene: scene.publish("plain", b"x")),
    "publish many": Act(lambda scene: scene.publish("plain", *[b"x"] * 9)),
    "publish to a ring": Act(lambda scene: scene.publish("ring", b"x"), (b"ring 1",)),
    "publish to what buries": Act(lambda scene: scene.publish("full", b"x")),
    "publish what is known": Act(lambda scene: scene.publish("once", IN_RECORDS)),
    "publish what is new": Act(lambda scene: scene.publish("once", b'{"id": 2}')),
    "publish the last": Act(lambda scene: scene.publish("last", b'{"id": 1, "b": 1}'), (IN_RECORDS,)),
    "publish by rank": Act(lambda scene: scene.publish("ranked", b"x", priority=2)),
    "publish by share": Act(lambda scene: scene.publish("shared", b'{"id": 1, "c": 1}')),
    "publish for a time": Act(lambda scene: scene.publish("plain", b"x", expiration="60000")),
    "publish late": Act(lambda scene: scene.publish("plain", b"x", headers={"x-delay": 5000})),
    "publish numbered": Act(numbered, beyond=True),
    "publish a record": Act(lambda scene: scene.publish("records", b'{"id": 2}'), beyond=True),
    "transact": Act(transact, (b"plain 1",)),
    "ack": Act(lambda scene: settle(scene, Verb.ACK), (b"plain 1",)),
    "requeue": Act(lambda scene: settle(scene, Verb.CANCEL)),
    "reject": Act(lambda scene: settle(scene, Verb.EXPIRE)),
    "ack by name": Act(by_name, (b"plain 1",)),
    "ack by filter": Act(by_filter, (*BOTH, *WAITING), beyond=True),
    "move": Act(move),
    "purge": Act(lambda scene: scene.core.purge_queue(scene.engine.now(), scene.queue("plain")), WAITING),
    "pause": Act(lambda scene: scene.core.pause_queue(scene.engine.now(), scene.queue("plain"))),
    "cancel": Act(
        lambda scene: scene.core.cancel_messages(
            scene.engine.now(), [scene.queue("plain"), scene.queue("other")], scene.lsns("plain")[3:]
        ),
        WAITING,
    ),
    "reschedule": Act(
        lambda scene: scene.core.reschedule_messages(
            scene.engine.now(), [scene.queue("plain")], scene.lsns("plain")[3:], scene.clock.wall() + 10**9
        )
    ),
}


def confirmed() -> Iterator[bytes]:
    for name, most in (("plain", 6), ("ring", 2), ("full", 2), ("other", 2)):
        yield from (f"{name} {n}".encode() for n in range(1, most + 1))


def planted(name: str, at: int) -> tuple[str, str] | None:
    """Play a command with a fault at a call: what it hit, and how far that reached.  None: there is no such call."""
    scene, plant = Scene(), Plant(at, "penstock.core.")
    life, faults = scene.life, scene.engine.faults

    def told() -> None:
        scene.told += 1

    def command() -> None:
        with plant.there():
            ACTS[name].do(scene)

    try:
        faults.run(command, Told("test", told))
    except Planted as error:
        error.__traceback__ = None
    if not plant.hit:
        return None
    if faults.fatal is None:
        assert scene.told == 1, f"{plant.hit}: who asked is not told"
        others_go_on(scene, plant.hit)
    found = after_a_start(scene, plant.hit, name)
    whole = ACTS[name].gone
    if name == "transact":
        assert (b"x" in found["other"]) == (b"plain 1" not in found["plain"]), f"{plant.hit}: half of it"
    elif name == "publish to a ring":
        assert (b"x" in found["ring"]) == (b"ring 1" not in found["ring"]), f"{plant.hit}: half of it"
    elif whole == WAITING:
        assert len({body in found["plain"] for body in whole[1:]}) == 1, f"{plant.hit}: half of it"
    reach = "the server" if faults.fatal is not None else "queues" if scene.core.stopped else "nothing"
    life.kill()
    return plant.hit, reach


def others_go_on(scene: Scene, hit: str) -> None:
    life = scene.life
    life.run()
    assert {one.name for one in scene.core.stopped} <= {str(one["name"]) for one in CONFIG["queue"]} - {"beside"}, hit
    assert not scene.core.stopped or scene.core.floor() == 0, f"{hit}: something of the log goes"
    client = life.client(confirm=True)
    for name in ("beside", "plain", "other", "dead"):
        client.publish(name, b"after")
    life.run()
    assert len(client.confirms()) > 0, f"{hit}: others wait for ever"
    client.consume("beside", "c")
    life.run()
    client.take(m.BasicConsumeOk)
    assert client.bodies() == [b"after"], hit
    client.ack(1)
    life.run()
    for queue in scene.core.queues():
        if not queue.stopped:
            queue.check()
    scene.holder.lose()
    life.run()
    assert scene.engine.faults.fatal is None, hit
    scene.engine.finish_turn()
    life.log.flush()


def after_a_start(scene: Scene, hit: str, name: str) -> dict[str, list[bytes]]:
    """What a start finds in the queues."""
    scene.life.kill()
    assert audit(scene.life.disk, scene.clock) == [], hit
    again = Life(scene.life.disk, scene.clock, config=CONFIG)
    found = {one.name: again.contents(one.name) for one in again.core.queues()}
    for queue in again.core.queues():
        queue.check()
    all_of_it = [body for some in found.values() for body in some]
    for body in confirmed():
        assert all_of_it.count(body) == 1 or (all_of_it.count(body) == 0 and body in ACTS[name].gone), (
            f"{hit}: {body!r}"
        )
    assert found["beside"] == [], f"{hit}: what was settled is back"
    assert len(found["last"]) == 1, hit
    assert len(found["ring"]) <= 2, hit
    assert again.core.sow("/", "", "records").index.count in (1, 2)
    again.run()
    assert not again.core.stopped
    again.kill()
    return found


@pytest.mark.parametrize("name", ACTS)
def test_a_fault_in_a_command_stops_the_queues_that_it_is_about(name: str) -> None:
    for at in chain([1], count(2 + [*ACTS].index(name) % STRIDE, STRIDE)):
        found = planted(name, at)
        if found is None:
            break
        hit, reach = found
        beyond = ACTS[name].beyond or hit.startswith(OF_ALL) or hit in EARLY
        assert reach != "the server" or beyond, f"{hit}: the server ended"


def test_a_queue_that_is_half_altered_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only queues have changed, but routing has let go of it, too: where it failed nothing says so, its record does."""
    scene = Scene()
    altered = Queue.alter

    def half(queue: Queue, *how: Any) -> None:
        altered(queue, *how)
        raise Planted("alter")

    monkeypatch.setattr(Queue, "alter", half)
    plain = scene.queue("plain")
    with pytest.raises(Planted):
        scene.engine.faults.run(
            lambda: scene.core.alter_queue(scene.engine.now(), plain, replace(plain.settings, max_backlog=1)),
            Told("test", lambda: None),
        )
    assert scene.engine.faults.fatal is not None
    monkeypatch.undo()
    after_a_start(scene, "alter", "publish")
