"""A fault in what falls due beside queues stops that topic, stream, publisher list or queue, and nothing else.

One row a place.  What is stopped stays so until the next start, which goes on whatever fails there again; and once
nothing fails any more, all that was due is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.core.commands import topology
from penstock.core.commands.containing import Containing
from penstock.core.commands.queues import QueueCommands
from penstock.core.commands.topology import PolicyCommands
from penstock.core.publishing.admission import Publishers
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.deferred import Deferred
from penstock.core.sow.index import Index
from penstock.core.sow.keyed import Keyed
from penstock.core.state.durable import canonical
from penstock.core.streams import Streams
from penstock.core.streams.stream_table import Holdings
from penstock.errors import Unavailable
from penstock.log.simdisk import SimDisk
from penstock.records import kinds
from penstock.records.entries import Publishes, singly
from penstock.records.queue_settings import Policy
from penstock.server.alarms import alarms
from penstock.server.base.faults import reports
from penstock.wire.amqp import methods as m
from planting import Fault
from sim.serverkit import PERSISTENT, Client, Life, clock, state_of

HOUR = 3_600_000_000
LIFE = {
    "config": {
        "log": {"publisher_expiration": "1h"},
        "queue": [
            {"name": name, "deferred_ack_expiration": "1h", **({"expires": "1h"} if "unused" in name else {})}
            for name in ("other", "bad", "beside", "bad unused", "beside unused")
        ],
        "topic": [{"name": f"{name} topic", "key": ["/id"], "expiration": "1h"} for name in ("bad", "beside")],
    }
}
BOTH = ("bad", "beside")


def publish(life: Life, key: str, *bodies: bytes) -> Client:
    client = life.client(confirm=True)
    client.publish(key, *bodies)
    life.run()
    assert client.confirms()[-1][:2] == (True, len(bodies))
    return client


def topics(life: Life) -> None:
    for name in BOTH:
        publish(life, f"{name} topic", b'{"id": 1}', b'{"id": 2}')


def numbered(life: Life) -> None:
    life.core._publisher.publishers.note({"bad": 7, "beside": 3})


def streams(life: Life) -> None:
    for name in BOTH:
        publish(life, name, b"1", b"2")
        now = life.engine.now()
        epoch = life.core.streams.open(now, name, life.core.queue("/", name), abandon_after=HOUR // 2).epoch
        life.core.streams.plan(now, name, epoch, 0, 10)
        assert life.core.queue("/", name).leased == 2


def deferred(life: Life) -> None:
    for name in BOTH:
        life.core.acknowledge(life.engine.now(), life.core.queue("/", name), {4711: range(3)})


def policies(life: Life) -> None:
    limit = {"max_backlog": 10}
    life.core.set_policy(life.engine.now(), Policy("/", "p", "^(other|bad|beside)$", {"max-backlog": 10}, limit))


def nothing(life: Life) -> None: ...


def records(life: Life, name: str) -> int:
    return life.core.sow("/", "", f"{name} topic").index.count


def acks(life: Life, name: str) -> int:
    return life.core._deferred.count(life.core.queue("/", name).id)


def unruled(life: Life, name: str) -> bool:
    return life.core.queue("/", name).settings.max_backlog != 10


class Kind(NamedTuple):
    """Parts that are alike."""

    part: str  # of what a fault stops, with the name of the part
    prepare: Callable[[Life], None]
    undone: Callable[[Life, str], object]  # whether what is due has not been done for a name
    after: int = HOUR + HOUR // 4


KINDS = {
    "topic": Kind("topic 'bad topic' in vhost '/'", topics, records),
    "publishers": Kind("publishers", numbered, lambda life, name: life.core.publishers.get(name)),
    "stream": Kind("stream 'bad'", streams, lambda life, name: not life.core.streams.states[name].released),
    "deferred": Kind("queue 'bad' in vhost '/'", deferred, acks),
    "policy": Kind("queue 'bad' in vhost '/'", policies, unruled, 0),
    "unused": Kind(
        "queue 'bad unused' in vhost '/'", nothing, lambda life, name: life.core.find_queue("/", f"{name} unused")
    ),
}  # fmt: skip


class Place(NamedTuple):
    """A call that fails for what is bad; late: when it has done its work."""

    kind: str
    owner: Any
    name: str
    late: bool = False


PLACES = {
    f"{owner.__name__}.{name}{' late' * late}": Place(kind, owner, name, late)
    for kind, owner, name in (
        ("topic", Keyed, "expire"), ("topic", Keyed, "_log_drop"), ("topic", Index, "expire"),
        ("publishers", Publishers, "tick"), ("stream", Streams, "release"), ("stream", Streams, "write"),
        ("stream", Holdings, "settle"), ("stream", Queue, "settle"), ("deferred", Deferred, "expire"),
        ("deferred", Deferred, "_forget"), ("policy", PolicyCommands, "_rule_by_policies"), ("policy", Queue, "alter"),
        ("unused", QueueCommands, "_end_queue"), ("unused", Queue, "delete"),
    )
    for late in (False, True)
    if name != "_end_queue" or not late  # nothing is left of it then
}  # fmt: skip


class Plant:
    """Raises where the part that is bad comes by."""

    def __init__(self, life: Life, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        self.there, self.raised = False, 0
        before: Callable[..., Any] = getattr(place.owner, place.name)
        index = life.core.sow("/", "", "bad topic").index

        def is_bad(what: tuple[Any, ...]) -> bool:
            names = {"bad", "bad unused", "bad topic"}
            return place.owner is Publishers or any(
                one is index or (isinstance(one, str) and one in names) or getattr(one, "name", None) in names
                for one in what
            )

        def planted(*what: Any, **named: Any) -> Any:
            if not self.there or not is_bad(what):
                return before(*what, **named)
            if place.late:
                before(*what, **named)
            self.raised += 1
            raise Fault

        monkeypatch.setattr(place.owner, place.name, planted)


@pytest.mark.parametrize("name", PLACES)
def test_what_fails_at_its_time_is_stopped_alone_and_done_after_a_start(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = PLACES[name]
    kind = KINDS[place.kind]
    monkeypatch.setattr(topology, "AT_ONCE", 1)
    life = Life(SimDisk(), clock(), **LIFE)  # type: ignore[arg-type]
    kind.prepare(life)
    plant = Plant(life, monkeypatch, place)
    plant.there = True
    before = reports.counts.total()
    with caplog.at_level(logging.CRITICAL, "penstock.server"):
        life.advance(kind.after)
    assert plant.raised == 1
    assert life.engine.faults.fatal is None
    assert reports.counts.total() == before + 1
    assert f"an internal error has stopped {kind.part}" in caplog.text
    assert kind.part in map(str, life.core.stopped)
    assert f"{kind.part.split()[0]}_stopped" in alarms(life.engine, {})
    assert life.core.floor() == 0, "the log keeps all"
    if place.kind != "publishers":
        assert not kind.undone(life, "beside")
    life.advance(HOUR)
    publish(life, "other", b"1")
    publish(life, "bad", b"new")
    assert plant.raised == 1, "it falls due no more"
    with pytest.raises(Unavailable):
        refused(life, place.kind)
    life.kill()
    plant.there = place.name != "alter"  # a start alters queues by commands, too: as the settings file has them
    again = Life(life.disk, life.clock, **LIFE)  # type: ignore[arg-type]
    again.advance(kind.after)
    assert again.engine.faults.fatal is None
    publish(again, "other", b"2")
    again.kill()
    plant.there = False
    last = Life(life.disk, life.clock, **LIFE)  # type: ignore[arg-type]
    last.advance(kind.after)
    assert not last.core.stopped
    assert not any(kind.undone(last, name) for name in BOTH)
    assert last.contents("other") == [b"1", b"2"]
    assert b"new" in last.contents("bad")
    for queue in last.core.queues():
        queue.check()
    live = canonical(last.core.durable_state())
    last.kill()
    assert canonical(state_of(last.disk, last.clock)) == live


def refused(life: Life, kind: str) -> None:
    """Who asks for what needs the part that was stopped is told so."""
    match kind:
        case "stream":
            life.core.streams.open(life.engine.now(), "bad", life.core.queue("/", "bad"))
        case "deferred" | "policy" | "unused":
            name = "bad unused" if kind == "unused" else "bad"
            life.core.subscribe(life.engine.now(), life.core.queue("/", name), tag="c", holder=None, client="")
        case _:
            raise Unavailable("nothing of it is refused")


def test_messages_of_an_open_group_are_undone_and_their_numbers_given_to_nobody(life: Life) -> None:
    """As of a removal with its dead letter: a message that a queue has in memory has no other one's number."""
    core = life.core
    batch = Publishes([core.topic("/", "", "q")], [PERSISTENT], [b"x"])
    core._out.begin()
    core.publish(life.engine.now(), batch)
    after = core.next_lsn
    assert core._out.undo(whole=False) == [batch]
    assert [(one.kind, one.lsn) for one in singly(core.take_journal())][-1] == (kinds.Kind.MARK, batch.first)  # type: ignore[union-attr]
    assert core.next_lsn == after
    life.kill()


def test_a_queue_that_has_all_but_gone_ends_the_server(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Containing, "_stands", lambda *_: False)
    monkeypatch.setattr(Queue, "tick", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        life.core._tick(life.engine.now(), life.core.queue("/", "q"))
    life.kill()


def test_a_client_of_a_stopped_stream_hears_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimDisk(), clock(), **LIFE)  # type: ignore[arg-type]
    streams(life)
    Plant(life, monkeypatch, PLACES["Streams.write"]).there = True
    life.advance(HOUR)
    with pytest.raises(Unavailable, match="stream 'bad' was stopped by an internal error"):
        life.core.streams.plan(life.engine.now(), "bad", 1, 0, 10)
    client = life.client()
    client.method(m.QueueDeclare(queue="bad", passive=True))
    life.run()
    assert client.take(m.QueueDeclareOk).message_count == 0
