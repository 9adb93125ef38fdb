"""Followers with `follower_reads` give rows of their copy, and nothing that is not committed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import penstock
from cluster_of_servers.house import Cluster, Server
from penstock.client.link import Link, translated
from penstock.client.urls import parse_url
from penstock.errors import AccessRefused, NotLeading, Unavailable
from penstock.spark.remote import Followers, Remote, Where, remote
from penstock.spark.source import PenstockSource
from waiting import eventually

SECTION = 'lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1\nfollower_reads = true'
MORE = """
[[exchange]]
name = "events"
type = "topic"
[[user]]
name = "north"
password = "secret"
[[topic]]
name = "orders"
[[topic]]
name = "late"
exchange = "events"
[[entitlement]]
tag = "administrator"
read = true
write = true
[[entitlement]]
user = "north"
topic = "orders"
read = "/id < 10"
"""
MESSAGES = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("reads"), 3, section=SECTION, more=MORE, flight=True) as cluster:
        cluster.leader()
        cluster.level()
        with penstock.connect(cluster.url) as client:
            bodies = [b'{"id": %d}' % number for number in range(MESSAGES)]
            client.publish_table("orders", pa.table({"body": pa.array(bodies, pa.binary())}))
            client.publish("late", {"id": 1}, exchange="events")
        yield cluster


def link_to(server: Server, login: str = "guest:guest") -> Link:
    return Link(parse_url(f"penstock://{login}@127.0.0.1:{server.flight}"), 60.0)


def rows_of(link: Link, operation: str, **fields: object) -> list[dict[str, Any]]:
    reader = link.get(json.dumps({operation: fields}).encode())
    found = list[dict[str, Any]]()
    with translated():
        for chunk in reader:
            found += chunk.data.to_pylist()
    return found


def position(cluster: Cluster) -> dict[str, Any]:
    return remote(Where(cluster.url)).act("position", bookmark="EPOCH")


def span(where: dict[str, Any]) -> str:
    return f"[{where['origin']}|{where['first']}|:{where['origin']}|{where['durable']}|]"


def has_all(server: Server, upto: int) -> bool:
    try:
        return bool(link_to(server).act("copied", {})["upto"] >= upto)
    except Unavailable:
        return False


def test_a_follower_gives_the_rows_of_the_leader(cluster: Cluster) -> None:
    leader, where = cluster.leader(), position(cluster)
    reads: list[dict[str, object]] = [
        {"topic": "orders", "bookmark": span(where)},
        {"topic": "late", "exchange": "events", "bookmark": span(where)},
        {"pattern": "^ord", "bookmark": span(where), "columns": ["lsn", "body", "exchange"], "filter": "/id % 7 = 0"},
    ]
    for follower in cluster.followers():
        eventually(lambda one=follower: has_all(one, where["durable"]), "a follower does not say that it has all")
        for asked in reads:
            wanted = rows_of(link_to(leader), "replay", **asked)
            assert rows_of(link_to(follower), "replay", **asked) == wanted
            assert len(wanted) in (MESSAGES, 1, MESSAGES // 7 + 1)
        a, b = where["first"], where["durable"] + 1
        whole = rows_of(link_to(leader), "log", **{"from": a, "to": b})
        assert rows_of(link_to(follower), "log", **{"from": a, "to": b}) == whole


def test_a_follower_refuses_what_it_cannot_know(cluster: Cluster) -> None:
    where, [follower, _] = position(cluster), cluster.followers()
    eventually(lambda: has_all(follower, where["durable"]), "it does not say that it has all")
    link, beyond = link_to(follower), where["durable"] + 1_000
    refused: list[tuple[str, dict[str, object]]] = [
        ("replay", {"topic": "orders", "bookmark": "EPOCH"}),
        ("replay", {"topic": "orders", "bookmark": span(where), "follow": True}),
        ("replay", {"topic": "orders", "bookmark": span({**where, "durable": beyond})}),
        ("log", {"from": where["first"], "to": beyond}),
        ("queue", {"name": "work"}),
        ("sql", {"statement": "SELECT 1"}),
    ]
    for operation, fields in refused:
        with pytest.raises(NotLeading, match="leads"):
            rows_of(link, operation, **fields)
    for action in ("health", "position", "declare", "stream_open"):
        with pytest.raises(NotLeading, match="leads"):
            link.act(action, {})
    writer, _ = link.put(b'{"publish": {"topic": "orders"}}', pa.schema([("body", pa.binary())]))
    with pytest.raises(NotLeading, match="leads"), translated():
        writer.close()


def test_rights_hold_at_a_follower(cluster: Cluster) -> None:
    where, [follower, _] = position(cluster), cluster.followers()
    eventually(lambda: has_all(follower, where["durable"]), "it does not say that it has all")
    with pytest.raises(AccessRefused):
        link_to(follower, "guest:wrong").act("copied", {})
    north = link_to(follower, "north:secret")
    assert north.act("copied", {})["upto"] >= where["durable"]
    with pytest.raises(NotLeading, match="may read a part of it"):  # the leader knows which
        rows_of(north, "replay", topic="orders", bookmark=span(where))
    with pytest.raises(AccessRefused):
        rows_of(north, "replay", topic="late", exchange="events", bookmark=span(where))
    with pytest.raises(AccessRefused):
        rows_of(north, "log", **{"from": where["first"], "to": where["durable"]})


def test_what_tasks_read_comes_from_followers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a topic, of a queue's content and of the log; who plans them asks the leader."""
    where = position(cluster)
    for name in ("ANSWER_S", "WAIT_S", "STREAM_S"):  # a busy machine is no follower that stands still
        monkeypatch.setattr(f"penstock.spark.remote.{name}", 60.0)
    for one in cluster.followers():
        eventually(lambda one=one: has_all(one, where["durable"]), "a follower does not say that it has all")
    with penstock.connect(cluster.url) as client:
        client.publish("work", {"id": 1})
    expected = {"topic": MESSAGES, "filter": 1_500, "queue": 1}
    given = {
        "topic": {"topic": "orders"}, "filter": {"topic": "orders", "filter": "/id >= 1500"},
        "queue": {"queue": "work"},
    }  # fmt: skip
    schema = StructType([StructField("lsn", LongType()), StructField("body", BinaryType())])
    for name, options in given.items():
        source = PenstockSource({"url": cluster.url, "direct": "false", "readFrom": "followers", **options})
        reader = source.reader(schema)
        parts = reader.partitions()
        with monkeypatch.context() as patched:
            patched.setattr(Remote, "rows", refused)
            assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == expected[name], name


def refused(*_: object, **__: object) -> None:
    raise AssertionError("the leader is asked for rows")


def test_parts_come_from_followers_over_a_takeover_and_past_one_that_stands_still(cluster: Cluster) -> None:
    """The last test of this file: it kills the leader."""
    where, leader, [first, second] = position(cluster), cluster.leader(), cluster.followers()
    for one in (first, second):
        eventually(lambda one=one: has_all(one, where["durable"]), "a follower does not say that it has all")
    lsns, asked = (where["first"], where["durable"] + 1), {"topic": "orders", "bookmark": span(where)}
    asked |= {"columns": ["lsn", "body"], "vhost": "/"}
    wanted = rows_of(link_to(leader), "replay", **asked)
    whence = Followers(Where(cluster.url))

    def rows(skip: int = 0) -> list[dict[str, Any]]:
        return [row for batch in whence.rows(lsns, True, "replay", skip, **asked) for row in batch.to_pylist()]

    assert rows() == wanted
    assert rows(1_234) == wanted[1_234:]
    first.freeze()
    try:
        assert [rows() for _ in range(3)] == [wanted] * 3
    finally:
        first.signal(signal.SIGCONT)
    leader.kill()
    assert rows() == wanted  # from a follower, while nobody leads, or from the one that leads by then
    eventually(lambda: any(one.serves for one in (first, second)), "nobody took over")
    assert [rows() for _ in range(3)] == [wanted] * 3
