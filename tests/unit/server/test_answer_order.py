"""Answers come in the order of a channel's requests, and nothing that a request causes comes before its answer.

A declare of a durable queue waits for the disk.  Whatever is asked behind it, nothing of that may come before its
answer: clients match answers with requests by their order, and some fail on what they do not expect yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.log.simdisk import SimDisk
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD, frame
from sim.serverkit import Content, Life, clock, message

Ask = m.Method | bytes
Case = tuple[str, Sequence[m.Method], Sequence[Ask], Sequence[str]]

CLOSE = m.ChannelClose(200, "", 0, 0)
UNROUTABLE = message(b"x", "nowhere", mandatory=True)
TAKEN = m.BasicConsume(queue="q", consumer_tag="c")

CASES: Sequence[Case] = [
    # name, asked before and answered, asked behind the declare, what comes after its answer
    ("qos", (), [m.BasicQos(prefetch_count=1)], ["BasicQosOk"]),
    ("flow", (), [m.ChannelFlow(True)], ["ChannelFlowOk"]),
    ("consume", (), [TAKEN], ["BasicConsumeOk"]),
    ("consume what is full", (), [m.BasicConsume(queue="full")], ["BasicConsumeOk", "BasicDeliver"]),
    ("cancel", [TAKEN], [m.BasicCancel("c")], ["BasicCancelOk"]),
    ("cancel nobody", (), [m.BasicCancel("c")], ["BasicCancelOk"]),
    ("get", (), [m.BasicGet(queue="full")], ["BasicGetOk"]),
    ("get of nothing", (), [m.BasicGet(queue="q")], ["BasicGetEmpty"]),
    ("recover", (), [m.BasicRecover(requeue=True)], ["BasicRecoverOk"]),
    ("purge", (), [m.QueuePurge(queue="full")], ["QueuePurgeOk"]),
    ("find", (), [m.QueueDeclare(queue="q", passive=True)], ["QueueDeclareOk"]),
    ("declare a second one", (), [m.QueueDeclare(queue="q", durable=True)], ["QueueDeclareOk"]),
    ("declare what ends with the server", (), [m.QueueDeclare(queue="t")], ["QueueDeclareOk"]),
    ("find an exchange", (), [m.ExchangeDeclare(exchange="amq.topic", passive=True)], ["ExchangeDeclareOk"]),
    ("declare an exchange", (), [m.ExchangeDeclare(exchange="e", type="fanout")], ["ExchangeDeclareOk"]),
    ("bind", (), [m.QueueBind(queue="q", exchange="amq.fanout")], ["QueueBindOk"]),
    ("unbind", (), [m.QueueUnbind(queue="q", exchange="amq.fanout")], ["QueueUnbindOk"]),
    ("confirm", (), [m.ConfirmSelect()], ["ConfirmSelectOk"]),
    ("tx", (), [m.TxSelect()], ["TxSelectOk"]),
    ("rollback", [m.TxSelect()], [m.TxRollback()], ["TxRollbackOk"]),
    ("an empty commit", [m.TxSelect()], [m.TxCommit()], ["TxCommitOk"]),
    ("a commit of what nobody wants", [m.TxSelect()], [UNROUTABLE, m.TxCommit()], ["BasicReturn", "TxCommitOk"]),
    ("delete", (), [m.QueueDelete(queue="full")], ["QueueDeleteOk"]),
    ("delete nothing", (), [m.QueueDelete(queue="none")], ["QueueDeleteOk"]),
    ("delete what is consumed", [TAKEN], [m.QueueDelete(queue="q")], ["QueueDeleteOk", "BasicCancel"]),
    (
        "consume and delete",
        (),
        [TAKEN, m.QueueDelete(queue="q")],
        ["BasicConsumeOk", "QueueDeleteOk", "BasicCancel"],
    ),
    (
        "delete what is consumed from a bookmark",
        [m.BasicConsume(queue="full", consumer_tag="f", arguments={"x-bookmark": "epoch"})],
        [m.QueueDelete(queue="full"), m.BasicQos()],
        ["QueueDeleteOk", "BasicQosOk"],
    ),
    ("publish to nobody", (), [UNROUTABLE], ["BasicReturn"]),
    ("publish to nobody, confirmed", [m.ConfirmSelect()], [UNROUTABLE], ["BasicReturn", "BasicAck"]),
    ("publish, confirmed", [m.ConfirmSelect()], [message(b"x")], ["BasicAck"]),
    ("close", (), [CLOSE], ["ChannelCloseOk"]),
    ("publish to nobody and close", (), [UNROUTABLE, CLOSE], ["BasicReturn", "ChannelCloseOk"]),
    ("two answers, and close", (), [m.BasicQos(), CLOSE], ["BasicQosOk", "ChannelCloseOk"]),
    ("get and close", (), [m.BasicGet(queue="full"), CLOSE], ["ChannelCloseOk"]),  # what was got is back already
    ("find what is missing", (), [m.QueueDeclare(queue="none", passive=True)], ["ChannelClose"]),
    ("publish to what is missing", (), [message(b"x", exchange="none")], ["ChannelClose"]),
    ("settle what is not there", (), [m.BasicNack(9)], ["ChannelClose"]),
    ("ack what is not there", (), [m.BasicAck(9)], ["ChannelClose"]),
    ("fail and go on", (), [m.QueuePurge(queue="none"), m.BasicQos(), UNROUTABLE], ["ChannelClose"]),
    ("fail and close", (), [m.QueuePurge(queue="none"), CLOSE], ["ChannelCloseOk"]),
]  # fmt: skip


@pytest.fixture
def life() -> Life:
    life = Life(SimDisk(), clock())
    life.declare("q", "full")
    publisher = life.client()
    publisher.publish("full", b"m")
    life.run()
    publisher.lose()
    life.run()
    return life


def sent(asked: Sequence[Ask]) -> bytes:
    return b"".join(one if isinstance(one, bytes) else frame(METHOD, 1, one.encode()) for one in asked)


def ids(case: Case) -> str:
    return case[0]


@pytest.mark.parametrize("at_once", [True, False], ids=["in one read", "in a turn each"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_answers_come_in_the_order_of_their_questions(life: Life, case: Case, at_once: bool) -> None:
    _, before, behind, expected = case
    client = life.client()
    client.send(sent(before))
    life.run()
    assert len([one for one in client.take_all() if not isinstance(one, Content)]) == len(before)
    declare = m.QueueDeclare(queue="new", durable=True)
    for part in [[declare, *behind]] if at_once else [[one] for one in (declare, *behind)]:
        client.send(sent(part))
        life.turn()
    assert client.names() == []  # nobody knows yet whether the queue will last
    life.run()
    assert client.names() == ["QueueDeclareOk", *expected]
    assert not client.session.leaving


def test_every_request_of_a_client_is_among_the_cases() -> None:
    asked = {type(one) for _, before, behind, _ in CASES for one in (*before, *behind) if isinstance(one, m.Method)}
    quiet = {m.BasicAck, m.BasicReject, m.BasicRecoverAsync, m.ChannelCloseOk, m.ChannelFlowOk, m.BasicCancelOk}
    alike = {m.ExchangeBind, m.ExchangeUnbind, m.ExchangeDelete}  # answered as the declare of an exchange is
    every = {one for one in m.METHODS.values() if one.FROM_CLIENT and one.ID >> 16 != 10}
    bytes_of = {m.BasicPublish}  # with its message
    assert every - asked - quiet - alike - bytes_of == {m.ChannelOpen}


def test_a_number_is_free_once_its_channel_owes_nothing(life: Life) -> None:
    client = life.client()
    client.send(sent([m.QueueDeclare(queue="new", durable=True), m.QueuePurge(queue="none"), CLOSE]))
    life.run()
    assert client.names() == ["QueueDeclareOk", "ChannelCloseOk"]
    client.send(sent([m.ChannelOpen(), m.BasicQos()]))
    life.run()
    assert client.names() == ["ChannelOpenOk", "BasicQosOk"]


def test_a_broken_log_keeps_no_close_waiting(life: Life) -> None:
    ends: list[tuple[Ask, str]] = [(CLOSE, "ChannelCloseOk"), (m.QueuePurge(queue="none"), "ChannelClose")]
    clients = [(life.client(), end, last) for end, last in ends]
    for number, (client, end, _) in enumerate(clients):
        client.send(sent([m.QueueDeclare(queue=f"new-{number}", durable=True), end]))
    life.turn()
    assert [client.names() for client, _, _ in clients] == [[], []]
    life.disk.fail_next("sync")
    life.run()
    assert [client.names() for client, _, _ in clients] == [[last] for _, _, last in clients]
