"""What the documents of AMPS say of queues of several instances, on three instances of AMPSConfig files.

One run for most of it: what each test speaks of has a queue of its own.  `docs/proofs/amps.md` has the sentences.
"""

from __future__ import annotations

import contextlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from fault_proxy import Fault, Network
from sites.house import Instances, Site, out, publish, work
from sites.test_confirms import Publishing
from waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[1] / "scenarios/amps"
GROUPS = {"east-1": "EAST", "east-2": "EAST", "west": "WEST"}
EVERYWHERE = """
<Queue><Name>Shared</Name><MessageType>json</MessageType><UnderlyingTopic>Work</UnderlyingTopic></Queue>
<QueueDefinition><Name>Few</Name><MessageType>json</MessageType><MaxBacklog>2</MaxBacklog>
    <MaxPerSubscriptionBacklog>10</MaxPerSubscriptionBacklog></QueueDefinition>
<Queue><Name>Twice</Name><MessageType>json</MessageType><MaxDeliveries>2</MaxDeliveries></Queue>
<Queue><Name>Steps</Name><MessageType>json</MessageType><BarrierExpression>/sync IS NOT NULL</BarrierExpression>
    <MaxPerSubscriptionBacklog>5</MaxPerSubscriptionBacklog></Queue>
<Queue><Name>Deep</Name><MessageType>json</MessageType><TargetQueueDepth>1000</TargetQueueDepth></Queue>
<LocalQueue><Name>Own</Name><MessageType>json</MessageType><UnderlyingTopic>Copied</UnderlyingTopic></LocalQueue>
<GroupLocalQueue><Name>OfNobody</Name><MessageType>json</MessageType><InitialOwner>nobody</InitialOwner>
    <GroupLocalQueueDomain>ANY</GroupLocalQueueDomain></GroupLocalQueue>
"""
GROUP = """<GroupLocalQueue><Name>{name}</Name><MessageType>json</MessageType><InitialOwner>{owner}</InitialOwner>
    <UnderlyingTopic>{topic}</UnderlyingTopic>{domain}</GroupLocalQueue>"""
DOMAIN = "<GroupLocalQueueDomain>CONSUME_INSTANCES</GroupLocalQueueDomain>"
SOME = {
    "east-1": [GROUP.format(name="OfGroup", owner="east-2", topic="Grouped", domain="")],
    "east-2": [
        GROUP.format(name="OfGroup", owner="east-2", topic="Grouped", domain=""),
        GROUP.format(name="OfDomain", owner="west", topic="Domain", domain=DOMAIN),
    ],
    "west": [
        GROUP.format(name="OfGroup", owner="west", topic="Grouped", domain=""),
        GROUP.format(name="OfDomain", owner="west", topic="Domain", domain=DOMAIN),
    ],
}
CARRIED = ("Work", "Few", "Twice", "Steps", "Deep", "Copied", "OfNobody", "Grouped", "Domain")

LOGGED = "<Topic><Name>Domain</Name><MessageType>json</MessageType></Topic>"
"""What an instance keeps that has no queue over it."""


def destination(name: str, topics: Sequence[str], *more: str, group: str = "", sync: str = "async") -> str:
    carried = "".join(f"<Topic><Name>{one}</Name><MessageType>json</MessageType></Topic>" for one in topics)
    of = f"<Group>{group}</Group>" if group else ""
    address = f"<InetAddr>PORT:{name}</InetAddr><Type>amps-replication</Type>"
    return (
        f"<Destination>{carried}<Name>{name}</Name>{of}<SyncType>{sync}</SyncType>{''.join(more)}"
        f"<Transport>{address}</Transport></Destination>"
    )


def instance(name: str, sow: str, destinations: Sequence[str], group: str = "", more: str = "") -> str:
    of = f"<Group>{group}</Group>" if group else ""
    replication = "\n".join(destinations)
    return f"""<AMPSConfig>
<Name>{name}</Name>{of}
<Transports><Transport><Type>amps-replication</Type><InetAddr>0</InetAddr></Transport></Transports>
<SOW>{sow}</SOW>
{more}
<Replication>{replication}</Replication>
</AMPSConfig>
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    """Two instances of a group and one of another, each with destinations for all that is replicated."""
    files = {
        name: instance(
            name,
            EVERYWHERE + "\n".join(SOME[name]),
            [destination(other, CARRIED, group=GROUPS[other]) for other in GROUPS if other != name],
            group,
            f"<TransactionLog>{LOGGED}</TransactionLog>",
        )
        for name, group in GROUPS.items()
    }
    with Instances(tmp_path_factory.mktemp("three"), files) as found:
        found.linked()
        yield found


def number(count: int, key: str = "n") -> list[bytes]:
    return [b'{"%s": %d}' % (key.encode(), n) for n in range(count)]


def standing(site: Site, queue: str) -> tuple[int, int]:
    """What a site may give, and what is another's."""
    told = site.queue(queue)
    return told["ready"], told["foreign"]


def come(sites: Instances, queue: str, wanted: dict[str, tuple[int, int]]) -> None:
    """Wait until messages stand so."""

    def now() -> dict[str, tuple[int, int]]:
        return {name: standing(sites[name], queue) for name in wanted}

    eventually(lambda: now() == wanted, lambda: f"{now()}")


# -- the three kinds


def test_a_distributed_queue_is_one_queue_wherever_it_is_consumed(three: Instances) -> None:
    bodies = number(6)
    publish(three["east-1"], *bodies, queue="Work")
    come(three, "Shared", {"east-1": (6, 0), "east-2": (0, 6), "west": (0, 6)})
    given = [
        *work(three["west"], 2, "Shared"),
        *work(three["east-2"], 2, "Shared"),
        *work(three["east-1"], 2, "Shared"),
    ]
    assert sorted(given) == bodies, "each at one of them, whoever asked"
    three.empty("Shared")
    told = [one.queue("Shared") for one in three]
    came, went = (sum(one[key] for one in told) for key in ("transferred_in", "transferred_out"))
    assert came == went >= 4
    assert all(one["transferred_in"] >= 2 for one in told[1:])
    assert [one["double"] for one in told] == [0, 0, 0]


def test_a_local_queue_is_each_instances_own(three: Instances) -> None:
    publish(three["east-1"], *number(2), queue="Copied")
    come(three, "Own", dict.fromkeys(GROUPS, (2, 0)))
    assert work(three["west"], 2, "Own") == number(2)
    assert work(three["east-2"], 1, "Own") == number(1)
    come(three, "Own", {"east-1": (2, 0), "east-2": (1, 0), "west": (0, 0)})
    assert [one.queue("Own")["transferred_out"] for one in three] == [0, 0, 0]


def test_a_group_has_its_first_owner_and_another_group_a_queue_of_its_own(three: Instances) -> None:
    publish(three["east-1"], *number(3), queue="Grouped")
    come(three, "OfGroup", {"east-1": (0, 3), "east-2": (3, 0), "west": (3, 0)})
    assert work(three["east-1"], 2, "OfGroup") == number(2)
    eventually(lambda: sorted(standing(three[name], "OfGroup") for name in ("east-1", "east-2")) == [(0, 1), (1, 0)])
    assert standing(three["west"], "OfGroup") == (3, 0), "which is another queue"
    assert work(three["west"], 3, "OfGroup") == number(3)
    assert work(three["east-2"], 1, "OfGroup") == number(3)[2:]
    three.empty("OfGroup")


def test_a_domain_joins_instances_of_two_groups_and_who_has_no_such_queue_only_publishes(three: Instances) -> None:
    publish(three["east-1"], *number(4), queue="Domain")
    come(three, "OfDomain", {"east-2": (0, 4), "west": (4, 0)})
    assert work(three["east-2"], 3, "OfDomain") == number(3)
    assert work(three["west"], 1, "OfDomain") == number(4)[3:]
    come(three, "OfDomain", {"east-2": (0, 0), "west": (0, 0)})
    assert "OfDomain" not in {one["name"] for one in three["east-1"].get("/api/queues")}


def test_whether_the_first_owner_is_there_nobody_asks(three: Instances) -> None:
    publish(three["west"], *number(2), queue="OfNobody")
    come(three, "OfNobody", dict.fromkeys(GROUPS, (0, 2)))
    with three["west"].client() as client:
        [told] = [one["text"] for one in client.explain("OfNobody")["reasons"] if one["code"] == "foreign"]
    assert told == "2 messages are owned by another site: nobody"


# -- each instance by itself


def test_a_backlog_is_of_each_instance(three: Instances) -> None:
    publish(three["east-1"], *number(8), queue="Few")
    with contextlib.ExitStack() as held:
        for site in three:
            client = held.enter_context(site.client())
            consumer = held.enter_context(client.consume("Few", backlog=10))
            assert [consumer.take(timeout=20) is not None for _ in range(2)] == [True, True]
        assert [site.queue("Few")["leased"] for site in three] == [2, 2, 2]
    for site in three:
        with site.client() as client:
            client.purge("Few")
    three.empty("Few")


def test_deliveries_are_counted_by_each_instance(three: Instances) -> None:
    publish(three["east-1"], b"{}", queue="Twice")
    come(three, "Twice", {"west": (0, 1)})
    channel = three["east-1"].connect().channel()
    method, _, _ = channel.basic_get("Twice")
    channel.basic_nack(method.delivery_tag, requeue=True)
    with three["west"].client() as client, client.consume("Twice") as consumer:
        message = consumer.take(timeout=20)
        assert message is not None
        assert message.attempt == 1, "there it is the first"
        message.ack()
    three.empty("Twice")


def test_each_instance_gives_a_barrier_to_its_own_subscribers(three: Instances) -> None:
    with contextlib.ExitStack() as held:
        consumers = {
            site.name: held.enter_context(held.enter_context(site.client()).consume("Steps", backlog=5))
            for site in three
        }
        publish(three["east-1"], b'{"n": 0}', b'{"sync": 1}', b'{"n": 1}', queue="Steps")
        first = consumers["east-1"].take(timeout=20)
        assert first is not None
        assert first.body == b'{"n": 0}'
        come(three, "Steps", {"east-2": (0, 2), "west": (0, 2)})  # and the barrier, which is nobody else's
        assert [consumers[name].take(timeout=0.2) for name in ("east-2", "west")] == [None, None]
        first.ack()
        got = {name: consumer.take(timeout=20) for name, consumer in consumers.items()}
        assert {name: one and one.body for name, one in got.items()} == dict.fromkeys(GROUPS, b'{"sync": 1}')
        last = list[penstock.Message]()

        def came() -> bool:
            last.extend(one for each in consumers.values() if (one := each.take(timeout=0.2)) is not None)
            return bool(last)

        eventually(came, "what waited behind the barrier did not come to anybody")
        assert [one.body for one in last] == [b'{"n": 1}']
        last[0].ack()
    three.empty("Steps")


def test_a_request_reaches_beyond_the_target_depth_and_then_it_stops_again(three: Instances) -> None:
    site = three["east-1"]
    with site.client() as client:
        client.publish_table("Deep", pa.table({"body": number(1300)}))
    eventually(lambda: site.queue("Deep")["inactive_message_count"] == 300)
    eventually(lambda: three["west"].waiting("Deep") >= 1000)
    with three["west"].client() as client, client.consume("Deep", filter="/n = 1200") as consumer:
        message = consumer.take(timeout=20)
        assert message is not None
        assert message.body == b'{"n": 1200}'
        message.ack()
    eventually(lambda: site.queue("Deep")["inactive_message_count"] == 99, lambda: str(site.queue("Deep")))
    with site.client() as client:
        client.purge("Deep")


def test_what_is_acknowledged_before_it_is_there_does_not_come(three: Instances) -> None:
    a, b = three["east-1"], three["west"]
    with a.client() as client:
        client.pause_link("west")
    publish(a, b'{"first": 1}', b'{"second": 1}', queue="Work")
    with a.client() as client:
        [first, _] = client.peek("Shared", 2)
    with b.client() as client:
        client.ack("Shared", [first.bookmark])
    assert b.queue("Shared")["deferred_ack_count"] == 1
    with a.client() as client:
        client.resume_link("west")
    come(three, "Shared", {"east-1": (1, 0), "west": (0, 1)})
    assert work(b, 1, "Shared") == [b'{"second": 1}']
    three.empty("Shared")


# -- the snippets


def snippets(names: Sequence[str]) -> tuple[str, str]:
    """What examples have in SOW, and in Actions, as one."""
    parts = {"SOW": "", "Actions": ""}
    for name in names:
        root = ET.parse(EXAMPLES / f"{name}.xml").getroot()
        for section in [root] if root.tag == "SOW" else root:
            for child in section if section.tag in parts else ():
                parts[section.tag] += ET.tostring(child, encoding="unicode")
    return parts["SOW"], f"<Actions>{parts['Actions']}</Actions>"


PRINTED = ("getting-started", "dead-letters", "many-topics", "priority", "barrier", "one-queue")
TOPICS = ("WorkToDo", "Jobs", "FailedJobs", "^ORDERS", "OrderPriority", "Synchronized", "OrderQueue")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    """The snippets of the documents at two instances, their queues' topics replicated both ways."""
    sow, actions = snippets(PRINTED)
    files = {name: instance(name, sow, [destination(other, TOPICS)], "", actions) for name, other in ("ab", "ba")}
    with Instances(tmp_path_factory.mktemp("printed"), files) as found:
        found.linked()
        yield found


def test_getting_started_on_two_instances(printed: Instances) -> None:
    a, b = printed["a"], printed["b"]
    publish(a, *number(3), queue="Work")
    come(printed, "WorkToDo", {"a": (3, 0), "b": (0, 3)})
    assert work(b, 3, "WorkToDo") == number(3), "each as it is sent is gone everywhere"
    printed.empty("WorkToDo")


def test_a_job_fails_where_it_was_worked_and_is_among_the_failed_ones_once(printed: Instances) -> None:
    a, b = printed["a"], printed["b"]
    publish(a, b'{"job": 1}', queue="Jobs")
    come(printed, "Jobs", {"b": (0, 1)})
    with b.client() as client, client.consume("Jobs") as consumer:
        for _ in range(3):
            message = consumer.take(timeout=20)
            assert message is not None
            message.cancel()
    printed.empty("Jobs")
    eventually(lambda: sum(one.waiting("FailedJobs") for one in printed) == 2, lambda: str(a.queue("FailedJobs")))
    assert [standing(one, "FailedJobs") for one in (a, b)] == [(0, 1), (1, 0)]
    [failed] = work(a, 1, "FailedJobs")
    assert json.loads(failed) == {"message": {"job": 1}, "reason": "max_cancels"}
    printed.empty("FailedJobs")


def test_queues_over_many_topics_on_two_instances(printed: Instances) -> None:
    a, b = printed["a"], printed["b"]
    publish(a, b'{"to": "both"}', queue="ORDERS")
    publish(a, b'{"to": "risk"}', queue="ORDERS_RISK")
    come(printed, "ORDERS_RISK", {"a": (2, 0), "b": (0, 2)})
    come(printed, "ORDERS_ANALYTICS", {"a": (1, 0), "b": (0, 1)})
    assert work(b, 2, "ORDERS_RISK") == [b'{"to": "both"}', b'{"to": "risk"}']
    assert work(b, 1, "ORDERS_ANALYTICS") == [b'{"to": "both"}']
    printed.empty("ORDERS_RISK")
    printed.empty("ORDERS_ANALYTICS")


def test_a_queue_with_priorities_on_two_instances(printed: Instances) -> None:
    a, b = printed["a"], printed["b"]
    bodies = [b'{"price": 1, "qty": %d}' % n for n in range(4)]
    with a.client() as client:
        client.publish_table("Orders", pa.table({"body": bodies}))  # at once: each is as old as the others
    come(printed, "OrderPriority", {"a": (4, 0), "b": (0, 4)})
    with b.client() as client, client.consume("OrderPriority") as consumer:
        first = consumer.take(timeout=60.0)
        assert first is not None
        first.ack()
        second = consumer.take(timeout=60.0)
        assert second is not None
        assert [first.body, second.body] == [bodies[3], bodies[2]], "what is first at both sites"
        assert work(a, 2, "OrderPriority") == [bodies[1], bodies[0]]
        second.ack()
    printed.empty("OrderPriority")
    assert b.queue("OrderPriority")["transferred_in"] == 2, "it was given no others besides"


def test_a_sync_point_on_two_instances(printed: Instances) -> None:
    a, b = printed["a"], printed["b"]
    with contextlib.ExitStack() as held:
        consumers = [held.enter_context(held.enter_context(site.client()).consume("Synchronized")) for site in (a, b)]
        publish(a, b'{"isSyncPoint": "end of day"}', queue="Synchronized")
        for message in [one.take(timeout=20) for one in consumers]:
            assert message is not None
            assert message.body == b'{"isSyncPoint": "end of day"}'
    printed.empty("Synchronized")


def test_one_way_to_configure_a_queue_on_two_instances(printed: Instances) -> None:
    a, b = printed["a"], printed["b"]
    good, bad = b'{"status": "open", "total": 6}', b'{"status": "open", "total": 5}'
    publish(a, good, queue="orders.new")
    channel = a.connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("", "orders.changed", bad)
    publish(b, good, queue="OrderQueue")
    come(printed, "OrderQueue", {"a": (1, 1), "b": (1, 1)})
    assert work(b, 2, "OrderQueue") == [good, good]
    printed.empty("OrderQueue")


# -- chains, confirms, actions

QUEUE = "<Queue><Name>work</Name><MessageType>json</MessageType></Queue>"
SEEN = "<LocalQueue><Name>seen</Name><MessageType>json</MessageType></LocalQueue>"
LATE = SEEN.replace("seen", "late")


def when(module: str, *steps: tuple[str, str], options: str = "") -> str:
    """An action."""
    done = "".join(f"<Do><Module>{name}</Module><Options>{given}</Options></Do>" for name, given in steps)
    chosen = f"<Options>{options}</Options>" if options else ""
    return f"<Action><On><Module>{module}</Module>{chosen}</On>{done}</Action>"


def tell(word: str) -> tuple[str, str]:
    data = f"<Data>{word} {{{{AMPS_REPLICATION_PEER_NAME}}}} {{{{AMPS_REPLICATION_GROUP_NAME}}}}</Data>"
    return "amps-action-do-publish-message", f"<Topic>seen</Topic><MessageType>json</MessageType>{data}"


EACH = "<Every>1s</Every>"
EVENTS = ("connect-replication", "replication-resync-complete", "downgrade-replication", "upgrade-replication",
          "disconnect-replication")  # fmt: skip


def test_messages_pass_through_an_instance_to_the_next(tmp_path: Path) -> None:
    through = "<PassThrough>.*</PassThrough>"
    between = {"a": "b", "b": "ac", "c": "b"}
    files = {
        name: instance(name, QUEUE, [destination(other, ["work"], through) for other in others], f"group-{name}")
        for name, others in between.items()
    }
    with Instances(tmp_path, files) as sites:
        sites.linked()
        publish(sites["a"], *number(3), queue="work")
        come(sites, "work", {"a": (3, 0), "b": (0, 3), "c": (0, 3)})
        assert work(sites["c"], 2) == number(2), "who lies between hands on what is asked"
        assert work(sites["b"], 1) == number(3)[2:]
        sites.empty()


def test_synchronous_destinations_are_downgraded_and_upgraded_by_actions_and_actions_hear_of_it(tmp_path: Path) -> None:
    downgrade = ("amps-action-do-downgrade-replication", "<Age>2s</Age><GracePeriod>100ms</GracePeriod>")
    actions = when(  # not by a schedule: a machine that is slow for two seconds would be downgraded before
        "amps-action-on-publish-message", downgrade, options="<Topic>late</Topic><MessageType>json</MessageType>"
    )
    upgrade = ("amps-action-do-upgrade-replication", "<Age>500ms</Age>")
    actions += when("amps-action-on-schedule", upgrade, options=EACH)
    actions += "".join(when(f"amps-action-on-{event}", tell(event)) for event in EVENTS)
    files = {
        "a": instance(
            "a", QUEUE + SEEN + LATE, [destination("b", ["work"], sync="sync")], "A", f"<Actions>{actions}</Actions>"
        ),
        "b": instance("b", QUEUE, [destination("a", ["work"])], "B"),
    }
    with Network() as network, Instances(tmp_path, files, network) as sites:
        a = sites["a"]
        sites.linked()
        publish(a, b"{}")
        assert sites["b"].queue()["foreign"] == 1, "a confirm waits for it"
        sites.ways["a", "b"].fault(Fault.SILENT)
        held, channel = Publishing(a, b"{}"), a.connect().channel()

        def downgraded() -> bool:
            channel.basic_publish("", "late", b"{}")
            return bool(out(a)["downgraded"])

        eventually(downgraded)
        held.join(60)
        assert held.confirmed, "nobody waits for it any more"
        sites.ways["a", "b"].heal()
        eventually(lambda: not out(a)["downgraded"])
        publish(a, b"{}")
        assert sites["b"].queue()["foreign"] == 3
        sites["b"].kill()
        told = work(a, 5, "seen")
    assert [one.split()[0].decode() for one in told] == list(EVENTS)
    assert {tuple(one.split()[1:]) for one in told} == {(b"b", b"B")}


def test_an_action_has_an_instance_act_for_one_that_is_away_and_stop_it(tmp_path: Path) -> None:
    switch = "amps-action-do-{}-proxied-transfer"
    given = "<Topic>work</Topic><MessageType>json</MessageType>"
    actions = when("amps-action-on-disconnect-replication", (switch.format("enable"), given))
    actions += when("amps-action-on-connect-replication", (switch.format("disable"), given))
    files = {
        "a": instance("a", QUEUE, [destination("b", ["work"])], "A", f"<Actions>{actions}</Actions>"),
        "b": instance("b", QUEUE, [destination("a", ["work"])], "B"),
    }
    with Instances(tmp_path, files) as sites:
        a, b = sites["a"], sites["b"]
        sites.linked()
        publish(b, *number(2))
        eventually(lambda: a.queue()["foreign"] == 2)
        b.kill()
        assert work(a, 2) == number(2)
        assert a.queue()["proxied_transfer"] is True
        b.start()
        eventually(lambda: a.queue()["proxied_transfer"] is False)
        sites.empty()
