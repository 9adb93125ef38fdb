"""What filters say of messages in line behind others of their key, in a queue without a world around it."""

from __future__ import annotations

from typing import Any

from penstock.core.effects import Effect, Scan, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic
from penstock.records.queue_settings import QueueSettings

NOW = Now(10, 10)


class Has:
    """Matches bodies with a letter in them."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, bodies: Any, properties: Any, topics: Any, lsns: Any = None, times: Any = None) -> list[bool]:
        return [self.text.encode() in body for body in bodies]


class World:
    """A queue with a group key, and what was asked of the world."""

    def __init__(self) -> None:
        self.sink = Outbox[Effect](100)
        self.queue = Queue(1, "/", "q", QueueSettings(group_key="/key"))

    def subscribe(self, filter: str, backlog: int | None = None) -> Consumer:
        return self.queue.subscribe(
            NOW, self.sink, tag=filter, holder=None, filter=Has(filter), max_backlog=backlog
        )  # fmt: skip

    def arrive(self, *messages: bytes) -> list[int]:
        """One after the other; the key is the first byte.  Their LSNs."""
        lsns = list[int]()
        for body in messages:
            lsn = self.sink.next_lsn
            self.sink.next_lsn += 1
            batch = Publishes(Topic("/", "", "q"), b"", [body])
            self.queue.arrive(NOW, range(lsn, lsn + 1), self.sink, batch=batch, keys=[(body[:1].decode(),)])
            lsns.append(lsn)
        return lsns

    def ack(self, *lsns: int) -> None:
        """Somebody settles these, whoever has them."""
        self.queue.settle(NOW, [range(lsn, lsn + 1) for lsn in lsns], Verb.ACK, self.sink)

    def said(self) -> tuple[list[int], list[list[int]]]:
        """What was delivered, what filters were asked about."""
        effects = self.sink.take_effects()
        given = [lsn for one in delivered(effects) for lsn in one.chunk]
        return given, [list(effect.chunk) for effect in effects if isinstance(effect, Scan)]

    @property
    def known(self) -> int:
        return len(self.queue.targets.foreseen)


def test_whoever_wants_the_next_of_a_line_has_it_in_the_same_command() -> None:
    world = World()
    world.subscribe("x")
    lsns = world.arrive(b"a x", b"a x", b"a y", b"a x")
    assert world.said() == (lsns[:1], [])
    assert world.known == 3
    world.ack(lsns[0])
    assert world.said() == ([lsns[1]], [])
    world.ack(lsns[1])
    assert world.said() == ([], [])  # nobody wants it, and nobody has to look
    world.ack(lsns[2])
    assert world.said() == ([lsns[3]], [])
    assert world.known == 0


def test_a_filter_that_comes_later_looks_when_a_message_is_let_go() -> None:
    world = World()
    world.subscribe("x", 1)
    lsns = world.arrive(b"a x", b"a z")
    world.subscribe("z")
    world.said()
    world.ack(lsns[0])
    assert world.said() == ([], [lsns[1:]])
    [look] = world.queue.targets.asked.values()
    assert [one.filter.text for one in look.lists] == ["z"]


def test_what_leaves_a_line_is_forgotten() -> None:
    world = World()
    x = world.subscribe("x")
    lsns = world.arrive(b"a x", b"a x", b"a x", b"a x")
    world.queue.withdraw(NOW, range(lsns[2], lsns[2] + 1), world.sink)
    assert world.known == 2
    world.queue.purge(NOW, world.sink)
    assert world.known == 0
    world.arrive(b"a x")
    assert world.known == 1
    world.queue.unsubscribe(NOW, [x], world.sink, requeue=True)
    assert world.known == 0
    world.queue.check()


def test_so_many_are_remembered_and_no_more() -> None:
    world = World()
    world.queue.ensure_targets().most = 2
    world.subscribe("x", 1)
    lsns = world.arrive(b"a x", b"a x", b"a x", b"a x")
    assert world.known == 2
    world.said()
    world.ack(*lsns[:3])
    assert world.said() == ([], [lsns[3:]])


def test_what_expires_as_it_comes_keeps_none_of_its_key_waiting() -> None:
    world = World()
    world.subscribe("x")
    batch = Publishes(Topic("/", "", "q"), b"", [b"a", b"ax", b"bx"])
    keys = [("a",), ("a",), ("b",)]
    world.queue.arrive(NOW, range(100, 103), world.sink, batch=batch, keys=keys, expires_at=[10, 10, 0])
    assert world.said()[0] == [101, 102]
    assert not world.queue.ready
