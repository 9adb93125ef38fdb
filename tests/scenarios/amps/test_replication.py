"""What the documents say of replication: destinations are links, and what a queue says of it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.foreign import read_foreign
from penstock.config.load import judged, load_file
from penstock.errors import SettingsError
from penstock.records.entries import Publishes
from penstock.records.properties import EMPTY
from penstock.testing import Broker
from penstock.testing.instance import Instance

CONFIG = """<AMPSConfig>
    <Name>one</Name>
    <Group>east</Group>
    <SOW>
        <Queue><Name>shared</Name><UnderlyingTopic>Work</UnderlyingTopic><MessageType>json</MessageType></Queue>
        <LocalQueue><Name>here</Name><UnderlyingTopic>Work</UnderlyingTopic><MessageType>json</MessageType></LocalQueue>
        <GroupLocalQueue><Name>some</Name><UnderlyingTopic>Work</UnderlyingTopic><MessageType>json</MessageType>
            <InitialOwner>two</InitialOwner></GroupLocalQueue>
        <GroupLocalQueue><Name>others</Name><UnderlyingTopic>Work</UnderlyingTopic><MessageType>json</MessageType>
            <InitialOwner>one</InitialOwner><GroupLocalQueueDomain>west</GroupLocalQueueDomain></GroupLocalQueue>
    </SOW>
    <Replication>
        <Destination>
            <Topic><Name>Work</Name><MessageType>json</MessageType></Topic>
            <Name>two</Name>
            <Group>east</Group>
            <SyncType>sync</SyncType>
            <Transport><InetAddr>two:10005</InetAddr><Type>amps-replication</Type></Transport>
        </Destination>
    </Replication>
</AMPSConfig>
"""
QUEUES = ("shared", "here", "some", "others")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "amps.xml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def broker(file: Path) -> Iterator[Broker]:
    with Broker(str(file)) as broker:
        yield broker


def remarks(file: Path) -> list[str]:
    found = judged(read_foreign(str(file), {}))
    return [f"{one.verdict.value}: {one.place.told(one.text).removeprefix(f'{file}:')}" for one in found]


def test_a_destination_is_a_link(file: Path) -> None:
    [link] = load_file(str(file), environ={}).link
    assert (link.name, link.group, link.sync, link.to) == ("two", "east", True, ("penstock://two:10005",))
    assert [(one.pattern, one.filter) for one in link.topic] == [("Work", None)]
    told = [text for text in remarks(file) if "<Transport>" in text]
    assert len(told) == 1
    assert "18: <InetAddr> of <Transport>: 'two:10005' is to be the Flight door of that instance" in told[0]


def test_all_that_a_destination_says_is_in_its_link(file: Path) -> None:
    more = """<Topic><Name>^Orders</Name><MessageType>nvfix</MessageType><Filter>/qty > 5</Filter></Topic>
        <PassThrough>west</PassThrough><PassThrough>.*</PassThrough><SyncType>async</SyncType>
        <Transport><InetAddr>two-b:1</InetAddr><InetAddr>two-c:2</InetAddr><Type>amps-replication-secure</Type></Transport>"""
    file.write_text(CONFIG.replace("<SyncType>sync</SyncType>", more))
    [link] = load_file(str(file), environ={}).link
    assert link.to == ("penstocks://two-b:1", "penstocks://two-c:2", "penstock://two:10005")
    assert not link.sync
    assert link.pass_through == ("west", ".*")
    assert [(one.pattern, one.filter, one.message_type) for one in link.topic] == [
        ("Work", None, "json"),
        ("^Orders", "/qty > 5", "nvfix"),
    ]


def test_a_destination_without_a_name_is_called_as_its_group_and_that_is_told(file: Path) -> None:
    file.write_text(CONFIG.replace("<Name>two</Name>", ""))
    [link] = load_file(str(file), environ={}).link
    assert (link.name, link.group) == ("east", None)
    assert any("a link is to one instance, which has to be called 'east'" in text for text in remarks(file))


def test_a_destination_that_nobody_can_know_is_a_mistake(file: Path) -> None:
    file.write_text(CONFIG.replace("<Name>two</Name>", "").replace("<Group>east</Group>\n            <Sync", "<Sync"))
    with pytest.raises(SettingsError, match="has neither <Name> nor <Group>"):
        load_file(str(file), environ={})


@pytest.mark.parametrize("element", ["SyncType", "Transport", "Topic"])
def test_a_destination_without_what_it_needs_is_a_mistake(file: Path, element: str) -> None:
    lines = [line for line in CONFIG.splitlines() if f"<{element}>" not in line or "<Destination>" in line]
    file.write_text("\n".join(lines))
    with pytest.raises(SettingsError, match=f"<Destination> of <Replication>: has no <{element}>"):
        load_file(str(file), environ={})


def test_the_files_of_tls_are_the_links_and_who_logs_in_there_is_told(file: Path) -> None:
    more = """<Certificate>own.pem</Certificate><PrivateKey>own.key</PrivateKey><CAFile>ca.pem</CAFile>
        <VerifyClient>true</VerifyClient><Authenticator><Module>kerberos</Module></Authenticator>
        <ReuseAddr>true</ReuseAddr>
        <Type>amps-replication-secure</Type>"""
    file.write_text(CONFIG.replace("<Type>amps-replication</Type>", more))
    [link] = load_file(str(file), environ={}).link
    assert (link.to, link.certificate, link.key, link.ca) == (
        ("penstocks://two:10005",),
        "own.pem",
        "own.key",
        "ca.pem",
    )
    told = [text for text in remarks(file) if " of <Transport>" in text]
    assert sorted(text.split(":")[0] for text in told) == ["differs here"] * 2 + ["no meaning here"] * 2
    assert any("who logs in there is `user` of [[link]]" in text for text in told)


@pytest.mark.parametrize(
    ("there", "written", "why"),
    [
        ("<InetAddr>two:10005", "<InetAddr>10005", "<InetAddr> of <Transport>: '10005' names no host"),
        (
            "<Type>amps-replication<",
            "<Type>websocket<",
            "'websocket' is not one of amps-replication, amps-replication-sec",
        ),
        ("<Group>east</Group>\n            <Sync", "<PassTrough>.*</PassTrough><Sync", "did you mean 'PassThrough'?"),
        ("<SyncType>sync<", "<SyncType>async</SyncType><SyncType>sync<", "<SyncType> of <Destination>: is there twice"),
        ("<Name>two</Name>", "<Name>two</Name><Name>three</Name>", "<Name> of <Destination>: is there twice (line 15)"),
        ("<InetAddr>", "<inetaddr>x</inetaddr><InetAddr>", "did you mean 'InetAddr'?"),
    ],
)
def test_what_a_destination_cannot_say_is_a_mistake(file: Path, there: str, written: str, why: str) -> None:
    assert CONFIG.count(there) == 1
    file.write_text(CONFIG.replace(there, written))
    with pytest.raises(SettingsError) as caught:
        load_file(str(file), environ={})
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("topic", "goes"),
    [
        ("shared", ["shared", "Work"]),  # the queue's own topic alone: what it shows is meant
        ("^sha", ["^sha", "Work"]),
        ("some", ["some", "Work"]),
        ("Work", ["Work"]),
        (".*", [".*"]),
        ("Other", ["Other"]),
    ],
)
def test_a_topic_that_names_a_queue_means_what_the_queue_shows(file: Path, topic: str, goes: list[str]) -> None:
    name = f"<Topic><Name>{topic}</Name><MessageType>json</MessageType><Filter>/x > 1</Filter></Topic>"
    file.write_text(CONFIG.replace("<Topic><Name>Work</Name><MessageType>json</MessageType></Topic>", name))
    [link] = load_file(str(file), environ={}).link
    assert [(one.pattern, one.filter) for one in link.topic] == [(one, "/x > 1") for one in goes]
    assert (
        sum("is a queue: what it shows, 'Work', is what goes there" in text for text in remarks(file)) == len(goes) - 1
    )


def test_each_kind_of_queue_is_kept_and_without_a_destination_it_is_told_that_nobody_shares_it(file: Path) -> None:
    kinds = {queue.name: queue.settings.kind for queue in load_file(str(file), environ={}).queue}
    assert kinds == {"shared": "distributed", "here": "local", "some": "group-local", "others": "group-local"}
    assert not [text for text in remarks(file) if "there is one instance" in text]
    file.write_text(CONFIG[: CONFIG.index("    <Replication>")] + "</AMPSConfig>")
    owning = [text for text in remarks(file) if "there is one instance, which owns all messages of the queue" in text]
    assert [text.split(": ")[1] for text in owning] == ["7", "9"]  # the lines; nobody would share a local one


def test_a_group_and_its_domain_are_kept_as_they_are_written(file: Path) -> None:
    settings = load_file(str(file), environ={})
    assert settings.server.group == "east", "the identity of `some`, which names no domain"
    of = {queue.name: queue.settings for queue in settings.queue}
    assert (of["some"].initial_owner, of["some"].group_local_queue_domain) == ("two", None)
    assert (of["others"].initial_owner, of["others"].group_local_queue_domain) == ("one", "west")


def test_one_instance_owns_all_whoever_is_named_and_transfers_nothing(broker: Broker) -> None:
    for number in range(3):
        broker.publish("Work", f'{{"n": {number}}}')
    for name in QUEUES:
        taken = broker.subscribe(name, max_backlog=1).take()
        assert [message.json()["n"] for message in taken] == [0], "also where another instance is the first owner"
        stats = broker.stats(name)
        assert (stats["owned"], stats["transferred_in"], stats["transferred_out"]) == (3, 0, 0)
        assert stats["proxied_transfer"] is False
    broker.restart()
    assert [broker.stats(name)["owned"] for name in QUEUES] == [3] * len(QUEUES)


def thirteen_thousand(instance: Instance) -> None:
    core, bodies = instance.core, [b"%d" % number for number in range(13_000)]
    core.publish(instance.engine.now(), Publishes(core.topic("/", "", "q"), EMPTY, bodies, size=sum(map(len, bodies))))


def test_some_seconds_of_traffic_are_active_and_the_rest_waits_behind_them() -> None:
    queue = {"name": "q", "target_queue_depth": 12_500}
    with Broker({"queue": [queue]}) as broker:
        broker.command(thirteen_thousand)
        stats = broker.stats("q")
        assert (stats["queue_depth"], stats["inactive_message_count"]) == (12_500, 500)
        for message in broker.subscribe("q", max_backlog=200).take():
            message.ack()
        stats = broker.stats("q")
        assert (stats["queue_depth"], stats["inactive_message_count"]) == (12_500, 300)


def test_a_lease_has_to_last_for_the_way_and_the_work_together() -> None:
    with Broker({"queue": [{"name": "q", "lease_period": "10s"}]}) as broker:
        broker.publish("q", "job")
        worker = broker.subscribe("q")
        [message] = worker.take()
        broker.advance(9)
        assert worker.take() == []
        assert message.ack()
        broker.publish("q", "longer")
        [message] = worker.take()
        broker.advance(11)
        [again] = worker.take()
        assert (again.body, again.attempt) == (b"longer", 2)


def test_the_turn_of_round_robin_is_not_kept_over_a_start() -> None:
    with Broker({"queue": [{"name": "q", "fairness_model": "round-robin"}]}) as broker:
        for _ in range(2):
            first, second = (broker.subscribe("q", max_backlog=None, name=name) for name in ("first", "second"))
            broker.publish("q", "job")
            assert (len(first.take()), len(second.take())) == (1, 0)
            broker.ack_filter("q", "1 = 1", by="anybody")
            broker.restart()
