"""`penstock queue recover`: what was purged, deleted or withdrawn comes back once, as it was, to one queue alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import penstock
from live_server import LiveServer
from penstock.cli import republishing
from penstock.cli.amqp_link import Link
from penstock.wire.amqp import methods as m

Run = Callable[..., tuple[int, str, str]]


class House:
    """A server with AMQP and Flight, and the command on its folder."""

    def __init__(self, server: LiveServer, run: Run) -> None:
        self.server, self._run, self.data = server, run, str(server.data)

    @property
    def url(self) -> str:
        return f"penstock://guest:guest@{self.server.ready['flight']}"

    def client(self, vhost: str = "") -> penstock.Client:
        return penstock.connect(self.url + vhost)

    def recover(self, queue: str, *more: str, vhost: str = "", code: int = 0) -> Any:
        """What it tells; with another status its error."""
        status, out, err = self._run(
            "queue", "recover", queue, "--data", self.data, "--url", self.url + vhost, "--json", *more
        )
        assert status == code, out + err
        return json.loads(err)["error"]["message"] if code and not out else json.loads(out)

    def compact(self) -> None:
        """Stop, leave out what nobody needs of the old segments, and start again."""
        self.server.stop()
        status, out, err = self._run("log", "compact", "--data", self.data, "--size", "1KB", "--json")
        assert status == 0, err
        assert json.loads(out)["dropped"] + json.loads(out)["deleted"] > 0, out
        self.server.start()


CONFIG = """
[log]
segment = "64KiB"
retention = { bytes = "1GB" }
"""


@pytest.fixture
def house(tmp_path: Path, run: Run) -> Iterator[House]:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    with LiveServer(tmp_path, [str(tmp_path / "penstock.toml")], flight=True) as server:
        yield House(server, run)


def bodies(client: penstock.Client, queue: str) -> list[bytes]:
    return [one.body for one in client.peek(queue, 10_000)]


def test_a_purge_comes_back_as_it_was_and_to_no_other_queue(house: House) -> None:
    with house.client() as client:
        client.declare("mine", underlying_topic="orders")
        client.declare("other", underlying_topic="orders")
        client.publish("orders", b"settled")
        client.publish("orders", b"leased")
        with client.consume("mine", backlog=1) as consumer:
            messages = iter(consumer)
            next(messages).ack()
            next(messages)
            channel = house.server.connect().channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(
                content_type="text/plain", headers={"n": 7, "list": [1, "a"], "CC": ["elsewhere"]}, delivery_mode=2,
                priority=3, correlation_id="c", reply_to="r", message_id="m", timestamp=12, type="t", app_id="a",
            )  # fmt: skip
            channel.basic_publish("", "orders", b"1", properties, mandatory=True)
            for n in range(2, 6):
                client.publish("orders", str(n).encode(), priority=n)
            assert client.purge("mine") == 5
        before = bodies(client, "other")
        [one] = house.recover("mine")
        assert (one["what"], one["messages"], one["expired"], one["readable"], one["log"]) == ("purged", 5, 0, 5, 5)
        assert abs(one["time"] - time.time()) < 60
        lsn = str(one["lsn"])
        told = house.recover("mine", "--lsn", lsn)
        assert (told["dry_run"], told["readable"], told["published"]) == (True, 5, 0)
        assert bodies(client, "mine") == [b"leased"]
        assert house.recover("mine", "--lsn", lsn, "--yes")["published"] == 5
        assert bodies(client, "mine") == [b"leased", b"1", b"2", b"3", b"4", b"5"]
        assert [one.priority for one in client.peek("mine", 10)][1:] == [3, 2, 3, 4, 5]
        again = house.recover("mine", "--lsn", lsn, "--yes")
        assert (again["published"], again["unroutable"]) == (0, 0)
        assert len(bodies(client, "mine")) == 6
        assert bodies(client, "other") == before
        assert not [one for one in client.exchanges() if one["name"].startswith("recover")]
        client.move("mine", "other", count=1)  # what was leased, which came back
    method, found, body = channel.basic_get("mine")
    assert (body, method.routing_key, found) == (b"1", "orders", properties)


def test_a_deleted_queue_gives_what_was_ready_leased_and_delayed(house: House) -> None:
    with house.client() as client:
        client.declare("gone")
        client.publish("gone", b"leased")
        with client.consume("gone", backlog=1) as consumer:
            next(iter(consumer))
            client.publish("gone", b"ready")
            client.publish("gone", b"delayed", delay="1h")
            client.publish("gone", b"expired", expiration="1ms")
            client.publish("gone", b"expires", expiration="1h")
            time.sleep(0.01)  # until its time is over: the machine's clock is asked
            client.delete("gone")
        [one] = house.recover("gone")
        lsn = str(one["lsn"])
        assert (one["what"], one["readable"]) == ("deleted", 4)
        assert "declare it first" in house.recover("gone", "--lsn", lsn, "--yes", code=1)
        client.declare("new")
        assert house.recover("gone", "--lsn", lsn, "--to", "new", "--yes")["published"] == 4
        assert bodies(client, "new") == [b"leased", b"ready", b"expires"]
        assert client.queue("new")["delayed"] == 1
        client.declare("gone")
        assert house.recover("gone", "--lsn", lsn, "--yes")["published"] == 0, "each comes once, wherever to"
        assert len(house.recover("gone")) == 1, "of its name there are two queues, and the second lost nothing"


def test_a_message_that_was_withdrawn(house: House) -> None:
    with house.client() as client:
        client.declare("q")
        receipts = [client.publish("q", body) for body in (b"1", b"2", b"3")]
        client.cancel(receipts[1].lsn)
        [one] = house.recover("q")
        assert (one["what"], one["by"], one["messages"]) == ("withdrawn", "guest", 1)
        assert house.recover("q", "--lsn", str(one["lsn"]), "--yes")["published"] == 1
        assert bodies(client, "q") == [b"1", b"3", b"2"]


def test_one_that_is_killed_halfway_goes_on_where_it_was(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with house.client() as client:
        client.declare("q")
        for n in range(100):
            client.publish("q", str(n).encode())
        client.purge("q")
        [one] = house.recover("q")
        lsn = str(one["lsn"])
        call, commits = Link.call, 0

        def killed(self: Link, method: Any, answer: Any) -> Any:
            """The fourth transaction is on its way, and its answer is heard by nobody."""
            nonlocal commits
            commits += isinstance(method, m.TxCommit)
            found = call(self, method, answer)
            if commits == 4:
                raise MemoryError
            return found

        with monkeypatch.context() as patched:
            patched.setattr(republishing, "BATCH_MESSAGES", 10)
            patched.setattr(Link, "call", killed)
            patched.setattr(penstock.Client, "delete_exchange", lambda *_: None)  # nothing is tidied up
            with pytest.raises(MemoryError):
                house.recover("q", "--lsn", lsn, "--yes")
        assert len(bodies(client, "q")) == 40
        house.server.kill()
        house.server.start()
    with house.client() as client:
        client.declare("other")
        told = house.recover("q", "--lsn", lsn, "--yes", "--to", "other")
        assert told["published"] == 60
        assert bodies(client, "q") + bodies(client, "other") == [str(n).encode() for n in range(100)]
        assert not [one for one in client.exchanges() if one["name"].startswith("recover")]


def test_a_queue_of_another_vhost_has_the_same_name(house: House) -> None:
    with house.client() as client:
        client.add_vhost("shop")
        client.declare("q")
        client.publish("q", b"here")
        client.purge("q")
    with house.client("/shop") as client:
        client.declare("q")
        client.publish("q", b"there")
        client.purge("q")
        [one] = house.recover("q", "--vhost", "shop")
        assert [one] == house.recover("q", vhost="/shop")
        assert one["lsn"] != house.recover("q")[0]["lsn"]
        assert "took nothing from queue 'q'" in house.recover("q", "--lsn", str(one["lsn"]), code=2)
        assert house.recover("q", "--lsn", str(one["lsn"]), "--vhost", "shop", "--yes")["published"] == 1
        assert bodies(client, "q") == [b"there"]
        client.delete_vhost("shop")
        assert [one["what"] for one in house.recover("q", "--vhost", "shop")] == ["purged", "deleted"]


def fill(client: penstock.Client, queue: str, count: int = 60) -> list[bytes]:
    """Messages of several segments, every third of which is settled."""
    client.declare(queue)
    sent = [f"{n:06}".encode() * 1000 for n in range(count)]
    for one in sent:
        client.publish(queue, one)
    with client.consume(queue, backlog=count) as consumer:
        for n, message in zip(range(count), consumer, strict=False):
            if n % 3 == 0:
                message.ack()
    return [one for n, one in enumerate(sent) if n % 3]


def test_of_a_log_that_was_compacted_an_older_backup_tells(house: House, tmp_path: Path, run: Run) -> None:
    with house.client() as client:
        left = fill(client, "q")
        assert run("backup", str(tmp_path / "backup"), "--url", house.url)[0] == 0
        client.purge("q")
        [one] = house.recover("q")
        assert (one["log"], one["readable"]) == (40, 40)
        lsn = str(one["lsn"])
    house.compact()
    backup = ("--backup", str(tmp_path / "backup"))
    [told] = house.recover("q")
    assert (told["messages"], told["readable"]) == (40, kept := told["log"])
    assert kept < 10, "of the segment that was open"
    assert house.recover("q", "--lsn", lsn, code=1)["lost"] == 40 - kept
    [told] = house.recover("q", *backup)
    assert (str(told["lsn"]), told["messages"], told["log"], told["backup"]) == (lsn, 40, kept, 40 - kept)
    with house.client() as client:
        assert house.recover("q", *backup, "--lsn", lsn, "--yes")["published"] == 40
        assert bodies(client, "q") == left
        assert house.recover("q", *backup, "--lsn", lsn, "--yes")["published"] == 0
        fill(client, "later")
    house.compact()
    assert "nothing tells of LSNs 1 to " in house.recover("q", "--lsn", lsn, code=1)
    said = house.recover("q", *backup, "--lsn", lsn, code=1)
    assert f"nothing tells of LSNs {lsn} to " in said, "the backup ends before it, and the log begins behind it"
    other = tmp_path / "restored"
    assert run("restore", str(tmp_path / "backup"), str(other))[0] == 0
    assert run("backup", str(tmp_path / "of-another"), "--data", str(other))[0] == 0
    assert "is a backup of another log" in house.recover("q", "--backup", str(tmp_path / "of-another"), code=2)


def test_bodies_that_have_left_the_log_are_read_in_the_archive(house: House, run: Run) -> None:
    with house.client() as client:
        left = fill(client, "q")
        client.purge("q")
        client.declare("later")
        fill(client, "later")
    house.server.stop()
    assert run("log", "archive", "--data", house.data)[0] == 0
    house.server.start()
    house.compact()
    [one] = house.recover("q")
    assert (one["messages"], one["readable"], one["log"] + one["archive"]) == (40, 40, 40)
    assert one["archive"] > 20
    with house.client() as client:
        assert house.recover("q", "--lsn", str(one["lsn"]), "--yes")["published"] == 40
        assert bodies(client, "q") == left


def test_what_is_refused(house: House, tmp_path: Path) -> None:
    with house.client() as client:
        client.declare("q", dedup_key="/id", dedup_window="1h")
        receipt = client.publish("q", b'{"id": 1}')
        client.purge("q")
        [one] = house.recover("q")
        lsn = str(one["lsn"])
        assert "knows no queue 'none' in vhost '/'" in house.recover("none", code=1)
        assert "there is no record with LSN 99999999" in house.recover("q", "--lsn", "99999999", code=1)
        assert "is a record PUBLISH of 'q'" in house.recover("q", "--lsn", str(receipt.lsn), code=2)
        assert "LSN 1 took nothing from queue 'q': it is a record" in house.recover("q", "--lsn", "1", code=2)
        assert "--yes and --to go with --lsn" in house.recover("q", "--yes", code=2)
        assert "is no data folder" in house.recover("q", "--data", str(tmp_path / "none"), code=2)
        assert "is no folder" in house.recover("q", "--backup", str(tmp_path / "none"), code=2)
        assert "holds no complete backup" in house.recover("q", "--backup", str(tmp_path), code=2)
        assert "is no archive" in house.recover("q", "--archive", str(tmp_path), code=2)
        assert "lets no duplicates in for 1h" in house.recover("q", "--lsn", lsn, "--yes", code=1)
        client.declare("full", max_length=0, overflow="reject-publish")
        assert "max_length is 0" in house.recover("q", "--lsn", lsn, "--to", "full", "--yes", code=1)
        client.declare("short", max_length=1)
        client.publish("short", b"kept")
        for limit in ({"max_length": 1}, {"max_length": None, "ring_size": 1}):
            client.alter("short", **limit)
            said = house.recover("q", "--lsn", lsn, "--to", "short", "--yes", code=1)
            assert "keeps 1 ready messages and has 1: with 1 more it would drop the oldest 1" in said
        client.alter("short", ring_size=None, max_length_bytes=12)
        said = house.recover("q", "--lsn", lsn, "--to", "short", "--yes", code=1)
        assert "keeps 12 bytes of ready messages and has 4: with 9 bytes more it would drop the oldest" in said
        assert bodies(client, "short") == [b"kept"]
        client.declare("picky", filter="/id = 2")
        assert house.recover("q", "--lsn", lsn, "--to", "picky", "--yes", code=1)["unroutable"] == 1


def test_a_person_reads_what_it_means(house: House, run: Run) -> None:
    common = ("--data", house.data, "--url", house.url)
    with house.client() as client:
        client.declare("q")
        assert run("queue", "recover", "q", *common)[1] == "nothing was purged, deleted or withdrawn from queue q\n"
        client.publish("q", b"1")
        client.purge("q")
        [one] = house.recover("q")
        assert "purged" in run("queue", "recover", "q", *common)[1]
        lsn = ("--lsn", str(one["lsn"]))
        assert run("queue", "recover", "q", *common, *lsn)[1] == "1 message would be published to queue q: say --yes\n"
        done = "1 message published to queue q, all on disk\n"
        assert run("queue", "recover", "q", *common, *lsn, "--yes") == (0, done, "")
        done = "0 messages published to queue q, all on disk\n1 message had been published before\n"
        assert run("queue", "recover", "q", *common, *lsn, "--yes") == (0, done, "")
