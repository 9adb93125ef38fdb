"""What one connection has a turn of the loop do is bounded by time: the others come between, and its order stays."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.core.publishing import dead_letters, routed
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling import letters
from penstock.core.topology.routing import Router
from penstock.log.simdisk import SimDisk
from penstock.records.kinds import Kind
from penstock.records.properties import Properties, encode
from penstock.server import committing
from penstock.server.amqp import commands, intake, leaving, publishers, session
from penstock.server.amqp.incoming import UNTIMED
from penstock.server.base.rounds import HEARD_US, TURN_US
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD
from penstock.wire.amqp.machine import ServerConnection
from planting import Plant
from sim.serverkit import Client, Content, Life, clock, frame, message

MS = 1000
MANY = 40


@pytest.fixture(params=[False, True], ids=["here", "apart"])
def life(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Life:
    """A server for which it takes a millisecond to find where the messages of a topic go."""
    life = Life(SimDisk(), clock(), apart=request.param)
    life.declare("q")
    client = life.client()
    client.method(m.QueueBind(queue="q", exchange="amq.topic", routing_key="#"))
    life.run()
    client.lose()
    life.run()
    slow(life, monkeypatch, Router, "plan")
    return life


def slow(life: Life, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Have each call take a millisecond."""
    work = getattr(owner, name)

    def slowly(*args: Any, **how: Any) -> Any:
        life.clock.advance(MS)
        return work(*args, **how)

    monkeypatch.setattr(owner, name, slowly)


def longest(life: Life, *reads: Callable[[], None]) -> int:
    """Do these in one turn, and all that comes of them; how long the longest turn was."""
    turns = [0]

    def timed(work: Callable[[], object]) -> None:
        began = life.clock.mono()
        work()
        turns[-1] += life.clock.mono() - began

    for read in reads:
        timed(read)
    life.engine.arm()
    while life.jobs or life.cold:
        if life.cold:
            timed(life.read_cold)
        now, turns[len(turns) :] = list(life.jobs), [0]
        life.jobs.clear()
        for job in (*now, *(door.rise for door in life.doors)):
            timed(job)
    life.run()
    return max(turns)


def publishes(*keys: str, **how: Any) -> bytes:
    """Messages to these keys of a topic exchange, whose bodies are the keys."""
    return b"".join(message(key.encode(), key, exchange="amq.topic", **how) for key in keys)


def read(client: Client, data: bytes) -> Callable[[], None]:
    """What comes in one read of a socket."""

    def come() -> None:
        client.send(data)
        if client.door is not None:
            client.door.rise()

    return come


def test_who_brings_topics_whose_ways_are_dear_lets_others_go_between(life: Life) -> None:
    dear, other = life.client(confirm=True), life.client()
    keys = [f"k{n}" for n in range(MANY)]
    took = longest(life, read(dear, publishes(*keys)), read(other, publishes("between")))
    assert took <= TURN_US + 2 * MS
    stored = life.contents("q")
    place = stored.index(b"between")
    assert place < MANY // 2
    assert stored[:place] + stored[place + 1 :] == [key.encode() for key in keys]
    confirms = dear.confirms()
    assert [ok for ok, _, _ in confirms] == [True] * len(confirms)
    assert confirms[-1][1:] == (MANY, True)


def test_many_connections_with_one_dear_message_each_share_what_there_is_in_a_turn(life: Life) -> None:
    clients = [life.client(confirm=True) for _ in range(MANY)]
    took = longest(life, *(read(client, publishes(f"k{n}")) for n, client in enumerate(clients)))
    assert took <= TURN_US + 2 * MS
    assert life.contents("q") == [b"k%d" % n for n in range(MANY)]
    assert [client.confirms() for client in clients] == [[(True, 1, True)]] * MANY


def test_runs_on_several_channels_and_what_is_behind_them_keep_their_order(life: Life) -> None:
    client = life.client(confirm=True)
    client.channel(2, confirm=True)
    client.take_all()
    data = b"".join(publishes(f"k{n}", channel=1 + n % 2) for n in range(MANY))
    declare = m.QueueDeclare(queue="q", passive=True)
    took = longest(life, read(client, data + frame(METHOD, 1, declare.encode()) + publishes("last")))
    assert took <= TURN_US + 2 * MS
    assert life.contents("q") == [*(b"k%d" % n for n in range(MANY)), b"last"]
    [answer] = [one for one in client.take_all() if isinstance(one, m.QueueDeclareOk)]
    assert answer.message_count == MANY


def test_headers_that_name_more_keys_are_dear_too(life: Life) -> None:
    client, other = life.client(), life.client()
    longest(life, read(client, publishes("k")))  # the topic is known
    rows = [encode(Properties(delivery_mode=2, headers={"CC": [f"c{n}"]})) for n in range(MANY)]
    data = b"".join(publishes("k", properties=row) for row in rows)
    took = longest(life, read(client, data), read(other, publishes("between")))
    assert took <= TURN_US + 2 * MS
    assert life.contents("q").index(b"between") < MANY // 2


def test_topics_that_come_to_very_many_queues_are_stored_in_parts(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "FEW", 0)
    monkeypatch.setattr(intake, "PAIRS_MOST", 5)
    client = life.client(confirm=True)
    keys = [f"k{n}" for n in range(MANY)]
    longest(life, read(client, publishes(*keys)))  # their ways are known
    stored = []
    put = life.core.publish
    monkeypatch.setattr(
        life.core, "publish", lambda now, batch, **how: (stored.append(len(batch)), put(now, batch, **how))[1]
    )
    longest(life, read(client, publishes(*keys)))
    assert max(stored) <= 7
    assert life.contents("q") == [key.encode() for key in keys] * 2


def test_methods_of_one_read_that_take_long_are_acted_on_in_order_and_others_come_between(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = life.client(), life.client()
    slow(life, monkeypatch, commands, "run")
    methods = [m.QueueDeclare(queue=f"many{n}", durable=True) for n in range(MANY)]
    data = b"".join(frame(METHOD, 1, method.encode()) for method in methods)
    seen = list[int]()
    took = longest(
        life, read(client, data), read(other, message(b"", "q")), lambda: seen.append(len(life.core.queues()))
    )
    assert took <= TURN_US + UNTIMED * MS
    assert seen[0] < MANY
    answers = [one for one in client.take_all() if isinstance(one, m.QueueDeclareOk)]
    assert [answer.queue for answer in answers] == [method.queue for method in methods]


def declares(*names: str) -> bytes:
    """Declarations of queues in one read."""
    return b"".join(frame(METHOD, 1, m.QueueDeclare(queue=name, durable=True).encode()) for name in names)


def declared(client: Client) -> list[str]:
    """The queues that it was told of."""
    return [one.queue for one in client.take_all() if isinstance(one, m.QueueDeclareOk)]


def test_methods_of_many_connections_share_what_there_is_in_a_turn(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {life.client(): [f"of {n} {k}" for k in range(UNTIMED + 2)] for n in range(MANY)}
    slow(life, monkeypatch, commands, "run")
    took = longest(life, *(read(client, declares(*own)) for client, own in names.items()))
    assert took <= HEARD_US + TURN_US + UNTIMED * MS
    assert {client: declared(client) for client in names} == names


def test_what_many_bring_is_not_even_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimDisk(), clock(), apart=False)
    names = {life.client(): [f"of {n} {k}" for k in range(3)] for n in range(MANY)}
    slow(life, monkeypatch, ServerConnection, "receive")
    unheard = life.engine.bodies.partial
    waiting = list[int]()
    leaver = next(reversed(names))
    took = longest(
        life, *(read(client, declares(*own)) for client, own in names.items()),
        lambda: waiting.append(unheard.bytes), leaver.lose,
    )  # fmt: skip
    assert took <= HEARD_US + TURN_US + MS
    assert waiting[0] > MANY // 2 * len(declares("q")), "it counts against memory"
    assert unheard.bytes == 0
    assert {queue.name for queue in life.core.queues()} >= {*names.pop(leaver)}, "what came before its end counts"
    assert {client: declared(client) for client in names} == names


def test_a_door_reads_what_many_bring_by_turns_and_forgets_nothing_of_who_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = Life(SimDisk(), clock(), apart=True)
    door = life.beside
    assert door is not None
    clients = [life.client() for _ in range(MANY)]
    slow(life, monkeypatch, ServerConnection, "receive")
    turns = [life.clock.mono()]
    for n, client in enumerate(clients):
        client.send(declares(f"of {n}", f"more of {n}"))
    clients[-1].lose()
    turns.append(life.clock.mono())
    while door.jobs:
        for _ in range(len(door.jobs)):
            door.jobs.popleft()()
        turns.append(life.clock.mono())
    life.run()
    assert max(after - before for before, after in pairwise(turns)) <= HEARD_US + TURN_US + MS
    assert [declared(client) for client in clients[:-1]] == [[f"of {n}", f"more of {n}"] for n in range(MANY - 1)]
    last = MANY - 1
    assert {one.name for one in life.core.queues()} >= {f"of {last}", f"more of {last}"}


def test_a_fault_in_what_a_door_reads_late_ends_whose_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left the others unread for ever."""
    life = Life(SimDisk(), clock(), apart=True)
    door = life.beside
    assert door is not None
    clients = [life.client() for _ in range(MANY)]
    slow(life, monkeypatch, ServerConnection, "receive")
    heard = ServerConnection.receive

    def failing(machine: ServerConnection, data: bytes) -> object:
        if b"bad" in data:
            raise RuntimeError("a mistake")
        return heard(machine, data)

    monkeypatch.setattr(ServerConnection, "receive", failing)
    bad = MANY - 2
    for n, client in enumerate(clients):
        client.send(declares("bad" if n == bad else f"of {n}"))
    while door.jobs:
        door.jobs.popleft()()
    life.run()
    assert [str(error) for error in door.failures] == ["a mistake"]
    assert [declared(client) for n, client in enumerate(clients) if n != bad] == [
        [f"of {n}"] for n in range(MANY) if n != bad
    ]
    assert clients[bad].closed


@pytest.mark.parametrize("what", ["messages", "methods"])
def test_what_came_before_the_end_of_a_connection_counts(
    life: Life, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """By turns as well: a connection that vanishes has the others wait no longer than one that stays."""
    client = life.client()
    client.method(m.QueueDeclare(queue="own", exclusive=True))
    life.run()
    slow(life, monkeypatch, commands, "run")
    keys = [f"k{n}" for n in range(MANY)]
    methods = [m.QueueDeclare(queue=key, durable=True) for key in keys]
    data = publishes(*keys) if what == "messages" else b"".join(frame(METHOD, 1, one.encode()) for one in methods)
    took = longest(life, read(client, data), client.lose)
    assert took <= TURN_US + UNTIMED * MS
    names = {one.name for one in life.core.queues()}
    if what == "messages":
        assert life.contents("q") == [key.encode() for key in keys]
    else:
        assert names == {"q", *keys}
    assert "own" not in names
    assert not life.door.sessions


def test_what_waits_for_its_turn_when_its_channel_ends_goes_nowhere_and_nothing_is_stuck(life: Life) -> None:
    client, other = life.client(), life.client()
    close = frame(METHOD, 1, m.ChannelClose(200, "", 0, 0).encode())
    longest(life, read(client, publishes(*(f"k{n}" for n in range(MANY))) + message(b"", "q", exchange="none") + close))
    assert life.contents("q") == [b"k%d" % n for n in range(MANY)]
    assert "ChannelClose" in client.names()
    client.channel(2)
    client.publish("q", b"again", channel=2)
    other.publish("q", b"other")
    life.run()
    assert sorted(life.contents("q")[MANY:]) == [b"again", b"other"]


@pytest.mark.parametrize("how", ["fault", "operator", "close"])
def test_who_has_vanished_and_is_ended_before_its_turn_is_forgotten(
    life: Life, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    client = life.client()
    client.method(m.QueueDeclare(queue="own", exclusive=True))
    life.run()
    session, keys = client.session, [f"k{n}" for n in range(MANY)]
    close = frame(METHOD, 0, m.ConnectionClose(200, "", 0, 0).encode()) if how == "close" else b""
    read(client, publishes(*keys) + close)()
    client.lose()
    if client.door is not None:
        client.door.rise()
    assert session.incoming.holding
    assert not session.closed
    if how == "fault":

        def fails(*_: Any, **__: Any) -> Any:
            raise RuntimeError("planted")

        monkeypatch.setattr(intake.Intake, "_take", fails)
    elif how == "operator":
        session.close_by_server("enough")
    life.run()
    assert session.closed
    assert not life.door.sessions
    assert "own" not in {one.name for one in life.core.queues()}
    assert life.engine.faults.ended == (how == "fault")


def test_what_is_given_back_one_by_one_is_decided_few_at_a_time(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its time is seen: it lay until the end of the turn.  Who gives back has room, and gets each again."""
    count = 3 * publishers.RETURNED_MOST
    life.declare("back")
    client, other = life.client(), life.client()
    client.consume("back")
    other.send(b"".join(message(b"%d" % n, "back") for n in range(count)))
    life.run()
    tags = [one.tag for one in client.take_all() if isinstance(one, Content)]
    slow(life, monkeypatch, Queue, "settle")
    data = b"".join(frame(METHOD, 1, m.BasicNack(tag, False, True).encode()) for tag in reversed(tags))
    took = longest(life, read(client, data))
    assert took <= TURN_US + (publishers.RETURNED_MOST + UNTIMED) * MS
    again = [one for one in client.take_all() if isinstance(one, Content)]
    assert (len(tags), life.core.queue("/", "back").leased) == (count, count)
    assert sorted(one.body for one in again) == sorted(b"%d" % n for n in range(count))


def busiest(count: int, verb: m.Method) -> int:
    """The most calls in one turn in which something is said of so many deliveries, each a step of its own."""
    life = Life(SimDisk(), clock(), apart=False)
    names = [f"q{n}" for n in range(8)]
    life.declare(*names)
    client, other = life.client(), life.client()
    for name in names:
        client.consume(name, name)
    for _ in range(0, count, len(names)):
        other.send(b"".join(message(b"x", name) for name in names))
        life.turn()
    life.run()
    client.session.pause_writing()
    calls = list[int]()
    life.jobs.append(lambda: client.method(verb))
    while life.jobs:
        now = list(life.jobs)
        life.jobs.clear()
        plant = Plant(-1, "penstock")
        with plant.there():
            for job in now:
                job()
        calls.append(plant.calls)
    queues = [life.core.queue("/", name) for name in names]
    assert (sum(queue.leased for queue in queues), client.session.channels[1].tags.count) == (0, 0)
    return max(calls)


@pytest.mark.parametrize("verb", [m.BasicAck(0, True), m.BasicNack(0, True, True), m.BasicRecover(True)], ids=repr)
def test_what_is_said_of_very_many_deliveries_is_not_even_looked_at_in_one_turn(
    monkeypatch: pytest.MonkeyPatch, verb: m.Method
) -> None:
    monkeypatch.setattr(session, "PORTION", 8 * session.RANGE_WEIGHT)
    assert busiest(800, verb) < 400


@pytest.mark.parametrize("budget", [1 << 26, 1 << 18], ids=["in memory", "to be read"])
@pytest.mark.parametrize(("queues", "each"), [(1, 300), (60, 5)], ids=["one queue", "many queues"])
def test_dead_letters_of_any_number_of_queues_share_what_there_is_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, queues: int, each: int, budget: int
) -> None:
    life = Life(SimDisk(), clock(), budget=budget)
    life.declare("dead")
    to_dead = {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client = life.client()
    bodies = {f"q{n}": [f"q{n} {k}".encode().ljust(4000) for k in range(each)] for n in range(queues)}
    for name, some in bodies.items():
        client.method(m.QueueDeclare(queue=name, durable=True, arguments=to_dead))
        client.send(b"".join(message(body, name) for body in some))
        life.run()
    reads = Mock(wraps=life.read_cold)
    monkeypatch.setattr(life, "read_cold", reads)
    slow(life, monkeypatch, dead_letters, "after_death")
    life.clock.advance(10 * MS)
    took = longest(life, life.engine.tick)
    assert took <= letters.LETTER * MS + TURN_US + 2 * MS
    assert bool(reads.called) == (budget < 1 << 26)
    dead = life.contents("dead")
    assert {name: [one for one in dead if one.startswith(name.encode() + b" ")] for name in bodies} == bodies


@pytest.mark.parametrize("apart", [False, True], ids=["here", "apart"])
def test_commits_whose_bodies_are_read_together_share_what_there_is_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """What they waited for came to all at once, and each went on in that turn."""
    life = Life(SimDisk(), clock(), budget=1 << 18, apart=apart)
    life.declare("dead")
    life.declare("q", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    bodies = [b"%d" % n * 4000 for n in range(10, 10 + 2 * MANY)]
    life.client().publish("q", *bodies)
    life.run()
    clients = [life.client(prefetch=2) for _ in range(MANY)]
    for client in clients:
        client.method(m.TxSelect())
        client.consume("q")
        life.run()
        first, second = [one.tag for one in client.take_all() if isinstance(one, Content)]
        client.method(m.BasicReject(first, requeue=False))
        client.method(m.BasicReject(second, requeue=False))
    life.run()
    for client in clients:
        read(client, frame(METHOD, 1, m.TxCommit().encode()))()
    life.turn()
    assert len(life.cold) == MANY
    slow(life, monkeypatch, dead_letters, "after_death")
    took = longest(life, *[life.read_cold] * MANY)
    assert took <= HEARD_US + TURN_US + 2 * MS
    assert sorted(life.contents("dead")) == sorted(bodies)
    assert [client.names() for client in clients] == [["TxCommitOk"]] * MANY


@pytest.mark.parametrize("queues", [1, MANY])
def test_dead_letters_of_one_commit_are_prepared_by_turns(
    life: Life, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    """And are one group with it all the same, in their order; others come between."""
    monkeypatch.setattr(committing, "LAID_MOST", 2)
    names = [f"q{n}" for n in range(queues)]
    life.declare("dead", "free")
    life.declare(*names, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    count = 2 * MANY
    client, other = life.client(), life.client()
    client.method(m.TxSelect())
    for name in names:
        client.consume(name, name)
    other.send(b"".join(message(b"%d" % n, names[n % queues]) for n in range(count)))
    life.run()
    for one in [one for one in client.take_all() if isinstance(one, Content)]:
        client.method(m.BasicReject(one.tag, requeue=False))
    life.run()
    slow(life, monkeypatch, dead_letters, "after_death")
    seen = list[int]()
    look = [read(other, message(b"", "free")), lambda: seen.append(life.ready("dead"))]
    first = life.core.next_lsn
    took = longest(life, read(client, frame(METHOD, 1, m.TxCommit().encode())), *look)
    assert took <= TURN_US + 4 * MS
    assert seen == [0]
    assert client.names() == ["TxCommitOk"]
    letters = life.contents("dead")
    assert sorted(letters) == sorted(b"%d" % n for n in range(count))
    if queues == 1:
        assert letters == [b"%d" % n for n in range(count)]
    batches = [batch.column("kind").to_pylist() for batch in life.log.batches(first, life.core.next_lsn)]
    assert [kinds.count(Kind.EXPIRE) for kinds in batches if Kind.TRANSACTION in kinds] == [queues]


def test_long_commits_are_prepared_one_after_another_in_the_memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one that waits, or the one that the others wait for, is lost."""
    life = Life(SimDisk(), clock(), budget=1 << 20, apart=False)
    life.declare("dead")
    life.declare("q", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    count = 4 * committing.LAID_MOST
    clients = [life.client(prefetch=count) for _ in range(6)]
    for client in clients:
        life.client().publish("q", *[b"x" * 250] * count)
        client.method(m.TxSelect())
        client.consume("q")
        life.run()
        client.method(m.BasicCancel("c"))
        client.method(m.BasicNack(0, multiple=True, requeue=False))
        life.run()
        client.take_all()
    slow(life, monkeypatch, dead_letters, "after_death")
    for client in clients:
        read(client, frame(METHOD, 1, m.TxCommit().encode()))()
    clients.pop(0).lose()
    clients.pop(2).lose()
    life.run()
    assert [client.names() for client in clients] == [["TxCommitOk"]] * 4
    assert (life.ready("dead"), life.ready("q")) == (4 * count, 2 * count)


def attended(life: Life, count: int) -> tuple[Client, list[str]]:
    """Who consumes from so many queues and holds a message of each; and their names."""
    names = [f"held{n}" for n in range(count)]
    life.declare(*names)
    client, other = life.client(), life.client()
    for name in names:
        client.consume(name, name)
    other.send(b"".join(message(b"x", name) for name in names))
    life.run()
    client.take_all()
    return client, names


@pytest.mark.parametrize("how", ["lost", "connection", "channel"])
def test_who_leaves_very_many_queues_gives_back_by_turns_and_hears_the_last_word_behind_that(
    life: Life, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(leaving, "QUEUES", 1)
    client, names = attended(life, MANY)
    other = life.client()
    slow(life, monkeypatch, Queue, "unsubscribe")
    close = m.ConnectionClose(200, "", 0, 0) if how == "connection" else m.ChannelClose(200, "", 0, 0)
    leave = client.lose if how == "lost" else read(client, frame(METHOD, how == "channel", close.encode()))
    seen = list[tuple[int, list[str]]]()

    def look() -> None:
        seen.append((sum(life.ready(name) for name in names), client.names()))

    took = longest(life, leave, look, read(other, message(b"y", names[-1])), look)
    assert took <= TURN_US + 2 * MS
    assert all(back < MANY and not said for back, said in seen)
    assert sorted(life.contents(names[-1])) == [b"x", b"y"]
    assert [life.ready(name) for name in names] == [1] * (MANY - 1) + [2]
    assert client.names() == {"lost": [], "connection": ["ConnectionCloseOk"], "channel": ["ChannelCloseOk"]}[how]
    assert client not in life.door.sessions
    if how == "channel":
        client.channel()
        client.consume(names[0])
        life.run()
        assert client.take_all()[-1].redelivered  # type: ignore[union-attr]


def test_many_queues_of_its_own_go_by_turns_and_with_a_server_that_stops_at_once(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "QUEUES", 1)
    clients = [life.client(), life.client()]
    for number, client in enumerate(clients):
        for n in range(MANY):
            client.method(m.QueueDeclare(queue=f"own {number} {n}", exclusive=True))
    life.run()
    slow(life, monkeypatch, Queue, "delete")
    assert longest(life, clients[0].lose) <= TURN_US + 2 * MS
    assert len(life.core.queues()) == 1 + MANY
    life.door.close_all("it stops")
    assert len(life.core.queues()) == 1


def test_very_many_that_are_lost_at_once_end_by_turns_and_are_granted_nothing_of_what_the_first_give_back(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.declare("work")
    clients = [life.client(prefetch=2) for _ in range(MANY)]
    for client in clients:
        client.consume("work")
    life.run()
    life.client().publish("work", *[b"x"] * MANY)
    life.run()
    slow(life, monkeypatch, Queue, "unsubscribe")
    assert longest(life, *(client.lose for client in clients)) <= TURN_US + 2 * MS
    assert life.ready("work") == MANY
    assert {run.tally.deliveries for run in life.core.queue("/", "work").returned.runs()} == {1}
    assert all(session.opened and not session.channels[1].consumers for session in life.door.sessions)


def test_what_follows_a_step_that_failed_is_given_back_all_the_same(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "QUEUES", 1)
    client, names = attended(life, MANY)
    client.method(m.QueueDeclare(queue="own", exclusive=True))
    life.run()
    slow(life, monkeypatch, Queue, "unsubscribe")
    work, calls = life.core.unsubscribe_all, list[int]()

    def fails_once(*args: Any, **how: Any) -> None:
        calls.append(1)
        if len(calls) == MANY // 2:
            raise RuntimeError("planted")
        work(*args, **how)

    monkeypatch.setattr(life.core, "unsubscribe_all", fails_once)
    longest(life, client.lose)
    assert life.engine.faults.ended == 1
    assert [life.ready(name) for name in names] == [1] * MANY
    assert life.core.find_queue("/", "own") is None
    assert client not in life.door.sessions
    assert len(life.door.sessions) == 1
