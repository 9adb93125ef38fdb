"""Small reads: cut by the short way or read as any, gathered with others' or decided alone, it comes to the same.

First the machine on every cut of every stream, then a whole server to which several clients send what they like.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from choices import spread
from penstock.log.simdisk import SimDisk
from penstock.records.properties import Properties, encode
from penstock.server.amqp import door
from penstock.server.amqp import intake as intake_module
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.events import Event, PublishRun
from penstock.wire.amqp.publishes import ACK_FRAME
from property.test_amqp_machine import LIMITS, heard, streams
from sim.serverkit import Client, Content, Life, clock, message
from unit.amqp.peer import ack, flat, opened, publish, sent


def _by_the_short_way(data: bytes, cuts: list[int]) -> tuple[list[object], list[tuple[int, m.Method]], int]:
    """What a connection makes of the data where each read is tried as a small one first; how many were."""
    connection = opened(2, LIMITS)
    events: list[Event] = []
    at = short = 0
    for cut in [*sorted(cuts), len(data)]:
        piece = data[at:cut]
        at = max(at, cut)
        if len(piece) >= ACK_FRAME and not connection.finished:
            found = connection.lone_message(piece)
            if found is not None:
                target, header, body, mode, end = found
                assert mode >= 0
                behind = connection.lone_acks(piece, end)
                if behind is not None or end == len(piece):
                    events.append(PublishRun(target.channel, target, header, [body]))
                    events += [] if behind is None else [behind]
                    short += 1
                    continue
            acks = connection.lone_acks(piece)
            if acks is not None:
                events.append(acks)
                short += 1
                continue
        events += connection.receive(piece)
    return flat(events), sent(connection), short


@given(streams, st.lists(st.integers(0, 3000), max_size=12))
def test_a_read_taken_by_the_short_way_is_what_the_machine_makes_of_it(data: bytes, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut < len(data)]
    assert _by_the_short_way(data, cuts)[:2] == heard(data, cuts)


@given(st.lists(streams, max_size=8))
def test_so_is_a_read_for_each_thing_that_a_client_says(parts: list[bytes]) -> None:
    data, cuts, at = b"".join(parts), list[int](), 0
    for part in parts:
        cuts.append(at := at + len(part))
    assert _by_the_short_way(data, cuts)[:2] == heard(data, cuts)


def test_every_cut_of_a_message_and_of_acks() -> None:
    told = encode(Properties(delivery_mode=2, message_id="m-1", timestamp=7, headers={"tenant": "a"}))
    for one in (publish(1, b"body", properties=told), ack(1, 7), ack(2, 9, multiple=True), ack(1, 1) + ack(1, 3)):
        before = publish(1, b"other", properties=told)
        for cut in range(len(one) + 1):
            stream, cuts = before + one + one, [len(before), len(before) + cut, len(before) + len(one)]
            assert _by_the_short_way(stream, cuts)[:2] == heard(stream, cuts)


def test_what_most_clients_send_goes_the_short_way() -> None:
    reads = [
        publish(1, b"body", properties=encode(Properties(delivery_mode=2, message_id=f"m-{n:02}", headers={"t": "a"})))
        for n in range(20)
    ]
    reads += [ack(1, n) for n in range(1, 11)]
    reads += [one + ack(1, n) for n, one in enumerate(reads[:10], 11)]  # who answers and acknowledges
    cuts, at = list[int](), 0
    for one in reads:
        cuts.append(at := at + len(one))
    assert _by_the_short_way(b"".join(reads), cuts)[2] == 39  # all but the first, by which the method frame is known


def test_what_is_no_ack_behind_a_message_is_read_as_ever() -> None:
    told = encode(Properties(delivery_mode=2, message_id="m-1", headers={"tenant": "a"}))
    before, one = publish(1, b"other", properties=told), publish(1, b"body", properties=told)
    for behind in (ack(1, 0), ack(2, 3), ack(1, 3)[:-1], ack(1, 3) + one, ack(1, 3) + b"\xce", one):
        stream, cuts = before + one + behind, [len(before)]
        ours = _by_the_short_way(stream, cuts)
        assert ours[:2] == heard(stream, cuts)
        assert ours[2] == 0


# -- a whole server

PLAIN = {
    "persistent": Properties(delivery_mode=2),
    "transient": Properties(delivery_mode=1),
    "ids": Properties(delivery_mode=2, message_id="m-1", timestamp=9, headers={"tenant": "t"}),
    "correlated": Properties(delivery_mode=2, correlation_id="c"),
}
ASKING = {
    "priority": Properties(delivery_mode=2, priority=3),
    "expiration": Properties(delivery_mode=2, expiration="60000"),
    "copied": Properties(delivery_mode=2, headers={"CC": ["q2"]}),
    "numbered": Properties(delivery_mode=2, headers={"x-publisher": "p", "x-sequence": 1}),
    "wrong": Properties(delivery_mode=2, headers={"x-delay": "soon"}),
    "of another": Properties(delivery_mode=2, user_id="somebody"),
    "of the user": Properties(delivery_mode=2, user_id="guest"),
    "replies": Properties(delivery_mode=2, reply_to="amq.rabbitmq.reply-to"),
}
HEADERS = {name: encode(one) for name, one in (PLAIN | ASKING).items()}
WHERE = [("", "q1"), ("", "q1"), ("", "q2"), ("", "few"), ("", "nobody"), ("gone", "q1"), ("amq.fanout", "x")]
"""`few` refuses what is over its limit; nobody takes what goes to the next; the last but one has no such exchange."""

sends = st.tuples(
    st.just("publish"), st.integers(0, 2), st.sampled_from([*PLAIN, *HEADERS]), st.sampled_from(WHERE), st.booleans(),
    st.integers(1, 3),
)  # fmt: skip
answers = st.tuples(st.just("answer"), st.integers(0, 2), st.sampled_from([*PLAIN, *HEADERS]), st.sampled_from(WHERE))
"""A message and an ack behind it in one read."""
settles = st.tuples(st.sampled_from(["ack", "ack", "ack all", "nack", "wrong ack"]), st.integers(0, 2))
says = st.tuples(st.sampled_from(["tx", "commit", "rollback", "confirm", "purge", "declare"]), st.integers(0, 2))
rounds = st.lists(st.lists(sends | sends | answers | settles | says, max_size=5), max_size=6)


def _serve(script: list[list[tuple[Any, ...]]], *, short: int, few: int) -> list[object]:
    """What three clients are told, and what is left in the end, in a form in which the order of others does not show.

    short, few: the bounds of small reads and of what is gathered.
    """
    with patch.object(door, "SMALL", short), patch.object(intake_module, "FEW", few):
        life = Life(SimDisk(), clock())
        life.declare("q1", "q2")
        life.declare("few", **{"x-max-length": 3, "x-overflow": "reject-publish"})
        clients = [life.client(confirm=number < 2, prefetch=2) for number in range(3)]
        for number, client in enumerate(clients):
            client.consume(f"q{number % 2 + 1}", f"c{number}")
        life.run()
        told: list[list[object]] = [[], [], []]
        held: list[list[int]] = [[], [], []]
        bodies: list[bytes] = []
        number = 0
        for steps in script:
            for step in steps:
                client = clients[step[1]]
                if step[0] == "publish":
                    _, _, header, (exchange, key), mandatory, count = step
                    how = {"exchange": exchange, "properties": HEADERS[header], "mandatory": mandatory}
                    number += count
                    client.publish(key, *[b"%d" % (number - n) for n in range(count)], **how)
                elif step[0] == "answer":
                    _, _, header, (exchange, key) = step
                    number += 1
                    tags = held[step[1]]
                    answer = message(b"%d" % number, key, exchange=exchange, properties=HEADERS[header])
                    client.send(answer + (ack(1, tags.pop(0)) if tags else b""))
                else:
                    _say(client, step[0], held[step[1]])
            life.run()
            for one, mine, tags in zip(clients, told, held, strict=True):
                _hear(one, mine, tags, bodies)
        left = {name: Counter(life.contents(name)) for name in ("q1", "q2", "few")}
        told_of = life.door.counted()
        counted = {"routed": life.counters.routed, "published": told_of.published, "acknowledged": told_of.acknowledged}
        return [told, {name: sum(some.values()) for name, some in left.items()}, counted, Counter(bodies)]


def _say(client: Client, what: str, tags: list[int]) -> None:
    if what == "ack" and tags:
        client.ack(tags.pop(0))
    elif what == "ack all" and tags:
        client.ack(tags[-1], multiple=True)
        tags.clear()
    elif what == "nack" and tags:
        client.method(m.BasicNack(tags.pop(), False, False))
    elif what == "wrong ack":
        client.ack(99)
    elif what in SAID:
        client.method(SAID[what])


SAID: dict[str, m.Method] = {
    "tx": m.TxSelect(), "commit": m.TxCommit(), "rollback": m.TxRollback(), "confirm": m.ConfirmSelect(),
    "purge": m.QueuePurge(queue="few"), "declare": m.QueueDeclare(queue="q2", durable=True),
}  # fmt: skip


def _hear(client: Client, told: list[object], tags: list[int], bodies: list[bytes]) -> None:
    confirmed: dict[int, bool] = {}
    known = max([one[-1] for one in told if isinstance(one, tuple) and one[0] == "heard of all up to"], default=0)
    for one in client.take_all():
        if isinstance(one, Content) and isinstance(one.method, m.BasicDeliver):
            tags.append(one.method.delivery_tag)
            bodies.append(one.body)
        elif isinstance(one, Content):
            told.append(("returned", one.body))
        elif isinstance(one, m.BasicAck | m.BasicNack):
            first = known + 1 if one.multiple else one.delivery_tag
            for tag in range(first, one.delivery_tag + 1):
                confirmed.setdefault(tag, isinstance(one, m.BasicAck))
        elif isinstance(one, m.ChannelClose):
            told.append((one.reply_code, one.reply_text))
        else:
            told.append(type(one).__name__)
    if confirmed and client.session.channels:  # else what came before the end came in time, or not
        told.append(("refused", sorted(tag for tag, good in confirmed.items() if not good)))
        told.append(("heard of all up to", max(confirmed)))


@given(rounds)
def test_what_clients_are_told_does_not_depend_on_the_way(script: list[list[tuple[Any, ...]]]) -> None:
    alone = _serve(script, short=0, few=0)
    assert _serve(script, short=2048, few=16) == alone
    assert _serve(script, short=0, few=16) == alone


@pytest.mark.parametrize(("where", "header"), spread(product(dict.fromkeys(WHERE), HEADERS), 30))
def test_each_header_and_each_place_among_plain_ones(header: str, where: tuple[str, str]) -> None:
    one = ("publish", 0, header, where, True, 1)
    plain = [("publish", number, "ids", ("", "q1"), False, 1) for number in range(3)]
    script = [plain, [*plain, one, *plain], plain]
    assert _serve(script, short=2048, few=16) == _serve(script, short=0, few=0)
