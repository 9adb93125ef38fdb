"""Replays against a real server: pika consumers with `x-bookmark`, the client, the async client, the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

import penstock
from forked import penstock as command
from live_server import LiveServer
from waiting import eventually

pytestmark = pytest.mark.conformance

PERSISTENT = pika.BasicProperties(delivery_mode=2)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("server"), flight=True)
    live.loads = True  # its memory is judged
    with live:
        yield live
    assert "Traceback" not in live.output(), live.output()


@pytest.fixture
def client(server: LiveServer) -> Iterator[penstock.Client]:
    with penstock.connect(f"penstock://{server.ready['flight']}") as client:
        yield client


@pytest.fixture
def channel(server: LiveServer) -> Iterator[BlockingChannel]:
    yield server.connect().channel()
    server.bury()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


class Reader:
    """A pika consumer: what it got."""

    def __init__(self, channel: BlockingChannel, queue: str, bookmark: str, **arguments: Any) -> None:
        self.channel = channel
        self.bodies: list[bytes] = []
        self.bookmarks: list[str] = []
        self.tags: list[int] = []
        self.cancelled = False
        channel.add_on_cancel_callback(self._cancelled)
        self.tag = channel.basic_consume(
            queue, self._take, arguments={"x-bookmark": bookmark, "x-info": True, **arguments}
        )

    def _take(self, channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.bodies.append(body)
        self.tags.append(method.delivery_tag)
        self.bookmarks.append((properties.headers or {})["x-bookmark"])

    def _cancelled(self, frame: Any) -> None:
        self.cancelled = True

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < end, f"{len(self.bodies)} messages came"
            self.channel.connection.process_data_events(0.05)


def fill(client: penstock.Client, name: str, count: int, first: int = 0) -> list[str]:
    """Messages 0, 1 ...; their bookmarks."""
    client.declare(name)
    return [client.publish(name, b"%d" % (first + number)).bookmark for number in range(count)]


def expected(a: int, b: int) -> list[bytes]:
    return [b"%d" % number for number in range(a, b)]


def test_an_amqp_consumer_with_a_bookmark(client: penstock.Client, channel: BlockingChannel, name: str) -> None:
    marks = fill(client, name, 5)
    channel.basic_qos(prefetch_count=1)
    reader = Reader(channel, name, marks[1])
    reader.until(lambda: len(reader.bodies) >= 3)
    client.publish(name, b"5")
    reader.until(lambda: len(reader.bodies) >= 4)
    assert reader.bodies == expected(2, 6)
    assert reader.bookmarks[:3] == marks[2:]
    channel.basic_ack(reader.tags[0])
    channel.basic_ack(reader.tags[0])
    channel.basic_nack(reader.tags[1], requeue=True)
    channel.basic_ack(reader.tags[-1], multiple=True)
    assert channel.queue_declare(name, passive=True).method.message_count == 6, "nothing was taken, nothing settled"
    channel.basic_cancel(reader.tag)
    client.publish(name, b"6")
    channel.connection.process_data_events(0.1)
    assert len(reader.bodies) == 4


def test_a_range_ends_with_a_cancel(client: penstock.Client, channel: BlockingChannel, name: str) -> None:
    marks = fill(client, name, 5)
    reader = Reader(channel, name, f"[{marks[1]}:{marks[3]})")
    reader.until(lambda: reader.cancelled)
    assert reader.bodies == expected(1, 3)


def test_a_consumer_of_the_queue_beside_it(client: penstock.Client, channel: BlockingChannel, name: str) -> None:
    fill(client, name, 3)
    reader = Reader(channel, name, "EPOCH")
    taken: list[bytes] = []

    def take(channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        taken.append(body)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(name, take)
    reader.until(lambda: len(reader.bodies) == len(taken) == 3)
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    channel.basic_ack(4711)
    with pytest.raises(ChannelClosedByBroker, match="unknown delivery tag"):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-bookmark": "5|1|"}, "another log"),
        ({"x-bookmark": "soon"}, "is no bookmark"),
        ({"x-bookmark": "MOST_RECENT"}, "needs the name"),
        ({"x-bookmark": "EPOCH", "x-rate": "fast"}, "rate"),
        ({"x-bookmark": "EPOCH", "x-max-backlog": 3}, "does not go with"),
        ({"x-bookmark": 3}, "not text"),
        ({"x-rate": "1000"}, "x-rate goes with x-bookmark"),
        ({"x-rate-max-gap": "1s"}, "x-rate-max-gap goes with x-bookmark"),
        ({"x-bookmark-not-found": "fail"}, "x-bookmark-not-found goes with x-bookmark"),
        ({"x-filter": "/a >"}, "character 5 of '/a >'"),
    ],
)
def test_refusals_over_amqp(server: LiveServer, client: penstock.Client, arguments: dict[str, Any], why: str) -> None:
    fill(client, "refused", 1)
    connection = server.connect()
    with pytest.raises(Exception, match=why):
        connection.channel().basic_consume("refused", lambda *_: None, arguments=arguments)


def test_bindings_lead_to_a_queues_topics(client: penstock.Client, channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}-x", "topic", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, f"{name}-x", "a.*")
    channel.confirm_delivery()
    for key in ("a.b", "b.b", "a.c", "a.b.c"):
        channel.basic_publish(f"{name}-x", key, key.encode(), PERSISTENT)
    reader = Reader(channel, name, "EPOCH")
    reader.until(lambda: len(reader.bodies) >= 2)
    assert reader.bodies == [b"a.b", b"a.c"]
    assert [message.body for message in client.replay("a.c", exchange=f"{name}-x")] == [b"a.c"]


def test_no_gap_and_no_double_while_others_publish(server: LiveServer, client: penstock.Client, name: str) -> None:
    """Replays of all doors begin in the middle of a stream of messages."""
    client.declare(name)
    count, failures = 1_600, list[BaseException]()

    def publish() -> None:
        try:
            with penstock.connect(f"penstock://{server.ready['flight']}") as own:
                import pyarrow as pa

                for start in range(0, count, 40):
                    own.publish_table(name, pa.table({"body": expected(start, start + 40)}))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    publisher = threading.Thread(target=publish)
    publisher.start()
    results = dict[str, list[bytes]]()

    def follow(kind: str, bookmark: str, **wanted: Any) -> None:
        with penstock.connect(f"penstock://{server.ready['flight']}") as own:
            results[kind] = [m.body for m in own.replay(name, bookmark, follow=True, timeout=WAIT_S, **wanted)]

    readers = [
        threading.Thread(target=follow, args=("epoch", "EPOCH"), kwargs={"limit": count}),
        threading.Thread(target=follow, args=("filter", "EPOCH"), kwargs={"limit": count // 10, "filter": "1 = 1"}),
    ]
    for reader in readers:
        reader.start()
    amqp = Reader(server.connect().channel(), name, "EPOCH")
    amqp.until(lambda: len(amqp.bodies) >= count)
    for thread in (publisher, *readers):
        thread.join(WAIT_S)
    assert not failures
    assert amqp.bodies == expected(0, count)
    assert results == {"epoch": expected(0, count), "filter": expected(0, count // 10)}
    server.bury()


def test_a_reader_that_stands_still_costs_no_memory(server: LiveServer, client: penstock.Client, name: str) -> None:
    """It is sent nothing more than its connection takes, and reads on from the log when it moves again."""
    import pyarrow as pa

    client.declare(name)
    still = server.connect().channel()
    lsns: list[int] = []
    still.basic_consume(
        name, lambda c, m, p, body: lsns.append(int(body[:8])), auto_ack=True, arguments={"x-bookmark": "NOW"}
    )
    before = server.memory()
    rows = 4_000
    for start in range(0, rows, 1_000):
        body = [b"%08d" % number + b"x" * 5_000 for number in range(start, start + 1_000)]
        client.publish_table(name, pa.table({"body": pa.array(body, pa.binary())}))
    client.purge(name)
    grown = server.memory() - before
    end = time.monotonic() + 180
    while len(lsns) < rows and time.monotonic() < end:
        still.connection.process_data_events(0.2)
    assert lsns == list(range(rows))
    assert grown < 200 << 20, f"{grown >> 20} MiB"  # beside the bodies, which are in the cache
    server.bury()


def test_pause_resume_and_rate(client: penstock.Client, name: str) -> None:
    fill(client, name, 3)
    with client.replay(name, "EPOCH", follow=True, timeout=30) as replay:
        assert [replay.take().body for _ in range(3)] == expected(0, 3)  # type: ignore[union-attr]
        replay.pause()
        client.publish(name, b"3")
        replay.resume(rate="1000")
        message = replay.take()
        assert message is not None
        assert message.body == b"3"
        count = 4
        while count == 4 or not replay.completed:  # it is told that it is level, perhaps behind what came meanwhile
            client.publish(name, b"%d" % count)
            assert replay.take() is not None
            count += 1
            assert count < 50
    started = time.monotonic()
    with client.replay(name, "EPOCH", rate="20") as paced:
        assert [message.body for message in paced] == expected(0, count)
        assert paced.completed
    assert time.monotonic() - started > 0.19
    with pytest.raises(penstock.NotFound, match="no replay with the id"):
        paced.pause()


def test_notices_and_refusals(client: penstock.Client, name: str) -> None:
    marks = fill(client, name, 2)
    unknown = f"{marks[0].split('|')[0]}|{2**50}|"
    for follow in (False, True):
        with client.replay(name, unknown, follow=follow, timeout=WAIT_S) as replay, ThreadPoolExecutor(1) as pool:
            came = pool.submit(replay.take)
            eventually(lambda replay=replay: "was not found" in replay.notice)  # type: ignore[misc]
            if follow:
                client.publish(name, b"2")
            message = came.result(WAIT_S)
            assert (message and message.body) == (b"2" if follow else None), "nothing else came before it"
        whole = client.replay(name, unknown, bookmark_not_found="epoch", follow=follow, limit=2, timeout=WAIT_S)
        assert len(list(whole)) == 2
        with pytest.raises(penstock.NotFound, match="was not found"):
            list(client.replay(name, unknown, bookmark_not_found="fail", follow=follow))
        with pytest.raises(penstock.InvalidArgument, match="another log"):
            list(client.replay(name, "5|1|", follow=follow))
    with pytest.raises(penstock.NotFound, match="keeps the messages"):
        list(client.replay("nothing-keeps-it", follow=True))


def test_bookmarks_in_a_file(client: penstock.Client, name: str, tmp_path: Path) -> None:
    fill(client, name, 5)
    store = penstock.Bookmarks(tmp_path / "bookmarks.json")
    with client.replay(name, "MOST_RECENT", limit=3, name="me", bookmarks=store) as replay:
        assert [message.body for message in replay] == expected(0, 3)
    again = penstock.Bookmarks(tmp_path / "bookmarks.json")
    assert again.most_recent("me") == store.most_recent("me")
    with client.replay(name, "MOST_RECENT", name="me", bookmarks=again) as replay:
        assert [message.body for message in replay] == expected(3, 5)
    (tmp_path / "bookmarks.json").write_text("[]")
    with pytest.raises(penstock.InvalidArgument, match="no bookmarks"):
        penstock.Bookmarks(tmp_path / "bookmarks.json")


def test_the_async_client(server: LiveServer, client: penstock.Client, name: str) -> None:
    fill(client, name, 3)

    async def run() -> list[bytes]:
        got: list[bytes] = []
        async with penstock.aio.connect(f"penstock://{server.ready['flight']}") as own:
            async with own.replay(name, "EPOCH", follow=True, timeout=30) as replay:
                async for message in replay:
                    got.append(message.body)
                    if len(got) == 3:
                        await own.publish(name, b"3", publisher=name, sequence=9)
                    if len(got) == 4:
                        break
            assert await own.last_sequence(name) == 9
            got += [message.body async for message in own.replay(name, "EPOCH", limit=1)]
        return got

    assert asyncio.run(run()) == [*expected(0, 4), b"0"]


def test_the_command_line(server: LiveServer, client: penstock.Client, name: str) -> None:
    marks = fill(client, name, 4)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return command("replay", *arguments, "--url", f"penstock://{server.ready['flight']}")

    assert run(name, "--bookmark", marks[1]).stdout.split() == ["2", "3"]
    assert run(name, "--follow", "--count", "4").stdout.split() == ["0", "1", "2", "3"]
    rows = [json.loads(line) for line in run(name, "--json", "--bookmark", f"[{marks[0]}:{marks[0]}]").stdout.split()]
    assert [(row["bookmark"], row["body"]) for row in rows] == [(marks[0], "0")]
    assert run(name, "--bookmark", "5|1|").returncode == 2
    lost = run(name, "--bookmark", f"{marks[0].split('|')[0]}|{2**50}|")
    assert lost.returncode == 0
    assert "was not found" in lost.stderr


def test_publishers_over_amqp_and_their_last_sequence(
    client: penstock.Client, channel: BlockingChannel, name: str
) -> None:
    client.declare(name)
    channel.confirm_delivery()
    for number in (1, 2, 2, 1, 5, 4, 6):
        headers = {"x-publisher": name, "x-sequence": number}
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        channel.basic_publish("", name, b"%d" % number, properties)  # a duplicate is confirmed like the others
    assert [message.body for message in client.replay(name)] == [b"1", b"2", b"5", b"6"]
    assert client.last_sequence(name) == 6
    assert client.publish(name, b"6", publisher=name, sequence=6).outcome == "duplicate"
    bad = pika.BasicProperties(delivery_mode=2, headers={"x-publisher": name})
    with pytest.raises(ChannelClosedByBroker, match="x-sequence"):
        channel.basic_publish("", name, b"7", bad)


def test_a_table_sent_again_is_stored_once(client: penstock.Client, name: str) -> None:
    """Part of it was stored before, and one acknowledgement says how far."""
    import pyarrow as pa

    client.declare(name)
    first = client.publish_table(name, pa.table({"body": expected(1, 4)}), publisher=name, sequence=1)
    assert (first.stored, first.duplicates, first.sequence) == (3, 0, 3)
    again = client.publish_table(name, pa.table({"body": expected(1, 8)}), publisher=name, sequence=1)
    assert (again.stored, again.duplicates, again.sequence) == (4, 3, 7)
    assert [message.body for message in client.replay(name)] == expected(1, 8)


def test_a_killed_server_and_a_reader_that_goes_on(tmp_path: Path) -> None:
    """Whatever a reader has seen is there after kill -9, and from its last bookmark on nothing is missing."""
    with LiveServer(tmp_path, flight=True) as server:
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            client.declare("q")
            stop = threading.Event()

            def publish() -> None:
                number = 0
                with suppress(penstock.PenstockError), penstock.connect(client_url(server)) as own:
                    while not stop.is_set():
                        own.publish("q", b"%d" % number, publisher="p", sequence=number + 1)
                        number += 1

            publisher = threading.Thread(target=publish)
            publisher.start()
            seen = list[tuple[str, bytes]]()
            with suppress(penstock.PenstockError):
                for message in client.replay("q", "EPOCH", follow=True, timeout=WAIT_S, reconnect=0):
                    seen.append((message.bookmark, message.body))
                    if len(seen) == 100:
                        server.kill()
            stop.set()
            publisher.join(WAIT_S)
        server.start()
        with penstock.connect(client_url(server)) as client:
            there = [(message.bookmark, message.body) for message in client.replay("q", "EPOCH")]
            assert there[: len(seen)] == seen
            assert [body for _, body in there] == expected(0, len(there))
            rest = [message.body for message in client.replay("q", seen[-1][0])]
            assert rest == expected(len(seen), len(there))
            assert client.last_sequence("p") == len(there)


def client_url(server: LiveServer) -> str:
    return f"penstock://{server.ready['flight']}"
