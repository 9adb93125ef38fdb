"""Who publishes one message after another: few calls, and all else as if each had its own."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse, house_with_a_queue
from penstock.client import kept_uploads, outgoing
from penstock.errors import NotFound, QueueFull, Unavailable, Unroutable
from penstock.server.flight.call_streams import Answers, Sent
from penstock.server.flight.calls import Caller
from penstock.server.flight.door import FlightDoor
from waiting import eventually


class Calls:
    """What the Flight door was asked for by uploads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        put = FlightDoor.put

        def counted(door: FlightDoor, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None:
            self.made += 1
            put(door, caller, command, sent, writer)

        monkeypatch.setattr(FlightDoor, "put", counted)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(kept_uploads, "KEPT_S", 60.0)
    return Calls(monkeypatch)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with house_with_a_queue(tmp_path) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        yield client


def bodies(client: penstock.Client, queue: str = "q") -> list[bytes]:
    return [one.body for one in client.peek(queue, 100_000)]


def test_messages_that_go_the_same_way_share_a_call(client: penstock.Client, calls: Calls) -> None:
    receipts = [client.publish("q", b"%d" % number) for number in range(50)]
    assert calls.made == 2  # the first one's own, and the others'
    assert bodies(client) == [b"%d" % number for number in range(50)]
    lsns = [receipt.lsn for receipt in receipts]
    assert lsns == sorted(set(lsns))
    assert all(receipt.outcome == "stored" for receipt in receipts)


def test_each_way_has_calls_of_its_own(client: penstock.Client, calls: Calls) -> None:
    """Topics, and which properties a message has."""
    client.declare("other")
    for number in range(10):
        client.publish("q", b"%d" % number)
        client.publish("other", b"%d" % number, headers={"a": number})
        client.publish("other", {"number": number})
    assert calls.made == 6
    assert bodies(client) == [b"%d" % number for number in range(10)]
    told = [(one.body, one.headers, one.content_type) for one in client.peek("other", 100)]
    assert told[6:8] == [(b"3", {"a": "3"}, None), (b'{"number":3}', {}, "application/json")]


def test_a_numbered_publisher_goes_on_with_its_next_number(client: penstock.Client, calls: Calls) -> None:
    def publish(number: int) -> str:
        return client.publish("q", b"%d" % number, publisher="p", sequence=number).outcome

    assert [publish(number) for number in range(1, 11)] == ["stored"] * 10
    assert calls.made == 2
    assert [publish(10), publish(4), publish(12), publish(13)] == ["duplicate", "duplicate", "stored", "stored"]
    assert calls.made == 5  # no upload was at one of the first three numbers
    assert client.last_sequence("p") == 13
    assert bodies(client) == [b"%d" % number for number in (*range(1, 11), 12, 13)]


def test_what_is_refused_is_refused_alone(client: penstock.Client, calls: Calls) -> None:
    client.declare("small", max_length=3, overflow="reject-publish")
    outcomes = list[str]()
    for number in range(6):
        try:
            outcomes.append(client.publish("small", b"%d" % number).outcome)
        except QueueFull:
            outcomes.append("full")
            if number == 4:
                client.purge("small")
    assert outcomes == ["stored"] * 3 + ["full"] * 2 + ["stored"]
    assert calls.made == 2
    for _ in range(3):
        with pytest.raises(Unroutable):
            client.publish("nowhere", b"x")
    for _ in range(3):
        assert client.publish("nowhere", b"x", mandatory=False).outcome == "unroutable"


def test_an_upload_that_the_server_ends_is_used_no_more(client: penstock.Client, calls: Calls) -> None:
    client.declare_exchange("e")
    client.bind("q", "e", "k")
    for number in range(3):
        client.publish("k", b"%d" % number, exchange="e")
    client.delete_exchange("e")
    for _ in range(2):
        with pytest.raises(NotFound, match="'e'"):
            client.publish("k", b"x", exchange="e")
    client.declare_exchange("e")
    client.bind("q", "e", "k")
    client.publish("k", b"3", exchange="e")
    assert bodies(client) == [b"0", b"1", b"2", b"3"]


def test_threads_have_one_each(client: penstock.Client, calls: Calls) -> None:
    def publish(first: int) -> None:
        for number in range(first, first + 25):
            client.publish("q", b"%d" % number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(0, 100, 25)))
    assert calls.made <= 8
    found = [int(body) for body in bodies(client)]
    assert sorted(found) == list(range(100))
    for first in range(0, 100, 25):
        mine = [number for number in found if first <= number < first + 25]
        assert mine == sorted(mine)


def test_they_end_soon(house: FlightHouse, client: penstock.Client) -> None:
    now = [0.0]
    client._kept._clock = lambda: now[0]  # what this machine does meanwhile takes no time
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert client._kept.idle == 1
    eventually(lambda: house.door.calls.streams == 1)
    now[0] += 0.9 * kept_uploads.KEPT_S
    client.publish("q", b"still")
    assert client._kept.idle == 1
    now[0] += 1.1 * kept_uploads.KEPT_S
    eventually(lambda: house.door.calls.streams == 0)
    client.publish("q", b"3")
    assert bodies(client) == [b"1", b"2", b"still", b"3"]


def test_they_end_with_their_client(house: FlightHouse, calls: Calls) -> None:
    with penstock.connect(house.url) as client:
        for _ in range(3):
            client.publish("q", b"x")
        assert house.door.calls.streams == 1
    eventually(lambda: house.door.calls.streams == 0)
    with pytest.raises(Unavailable, match="is closed"):
        client.publish("q", b"x")


def test_no_more_than_some_wait(house: FlightHouse, client: penstock.Client, calls: Calls) -> None:
    for number in range(kept_uploads.KEPT_MOST + 4):
        client.declare(f"q{number}")
        client.publish(f"q{number}", b"x")
        client.publish(f"q{number}", b"x")
    eventually(lambda: house.door.calls.streams == kept_uploads.KEPT_MOST)


def test_without_a_thread_to_watch_them_none_stays(
    client: penstock.Client, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was stored is told as stored."""

    def exhausted(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(kept_uploads.threading.Thread, "start", exhausted)
    assert [client.publish("q", b"x").outcome for _ in range(4)] == ["stored"] * 4
    assert client._kept.idle == 0
    assert calls.made == 4


def test_after_a_loss_none_of_the_others_is_used(tmp_path: Path, calls: Calls) -> None:
    """They had the same connection: each of them would be one more message in doubt."""
    with FlightHouse(tmp_path) as house:
        client = penstock.connect(house.url)
        for name in ("q", "other"):
            client.declare(name)
            client.publish(name, b"x")
            client.publish(name, b"x")
        assert client._kept.idle == 2
    with pytest.raises(Unavailable):
        client.publish("q", b"lost")
    assert client._kept.idle == 0
    client.close()


class Nowhere:
    """A call whose every batch is stored at once."""

    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def write_metadata(self, words: bytes) -> None: ...
    def done_writing(self) -> None: ...
    def close(self) -> None: ...

    def read(self) -> pa.Buffer:
        said = b'{"rows":1,"stored":1,"duplicates":0,"unroutable":0,"refused_rows":0,"refused":[],"first":1,"last":1}'
        return pa.py_buffer(said)


def test_one_thread_looks_after_them_as_long_as_messages_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits while the next message is under way: that is no reason to end, and to begin anew for each."""
    begun = list[str]()

    class Counted(threading.Thread):
        def start(self) -> None:
            begun.append(self.name)
            super().start()

    monkeypatch.setattr(kept_uploads.threading, "Thread", Counted)
    clock = count()  # of milliseconds, so that a machine that stands still is no reason to end either
    kept, batch = kept_uploads.Kept(lambda: next(clock) / 1000), outgoing.one_row({"body": b"x"})
    until = time.monotonic() + 5 * kept_uploads.KEPT_S
    while time.monotonic() < until:
        kept.send("way", None, batch, lambda: (Nowhere(), Nowhere()))
    kept.close()
    assert begun == ["penstock-kept"]
