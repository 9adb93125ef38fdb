"""One queue's messages on their way from one broker to another: both are in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli import migration_pump
from penstock.cli.amqp_link import Broker as Address
from penstock.cli.amqp_link import Link, read_address
from penstock.cli.migrating import _delivery_limit, _without_us
from penstock.cli.migration_journal import Journal
from penstock.cli.migration_pump import Links, Moved, carry
from penstock.errors import Refused
from penstock.server.people.accounts import hash_password
from penstock.testing import Broker
from penstock.wire.amqp import methods as m


class Way(NamedTuple):
    """Both ends, and what the journal is called."""

    old: Broker
    new: Broker
    folder: Path

    def declare(self, queue: str, old: Mapping[str, Any] = {}, new: Mapping[str, Any] | None = None) -> None:
        for broker, arguments in ((self.old, old), (self.new, old if new is None else new)):
            with Link(read_address(broker.amqp_url)) as link:
                declare = m.QueueDeclare(0, queue, durable=True, arguments=dict(arguments))
                link.call(declare, m.QueueDeclareOk)

    def run(self, queue: str, kind: str = "classic", *, drain: bool = False, limit: int | None = None) -> Moved:
        one = Moved("/", queue, kind=kind, limit=limit)
        ends = [read_address(broker.amqp_url) for broker in (self.old, self.new)]
        with Journal(self.folder / "state") as journal, Links(*ends) as links:
            carried = journal.queue("old", "/", queue)
            for run, publisher in carried.publishers.items():
                carried.keep(run, self.new.last_sequence(publisher))
            carry(links, one, carried, drain=drain)
        return one

    def came(self, queue: str, count: int, arguments: Mapping[str, Any] = {}) -> list[bytes]:
        """The bodies of what waits in the new one, which are so many."""
        with Link(read_address(self.new.amqp_url)) as link:
            link.consume(queue, count + 1, arguments)
            while len(link.delivered) < count:
                assert link.read(20)
            return [one.body for one in link.delivered]


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """With windows so small that ten messages are many."""
    monkeypatch.setattr(migration_pump, "WINDOW", 4)
    monkeypatch.setattr(migration_pump, "IDLE_S", 0.05)
    with ExitStack() as stack:
        yield Way(stack.enter_context(Broker()), stack.enter_context(Broker()), tmp_path)


def once_waited(read: Callable[[Link, float], bool]) -> Callable[[Link, float], bool]:
    """A read that refuses to wait for what is idle."""

    def reads(link: Link, timeout_s: float) -> bool:
        assert timeout_s != 600.0 or not link.delivered, "it waits for more than it has"
        return read(link, timeout_s)

    return reads


@pytest.mark.parametrize(
    ("kind", "drain", "left"), [("classic", True, 0), ("quorum", True, 0), ("quorum", False, 30), ("stream", False, 30)]
)
def test_more_than_a_window_comes_in_one_run(
    way: Way, monkeypatch: pytest.MonkeyPatch, kind: str, drain: bool, left: int
) -> None:
    """Draining, and streams, ended with the first 2,000; of a quorum queue RabbitMQ gives no more to a consumer."""
    monkeypatch.setattr(migration_pump, "PREFETCH_MOST", 7)
    way.declare("q", {"x-queue-type": kind})
    bodies = [b"%d" % number for number in range(30)]
    for body in bodies:
        way.old.publish("q", body)
    one = way.run("q", kind, drain=drain)
    assert (one.now, one.carried, one.new, one.old, one.drained) == (30, 30, 30, left, 30 if drain else 0)
    assert way.came("q", 30, {"x-stream-offset": "first"} if kind == "stream" else {}) == bodies
    again = way.run("q", kind, drain=drain)
    assert (again.now, again.carried, again.new, again.short) == (0, 30, 30, False)


def test_nothing_is_waited_for_that_has_come(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came along with the answer to the consumer was seen when nothing more came: two seconds for each queue."""
    monkeypatch.setattr(migration_pump, "IDLE_S", 600.0)
    monkeypatch.setattr(Link, "read", once_waited(Link.read))
    way.declare("q")
    way.old.publish("q", b"x")
    assert way.run("q").now == 1
    assert way.run("q", drain=True).drained == 1


def test_what_was_refused_waits_there_and_comes_when_there_is_room(way: Way) -> None:
    """A smaller one behind it was taken, and has a higher number: the refused one was thought to be there as well, and
    acknowledged in the old broker by the next run."""
    way.declare("q", {}, {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
    bodies = [b"a" * 900, b"b" * 900, b"c" * 50]
    for body in bodies:
        way.old.publish("q", body)
    with pytest.raises(Refused, match="a limit of the queue is met"):
        way.run("q", drain=True)
    assert way.came("q", 2) == [bodies[0], bodies[2]]
    assert way.old.stats("q")["ready"] == 1
    with Link(read_address(way.new.amqp_url)) as link:
        link.call(m.QueuePurge(0, "q"), m.QueuePurgeOk)
    one = way.run("q", drain=True)
    assert (one.now, one.carried, one.old, one.drained) == (1, 3, 0, 1)
    assert way.came("q", 1) == [bodies[1]]


def test_who_looks_too_often_is_told_what_dies_there(way: Way) -> None:
    """RabbitMQ counts what goes back with its channel, and gives each message so many returns."""
    way.declare("q", {"x-queue-type": "quorum", "x-delivery-limit": 1})
    way.old.publish("q", b"x")
    assert [way.run("q", "quorum", limit=1).dying for _ in range(2)] == [0, 1]
    assert way.run("q", "quorum", limit=1, drain=True).dying == 0
    assert way.came("q", 1) == [b"x"]


def queues_of(*properties: Mapping[str, Any]) -> list[int | None]:
    return [_delivery_limit(dict(one)) for one in properties]


def test_a_delivery_limit_is_that_of_the_declare_or_of_a_policy() -> None:
    assert queues_of(
        {"arguments": {}}, {"arguments": {"x-delivery-limit": 3}, "effective_policy_definition": {}},
        {"arguments": {"x-delivery-limit": 3}, "effective_policy_definition": {"delivery-limit": 2}},
        {"arguments": {"x-delivery-limit": -1}, "effective_policy_definition": []},
    ) == [None, 3, 2, None]  # fmt: skip


US = Address("new", 5672, "adm", "ours", "/", False)


@pytest.mark.parametrize(
    ("password", "tags", "stays"),
    [("ours", ["administrator"], False), ("other", ["administrator"], True), ("ours", [], True), (None, [], True)],
)
def test_who_carries_is_not_locked_out_by_what_he_brings(password: str | None, tags: list[str], stays: bool) -> None:
    """The definitions gave him the password of the old broker: the new one let him in no more."""
    digest = "" if password is None else hash_password(password)
    users: list[dict[str, Any]] = [
        {"name": "ann", "password_hash": ""},
        {"name": "adm", "password_hash": digest, "tags": tags},
    ]
    kept, told = _without_us(users, US)
    assert kept == (users[:1] if stays else users)
    assert [one.startswith("user 'adm' stays as he is") for one in told] == [True] * stays
