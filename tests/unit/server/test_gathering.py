"""What may be gathered over connections, and that nothing is that must be decided alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest

from penstock.records.entries import Publishes, singly
from penstock.records.properties import Properties, encode
from penstock.server.amqp import incoming, publishers
from penstock.server.people.entitlements import Rights
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD
from sim.serverkit import Client, Life, frame, message

ID = encode(Properties(delivery_mode=2, message_id="m", headers={"tenant": "a"}))
QUEUES = ("q", "other")


def known(life: Life, **how: object) -> Client:
    """A confirming client whose target is known, so that its next message goes the short way."""
    client = life.client(confirm=True, **how)  # type: ignore[arg-type]
    client.publish("q", b"first", properties=ID)
    life.run()
    assert client.confirms() == [(True, 1, True)]
    return client


def gathered(life: Life) -> int:
    """Messages that wait for the end of the round."""
    return len(life.door.publishers.gathering._rows)


def batches(life: Life) -> list[int]:
    """Sizes of the batches of the last turn."""
    return [len(one.bodies) for one in life.core._out.journal if isinstance(one, Publishes)]


def test_messages_of_many_connections_are_one_batch_and_each_is_confirmed(life: Life) -> None:
    clients = [known(life) for _ in range(5)]
    for number, client in enumerate(clients):
        client.publish("q", b"%d" % number, properties=ID)
    assert gathered(life) == 5
    life.door.publishers.gathering.decide()
    assert batches(life) == [5]
    life.run()
    assert [client.confirms() for client in clients] == [[(True, 2, True)]] * 5
    assert life.contents("q") == [b"first"] * 5 + [b"0", b"1", b"2", b"3", b"4"]


def test_one_that_is_refused_or_goes_nowhere_answers_its_own_connection_alone(life: Life) -> None:
    life.declare("full", **{"x-max-length": 0, "x-overflow": "reject-publish"})
    clients = [known(life) for _ in range(4)]
    for key, client in zip(("q", "full", "nobody", "q"), clients, strict=True):
        client.publish(key, b"known", properties=ID, mandatory=True)
        life.run()
        client.take_all()
    for key, client in zip(("q", "full", "nobody", "q"), clients, strict=True):
        client.publish(key, b"x", properties=ID, mandatory=True)
    assert gathered(life) == 4
    life.run()
    told = [[type(one).__name__ for one in client.take_all()] for client in clients]
    assert told == [["BasicAck"], ["BasicNack"], ["Content", "BasicAck"], ["BasicAck"]]
    assert life.door.counted().unroutable_returned == 2
    assert life.counters.sizes.told()[1][-1][1] == life.door.counted().published


def test_one_that_goes_nowhere_behind_others_of_its_channel_is_confirmed_with_them(life: Life) -> None:
    client = known(life)
    client.publish("nobody", b"known", properties=ID)
    life.run()
    client.take_all()
    for key in ("q", "q", "nobody"):
        client.publish(key, b"x", properties=ID)
    assert gathered(life) == 3
    life.run()
    assert client.confirms() == [(True, 5, True)]


def test_acks_of_many_connections_are_one_settlement_and_free_each_its_place(life: Life) -> None:
    consumers = [life.client(prefetch=1) for _ in range(4)]
    for number, client in enumerate(consumers):
        client.consume("q", f"c{number}")
    publisher = life.client()
    publisher.publish("q", *[b"%d" % number for number in range(8)])
    life.run()
    for client in consumers:
        client.take(m.BasicConsumeOk)
        [one] = client.messages()
        client.ack(one.tag)
    assert len(life.door.publishers.gathering._acks) == 4
    life.run()
    assert sorted(body for client in consumers for body in client.bodies()) == [b"4", b"5", b"6", b"7"]


def test_an_ack_behind_a_publish_of_the_same_connection_is_decided_behind_it(life: Life) -> None:
    client = life.client(prefetch=1)
    client.consume("other")
    life.client().publish("other", b"work")
    life.run()
    client.take(m.BasicConsumeOk)
    [work] = client.messages()
    client.publish("q", b"known", properties=ID)
    life.run()
    client.publish("q", b"result", properties=ID)
    client.ack(work.tag)
    life.door.publishers.gathering.decide()
    kinds = ["publish" if hasattr(one, "bodies") else one.kind.name for one in singly(life.core._out.journal)]  # type: ignore[union-attr]
    assert kinds == ["publish", "SETTLE"]


def test_who_answers_and_acknowledges_is_gathered_with_the_others(life: Life) -> None:
    """Requests come to workers with one message each; what they answer is one batch, and their acks one settlement."""
    workers = [life.client(prefetch=1) for _ in range(4)]
    for worker in workers:
        worker.consume("other")
    life.client().publish("other", *[b"%d" % number for number in range(8)])
    life.run()
    asked = []
    for worker in workers:
        worker.take(m.BasicConsumeOk)
        worker.publish("q", b"known", properties=ID)
        life.run()
        asked += worker.messages()
    for worker, one in zip(workers, asked, strict=True):
        worker.publish("q", b"answer to " + one.body, properties=ID)
        worker.ack(one.tag)
    assert gathered(life) == 4
    life.door.publishers.gathering.decide()
    kinds = ["publish" if hasattr(one, "bodies") else one.kind.name for one in singly(life.core._out.journal)]  # type: ignore[union-attr]
    assert kinds[0] == "publish"
    assert set(kinds[1:]) == {"SETTLE", "GRANT"}
    assert batches(life) == [4]
    life.run()
    assert sorted(body for worker in workers for body in worker.bodies()) == [b"4", b"5", b"6", b"7"]


def test_what_is_published_behind_an_ack_behind_a_message_keeps_its_place(life: Life) -> None:
    client, other = known(life, prefetch=1), known(life)
    client.consume("other")
    other.publish("other", b"work")
    life.run()
    client.take(m.BasicConsumeOk)
    [work] = client.messages()
    client.publish("q", b"result", properties=ID)
    client.ack(work.tag)
    other.publish("q", b"of another", properties=ID)
    client.publish("q", b"next", properties=ID)
    life.door.publishers.gathering.decide()
    written = singly(life.core._out.journal)
    told = [list(map(bytes, one.bodies)) if isinstance(one, Publishes) else one for one in written]
    assert [one if isinstance(one, list) else one.kind.name for one in told] == [  # type: ignore[union-attr]
        [b"result", b"of another"], "SETTLE", [b"next"],
    ]  # fmt: skip


def test_what_a_client_asks_next_comes_behind_what_it_has_sent(life: Life) -> None:
    client = known(life)
    client.publish("q", b"2", properties=ID)
    client.method(m.QueuePurge(queue="q"))
    life.run()
    assert [one.message_count for one in client.take_all() if isinstance(one, m.QueuePurgeOk)] == [2]
    assert life.contents("q") == []


def test_a_lost_connection_has_sent_what_it_sent(life: Life) -> None:
    client = known(life)
    client.publish("q", b"last", properties=ID)
    client.lose()
    life.run()
    assert life.contents("q") == [b"first", b"last"]


def test_a_wrong_tag_ends_its_channel_and_no_other(life: Life) -> None:
    clients = [known(life) for _ in range(3)]
    clients[0].publish("q", b"a", properties=ID)
    clients[1].ack(77)
    clients[2].publish("q", b"c", properties=ID)
    life.run()
    assert [[type(one).__name__ for one in client.take_all()] for client in clients] == [
        ["BasicAck"], ["ChannelClose"], ["BasicAck"],
    ]  # fmt: skip


def _transaction(life: Life, client: Client) -> None:
    client.method(m.ChannelOpen(), 2)
    client.method(m.TxSelect(), 2)
    client.send(message(b"t", "q", channel=2, properties=ID))
    life.run()
    client.send(message(b"t", "q", channel=2, properties=ID))


def _rights(life: Life, client: Client) -> None:
    client.session.take_rights(Rights((), (), {}))
    client.publish("q", b"x", properties=ID)


def _blocking(life: Life, client: Client) -> None:
    life.declare("holds", **{"x-max-length": 5, "x-overflow": "block"})
    client.publish("q", b"known", properties=ID)
    life.run()
    client.publish("q", b"x", properties=ID)


def _draining(life: Life, client: Client) -> None:
    life.core.draining = True
    client.publish("q", b"x", properties=ID)


def _broken(life: Life, client: Client) -> None:
    life.engine.broken = "told"
    client.publish("q", b"x", properties=ID)


def _no_room(life: Life, client: Client) -> None:
    life.engine.slowed = True
    client.publish("q", b"x", properties=ID)


def _asking(life: Life, client: Client) -> None:
    client.publish("q", b"x", properties=encode(Properties(delivery_mode=2, expiration="10")))


def _of_another(life: Life, client: Client) -> None:
    client.publish("q", b"x", properties=encode(Properties(delivery_mode=2, user_id="other")))


def _many(life: Life, client: Client) -> None:
    client.publish("q", *[b"x"] * (publishers.FEW + 1), properties=ID)


@pytest.mark.parametrize(
    "case", [_transaction, _rights, _blocking, _draining, _broken, _no_room, _asking, _of_another, _many]
)
def test_what_has_to_be_decided_alone_is(life: Life, case: object) -> None:
    client = known(life)
    case(life, client)  # type: ignore[operator]
    assert gathered(life) == 0


def test_a_topology_that_changes_within_the_round_is_asked_again(life: Life) -> None:
    client, admin = known(life), life.client()
    client.publish("q", b"x", properties=ID)
    assert gathered(life) == 1
    admin.method(m.QueueDelete(queue="q"))
    life.run()
    assert [type(one).__name__ for one in client.take_all()] == ["BasicAck"]
    assert [one.message_count for one in admin.take_all() if isinstance(one, m.QueueDeleteOk)] == [2]
    client.publish("q", b"y", properties=ID, mandatory=True)
    life.run()
    assert [type(one).__name__ for one in client.take_all()] == ["Content", "BasicAck"]


def test_who_pipelines_is_not_gathered(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "PACED_UNCONFIRMED", 2)
    client = known(life)
    for _ in range(3):
        client.publish("q", b"x", properties=ID)
        life.turn()
    life.log.waiting_since = life.clock.mono()
    client.publish("q", b"x", properties=ID)
    assert not client.reading


def test_a_round_of_very_many_is_decided_in_parts(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "ROWS_MOST", 3)
    clients = [known(life) for _ in range(8)]
    for client in clients:
        client.publish("q", b"x", properties=ID)
    assert gathered(life) <= 3
    life.run()
    assert [client.confirms() for client in clients] == [[(True, 2, True)]] * 8


def test_the_log_breaks_while_messages_lie_there(life: Life) -> None:
    client = known(life)
    client.publish("q", b"x", properties=ID)
    life.engine.broken = "told"
    life.turn()
    assert [type(one).__name__ for one in client.take_all()] == ["BasicNack"]


def test_who_published_in_a_round_and_went_is_forgotten_although_another_of_it_stays_idle(life: Life) -> None:
    idle = known(life)
    gone = known(life)
    rounds = [weakref.ref(gone.session)]
    idle.publish("q", b"x", properties=ID)
    for _ in range(5):  # each is in one round with the one before it, which then goes
        gone.publish("q", b"x", properties=ID)
        life.run()
        following = known(life)
        gone.publish("q", b"y", properties=ID)
        following.publish("q", b"y", properties=ID)
        life.run()
        gone.lose()
        life.run()
        gone = following
        rounds.append(weakref.ref(gone.session))
    del following
    gc.collect()
    assert [one() is not None for one in rounds] == [False] * 5 + [True]
    assert idle.confirms() != []


@pytest.fixture
def judged(life: Life, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Large messages to the filtered queue `f` are judged off the loop; this lets the verdicts come."""
    life.declare("f", **{"x-filter": "/ok = 1"})
    waiting: list[Callable[[], None]] = []
    seen = set[int]()

    def ready(batches: Sequence[Publishes], then: Callable[[], None]) -> bool:
        large = [id(one.bodies) for one in batches if any(len(body) > 8192 for body in one.bodies)]
        if seen.issuperset(large):
            return True
        seen.update(large)
        waiting.append(then)
        return False

    monkeypatch.setattr(life.engine.judges, "ready", ready)

    def verdicts() -> None:
        while waiting:
            waiting.pop(0)()
            life.run()

    return verdicts


LARGE = b'{"ok": 1, "text": "%s"}' % (b"x" * 9000)


@pytest.mark.parametrize("bodies", [[LARGE], [LARGE] * 3, [b'{"ok": 1}', LARGE, b'{"ok": 1}']], ids=["1", "3", "mixed"])
def test_what_has_to_be_judged_first_is_not_gathered_and_what_follows_it_waits(
    life: Life, judged: Callable[[], None], bodies: list[bytes]
) -> None:
    client = life.client(confirm=True)
    for last in (False, True):  # the second time its target is known
        client.publish("f", *bodies)
        client.method(m.QueueDeclare(queue="f", passive=True))
        life.run()
        assert all(isinstance(one, m.BasicAck) for one in client.take_all()), "the declare waits for its turn"
        judged()
        told = [one for one in client.take_all() if isinstance(one, m.QueueDeclareOk)]
        assert [one.message_count for one in told] == [len(bodies) * (1 + last)]
    assert life.contents("f") == bodies * 2


def test_a_close_waits_for_what_is_judged(life: Life, judged: Callable[[], None]) -> None:
    client = life.client()
    client.send(message(LARGE, "f") + frame(METHOD, 1, m.ChannelClose().encode()))
    life.run()
    assert client.take_all() == []
    judged()
    assert [type(one) for one in client.take_all()] == [m.ChannelCloseOk]
    assert life.contents("f") == [LARGE]
