"""A disk that fails or fills up under a scripted mixed history: a failed write and a failed sync at every commit."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from choices import stride
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.wire.amqp import methods as m
from sim.ledger import Ledger, Load, check_restart
from sim.serverkit import Life, clock

LOG = replace(MEMORY, segment=30_000, origin=9)


class Script(Load):
    """The mixed history: always the same steps, each with its own commit."""

    def _consumer(self, name: str):  # type: ignore[no-untyped-def]
        client = self.life.client(prefetch=4)
        client.consume(name, no_ack=name == "once")
        self.held[name] = {}
        return client

    def run(self) -> None:
        steps = (
            self.publish, self.settle, self.publish, self.ack, self.settle, self.plan, self.settle, self.publish,
            self.nack, self.settle, self.declare, self.settle, self.reject, self.settle, self.publish, self.reject,
            self.settle, self.plan, self.wait, self.publish, self.leave, self.settle, self.ack, self.wait, self.plan,
            self.checkpoint, self.publish, self.reject, self.settle, self.ack, self.wait,
        )  # fmt: skip
        for step in steps:
            step()
            self.absorb()


def history(disk: SimDisk) -> tuple[Ledger, Life, Script]:
    ledger = Ledger()
    life = Life(disk, clock(), log=LOG)
    script = Script(ledger, life, random.Random(5))
    for _ in range(3):
        script.publish()
    script.settle()
    return ledger, life, script


def calls_of_a_good_run() -> dict[str, int]:
    disk = SimDisk()
    ledger, life, script = history(disk)
    before = {"write": disk.writes, "sync": disk.syncs}
    script.run()
    assert life.engine.broken is None
    assert {ledger.queue_of[body] for body in ledger.confirmed} == {"q", "work", "once", "read", "late"}
    assert ledger.rejected
    assert ledger.plans
    assert ledger.gone
    return {"write": disk.writes - before["write"], "sync": disk.syncs - before["sync"]}


GOOD = calls_of_a_good_run()
EACH = stride(2)
"""Of so many commits one meets the fault."""


@pytest.mark.parametrize("power", ["kill", "cut"])
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_the_disk_fails_once_at_every_commit(kind: str, power: str) -> None:
    assert GOOD[kind] > 10
    broke, tried = 0, range(0, GOOD[kind], EACH)
    for after in tried:
        disk = SimDisk(seed=after)
        ledger, life, script = history(disk)
        disk.fail_next(kind, after=after)
        script.run()
        if life.engine.broken is None:  # the checkpoint met it, and nothing else needs one
            life.kill()
            check_restart(ledger, disk, life.clock, LOG).kill()
            continue
        broke += 1
        assert life.health == [life.engine.broken]
        assert not script.told, "a publisher was told nothing"
        durable = life.log.durable
        script.publish()
        script.ack()
        script.settle()
        assert life.log.durable == durable
        assert not script.told
        assert life.log.pending.bytes == 0
        if power == "kill":
            life.kill()
        else:
            life.crash()
        again = check_restart(ledger, disk, life.clock, LOG)
        load = Load(ledger, again, random.Random(after))
        for _ in range(5):
            load.step()
        load.settle()
        assert again.engine.broken is None
    assert broke >= len(tried) - 3


def test_a_full_disk_refuses_publishes_and_serves_on() -> None:
    log = replace(LOG, ahead=16_384, reserve=65_536, low_space=8_192)
    disk = SimDisk(capacity=1_000_000)
    life = Life(disk, clock(), log=log)
    life.declare("q")
    client = life.client(confirm=True)
    sent = 0
    for _ in range(200):
        client.publish("q", *(b"%d" % (sent + n) + b"-" * 900 for n in range(10)))
        sent += 10
        life.advance(1_100_000)
        if life.log.room.full:
            break
    assert life.log.room.full
    client.publish("q", b"no room")
    life.run()
    told = client.confirms()
    assert told[-1] == (False, sent + 1, False)
    assert life.engine.broken is None
    stored = life.ready("q")
    assert stored >= sent - 20
    worker = life.client(prefetch=50)
    worker.consume("q")
    life.run()
    worker.take(m.BasicConsumeOk)
    done = 0
    while stored - done > 10:
        got = worker.messages()
        assert got
        done += len(got)
        worker.ack(got[-1].tag, multiple=True)
        life.advance(150_000)
    assert life.engine.broken is None
    left = worker.bodies()
    assert life.ready("q") + len(left) == stored - done
    client.publish("q", b"still no room")
    life.run()
    assert client.confirms() == [(False, sent + 2, False)]
    disk.capacity = 1 << 40
    life.advance(1_100_000)
    assert not life.log.room.full
    client.publish("q", b"room")
    life.run()
    assert client.confirms() == [(True, sent + 3, True)]
    before = life.contents("q")
    life.log.flush()
    life.kill()
    again = Life(disk, life.clock, log=log)
    assert again.contents("q") == before
    assert before[-1] == b"room"


@pytest.mark.parametrize("error", [errno.EIO, errno.EDQUOT])
def test_what_kind_of_failure_it_was(error: int) -> None:
    """A disk that is broken stops the log; one that is only full does not, as long as there is a reserve."""
    log = replace(LOG, reserve=65_536)
    disk = SimDisk()
    life = Life(disk, clock(), log=log)
    life.declare("q")
    client = life.client(confirm=True)
    client.publish("q", b"1")
    disk.fail_next("write", error=error)
    life.run()
    assert (life.engine.broken is None) == (error == errno.EDQUOT)
    assert client.confirms() == [(error == errno.EDQUOT, 1, True)]
