"""The core and doors beside it: ways that are cut at every step, frames that no door says, and a mixed load."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import tracemalloc
from collections import Counter, deque

import orjson
import pytest

from choices import EFFORT, SEED
from penstock.config.settings import User
from penstock.errors import NotFound
from penstock.log.simdisk import SimDisk
from penstock.server.amqp import hosted, way
from penstock.server.amqp.door import Reading
from penstock.server.amqp.links import SEND_MOST
from penstock.server.amqp.way import Down, Up
from penstock.server.doors.line import Broken
from penstock.server.people.accounts import keep
from penstock.server.people.logins import Logins
from penstock.server.people.users import Users
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD, PROTOCOL_HEADER, frame
from sim.serverkit import HANDSHAKE, Beside, Client, Content, Life, clock, message
from sim.test_server_lives import live

ANN = User(name="ann", password_hash=keep("secret").text, hashing="argon2id")  # type: ignore[arg-type]

BODIES = [b"one", b"two", b"three"]


def new_life() -> Life:
    life = Life(SimDisk(), clock(), apart=False)
    life.declare("q", "answers")
    return life


def visit(life: Life, door: Beside) -> set[bytes]:
    """What one client may do, as far as its door can say it; the bodies that were confirmed."""
    client = Client(life, login=False, door=door)
    confirmed = set[bytes]()
    for part in session_of_a_client():
        if client.closed or client.gone():
            break
        client.send(part)
        life.run()
        for one in client.take_all():
            if isinstance(one, m.BasicAck):
                confirmed |= set(BODIES[: one.delivery_tag])
    return confirmed


def session_of_a_client() -> list[bytes]:
    def said(*methods: m.Method, channel: int = 1) -> bytes:
        return b"".join(frame(METHOD, channel, method.encode()) for method in methods)

    return [
        *HANDSHAKE,
        said(m.ChannelOpen(), m.ConfirmSelect(), m.QueueDeclare(queue="own", exclusive=True)),
        said(m.BasicQos(prefetch_count=2), m.BasicConsume(queue="q", consumer_tag="c")),
        message(BODIES[0], "q") + message(BODIES[1], "q"),
        message(BODIES[2], "q", mandatory=True) + said(m.BasicAck(1)),
        said(m.ChannelOpen(), m.TxSelect(), channel=2) + message(b"never committed", "answers", channel=2),
        said(m.BasicNack(2, requeue=True)) + message(b"x" * 3000, "nowhere", mandatory=True)[:-1000],
    ]


def check(life: Life, confirmed: set[bytes], others: int) -> None:
    """Nothing of a door that is gone stays behind, and what was confirmed is there or settled."""
    queue = life.core.queue("/", "q")
    queue.check()
    assert len(life.door.sessions) == others
    assert [one.name for one in life.core.queues()] == ["q", "answers"]
    assert not life.contents("answers")
    assert queue.leased == queue.outstanding == sum(one.outstanding for one in queue.consumers)
    left = life.contents("q")
    assert confirmed - set(left) <= {BODIES[0]}  # that one it may have acknowledged


def test_a_door_may_end_after_any_byte_that_reached_the_core() -> None:
    whole = new_life()
    door = whole.open_door()
    visit(whole, door)
    total = len(door.said)
    door.cut()
    whole.run()
    check(whole, set(BODIES), 0)
    for least in range(random.Random(SEED).randrange(40), total, 40 // EFFORT or 1):
        life = new_life()
        door, other = life.open_door(), life.open_door()
        witness = life.client(door=other, prefetch=0)
        door.least = least
        confirmed = visit(life, door)
        door.cut()
        life.run()
        check(life, confirmed, 1)
        witness.consume("q", "w")
        life.run()
        witness.take(m.BasicConsumeOk)
        left = [one for one in witness.take_all() if isinstance(one, Content)]
        assert confirmed - {one.body for one in left} <= {BODIES[0]}
        for one in left:
            witness.ack(one.tag)
        life.run()
        assert not life.contents("q")


def busy_client() -> list[bytes]:
    """What one of several does that acknowledge what they are given."""

    def said(*methods: m.Method, channel: int = 1) -> bytes:
        return b"".join(frame(METHOD, channel, method.encode()) for method in methods)

    return [
        *HANDSHAKE,
        said(m.ChannelOpen(), m.ConfirmSelect(), m.QueueDeclare(queue="", exclusive=True)),
        said(m.BasicQos(prefetch_count=2), m.BasicConsume(queue="q", consumer_tag="c")),
        message(BODIES[0], "q") + message(BODIES[1], "q"),
        message(BODIES[2], "q", mandatory=True),
        said(m.ChannelOpen(), m.TxSelect(), channel=2) + message(b"never committed", "answers", channel=2),
        message(b"x" * 3000, "nowhere", mandatory=True)[:-1000],
    ]


class Busy:
    """A client of a door of its own, and what it knows."""

    def __init__(self, life: Life) -> None:
        self.door = life.open_door()
        self.client = Client(life, login=False, door=self.door)
        self.left = deque(busy_client())
        self.cut = False
        self.confirmed = set[bytes]()
        self.acked = Counter[bytes]()

    def go_on(self, chance: random.Random) -> None:
        """Say one thing more, if there is any, and settle some of what has come."""
        if self.cut:
            return
        if self.left:
            self.client.send(self.left.popleft())
        for one in self.hear():
            if chance.random() < 0.6:
                self.client.ack(one.tag)
                self.acked[one.body] += 1

    def hear(self) -> list[Content]:
        """What was confirmed is known from now on; what was delivered."""
        came = self.client.take_all()
        for one in came:
            if isinstance(one, m.BasicAck):
                self.confirmed |= set(BODIES[: one.delivery_tag])
        assert not any(isinstance(one, m.ChannelClose | m.ConnectionClose) for one in came), came
        return [one for one in came if isinstance(one, Content)]


def test_two_doors_whose_ways_are_slow_or_cut_at_any_step_lose_nothing_confirmed(effort: int) -> None:
    """What one has said, or is to hear, stays on its way for some steps while the other goes on; then one ends."""
    for seed in range(SEED, SEED + 60 * effort):
        chance = random.Random(seed)
        life = new_life()
        one, other = Busy(life), Busy(life)
        steps = 4 * len(one.left)
        cut_at = chance.randrange(steps)
        for step in range(steps):
            if step == cut_at:
                one.cut = True
                one.door.cut()
            for busy in (one, other):
                busy.door.slow_up, busy.door.slow_down = chance.random() < 0.4, chance.random() < 0.4
            chance.choice((one, other)).go_on(chance)
            life.run()
        other.door.slow_up = other.door.slow_down = False
        while other.left:
            other.go_on(chance)
            life.run()
        other.hear()
        assert other.confirmed == set(BODIES), f"seed {seed}"
        other.door.cut()
        life.run()
        queue = life.core.queue("/", "q")
        queue.check()
        assert not life.door.sessions, f"seed {seed}"
        assert queue.leased == queue.outstanding == 0, f"seed {seed}"
        assert [each.name for each in life.core.queues()] == ["q", "answers"], f"seed {seed}"
        assert not life.contents("answers"), f"seed {seed}"
        there, acked = Counter(life.contents("q")), one.acked + other.acked
        for body in BODIES:
            told = (body in one.confirmed) + (body in other.confirmed)
            assert told - acked[body] <= there[body] <= 2, f"seed {seed}: {body!r}"


@pytest.fixture(scope="module")
def recorded() -> tuple[bytes, bytes]:
    """What a door says to the core, and what it hears."""
    life = new_life()
    door = life.open_door()
    visit(life, door)
    return bytes(door.said), bytes(door.heard)


def mutated(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out))
        match chance.randrange(4):
            case 0:
                out[at] = chance.choice((0, 1, 2, 0xFF, out[at] ^ 1, chance.randrange(256)))
            case 1:
                del out[at : at + chance.choice((1, 4, 16, 100))]
            case 2:
                out[at:at] = out[at : at + chance.choice((1, 16, 40))]
            case _:
                out[at : at + 4] = chance.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0", b"\0\1\0\0"))
    return bytes(out)


def test_a_door_that_says_what_no_door_says_is_cut_off_and_nothing_of_it_stays(recorded: tuple[bytes, bytes]) -> None:
    chance = random.Random(SEED)
    life = new_life()
    broken = 0
    for _ in range(150 * EFFORT):
        door = life.open_door()
        data = mutated(recorded[0], chance)
        at = 0
        try:
            while at < len(data):
                size = chance.choice((1, 20, 300, len(data)))
                door.doorway.receive(data[at : at + size])
                at += size
                life.run()
        except Broken:
            broken += 1
        door.cut()
        life.doors.clear()
        life.run()
        queue = life.core.queue("/", "q")
        queue.check()
        assert not life.door.sessions
        assert queue.leased == queue.outstanding == 0
        assert not queue.consumers
        assert life.engine.broken is None
    assert broken > 75 * EFFORT


def test_a_core_that_says_what_no_core_says_ends_a_door_and_no_more(recorded: tuple[bytes, bytes]) -> None:
    chance = random.Random(SEED)
    life = new_life()
    for _ in range(150 * EFFORT):
        door = life.open_door()
        Client(life, login=False, door=door)
        door.rounds()
        try:
            door.host.receive(mutated(recorded[1], chance))
            door.rounds()
        except Broken:
            pass
        door.cut()
        life.doors.clear()


@pytest.mark.parametrize("seed", range(3))
def test_lives_behind_a_door(seed: int, monkeypatch: pytest.MonkeyPatch, effort: int) -> None:
    monkeypatch.setattr("sim.serverkit.APART", True)
    for extra in range(effort):
        live(seed + 500 + 1000 * extra, lives=3, steps=40)


class Unreading(Client):
    """Its kernel takes nothing."""

    def write(self, data: bytes) -> None:
        super().write(data)
        before, self.waiting = self.waiting, self.waiting + len(data)
        if before <= SEND_MOST < self.waiting:
            self.mouth.pause_writing()

    def read(self) -> None:
        self.waiting = 0
        self.mouth.resume_writing()


def opened(told: dict[str, object]) -> bytes:
    payload = orjson.dumps({"peer": "p", "local": "l", **told})
    return way.head(Up.OPENED, len(payload), 9) + payload


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(way.head(Up.CHANNEL, 0, 1, 1), id="a channel that is open"),
        pytest.param(opened({"tls": {"version": "v", "cipher": "c", "der": "odd"}}), id="no base64"),
        pytest.param(opened({"tls": {"version": "v", "cipher": "c", "der": "\u00e9"}}), id="nor any text of it"),
        pytest.param(opened({"tls": []}), id="a handshake that is none"),
        pytest.param(way.head(Up.DERIVED, 0, 1), id="a digest that nobody asked for"),
    ],
)
def test_a_lie_in_a_whole_frame_is_broken(lie: bytes) -> None:
    """What consumes on the first channel keeps its leases to itself until the door is cut off."""
    life = new_life()
    door = life.open_door()
    visit(life, door)
    with pytest.raises(Broken):
        door.doorway.receive(lie)
    door.cut()
    life.doors.clear()
    life.run()
    check(life, set(), 0)


def test_a_channel_that_ends_and_begins_behind_what_waits_its_turn_is_no_lie() -> None:
    """More methods in a read than are acted on at once: the end of a channel waits, and so does its new beginning."""
    life = new_life()
    client = life.client(door=life.open_door())
    for _ in range(3):
        many = b"".join(frame(METHOD, 1, m.QueueDeclare(queue="q", durable=True).encode()) for _ in range(300))
        wrong = frame(METHOD, 1, m.BasicAck(delivery_tag=0).encode())  # the door itself closes the channel for it
        again = frame(METHOD, 1, m.ChannelCloseOk().encode()) + frame(METHOD, 1, m.ChannelOpen().encode())
        client.send(many + wrong)
        client.send(again + frame(METHOD, 1, m.QueueDeclare(queue="q", durable=True).encode()))
        life.run()
    assert not client.closed
    assert isinstance(client.take_all()[-1], m.QueueDeclareOk)


def test_a_channel_that_both_sides_end_at_once_can_begin_again() -> None:
    life = new_life()
    door = life.open_door()
    client = life.client(door=door)
    session = client.session
    client.method(m.BasicAck(delivery_tag=0))  # the door closes it; the core has not heard of that yet
    client.method(m.ChannelCloseOk())
    client.method(m.ChannelOpen())
    session.fail_channel(1, NotFound("it is gone"), m.BasicPublish)
    life.run()
    client.method(m.ChannelCloseOk())
    client.method(m.ChannelOpen())
    client.method(m.QueueDeclare(queue="q", durable=True))
    life.run()
    assert isinstance(client.take_all()[-1], m.QueueDeclareOk)
    assert [one.open for one in session.channels.values()] == [True]


def test_who_does_not_read_gets_no_more_than_may_wait_for_it_and_its_door() -> None:
    """One ends at its socket, the other is on its way; what comes from memory in one piece comes whole."""
    life = Life(SimDisk(), clock(), budget=1 << 20, apart=False)
    life.declare("q")
    door = life.open_door()
    publisher = life.client(door=door)
    for number in range(60):
        publisher.publish("q", b"%d:" % number + b"b" * 100_000)
        life.run()
    client = Unreading(life, door=door)
    client.channel()
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    got = client.bodies()
    assert len(got) * 100_000 <= 2 * SEND_MOST
    while len(got) < 60:
        client.read()
        life.run()
        more = client.bodies()
        assert 0 < len(more) * 100_000 <= 2 * SEND_MOST + 300_000
        got += more
    assert [int(body.partition(b":")[0]) for body in got] == list(range(60))


@pytest.mark.parametrize("password", ["secret", "other"])
async def test_a_door_works_out_what_its_clients_passwords_come_to(password: str) -> None:
    life = new_life()
    logins = life.door.logins = Logins(Users([ANN]), delay_s=0.0)
    client = Client(life, login=False, door=life.open_door())
    started = m.ConnectionStartOk({}, response=f"\0ann\0{password}".encode())
    for part in (PROTOCOL_HEADER, frame(METHOD, 0, started.encode())):
        client.send(part)
        life.turn()
    client.take(m.ConnectionStart)
    for _ in range(100):
        await asyncio.sleep(0)
        life.turn()
    if password == "secret":
        client.take(m.ConnectionTune)
    assert client.ended == (password != "secret")
    assert logins.refused["amqp"] == (password != "secret")
    assert logins._pool is None, "the core has no part in it"
    assert not isinstance(client.mouth, Reading)
    assert not client.mouth.password


async def test_a_login_whose_door_ends_meanwhile_is_judged_here_for_others_that_wait() -> None:
    life = new_life()
    logins = life.door.logins = Logins(Users([ANN]), delay_s=0.0)
    doors = [life.open_door(), life.open_door()]
    doors[0].host._off = lambda work, then: None  # it works for ever
    clients = [Client(life, login=False, door=door) for door in doors]
    started = m.ConnectionStartOk({}, response=b"\0ann\0secret")
    for client in clients:
        for part in (PROTOCOL_HEADER, frame(METHOD, 0, started.encode())):
            client.send(part)
            life.turn()
            await asyncio.sleep(0)
    life.turn()
    doors[0].cut()
    life.doors.remove(doors[0])
    for _ in range(1000):
        await asyncio.sleep(0.002)
        life.turn()
        if len(clients[1].got) == 2:
            break
    assert [type(one) for one in clients[1].got] == [m.ConnectionStart, m.ConnectionTune]
    logins.close()


@pytest.mark.parametrize("few", [0, 16], ids=["runs", "rows"])
def test_a_publish_of_more_topics_than_a_door_numbers_brings_each_message_to_its_own(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "TARGETS_MOST", 5)
    monkeypatch.setattr(hosted, "FEW", few)
    life, names = Life(SimDisk(), clock(), apart=True), [f"q{n}" for n in range(12)]
    life.declare(*names)
    client, rng, sent = life.client(confirm=True), random.Random(SEED), Counter[str]()
    for _ in range(100):
        keys = rng.choices(names[: rng.choice((2, 6, 12))], k=rng.randint(1, 16))
        client.send(b"".join(message(b"to " + key.encode(), key) for key in keys))
        sent.update(keys)
        life.run()
    assert not client.closed
    assert {name: life.contents(name) for name in names} == {key: [f"to {key}".encode()] * n for key, n in sent.items()}


def test_a_connection_at_rest_takes_little_in_the_core() -> None:
    """What only reads and writes its bytes is in its door, and what many have in common is there once."""
    life = new_life()
    door = life.open_door()
    before = len(door.said)
    Client(life, door=door).channel()
    one = bytes(door.said[before:])
    frames = list[bytes]()
    while one:
        end = way.HEAD.size + way.HEAD.unpack_from(one)[0]
        frames.append(one[:end])
        one = one[end:]
    for number in range(2, 402):
        if number == 102:  # what is there once is there
            gc.collect()
            tracemalloc.start()
        for said in frames:
            head = list(way.HEAD.unpack_from(said))
            head[4] = number if head[4] else 0
            door.doorway.receive(way.HEAD.pack(*head) + said[way.HEAD.size :])
            life.engine.finish_turn()
    door._down.clear()  # what they were told, and others of them, and what nobody ran
    life.jobs.clear()
    life.engine.notices.feed._ring.clear()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(life.door.sessions) == 401
    assert all(one.channels for one in life.door.sessions)
    assert size / 300 < 2048


def test_a_batch_alone_is_answered_with_one_write() -> None:
    """That it was taken is told with what comes of it: the door may send one more before it knows."""
    life = new_life()
    door = life.open_door()
    client = life.client(door=door, confirm=True)
    client.publish("q", b"known")
    life.run()
    client.take_all()
    door.heard.clear()
    client.publish("q", b"one")
    life.run()
    assert client.confirms() == [(True, 2, True)]
    assert [frame.kind for frame in way.Cutter(way.DOWN_MOST).feed(bytes(door.heard))] == [Down.CONFIRMS, Down.TAKEN]


def declare_with(table: bytes) -> bytes:
    """queue.declare with these fields as its arguments."""
    payload = m.QueueDeclare(queue="odd", durable=True).encode()[:-4] + struct.pack(">I", len(table)) + table
    return frame(METHOD, 1, payload)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(b"\x01oA" + struct.pack(">I", 120_000) + b"b\x01" * 60_000, id="longer when written anew"),
        pytest.param(b"\x01oD\xff\x7f\xff\xff\xff", id="a decimal of 255 places"),
        pytest.param(b"\x01of\x7f\xc0\x00\x00\x01ndL" + b"\xff" * 8 + b"\x01sS\x00\x00\x00\x01\xff", id="odd values"),
    ],
)
def test_no_client_can_have_its_door_say_what_no_door_says(table: bytes) -> None:
    answers = list[list[str]]()
    for apart in (False, True):
        life = new_life()
        client = life.client(door=life.open_door() if apart else None)
        client.send(declare_with(table))
        life.run()
        answers.append([type(one).__name__ for one in client.take_all()])
    assert answers[0] == answers[1] != []


def test_two_batches_are_undecided_at_most_and_a_publisher_beyond_the_bound_is_not_read() -> None:
    life = new_life()
    door = life.open_door()
    client = life.client(door=door, confirm=True)
    door.least = len(door.said)  # the core hears nothing more
    for _ in range(20):
        client.publish("q", b"b" * 100_000)
        door.rounds()
    assert len(door.up) == 2
    assert not client.reading
    door.least = 1 << 53
    life.run()
    client.take_all()
    assert client.reading
    assert life.ready("q") == 20
