"""The Python client against a real server: publish, consume, settle, look, replay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.core.queue.queue import Queue
from penstock.server.flight.door import FlightLimits

pytestmark = pytest.mark.conformance


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        yield client


def taken(consumer: penstock.Consumer) -> penstock.Message:
    """What comes next, however busy the machine is."""
    message = consumer.take(60)
    assert message is not None
    return message


def test_a_message_goes_through(client: penstock.Client) -> None:
    client.declare("q", lease_period="30s")
    receipt = client.publish(
        "q", {"id": 1}, priority=3, headers={"k": 1}, message_id="m", correlation_id="c", reply_to="r"
    )
    assert receipt.outcome == "stored"
    for message in client.consume("q", timeout=30):
        assert message.json() == {"id": 1}
        assert (message.lsn, message.bookmark) == (receipt.lsn, receipt.bookmark)
        assert (message.topic, message.exchange, message.attempt) == ("q", "", 1)
        assert message.headers == {"k": "1"}
        assert (message.priority, message.content_type) == (3, "application/json")
        assert (message.message_id, message.correlation_id, message.reply_to) == ("m", "c", "r")
        assert not message.redelivered
        assert abs(message.time - datetime.now(UTC)) < timedelta(seconds=30)
        assert message.lease_until is not None
        assert timedelta(0) < message.lease_until - message.time < timedelta(seconds=60)
        message.ack()
        break
    assert client.queue("q")["acked"] == 1
    assert client.queue("q")["ready"] == client.queue("q")["leased"] == 0


def test_a_message_that_nobody_wants_is_unroutable_unless_a_topic_keeps_it(client: penstock.Client) -> None:
    with pytest.raises(penstock.Unroutable, match="'nobody'"):
        client.publish("nobody", b"x")
    assert client.publish("nobody", b"x", mandatory=False).outcome == "unroutable"
    client.declare_topic("kept")
    assert client.publish("kept", b"x").outcome == "stored"
    assert [message.body for message in client.replay("kept")] == [b"x"]


def test_a_missing_exchange_is_an_error(client: penstock.Client) -> None:
    with pytest.raises(penstock.NotFound, match="nowhere"):
        client.publish("k", b"x", exchange="nowhere")


def test_exchanges_route_by_their_bindings(client: penstock.Client) -> None:
    client.declare_exchange("ex", "topic")
    client.declare("q")
    client.bind("q", "ex", "a.*")
    assert client.publish("a.b", b"1", exchange="ex").outcome == "stored"
    assert client.publish("b.b", b"2", exchange="ex").outcome == "unroutable"
    [seen] = client.peek("q")
    assert (seen.body, seen.topic, seen.exchange) == (b"1", "a.b", "ex")
    assert [m.body for m in client.replay("a.b", exchange="ex")] == [b"1"]
    assert list(client.replay("a.b")) == []
    client.unbind("q", "ex", "a.*")
    assert client.publish("a.b", b"3", exchange="ex").outcome == "unroutable"


def test_a_published_number_is_stored_once(client: penstock.Client) -> None:
    client.declare("q")
    assert client.publish("q", b"a", publisher="p", sequence=1).outcome == "stored"
    assert client.publish("q", b"a", publisher="p", sequence=1).outcome == "duplicate"
    again = client.publish_table("q", pa.table({"body": [b"a", b"b", b"c"]}), publisher="p", sequence=1)
    assert (again.stored, again.duplicates, again.rows) == (2, 1, 3)
    assert client.queue("q")["ready"] == 3


def test_a_table_goes_in_whole_and_in_order(client: penstock.Client) -> None:
    client.declare("q")
    rows = 25_000
    receipt = client.publish_table("q", pa.table({"n": range(rows)}))
    assert (receipt.stored, receipt.rows, receipt.refused) == (rows, rows, ())
    seen = [message.json()["n"] for message in client.replay("q")]
    assert seen == list(range(rows))
    assert client.queue("q")["ready"] == rows


def test_rows_with_topics_of_their_own(client: penstock.Client) -> None:
    client.declare("a")
    client.declare("b")
    client.publish_table(None, pa.table({"body": [b"1", b"2", b"3"], "topic": ["a", "b", "a"]}))
    assert [m.body for m in client.peek("a")] == [b"1", b"3"]
    assert [m.body for m in client.peek("b")] == [b"2"]


def test_consuming_many_keeps_order_and_the_backlog(client: penstock.Client) -> None:
    client.declare("q")
    client.publish_table("q", pa.table({"body": [str(n) for n in range(5_000)]}))
    with client.consume("q", backlog=100) as consumer:
        seen: list[bytes] = []
        most = 0
        for message in consumer:
            seen.append(message.body)
            if len(seen) % 1000 == 0:
                most = max(most, client.queue("q")["leased"])
            message.ack()
            if len(seen) == 5_000:
                break
        consumer.flush()
        assert consumer.stale == 0
    assert seen == [str(n).encode() for n in range(5_000)]
    assert most <= 100
    assert client.queue("q")["acked"] == 5_000


def test_the_verbs(client: penstock.Client, house: FlightHouse) -> None:
    client.declare("dead")
    client.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", retry={"initial": "1h", "jitter": 0.0})
    client.publish_table("q", pa.table({"body": ["ack", "release", "retry", "reject", "now"]}))
    with client.consume("q", backlog=5) as consumer:
        got = {m.body.decode(): m for m in (consumer.take(30) for _ in range(5)) if m is not None}
        got["ack"].ack()
        got["release"].release()
        got["retry"].retry(error="busy")
        got["reject"].reject(reason="poison")
        got["now"].retry(delay=timedelta(0))
        again = {m.body.decode(): m for m in (consumer.take(30) for _ in range(2)) if m is not None}
        assert sorted(again) == ["now", "release"]
        assert again["now"].attempt == again["release"].attempt == 2
        assert again["now"].redelivered
        consumer.flush()
        [waiting] = client.peek("q", states=["delayed"])
        assert (waiting.body, waiting.attempt, waiting.state) == (b"retry", 1, "delayed")
        assert {m.body for m in client.peek("q", states=["leased"])} == {b"now", b"release"}
        with pytest.raises(penstock.PreconditionFailed, match="settled already: ack"):
            got["ack"].ack()
    with client.consume("dead", timeout=30) as dead:
        letter = dead.take()
        assert letter is not None
        assert letter.body == b"reject"
        letter.ack()
    assert client.queue("q")["ready"] == 2


def test_a_context_settles_by_how_it_ends(client: penstock.Client) -> None:
    client.declare("q")
    client.publish("q", b"x")
    with client.consume("q", timeout=30) as consumer:
        first = consumer.take()
        assert first is not None
        with pytest.raises(ZeroDivisionError), first:
            _ = 1 / 0
        assert first.outcome == "retry"
        second = consumer.take()
        assert second is not None
        assert second.attempt == 2
        with second:
            pass
        assert second.outcome == "ack"


def test_leaving_the_loop_gives_back_what_is_not_settled(client: penstock.Client) -> None:
    client.declare("q")
    client.publish_table("q", pa.table({"body": ["1", "2", "3"]}))
    for message in client.consume("q"):
        message.ack()
        break
    assert client.queue("q")["ready"] == 2
    assert client.queue("q")["consumers"] == 0
    [next_up] = client.peek("q", 1)
    assert (next_up.body, next_up.attempt) == (b"2", 0)


def test_two_consumers_share_and_a_filter_takes_its_own(client: penstock.Client) -> None:
    client.declare("q", fairness_model="round-robin")
    with client.consume("q", filter="/n > 5", backlog=100) as high, client.consume("q", backlog=3) as any_one:
        client.publish_table("q", pa.table({"n": range(10)}))
        others = [taken(any_one).json()["n"] for _ in range(3)]
        large = [m.json()["n"] for m in iter(lambda: high.take(0.5), None)]
        assert any_one.take(0.01) is None, "it has as many as it may"
    assert set(large) <= {6, 7, 8, 9}
    assert len(others) == 3
    assert not set(large) & set(others)


def test_no_ack_consumers_settle_nothing(client: penstock.Client) -> None:
    client.declare("q")
    client.publish_table("q", pa.table({"body": ["1", "2"]}))
    with client.consume("q", no_ack=True) as consumer:
        assert [taken(consumer).body for _ in range(2)] == [b"1", b"2"]
        assert consumer.take(0.01) is None
    assert client.queue("q")["ready"] == 0


def test_a_message_that_came_again_can_be_extended_and_then_settled(client: penstock.Client) -> None:
    client.declare("q", leasing="strict", lease_period="30s")
    client.publish("q", b"once more")
    with client.consume("q", timeout=30) as consumer:
        next(iter(consumer)).release()
        again = next(iter(consumer))
        assert again.attempt == 2
        again.extend("60s")
        again.extend("90s")
        again.ack()
        consumer.flush()
        assert consumer.stale == 0
    assert list(client.peek("q")) == []


def test_a_settle_of_a_lease_that_has_ended_is_stale_where_the_same_consumer_has_it_again(
    client: penstock.Client, house: FlightHouse
) -> None:
    """Also of the first delivery, which no attempt above 1 gives away."""
    client.declare("fenced", leasing="strict", lease_period="100s")
    client.publish("fenced", b"twice")
    with client.consume("fenced", timeout=30) as consumer:
        first = consumer.take()
        assert first is not None
        house.clock.ahead += 110_000_000
        house.run(house.engine.tick)
        again = consumer.take()
        assert again is not None
        assert (first.attempt, again.attempt) == (1, 2)
        first.ack()
        consumer.flush()
        assert (consumer.stale, client.queue("fenced")["leased"]) == (1, 1)
        again.ack()
        consumer.flush()
        assert (consumer.stale, client.queue("fenced")["leased"]) == (1, 0)


def test_a_lease_ends_by_time_and_can_be_extended(client: penstock.Client, house: FlightHouse) -> None:
    client.declare("q", lease_period="100s")
    client.publish_table("q", pa.table({"body": ["short", "long"]}))
    with client.consume("q", backlog=2) as consumer:
        short, long = consumer.take(30), consumer.take(30)
        assert short is not None
        assert long is not None
        long.extend("600s")
        consumer.flush()
        house.clock.ahead = 110_000_000
        house.run(house.engine.tick)
        again = consumer.take(30)
        assert again is not None
        assert (again.body, again.attempt) == (b"short", 2)
        assert client.queue("q")["leased"] == 2
        house.clock.ahead = 750_000_000
        house.run(house.engine.tick)
        bodies = {m.body for m in (consumer.take(30), consumer.take(30)) if m is not None}
        assert bodies == {b"short", b"long"}


def test_delays_and_expiry(client: penstock.Client, house: FlightHouse) -> None:
    client.declare("q")
    client.publish("q", b"later", delay="1h")
    client.publish("q", b"gone", expiration=60)
    assert client.queue("q")["delayed"] == 1
    house.clock.ahead = 3_700_000_000
    house.run(house.engine.tick)
    assert [m.body for m in client.peek("q")] == [b"later"]
    with pytest.raises(penstock.InvalidArgument, match="either"):
        client.publish("q", b"x", delay=1, not_before=5)


def test_replay_from_a_bookmark_a_time_and_a_range(client: penstock.Client) -> None:
    client.declare("q")
    marks = [client.publish("q", str(n)) for n in range(5)]
    assert [m.body for m in client.replay("q", marks[2].bookmark)] == [b"3", b"4"]
    assert [m.body for m in client.replay("q", f"[{marks[1].bookmark}:{marks[3].bookmark})")] == [b"1", b"2"]
    assert [m.body for m in client.replay("q", f"({marks[1].bookmark}:{marks[3].bookmark}]")] == [b"2", b"3"]
    assert list(client.replay("q", "NOW")) == []
    times = [m.time for m in client.replay("q")]
    assert [m.body for m in client.replay("q", times[0])][-1] == b"4"
    assert list(client.replay("q", datetime.now(UTC) + timedelta(hours=1))) == []
    assert len(list(client.replay("q", datetime.now(UTC) - timedelta(hours=1)))) == 5
    assert [m.body for m in client.replay("q", limit=2)] == [b"0", b"1"]
    with pytest.raises(penstock.InvalidArgument, match="another log"):
        list(client.replay("q", "1|2|"))


def test_replay_of_several_topics_and_by_content(client: penstock.Client) -> None:
    client.declare("all", underlying_topic="^o", default_publish_target="oa")
    for name, n in (("oa", 1), ("ob", 2), ("oc", 3)):
        client.publish(name, {"n": n})
    assert [m.topic for m in client.replay(pattern="^o[ab]$")] == ["oa", "ob"]
    assert [m.topic for m in client.replay(pattern="^o", filter="/n >= 2")] == ["ob", "oc"]
    with pytest.raises(penstock.InvalidArgument, match="regular expression"):
        list(client.replay(pattern="(["))
    with pytest.raises(penstock.ExpressionError):
        list(client.replay("oa", filter="/n >="))


def test_the_log_is_a_table(client: penstock.Client) -> None:
    client.declare("q")
    receipt = client.publish("q", b"x")
    [batch] = list(client.log_batches(receipt.lsn, receipt.lsn + 1, ["lsn", "kind", "name", "body"]))
    assert batch.to_pylist() == [{"lsn": receipt.lsn, "kind": 1, "name": "q", "body": b"x"}]
    assert [batch.num_rows for batch in client.log_batches(receipt.lsn + 1)] == []


def test_administration(client: penstock.Client) -> None:
    assert client.declare("q", max_deliveries=3)["ready"] == 0
    client.declare("q", max_deliveries=3)
    with pytest.raises(penstock.PreconditionFailed, match="max_deliveries = 3, not 4"):
        client.declare("q", max_deliveries=4)
    client.alter("q", max_deliveries=4)
    client.declare("q", max_deliveries=4)
    with pytest.raises(penstock.InvalidArgument, match="max_length is"):
        client.declare("long", max_length=2**70)
    with pytest.raises(penstock.InvalidArgument, match="did you mean 'lease_period'"):
        client.declare("p", lease_periode=3)
    with pytest.raises(penstock.NotFound):
        client.declare("p", passive=True)
    client.publish_table("q", pa.table({"body": ["1", "2"]}))
    with pytest.raises(penstock.PreconditionFailed, match="not empty"):
        client.delete("q", if_empty=True)
    assert client.purge("q") == 2
    assert [queue["queue"] for queue in client.queues()] == ["q"]
    assert client.delete("q") == 0
    assert client.queues() == []
    with pytest.raises(penstock.NotFound):
        client.queue("q")


def test_a_deleted_queue_ends_its_consumers(client: penstock.Client) -> None:
    client.declare("q")
    with client.consume("q") as consumer:
        assert consumer.queues == ["q"], "the server has taken it"
        client.delete("q")
        with pytest.raises(penstock.NotFound, match="was deleted"):
            consumer.take(30)


def test_a_queue_that_a_fault_stops_ends_its_consumers_and_they_hear_its_name(
    client: penstock.Client, house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    client.declare("q", lease_period=1)
    client.publish("q", b"1")
    with client.consume("q", reconnect=0) as consumer:
        assert consumer.take(30) is not None
        monkeypatch.setattr(Queue, "tick", fails)
        house.clock.ahead += 2_000_000
        house.run(house.engine.tick)
        with pytest.raises(penstock.Unavailable, match="queue 'q' in vhost '/' was stopped by an internal error"):
            consumer.take(30)


@pytest.mark.parametrize("pattern", ["qa", "^q"])
def test_who_rejects_in_a_queue_that_a_fault_stops_hears_that_nothing_became_of_it(
    pattern: str, client: penstock.Client, house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = Queue.tick

    def fails(queue: Queue, *what: Any) -> None:
        if queue.name == "qa":
            raise RuntimeError
        tick(queue, *what)

    for name in ("letters", "qa", "qb"):
        client.declare(name, dead_letter_exchange="", dead_letter_routing_key="letters")
    client.publish("qa", b"1")
    asked = threading.Event()
    monkeypatch.setattr(house.engine.fetches, "_fetch", lambda effect: asked.set())
    with client.consume(pattern, reconnect=0) as consumer:
        taken(consumer).reject()
        assert asked.wait(30)
        monkeypatch.setattr(Queue, "tick", fails)
        core = house.engine.core
        house.run(lambda: core._tick(house.engine.now(), core.queue("/", "qa")))
        house.run(house.engine.finish_turn)
        with pytest.raises(penstock.Unavailable, match="queue 'qa' in vhost '/' was stopped"):
            consumer.flush(30)
    assert not house.engine.burying


def test_errors_of_a_consumer_come_when_it_is_iterated(client: penstock.Client) -> None:
    client.declare("q")
    with pytest.raises(penstock.NotFound, match="no queue 'none'"):
        next(iter(client.consume("none")))
    with pytest.raises(penstock.ExpressionError) as caught:
        next(iter(client.consume("q", filter="/a >")))
    assert caught.value.pointed().endswith("/a >\n      ^")


@pytest.mark.parametrize(
    "read",
    [
        lambda client: client.peek("q", filter="/a >"),
        lambda client: client.peek("q", states=("leased", "delayed"), filter="/a >"),
        lambda client: list(client.queue_batches("q", filter="/a >")),
        lambda client: list(client.replay("q", filter="/a >")),
        lambda client: list(client.sow("t", filter="/a >")),
        lambda client: list(client.sow("t", filter="/a >", projection="COUNT(/a) AS /n", grouping="/b")),
        lambda client: client.sow_delete("t", filter="/a >"),
        lambda client: client.move("q", "other", filter="/a >"),
        lambda client: client.redrive("q", filter="/a >"),
        lambda client: client.ack_filter("q", "/a >"),
    ],
)
def test_a_wrong_filter_is_told_of_what_is_empty_too(
    client: penstock.Client, read: Callable[[penstock.Client], object]
) -> None:
    client.declare("q")
    client.declare("other")
    client.declare_topic("t", key=["/a"])
    with pytest.raises(penstock.ExpressionError):
        read(client)


def test_nobody_is_asked_whether_he_meant_what_he_said(client: penstock.Client) -> None:
    client.declare("jobs")
    with pytest.raises(penstock.NotFound) as caught:
        client.topic("jobs")
    assert str(caught.value) == "no declared topic 'jobs' in vhost '/'"
    with pytest.raises(penstock.NotFound, match="did you mean 'jobs'"):
        client.topic("job")


def test_vhosts_are_apart(house: FlightHouse, client: penstock.Client) -> None:
    with penstock.connect(house.url + "/other") as other:
        other.declare("q")
        other.publish("q", b"theirs")
        client.declare("q")
        client.publish("q", b"ours")
        assert [m.body for m in other.replay("q")] == [m.body for m in other.peek("q")] == [b"theirs"]
        assert [m.body for m in client.replay("q")] == [m.body for m in client.peek("q")] == [b"ours"]
    with penstock.connect(house.url + "/nowhere") as nowhere, pytest.raises(penstock.NotFound, match="no vhost"):
        nowhere.declare("q")


def test_wrong_users_are_refused(house: FlightHouse) -> None:
    with pytest.raises(penstock.AccessRefused, match="may not log in"):
        penstock.connect(house.url, password="wrong")


def test_nobody_there(house: FlightHouse) -> None:
    with pytest.raises(penstock.Unavailable, match="answers at penstock://guest@127.0.0.1:1/: (?!no server)"):
        penstock.connect("penstock://127.0.0.1:1", timeout="2s")


def test_a_restart_keeps_everything_but_the_connection(tmp_path: Path) -> None:
    with FlightHouse(tmp_path) as house:
        with penstock.connect(house.url) as client:
            client.declare("q")
            client.publish_table("q", pa.table({"body": ["1", "2", "3"]}))
            for message in client.consume("q"):
                message.ack()
                break
        port = house.port
    house = FlightHouse(tmp_path)
    house.port = port
    with house, penstock.connect(house.url) as client:
        assert [m.body for m in client.peek("q")] == [b"2", b"3"]
        assert [m.body for m in client.replay("q")] == [b"1", b"2", b"3"]
        with client.consume("q", timeout=30) as consumer:
            message = consumer.take()
            assert message is not None
            assert message.redelivered or message.attempt >= 1


def test_stopping_the_server_ends_consumers_politely(tmp_path: Path) -> None:
    house = FlightHouse(tmp_path)
    house.__enter__()
    client = penstock.connect(house.url)
    client.declare("q")
    consumer = client.consume("q", reconnect=0)
    assert consumer.take(0.01) is None
    stopper = threading.Thread(target=house.__exit__)
    stopper.start()
    with pytest.raises(penstock.Unavailable):
        consumer.take(20)
    stopper.join(30)
    assert not stopper.is_alive()
    for ask in (lambda: client.publish("q", b"1"), lambda: client.peek("q"), lambda: client.stats("q")):
        with pytest.raises(penstock.Unavailable, match="^no server answers: "):
            ask()
    client.close()


def test_cold_messages_have_their_time_too(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, memory=1) as house, penstock.connect(house.url) as client:
        client.declare("q")
        client.publish_table("q", pa.table({"body": [str(n) for n in range(1000)]}))
        stored = [m.time for m in client.replay("q")]
        with client.consume("q", backlog=1000, timeout=30) as consumer:
            got = [m for m in (consumer.take(30) for _ in range(1000)) if m is not None]
            assert [m.body for m in got] == [str(n).encode() for n in range(1000)]
            assert [m.time for m in got] == stored


def test_streams_are_limited(tmp_path: Path) -> None:
    """A user's consumers keep that user out, and nobody else."""
    with FlightHouse(tmp_path, FlightLimits(streams=4)) as house, penstock.connect(house.url) as guest:
        guest.declare("q")
        reading = penstock.connect(house.url.replace("guest:guest", "reader:reader"))
        with reading as client, client.consume("q") as one, client.consume("q") as two:
            assert one.queues == two.queues == ["q"], "the server has both"
            refused = "2 Flight streams of user 'reader' are open, and 2 are allowed"
            with pytest.raises(penstock.Unavailable, match=refused):
                client.publish("q", b"x")
            assert client.health()["streams"] == 2
            assert guest.publish("q", b"x").outcome == "stored"
