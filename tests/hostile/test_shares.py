"""What a login can take, by thing and door: after one user has taken what it could a second one still gets some, and an
administrator gets some when two have taken all.  What is let go is there again.

Each row of `WAYS` is one way to take one of a thing at one door, by real clients of a real server whose wholes are made
small.  A thing without a row, or of which the metrics do not tell, fails.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from http_lab import NO_TLS
from penstock.server.flight.calls import Caller
from penstock.server.people.access import THINGS
from penstock.wire.amqp import methods as m
from rights_house import HELD, PASSWORD, House, Link
from waiting import eventually

GREEDY, SECOND, ADMINISTRATOR = "untagged-all", "management-all", "administrator-all"
TAGGED = "policymaker-all"
"""Over HTTP the greedy one needs a tag."""

WHOLE = 4

LetGo = Callable[[], object]


class Refused(Exception):
    """There was no more."""


def nothing() -> None:
    """There is nothing to let go by hand."""


def url(house: House, user: str) -> str:
    return f"penstock://{user}:{PASSWORD}@127.0.0.1:{house._port('flight')}"


# -- one of each, at each door


def amqp_connection(house: House, user: str) -> LetGo:
    link = Link(house._port("amqp"), user)
    if link.refused:
        link.close()
        raise Refused(link.refused)
    return link.close


def flight_connection(house: House, user: str) -> LetGo:
    try:
        client = penstock.connect(url(house, user))
    except penstock.Unavailable as error:
        raise Refused(str(error)) from None
    client.health()
    return client.close


def asked(house: House, user: str, line: str, body: bytes = b"", size: int = 0, accept: str = "*/*") -> socket.socket:
    """A connection with one request on its way, whose body may not come to its end."""
    login = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    head = f"{line} HTTP/1.1\r\nhost: x\r\nauthorization: Basic {login}\r\naccept: {accept}\r\n"
    head += f"content-length: {size or len(body)}\r\n\r\n"
    link = socket.create_connection(("127.0.0.1", house._port("http")), 10)
    link.sendall(head.encode() + body)
    return link


def answer(link: socket.socket, enough: Callable[[bytes], bool] = lambda said: b"later" in said) -> str:
    """What comes until it is enough; nothing when nothing comes in time."""
    said = b""
    link.settimeout(20)
    with contextlib.suppress(TimeoutError):
        while not enough(said) and (data := link.recv(65_536)):
            said += data
    return said.decode()


def http_request(house: House, user: str) -> LetGo:
    """A body that does not come to its end keeps it in work."""
    share = house.server.shares.of("http_requests")
    had, refused = share.of(user), share.refused
    link = asked(house, user, "PUT /api/queues/%2F/held", b"{", 2)
    eventually(lambda: share.of(user) != had or share.refused != refused, seconds=20)
    if share.refused > refused:
        said = answer(link)
        link.close()
        raise Refused(said)
    return link.close


def event_stream(house: House, user: str) -> LetGo:
    link = asked(house, user, "GET /api/events")
    said = answer(link, lambda said: b"later" in said or said.startswith(b"HTTP/1.1 200"))
    if not said.startswith("HTTP/1.1 200"):
        link.close()
        raise Refused(said)
    return link.close


def flight_call(house: House, user: str) -> LetGo:
    """An action that waits, on the server's side: what is asked is who may begin one."""
    calls, who = house.server.flight.calls, house.server.users.who(user)
    held = contextlib.ExitStack()
    try:
        held.enter_context(calls.working(who))
    except penstock.Unavailable:
        answer = house.act(user, "health", {})  # the door says the same
        raise Refused(answer.text) from None
    assert house.act(user, "health", {}).kind in {"ok", "Unavailable"}
    return held.close


def read(house: House, user: str, ticket: Mapping[str, object]) -> LetGo:
    """A read that has begun."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{house._port('flight')}")
    secret = base64.b64encode(f"{user}:{PASSWORD}".encode())
    options: Any = flight.FlightCallOptions(headers=[(b"authorization", b"Basic " + secret)], timeout=60)  # type: ignore[list-item]
    try:
        reader = client.do_get(flight.Ticket(orjson.dumps(ticket)), options)
        reader.schema  # noqa: B018 - it has begun
    except pa.ArrowException as error:
        client.close()
        raise Refused(str(error)) from None

    def let_go() -> None:
        reader.cancel()
        client.close()

    return let_go


def flight_stream(house: House, user: str) -> LetGo:
    return read(house, user, {"subscribe": {"topic": "held-topic"}})


def standing_stream(house: House, user: str) -> LetGo:
    calls = house.server.flight.calls
    try:
        slot = calls.stream(Caller(house.server.users.who(user), "", lambda: False))
    except penstock.Unavailable as error:
        raise Refused(str(error)) from None
    slot.abandon()
    return slot.close


def early_call(house: House, user: str) -> LetGo:
    held, share = contextlib.ExitStack(), house.server.shares.of("early_calls")
    try:
        held.enter_context(share.held(house.server.users.who(user)))
    except penstock.Unavailable as error:
        raise Refused(str(error)) from None
    return held.close


def amqp_replay(house: House, user: str) -> LetGo:
    link = house.amqp(user)
    number = link.open_channel()
    link.send(m.BasicConsume(queue="held", arguments={"x-bookmark": "NOW"}), number)
    if isinstance(answer := link.read(), m.ChannelClose):
        link.send(m.ChannelCloseOk(), number)
        raise Refused(answer.reply_text)

    def let_go() -> None:
        link.send(m.ChannelClose(), number)
        while not isinstance(link.read(), m.ChannelCloseOk):
            pass

    return let_go


LONG = "SELECT * FROM range(1000000000)"
ARROW = "application/vnd.apache.arrow.stream"


def statement(thing: str, begun: Callable[[House, str], LetGo]) -> Callable[[House, str], LetGo]:
    """A statement that goes on until its client leaves.  Who finds no place waits for one, so it is not tried."""

    def take(house: House, user: str) -> LetGo:
        share = house.server.shares.of(thing)
        if (why := share.refusal(house.server.users.who(user))) is not None:
            raise Refused(str(why))
        had, let_go = share.of(user), begun(house, user)
        eventually(lambda: share.of(user) != had, f"{thing} did not begin", 20)
        return let_go

    return take


def over_http(house: House, user: str) -> LetGo:
    """As Arrow, of which nothing is read: as JSON it would end by itself after the rows that JSON may have."""
    body = orjson.dumps({"sql": LONG, "vhost": "/"})
    return asked(house, user, "POST /api/query", body, accept=ARROW).close


def over_flight(house: House, user: str) -> LetGo:
    thread, found = None, list[LetGo]()
    thread = threading.Thread(target=lambda: found.append(read(house, user, {"sql": {"statement": LONG}})), daemon=True)
    thread.start()
    thread.join(0.5)
    return lambda: (thread.join(20), [let_go() for let_go in found])


def hold(house: House, user: str) -> LetGo:
    read = f"r{time.monotonic_ns()}"
    answer = house.act(user, "hold", {"read": read, "start": 1})
    if answer.kind != "ok":
        raise Refused(answer.text)
    return lambda: house.act(user, "hold", {"read": read, "start": 1, "release": True})


def stage(house: House, user: str) -> LetGo:
    with penstock.connect(url(house, user)) as client:
        try:
            found = client.stage("q", 0, 0, 0, [pa.record_batch({"body": [b"x" * 1000]})], topic=HELD)
        except penstock.errors.DiskFull as error:
            raise Refused(str(error)) from None
    assert found is not None
    return lambda: house.act(user, "stage_drop", {"stages": [found[0]]})


def gathered(house: House, user: str) -> LetGo:
    """One row of one message."""
    client = penstock.connect(url(house, user))
    try:
        rows = client.sow_and_subscribe("held-topic", projection="/id, ANY(/text) AS /text", grouping="/id", timeout=30)
        assert rows.take() is not None
    except penstock.Unavailable as error:
        client.close()
        raise Refused(str(error)) from None
    return lambda: (rows.close(), client.close())


def conflated(house: House, user: str) -> LetGo:
    """One change that waits."""
    share, topic = house.server.shares.of("view_bytes"), f"t{time.monotonic_ns()}"
    had, refused = share.of(user), share.refused
    with penstock.connect(url(house, "keeper")) as keeper:
        keeper.declare_topic(topic)
        client = penstock.connect(url(house, user))
        rows = client.sow_and_subscribe(topic, conflation="1h", conflation_key="/id", timeout=60)
        pool = ThreadPoolExecutor(1)
        taken = pool.submit(rows.take)

        def counted() -> bool:
            keeper.publish(topic, {"id": 1, "text": "x" * 1000})  # of one key, so it takes the place of the last one
            return share.of(user) != had or share.refused != refused

        eventually(counted, seconds=20)

    def let_go() -> None:
        rows.close()
        client.close()
        pool.shutdown()

    if share.refused != refused:
        why = str(taken.exception(20))
        let_go()
        raise Refused(why)
    return let_go


class Way(NamedTuple):
    """How one of a thing is taken at a door."""

    thing: str
    door: str
    take: Callable[[House, str], LetGo]
    greedy: str = GREEDY
    whole: int = WHOLE


WAYS = (
    Way("connections", "amqp", amqp_connection),
    Way("connections", "flight", flight_connection),
    Way("http_requests", "http", http_request, TAGGED),
    Way("event_streams", "http", event_stream, TAGGED),
    Way("flight_calls", "flight", flight_call),
    Way("flight_streams", "flight", flight_stream),
    Way("flight_streams_still", "flight", standing_stream),
    Way("early_calls", "flight", early_call),
    Way("amqp_replays", "amqp", amqp_replay),
    Way("holds", "flight", hold),
    Way("stages", "flight", stage),
    Way("stage_bytes", "flight", stage, whole=40_000),
    Way("view_bytes", "flight", gathered, whole=40_000),
    Way("view_bytes", "flight", conflated, whole=20_000),
)

WITH_SQL = (
    Way("sql_statements", "http", statement("sql_statements", over_http), TAGGED, 2),
    Way("sql_statements", "flight", statement("sql_statements", over_flight), GREEDY, 2),
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("shares")) as house:
        with penstock.connect(url(house, "keeper")) as keeper:
            keeper.publish("held-topic", {"id": 1, "text": "x" * 1000})
        connections = house.server.shares.of("connections")
        eventually(lambda: not connections.of("keeper"), "who has gone has a connection still: less is left for others")
        yield house


def take_all(house: House, way: Way, user: str, taken: list[LetGo]) -> str:
    """Why there was no more."""
    for _ in range(200):
        try:
            taken.append(way.take(house, user))
        except Refused as refused:
            return str(refused)
    raise AssertionError(f"{user} took 200 of {way.thing}")


@pytest.mark.parametrize("way", [*WAYS, *WITH_SQL], ids=lambda way: f"{way.thing}-{way.door}-{way.take.__name__}")
def test_who_takes_what_it_can_leaves_some_for_others(house: House, way: Way) -> None:
    share = house.server.shares.of(way.thing)
    before, refused, whole, of_user = share.taken, share.refused, share.whole, share.of_user
    share.bound(way.whole + before)
    taken = list[LetGo]()
    try:
        why = take_all(house, way, way.greedy, taken)
        assert f"of user '{way.greedy}'" in why, why
        assert f"and {share.of_user} are allowed" in why, why
        assert 0 < share.of(way.greedy) < share.whole
        taken.append(way.take(house, SECOND))
        take_all(house, way, SECOND, taken)
        if THINGS[way.thing].kept:
            taken.append(way.take(house, ADMINISTRATOR))
        assert share.refused > refused or way in WITH_SQL
    finally:
        share.bound(whole)
        for let_go in taken:
            let_go()
    eventually(lambda: share.taken <= before, lambda: f"{share.taken} of {way.thing} are taken still", 20)
    assert share.of_user == of_user


def test_those_who_wait_for_a_statement_leave_room_for_others(house: House) -> None:
    """Six that waited over HTTP once took the threads of everything else that the door does beside the loop."""
    running, waiting = house.server.shares.of("sql_statements"), house.server.shares.of("sql_waiting")
    running.bound(2)
    waiting.bound(24)
    run, wait = statement("sql_statements", over_http), statement("sql_waiting", over_http)
    taken = [run(house, TAGGED)]
    try:
        why = take_all(house, Way("sql_waiting", "http", wait), TAGGED, taken)
        assert "12 SQL statements of user 'policymaker-all' wait for a place, and 12 are allowed" in why
        with contextlib.closing(asked(house, TAGGED, "POST /api/query", orjson.dumps({"sql": LONG}))) as link:
            assert why in answer(link)
        began = time.monotonic()
        found = httpx.get(
            f"http://127.0.0.1:{house._port('http')}/api/queues", verify=NO_TLS, auth=(SECOND, PASSWORD), timeout=30
        )
        assert found.status_code == 200
        assert time.monotonic() - began < 20
        taken.append(run(house, SECOND))
    finally:
        for let_go in reversed(taken):
            let_go()


def test_each_thing_has_a_row_and_is_told_of(house: House) -> None:
    assert {way.thing for way in (*WAYS, *WITH_SQL)} | {"sql_waiting"} == THINGS.keys()
    text = httpx.get(f"http://127.0.0.1:{house._port('http')}/metrics", verify=NO_TLS, timeout=20).text
    for thing in THINGS:
        for name in ("taken", "taken_of_user", "limit", "limit_of_user", "refused_total"):
            assert f'penstock_share_{name}{{of="{thing}"}}' in text, (thing, name)
    overview = httpx.get(
        f"http://127.0.0.1:{house._port('http')}/api/overview",
        verify=NO_TLS,
        auth=(ADMINISTRATOR, PASSWORD),
        timeout=20,
    ).json()
    shares: Mapping[str, Any] = overview["penstock"]["shares"]
    assert shares.keys() == THINGS.keys()
    assert shares["holds"] == {"taken": 0, "whole": 10_000, "of_user": 5_000, "largest": None} | {
        "refused": shares["holds"]["refused"]
    }
