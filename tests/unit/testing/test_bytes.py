"""Bytes of what a queue holds: exact at every moment, after any history."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from penstock.core import sizes
from penstock.core.state import durable
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.testing import Broker
from sim.serverkit import Client, Life, clock

SMALL = replace(MEMORY, segment=16_000, origin=7)
ONE = {"queue": [{"name": "q", "lease_period": "30s"}]}


def told(broker: Broker, queue: str = "q") -> tuple[object, object, object]:
    stats = broker.stats(queue)
    return stats["ready_bytes"], stats["leased_bytes"], stats["bytes"]


def test_only_ready_messages_count_as_ready_bytes_and_only_their_bodies() -> None:
    with Broker(ONE) as broker:
        for body in (b"a" * 10, b"b" * 200, b"", b"c" * 3000):
            broker.publish("q", body, headers={"long": "x" * 99})
        assert told(broker) == (3210, 0, 3210)
        subscription = broker.subscribe("q", max_backlog=2)
        first, second = subscription.take()
        assert told(broker) == (3000, 210, 3210)
        second.ack()
        [third] = subscription.take()
        assert told(broker) == (3000, 10, 3010)
        first.cancel()
        third.ack()
        subscription.close()
        assert told(broker) == (3010, 0, 3010)


def test_an_empty_body_weighs_nothing() -> None:
    with Broker(ONE) as broker:
        for _ in range(5):
            broker.publish("q", b"")
        assert broker.stats("q")["ready"] == 5
        assert told(broker) == (0, 0, 0)


def test_expiry_and_delay_are_counted_where_the_messages_are() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b"x" * 7, delay=10.0)
        broker.publish("q", b"y" * 50, expiration=5.0)
        broker.publish("q", b"z" * 900)
        assert told(broker) == (950, 0, 957)
        broker.advance(6.0)
        assert told(broker) == (900, 0, 907)
        broker.advance(6.0)
        assert told(broker) == (907, 0, 907)
        for message in broker.subscribe("q", max_backlog=5).take():
            message.expire()
        assert told(broker) == (0, 0, 0)


def test_dead_letters_weigh_in_the_queue_they_go_to() -> None:
    config = {
        "queue": [
            {"name": "q", "dead_letter_exchange": "", "dead_letter_routing_key": "dead", "message_ttl": "5s"},
            {"name": "dead"},
        ]
    }
    with Broker(config) as broker:
        broker.publish("q", b"x" * 33)
        broker.publish("q", b"y" * 44)
        broker.advance(6.0)
        assert told(broker) == (0, 0, 0)
        assert told(broker, "dead") == (77, 0, 77)
        broker.crash()
        broker.restart()
        assert told(broker, "dead") == (77, 0, 77)


@pytest.mark.parametrize("how", ["crash", "restart"])
@pytest.mark.parametrize("file_backed", [False, True])
def test_a_start_knows_them_again(how: str, file_backed: bool) -> None:
    config = {"queue": [{"name": "q", "file_backed_metadata": file_backed}]}
    with Broker(config) as broker:
        for n in range(200):
            broker.publish("q", b"x" * (n % 17))
        subscription = broker.subscribe("q", max_backlog=50)
        for message in subscription.take()[::3]:
            message.ack()
        _, _, total = told(broker)
        for _ in range(2):
            if how == "crash":
                broker.crash()
            broker.restart()
            assert told(broker) == (total, 0, total)


def test_a_message_that_a_recovery_point_brings_back_weighs_what_it_did() -> None:
    with Broker({"queue": [{"name": "a"}]}) as broker:
        for n in range(1, 40):
            broker.publish("a", b"x" * n)
        for message in broker.subscribe("a", max_backlog=50).take():
            message.ack()
        again = {"name": "b", "underlying_topic": "a", "recovery_point": "epoch"}
        config = {"queue": [{"name": "a"}, again]}
        broker.restart(config=config)
        assert told(broker, "b") == (780, 0, 780)
        broker.restart(config=config)
        assert told(broker, "b") == (780, 0, 780)


# -- checkpoints of other versions, and what is forgotten


def publish(life: Life, client: Client, queue: str, bodies: list[bytes]) -> None:
    client.publish(queue, *bodies)
    life.run()


def test_a_checkpoint_without_sizes_has_them_read_from_the_log_once() -> None:
    life = Life(SimDisk(), clock(), log=SMALL)
    life.declare("q")
    client = life.client(confirm=True)
    publish(life, client, "q", [b"x" * (n % 40) for n in range(100)])
    life.log.flush()
    state = life.core.durable_state()
    state.measured = False
    with patch.object(durable, "VERSION", 2):
        old = state.encode()
    assert old[8] == 2
    life.log.write_checkpoint(old, life.core.last_lsn)
    publish(life, client, "q", [b"y" * 1000, b"z"])
    before = life.core.durable_state()
    life.kill()
    again = Life(life.disk, life.clock, log=SMALL)
    assert again.log.recovery.checkpoint
    [queue] = again.core.queues()
    assert queue.ready_bytes == sum(n % 40 for n in range(100)) + 1001
    assert again.core.durable_state().sizes == before.sizes
    assert again.core.durable_state().measured


def test_one_message_that_stays_does_not_keep_the_sizes_of_all_that_went_by() -> None:
    life = Life(SimDisk(), clock(), log=SMALL)
    life.declare("q", "stuck")
    client = life.client(confirm=True)
    publish(life, client, "stuck", [b"s" * 77])
    with patch.object(sizes, "SMALL", 1000):
        for n in range(20):
            publish(life, client, "q", [b"x" * (i * n % 91) for i in range(200)])
            life.core.purge_queue(life.engine.now(), life.core.queue("/", "q"))
            life.run()
        assert life.core.sizes.nbytes > 3500
        publish(life, client, "q", [b"new"])
        snapshot = life.core.snapshot()
        for _ in life.core.capture(snapshot):
            pass
        publish(life, client, "q", [b"x" * (i % 91) for i in range(100)])
        snapshot.encode()
        life.core.captured(snapshot)
    life.core.sizes.pack()
    assert life.core.sizes.nbytes < 2000
    assert life.core.queue("/", "stuck").ready_bytes == 77
    assert life.core.queue("/", "q").ready_bytes == 3 + sum(i % 91 for i in range(100))


def test_what_no_queue_needs_is_forgotten() -> None:
    life = Life(SimDisk(), clock(), log=SMALL)
    life.declare("q")
    client = life.client(confirm=True)
    for n in range(20):
        publish(life, client, "q", [b"x" * (i * n % 91) for i in range(200)])
    life.core.purge_queue(life.engine.now(), life.core.queue("/", "q"))
    publish(life, client, "q", [b"last"])
    while life.core.look_for_floor(100):
        pass
    assert life.core.sizes.nbytes < 1000
    assert life.core.queue("/", "q").ready_bytes == 4
