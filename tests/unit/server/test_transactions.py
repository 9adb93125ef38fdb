"""AMQP transactions: what becomes visible when, what a refusal and a lost connection leave, what a crash may keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.records.kinds import Kind
from penstock.records.properties import Properties, encode
from penstock.server import committing
from penstock.server.amqp import transaction
from penstock.wire.amqp import methods as m
from sim.serverkit import PERSISTENT, Client, Content, Life, clock

QUEUES = ("q", "other")


def open_tx(life: Life, *, prefetch: int = 0) -> Client:
    client = life.client(prefetch=prefetch)
    client.method(m.TxSelect())
    life.run()
    client.take(m.TxSelectOk)
    return client


def commit(life: Life, client: Client) -> None:
    client.method(m.TxCommit())
    life.run()
    client.take(m.TxCommitOk)


def fill(life: Life, *bodies: bytes, queue: str = "q", properties: bytes = PERSISTENT) -> None:
    other = life.client()
    other.publish(queue, *bodies, properties=properties)
    life.run()
    other.lose()
    life.run()


def consumer(life: Life, queue: str = "q", *, prefetch: int = 0) -> tuple[Client, list[Content]]:
    client = open_tx(life, prefetch=prefetch)
    client.consume(queue)
    life.run()
    client.take(m.BasicConsumeOk)
    return client, client.messages()


def charged(life: Life) -> int:
    return life.engine.bodies.budget.by_name().get("transactions", 0)


def closed(client: Client) -> m.ChannelClose:
    (last,) = [one for one in client.take_all() if isinstance(one, m.ChannelClose)]
    return last


def check(life: Life) -> None:
    for queue in life.core.queues():
        queue.check()


# -- what is visible when


def test_publishes_become_visible_at_commit(life: Life) -> None:
    client = open_tx(life)
    client.publish("q", b"1", b"2")
    client.publish("other", b"3")
    life.run()
    assert life.ready("q") == life.ready("other") == 0
    assert charged(life) > 3
    client.method(m.TxCommit())
    life.turn()
    assert client.got == []  # not before the sync
    life.run()
    client.take(m.TxCommitOk)
    assert (life.ready("q"), life.ready("other")) == (2, 1)
    assert charged(life) == 0
    assert life.door.counted().published == 3
    assert life.counters.sizes.told()[0] == 3
    assert life.door.counted().published_confirm == 0


def test_a_rollback_forgets_publishes(life: Life) -> None:
    client = open_tx(life)
    client.publish("q", b"1")
    client.method(m.TxRollback())
    life.run()
    client.take(m.TxRollbackOk)
    commit(life, client)
    assert life.ready("q") == 0
    assert charged(life) == 0


def test_acks_count_at_commit_and_prefetch_frees_with_them(life: Life) -> None:
    fill(life, b"1", b"2", b"3")
    client, got = consumer(life, prefetch=2)
    assert [one.body for one in got] == [b"1", b"2"]
    client.ack(1)
    life.run()
    assert client.got == []
    assert life.core.queue("/", "q").leased == 2
    client.method(m.TxCommit())
    life.run()
    got = [one.body for one in client.take_all() if isinstance(one, Content)]
    assert got == [b"3"]
    assert life.core.queue("/", "q").leased == 2
    assert life.door.counted().acknowledged == 1
    check(life)


def test_acks_of_several_queues_and_publishes_are_one_group(life: Life) -> None:
    fill(life, b"1")
    fill(life, b"2", queue="other")
    client, _ = consumer(life)
    client.consume("other", "d")
    life.run()
    client.take(m.BasicConsumeOk)
    assert client.bodies() == [b"2"]
    client.ack(2, multiple=True)
    client.publish("q", b"new")
    first = life.core.next_lsn
    client.method(m.TxCommit())
    life.run()
    assert {type(one) for one in client.take_all()} == {m.TxCommitOk, Content}
    assert life.contents("q") == [b"new"]
    assert life.contents("other") == []
    (batch,) = life.log.batches(first, life.core.next_lsn)
    kinds = [Kind(kind) for kind in batch.column("kind").to_pylist()]
    assert kinds[-1] is Kind.TRANSACTION
    assert kinds.count(Kind.SETTLE) == 2
    assert kinds.count(Kind.PUBLISH) == 1


def test_after_a_rollback_deliveries_are_unacked_again_under_their_tags(life: Life) -> None:
    fill(life, *(b"%d" % n for n in range(6)))
    client, got = consumer(life)
    assert [one.tag for one in got] == [1, 2, 3, 4, 5, 6]
    client.ack(3)
    client.ack(2, multiple=True)
    client.method(m.BasicNack(5, requeue=True))
    client.method(m.TxRollback())
    life.run()
    client.take(m.TxRollbackOk)
    assert life.core.queue("/", "q").leased == 6
    client.ack(1)
    client.ack(5)
    client.ack(3, multiple=True)
    commit(life, client)
    assert life.contents("q") == [b"3", b"5"]
    client.ack(6, multiple=True)
    commit(life, client)
    assert life.contents("q") == []
    check(life)


def test_a_tag_is_unknown_once_it_was_acked_in_the_transaction(life: Life) -> None:
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.ack(1)
    life.run()
    told = closed(client)
    assert (told.reply_code, told.reply_text) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")
    assert life.ready("q") == 1
    assert charged(life) == 0


def test_everything_outstanding_is_acked_with_tag_0(life: Life) -> None:
    fill(life, b"1", b"2")
    client, _ = consumer(life)
    client.ack(0, multiple=True)
    client.ack(0, multiple=True)
    commit(life, client)
    assert life.contents("q") == []


def test_requeues_take_effect_at_commit(life: Life) -> None:
    fill(life, b"1", b"2")
    client, _ = consumer(life)
    client.method(m.BasicCancel("c"))
    client.method(m.BasicReject(1, requeue=True))
    life.run()
    client.take(m.BasicCancelOk)
    assert life.ready("q") == 0
    commit(life, client)
    assert life.ready("q") == 1


def test_what_nobody_wants_is_returned_at_commit_and_before_it_is_answered(life: Life) -> None:
    client = open_tx(life)
    client.publish("q", b"wanted", mandatory=True)
    client.publish("nobody", b"lost")
    client.publish("nobody", b"back", mandatory=True)
    life.run()
    assert client.got == []
    client.method(m.TxCommit())
    life.run()
    back = client.take(Content)  # type: ignore[type-var]
    assert isinstance(back, Content)
    assert isinstance(back.method, m.BasicReturn)
    assert (back.method.reply_code, back.body) == (312, b"back")
    client.take(m.TxCommitOk)
    assert life.contents("q") == [b"wanted"]
    assert (life.door.counted().unroutable_returned, life.door.counted().unroutable_dropped) == (1, 1)


def test_of_messages_that_came_apart_those_return_that_nobody_wanted(life: Life) -> None:
    client = open_tx(life)
    for n in range(6):
        client.publish("nobody" if n % 2 else "q", b"%d" % n, mandatory=n > 1)
        if n % 3:
            life.run()
    client.method(m.TxCommit())
    life.run()
    back = [client.take(Content) for _ in range(2)]  # type: ignore[type-var]
    assert [one.body for one in back if isinstance(one, Content)] == [b"3", b"5"]
    client.take(m.TxCommitOk)
    assert life.contents("q") == [b"0", b"2", b"4"]
    assert life.door.counted().published == 6
    assert life.counters.sizes.told()[0] == 6


def test_an_empty_commit_writes_nothing(life: Life) -> None:
    client = open_tx(life)
    before = life.core.last_lsn
    commit(life, client)
    assert life.core.last_lsn == before


# -- the words of it


@pytest.mark.parametrize("method", [m.TxCommit(), m.TxRollback()])
def test_without_tx_select_a_channel_is_not_transactional(life: Life, method: m.Method) -> None:
    client = life.client()
    client.method(method)
    life.run()
    told = closed(client)
    assert (told.reply_code, told.reply_text) == (406, "PRECONDITION_FAILED - channel is not transactional")


def test_select_twice_is_fine_and_keeps_the_transaction(life: Life) -> None:
    client = open_tx(life)
    client.publish("q", b"1")
    client.method(m.TxSelect())
    life.run()
    client.take(m.TxSelectOk)
    commit(life, client)
    assert life.ready("q") == 1


def test_tx_after_confirm_and_confirm_after_tx(life: Life) -> None:
    client = life.client(confirm=True)
    client.method(m.TxSelect())
    life.run()
    told = closed(client)
    assert (told.reply_code, told.reply_text) == (406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")
    client = open_tx(life)
    client.method(m.ConfirmSelect())
    life.run()
    told = closed(client)
    assert (told.reply_code, told.reply_text) == (406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")


def test_a_missing_exchange_closes_the_channel_at_once(life: Life) -> None:
    client = open_tx(life)
    client.publish("q", b"1")
    client.publish("q", b"2", exchange="absent")
    life.run()
    assert closed(client).reply_code == 404
    assert life.ready("q") == 0
    assert charged(life) == 0


def test_a_bad_header_closes_the_channel_at_once(life: Life) -> None:
    client = open_tx(life)
    client.publish("q", b"1")
    client.publish("q", b"2", properties=encode(Properties(expiration="abc")))
    life.run()
    told = closed(client)
    assert (told.reply_code, told.reply_text) == (406, "PRECONDITION_FAILED - invalid expiration 'abc': no_integer")
    assert life.ready("q") == 0


def test_a_refusal_at_commit_leaves_nothing_and_is_406(life: Life) -> None:
    life.declare("full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.publish("other", b"2")
    client.publish("full", b"3", b"4")
    client.method(m.TxCommit())
    life.run()
    told = closed(client)
    assert told.reply_code == 406
    assert "message 3 of 3 is refused: queue 'full'" in told.reply_text
    assert (life.ready("q"), life.ready("other"), life.ready("full"), charged(life)) == (1, 0, 0, 0)
    check(life)


# -- what ends it


def test_a_lost_connection_rolls_back(life: Life) -> None:
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.publish("other", b"2")
    life.run()
    client.lose()
    life.run()
    assert (life.ready("q"), life.ready("other"), charged(life)) == (1, 0, 0)
    check(life)


def test_a_closed_channel_rolls_back(life: Life) -> None:
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.publish("other", b"2")
    client.method(m.ChannelClose(200, "", 0, 0))
    life.run()
    assert (life.ready("q"), life.ready("other"), charged(life)) == (1, 0, 0)


def test_a_queue_that_was_deleted_takes_nothing_along(life: Life) -> None:
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.publish("other", b"2")
    life.run()
    life.core.delete_queue(life.engine.now(), life.core.queue("/", "q"))
    life.run()
    client.take(m.BasicCancel)
    commit(life, client)
    assert life.ready("other") == 1


def test_a_lease_that_ended_meanwhile_is_silent() -> None:
    life = Life(SimDisk(), clock())
    life.declare("q", **{"x-lease-period": 1000, "x-leasing": "strict"})
    fill(life, b"1")
    client, _ = consumer(life, prefetch=1)
    other = life.client(prefetch=1)
    other.consume("q")
    client.ack(1)
    life.run()
    other.take_all()
    life.advance(2_000_000)  # it ends, and the other one gets it
    (again,) = other.messages()
    commit(life, client)
    assert life.contents("q") == [b"1"]
    other.ack(again.tag)
    life.advance(200_000)
    assert life.contents("q") == []


def test_what_came_again_to_its_own_consumer_has_no_old_tag_after_a_rollback() -> None:
    """Its old tag was back, too: what was said of it then ended the delivery that the client works on."""
    life = Life(SimDisk(), clock())
    life.declare("q", **{"x-lease-period": 1000})
    fill(life, b"1")
    client, [first] = consumer(life)
    client.ack(first.tag)
    life.run()
    life.advance(2_000_000)
    [again] = client.messages()
    client.method(m.TxRollback())
    life.run()
    client.take(m.TxRollbackOk)
    client.ack(first.tag)
    commit(life, client)
    assert life.core.queue("/", "q").leased == 1
    client.ack(again.tag)
    commit(life, client)
    assert life.core.queue("/", "q").leased == 0
    check(life)


def test_what_ends_in_turns_of_three_ways_is_one_record_a_way(life: Life) -> None:
    """Each turn was a step of its own: 300,000 acks and nacks in turns held up all others for minutes."""
    life.declare("source", **LETTERS)
    life.declare("dead")
    fill(life, *(b"%d" % n for n in range(30)), queue="source")
    client, got = consumer(life, "source")
    client.method(m.BasicCancel("c"))
    for one in got:
        client.method((m.BasicAck(one.tag), m.BasicReject(one.tag, False), m.BasicReject(one.tag, True))[one.tag % 3])
    first = life.core.next_lsn
    client.method(m.TxCommit())
    life.run()
    (batch,) = life.log.batches(first, life.core.next_lsn)
    kinds = [Kind(kind) for kind in batch.column("kind").to_pylist()]
    assert len(kinds) - kinds.count(Kind.PUBLISH) == 5  # a route among them, and what tells of the transaction
    assert life.contents("dead") == [b"%d" % n for n in range(0, 30, 3)]
    assert life.contents("source") == [b"%d" % n for n in range(1, 30, 3)]
    check(life)


# -- bounds


def test_a_transaction_has_a_most_of_bytes(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "TRANSACTION_BYTES_MAX", 1000)
    client = open_tx(life)
    client.publish("q", b"x" * 600)
    client.publish("q", b"x" * 600)
    life.run()
    told = closed(client)
    assert told.reply_code == 406
    assert "1000 bytes" in told.reply_text
    assert (life.ready("q"), charged(life)) == (0, 0)


def test_open_transactions_have_a_share_of_the_memory() -> None:
    """And those of one user half of it together, but for his only one."""
    life = Life(SimDisk(), clock(), budget=1 << 20)
    life.declare("q")
    one, two = open_tx(life), open_tx(life)
    one.publish("q", b"x" * 200_000)
    two.publish("q", b"x" * 200_000)
    life.run()
    told = closed(two)
    assert told.reply_code == 506
    assert "open transactions of user 'guest' may have 131072 bytes" in told.reply_text
    commit(life, one)  # the only one of its user may have more than that
    assert (life.ready("q"), charged(life)) == (1, 0)
    alone = open_tx(life)
    alone.publish("q", b"x" * 200_000)
    alone.publish("q", b"x" * 100_000)
    life.run()
    told = closed(alone)
    assert told.reply_code == 506
    assert "open transactions may have 262144 bytes" in told.reply_text
    assert (life.ready("q"), charged(life)) == (1, 0)
    again = open_tx(life)
    again.publish("q", b"x" * 200_000)
    commit(life, again)
    assert life.ready("q") == 2


# -- crashes


@pytest.mark.parametrize("sync", ["commit", "off"])
def test_commit_ok_means_that_it_is_on_the_disk_whatever_sync_says(sync: str) -> None:
    disk = SimDisk()
    life = Life(disk, clock(), log=replace(MEMORY, sync=sync))
    life.declare("q", "other")
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.publish("other", b"2")
    commit(life, client)
    life.crash()
    life = Life(disk, life.clock)
    assert (life.contents("q"), life.contents("other")) == ([], [b"2"])


def test_a_crash_before_the_sync_leaves_nothing_of_it() -> None:
    disk = SimDisk()
    life = Life(disk, clock())
    life.declare("q", "other")
    fill(life, b"1")
    client, _ = consumer(life)
    client.ack(1)
    client.publish("other", b"2")
    client.method(m.TxCommit())
    life.turn()
    life.crash()
    life = Life(disk, life.clock)
    assert (life.contents("q"), life.contents("other")) == ([b"1"], [])


# -- dead letters


LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def test_rejects_go_with_their_dead_letters_into_the_group(life: Life) -> None:
    life.declare("source", **LETTERS)
    life.declare("dead")
    fill(life, b"1", b"2", b"3", queue="source")
    client, _ = consumer(life, "source")
    client.method(m.BasicNack(2, multiple=True, requeue=False))
    client.publish("other", b"new")
    life.run()
    assert life.ready("dead") == 0
    first = life.core.next_lsn
    client.method(m.TxCommit())
    life.turn()
    life.engine.finish_turn()
    assert life.core.queue("/", "source").dying == 0  # nothing is left for later
    life.run()
    client.take(m.TxCommitOk)
    assert (life.contents("source"), life.contents("dead")) == ([b"3"], [b"1", b"2"])
    (batch,) = life.log.batches(first, life.core.next_lsn)
    kinds = [Kind(kind) for kind in batch.column("kind").to_pylist()]
    assert kinds.count(Kind.PUBLISH) == 3
    assert (kinds.count(Kind.EXPIRE), kinds[-1]) == (1, Kind.TRANSACTION)
    assert life.core.dead_lettered == {"rejected": 2}
    check(life)


def test_bodies_of_rejects_are_read_before_the_commit_decides() -> None:
    life = Life(SimDisk(), clock(), budget=1 << 16)
    life.declare("source", **LETTERS)
    life.declare("dead", "other")
    bodies = [b"%d" % n * 3000 for n in range(9)]
    fill(life, *bodies, queue="source")
    client, _ = consumer(life, "source")
    client.take_all()
    client.method(m.BasicReject(1, requeue=False))
    fill(life, *(b"x" * 3000 for _ in range(30)), queue="other")  # so that memory has no body of it any more
    client.method(m.TxCommit())
    life.turn()
    if not life.cold:
        pytest.skip("the body is in memory")
    client.publish("other", b"later")
    client.method(m.TxCommit())
    life.turn()
    assert life.ready("dead") == 0
    life.run()
    client.take(m.TxCommitOk)
    client.take(m.TxCommitOk)
    assert life.contents("dead") == bodies[:1]
    assert charged(life) == 0
    check(life)


def test_a_connection_that_is_lost_while_bodies_are_read_rolls_back() -> None:
    life = Life(SimDisk(), clock(), budget=1 << 16)
    life.declare("source", **LETTERS)
    life.declare("dead", "other")
    fill(life, *(b"%d" % n * 3000 for n in range(9)), queue="source")
    client, _ = consumer(life, "source")
    client.take_all()
    client.method(m.BasicReject(1, requeue=False))
    fill(life, *(b"x" * 3000 for _ in range(30)), queue="other")
    client.method(m.TxCommit())
    life.turn()
    assert life.cold
    client.lose()
    life.run()
    assert (life.ready("source"), life.ready("dead"), charged(life)) == (9, 0, 0)
    check(life)


def test_rejects_after_a_rollback_leave_nothing(life: Life) -> None:
    life.declare("source", **LETTERS)
    life.declare("dead")
    fill(life, b"1", queue="source")
    client, _ = consumer(life, "source")
    client.method(m.BasicReject(1, requeue=False))
    client.method(m.TxRollback())
    life.run()
    client.take(m.TxRollbackOk)
    assert (life.core.queue("/", "source").leased, life.ready("dead")) == (1, 0)


def test_dead_letters_count_among_the_bytes_of_a_transaction(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "TRANSACTION_BYTES_MAX", 1000)
    life.declare("source", **LETTERS)
    life.declare("dead")
    fill(life, b"x" * 1200, queue="source")
    client, _ = consumer(life, "source")
    client.method(m.BasicReject(1, requeue=False))
    client.method(m.TxCommit())
    life.run()
    told = closed(client)
    assert told.reply_code == 406
    assert "more than 1000 bytes" in told.reply_text
    assert (life.ready("source"), life.ready("dead"), charged(life)) == (1, 0, 0)
