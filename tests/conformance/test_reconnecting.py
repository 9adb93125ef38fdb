"""Consumers and replays of the client go on when their server was away: killed, stopped, out of reach for a while."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import penstock
from live_server import LiveServer
from penstock.client import exchange
from waiting import eventually

pytestmark = pytest.mark.conformance

WAIT_S = 60.0


class Lives(LiveServer):
    """A server that comes back at the same address."""

    @property
    def url(self) -> str:
        return f"penstock://{self.ready['flight']}"

    def come_back(self) -> None:
        self.flight = self.ready["flight"]
        self.start()

    def restart(self) -> None:
        """kill -9, and start again."""
        self.kill()
        self.come_back()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with Lives(tmp_path_factory.mktemp("server"), flight=True) as live:
        yield live


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def client(server: Lives, name: str) -> Iterator[penstock.Client]:
    if server.process is None or server.process.poll() is not None:
        server.come_back()
    with penstock.connect(server.url) as client:
        client.declare(name)
        yield client


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def soon(client: penstock.Client, name: str, body: bytes) -> None:
    """Publish to a server that has just come back, which the connection notices within a moment."""
    stored = list[str]()

    def publish() -> bool:
        with suppress(penstock.Unavailable):
            stored.append(client.publish(name, body).outcome)
        return bool(stored)

    eventually(publish, seconds=WAIT_S)


def fill(client: penstock.Client, name: str, count: int) -> list[str]:
    return [client.publish(name, body).bookmark for body in expected(count)]


@pytest.mark.parametrize("end", [Lives.kill, Lives.stop])
def test_an_iteration_goes_on_over_a_restart(
    server: Lives, client: penstock.Client, name: str, end: Callable[[Lives], None], caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, name, 10)
    seen = list[bytes]()
    again = list[bytes]()
    with client.consume(name, backlog=4) as consumer:
        for message in consumer:
            seen.append(message.body)
            if message.redelivered:
                again.append(message.body)
            if len(seen) == 3:
                consumer.flush()
                end(server)
                server.come_back()
                lost = consumer._exchange.answers
                eventually(lambda: lost.ended is not None, seconds=WAIT_S)  # noqa: B023 - called at once
                assert not message.extend("30s")
                assert not message.ack()
                assert message.outcome == "lost"
                soon(client, name, b"10")
            else:
                assert message.ack()
            if seen[-1] == b"10":
                break
        consumer.flush()
        assert consumer.stale == 2, "extend and ack of what was lost"
    assert sorted(set(seen), key=int) == expected(11)
    assert seen.count(b"2") == 2, "what was leased and not settled comes again"
    assert again[0] == b"2"
    assert len(seen) == 12, "what was settled does not, and what nobody took was dropped"
    assert client.queue(name)["ready"] == client.queue(name)["leased"] == 0
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "was lost and is tried again" in told[-2] or "was lost and is tried again" in told[1]
    assert any("has no effect" in one for one in told)
    assert any(one.startswith("connected to ") for one in told)


async def test_the_same_for_asyncio(server: Lives, client: penstock.Client, name: str) -> None:
    fill(client, name, 5)
    seen = list[bytes]()
    async with penstock.aio.connect(server.url) as own, own.consume(name, backlog=2) as consumer:
        async for message in consumer:
            async with message:
                seen.append(message.body)
                if len(seen) == 2:
                    await consumer.flush()
                    await asyncio.to_thread(server.restart)
            if message.body == b"4":
                break
    assert seen in ([b"0", b"1", b"1", b"2", b"3", b"4"], [b"0", *expected(5)[1:]])
    assert client.queue(name)["acked"] >= 4


def test_two_outages_and_a_pattern_of_queues(server: Lives, client: penstock.Client, name: str) -> None:
    client.declare("many-1", semantics="at-most-once")
    client.declare("many-2")
    with client.consume("^many-", timeout=WAIT_S) as consumer:
        for round in range(3):
            client.publish("many-1", b"a%d" % round)
            client.publish("many-2", b"b%d" % round)
            some = {consumer.take(), consumer.take()}
            bodies = sorted(message.body for message in some if message is not None)
            assert bodies == [b"a%d" % round, b"b%d" % round]
            for message in some:
                assert message is not None
                message.ack()
            consumer.flush()
            if round < 2:
                server.restart()


def test_terms_that_were_replaced_stay(server: Lives, client: penstock.Client, name: str) -> None:
    with client.consume(name, filter="/n > 5", backlog=7, timeout=WAIT_S) as consumer:
        assert consumer.effective_backlog == 7
        consumer.replace(filter="/n < 5", max_backlog=3)
        server.restart()
        soon(client, name, b'{"n": 9}')
        soon(client, name, b'{"n": 1}')
        message = consumer.take()
        assert message is not None
        assert (message.json(), consumer.effective_backlog) == ({"n": 1}, 3)


def test_how_long_it_tries(server: Lives, client: penstock.Client, name: str) -> None:
    fill(client, name, 1)
    with client.consume(name, reconnect="300ms") as consumer:
        message = consumer.take(WAIT_S)
        never = client.consume(name, reconnect=0)
        assert never.take(0.01) is None
        server.kill()
        with pytest.raises(penstock.Unavailable, match="was away for .* and is given up"):
            consumer.take(WAIT_S)
        assert consumer.take() is None, "it is over"
        assert message is not None
        assert not message.ack()
        with pytest.raises(penstock.Unavailable):
            never.take(WAIT_S)
        never.close()


def test_a_timeout_while_the_server_is_away_is_no_end(server: Lives, client: penstock.Client, name: str) -> None:
    with client.consume(name, timeout=0.2) as consumer, client.replay(name, "EPOCH", follow=True, timeout=5) as replay:
        assert consumer.take() is None, "the server is there, and nothing comes"
        client.publish(name, b"0")
        assert consumer.take(WAIT_S) is not None
        assert replay.take() is not None
        server.kill()
        for take in (consumer.take, replay.take):
            with pytest.raises(penstock.Unavailable, match="is away, and is tried again"):
                eventually(lambda take=take: take() is not None)  # type: ignore[misc]  # until it is noticed
        server.come_back()
        again = consumer.take(WAIT_S)
        assert again is not None
        assert (again.body, again.redelivered) == (b"0", True)


def test_closing_does_not_wait_for_a_server(server: Lives, client: penstock.Client, name: str) -> None:
    consumer, replay = client.consume(name), client.replay(name, "EPOCH", follow=True)
    client.publish(name, b"0")
    assert consumer.take(WAIT_S) is not None
    assert replay.take() is not None
    server.kill()
    takers = [threading.Thread(target=consumer.take), threading.Thread(target=replay.take)]
    for taker in takers:
        taker.start()
    consumer.close()
    replay.close()
    for taker in takers:
        taker.join(WAIT_S)
        assert not taker.is_alive()


def test_settles_on_their_way_are_told(
    server: Lives, client: penstock.Client, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exchange, "ASK_S", 3600.0)
    fill(client, name, 3)
    with client.consume(name, timeout=WAIT_S) as consumer:
        for _ in range(2):
            message = consumer.take()
            assert message is not None
            message.ack()
        server.restart()
        assert consumer.take() is not None
        assert "; what became of 2 settles is not known" in caplog.text
        with pytest.raises(penstock.Unavailable, match="a connection was lost with 2 settles on their way"):
            consumer.flush()
        consumer.flush()


def test_what_goes_with_an_ack_does_not_go_without_it(server: Lives, client: penstock.Client, name: str) -> None:
    client.declare("out")
    fill(client, name, 1)
    with client.consume(name, timeout=WAIT_S) as consumer:
        message = consumer.take()
        assert message is not None
        server.restart()
        again = consumer.take()
        assert again is not None
        with pytest.raises(penstock.Fenced, match="before the connection was lost"):
            message.ack(publish=[("out", b"0")])
        assert client.queue("out")["ready"] == 0
        again.ack(publish=[("out", b"0")])
    assert (client.queue("out")["ready"], client.queue(name)["acked"]) == (1, 1)


def test_a_queue_that_is_gone_after_the_restart_is_told(server: Lives, client: penstock.Client, name: str) -> None:
    client.declare("passing", durable=False)
    with client.consume("passing") as consumer:
        assert consumer.queues == ["passing"], "the server has taken it"
        server.restart()
        with pytest.raises(penstock.NotFound, match="passing"):
            consumer.take(WAIT_S)


@pytest.mark.parametrize(
    ("start", "follow"), [("EPOCH", True), ("2026-01-01T00:00:00", False), ("[{first}:2200-01-01T00:00:00]", True)]
)
def test_a_replay_goes_on_without_a_gap_and_without_a_double(
    server: Lives, client: penstock.Client, name: str, start: str, follow: bool
) -> None:
    first = fill(client, name, 5)[0]
    mark = start.format(first=first)
    seen = list[bytes]()
    with client.replay(name, mark, follow=follow, filter="1 = 1", limit=8, timeout=WAIT_S) as replay:
        for message in replay:
            seen.append(message.body)
            if len(seen) == 5:
                server.restart()
                for body in expected(8)[5:]:
                    soon(client, name, body)
                if not follow:
                    break
    assert seen == expected(8 if follow else 5)


def test_a_replay_that_saw_nothing_begins_where_it_began(server: Lives, client: penstock.Client, name: str) -> None:
    fill(client, name, 2)
    came = list[penstock.Message | None]()
    with client.replay(name, "NOW", follow=True, timeout=WAIT_S) as replay:
        taker = threading.Thread(target=lambda: came.append(replay.take()))
        taker.start()
        eventually(lambda: replay.completed, seconds=WAIT_S)
        server.kill()
        server.come_back()
        soon(client, name, b"2")  # perhaps before the replay has its connection again
        taker.join(WAIT_S)
        assert came[0] is not None
        assert came[0].body == b"2"


def test_a_replay_that_was_paused_stays_so(server: Lives, client: penstock.Client, name: str) -> None:
    fill(client, name, 1)
    with client.replay(name, "EPOCH", follow=True, timeout=WAIT_S) as replay:
        assert replay.take() is not None
        replay.pause()
        server.restart()
        soon(client, name, b"1")
        taker = threading.Thread(target=lambda: came.append(replay.take()))
        came = list[penstock.Message | None]()
        taker.start()
        taker.join(0.5)
        assert not came
        replay.resume(rate="1000")
        taker.join(WAIT_S)
        assert came[0] is not None
        assert came[0].body == b"1"


async def test_a_replay_for_asyncio_goes_on(server: Lives, client: penstock.Client, name: str) -> None:
    fill(client, name, 3)
    seen = list[bytes]()
    async with penstock.aio.connect(server.url) as own, own.replay(name, follow=True, timeout=WAIT_S) as replay:
        async for message in replay:
            seen.append(message.body)
            if len(seen) == 2:
                await asyncio.to_thread(server.restart)
                await asyncio.to_thread(soon, client, name, b"3")
            if len(seen) == 4:
                break
    assert seen == expected(4)


def test_records_come_anew_after_a_restart(server: Lives, client: penstock.Client, name: str) -> None:
    topic = f"{name}-records"
    client.declare_topic(topic, key=["/id"])
    for number in range(3):
        client.publish(topic, {"id": number})
    with client.sow_and_subscribe(topic, oof=True, timeout="20s", reconnect="1m") as records:
        assert sorted(records.take().json()["id"] for _ in range(3)) == [0, 1, 2]  # type: ignore[union-attr]
        server.kill()
        server.come_back()
        with penstock.connect(server.url) as other:
            other.sow_delete(topic, filter="/id = 1")
            other.publish(topic, {"id": 3})
            seen = dict[int, int]()
            while 4 not in seen:
                message = records.take()
                assert message is not None
                if message.event != "oof":
                    seen[message.json()["id"]] = records.restarts
                if 3 in seen and 4 not in seen:
                    other.publish(topic, {"id": 4})
        assert records.restarts == 1
        assert {0, 2, 3, 4} <= seen.keys()
        assert set(seen.values()) == {1}
    with pytest.raises(penstock.InvalidArgument, match="reconnect needs sow"):
        client.sow_and_subscribe(topic, sow=False, reconnect="1m")
    with client.sow_and_subscribe(topic, timeout="20s") as records:  # unless it is asked for
        assert records.take() is not None
        server.restart()
        with pytest.raises(penstock.Unavailable):
            list(records)
