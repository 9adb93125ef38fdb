"""A publish that was refused is never delivered: not before, not after, not by a restart.

Refused at the door it is in no queue and in no log.  When the log itself finds no room any more (zeros and reserve are
used up), all of the commit is refused and nothing of it stays; a lease that left early may have shown it before the
refusal, and nothing shows it after.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from choices import seeds
from penstock.log.room import RESERVE
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.records.properties import Properties, encode
from penstock.wire.amqp import methods as m
from sim.serverkit import PERSISTENT, Client, Content, Life, clock

LOG = replace(MEMORY, origin=9, batch_rows=4)
ROOMY = replace(MEMORY, origin=9, ahead=16_384, reserve=65_536, low_space=8_192, segment=30_000)
MODES = {"durable": PERSISTENT, "transient": encode(Properties(delivery_mode=1))}


def full_after(disk: SimDisk, size: int) -> None:
    """So many bytes more, and the disk is full."""
    disk.capacity = disk.used() + size


def outcomes(client: Client, sent: int) -> dict[int, bool]:
    """By number of a publish, from 1: whether it was confirmed or refused."""
    told = dict[int, bool]()
    for good, number, multiple in client.confirms():
        for one in range(1 if multiple else number, number + 1):
            told.setdefault(one, good)
    assert max(told, default=0) <= sent
    return told


def published(mode: str, room: int, segment: int) -> tuple[Client, Client, Life]:
    """Twelve messages, three batches, on their way to the log; the disk has so much room for them."""
    life = Life(SimDisk(), clock(), log=replace(LOG, segment=segment))
    life.declare("q")
    publisher, worker = life.client(confirm=True), life.client()
    worker.consume("q")
    life.run()
    worker.take(m.BasicConsumeOk)
    full_after(life.disk, room)
    publisher.publish("q", *(b"%d " % n + b"x" * 400 for n in range(1, 13)), properties=MODES[mode])
    life.turn()
    return publisher, worker, life


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("segment", [1 << 20, 3_000])
@pytest.mark.parametrize("share", [0.0, 0.45, 0.8])
def test_what_the_log_had_no_room_for_is_refused_for_good(mode: str, share: float, segment: int) -> None:
    _, _, life = published(mode, 1 << 40, segment)
    needed = -life.disk.used()
    life.run()
    needed += life.disk.used()
    publisher, worker, life = published(mode, int(needed * share), segment)
    disk = life.disk
    early = [int(body.split()[0]) for body in worker.bodies()]
    assert early == list(range(1, 13))  # at least once: leases leave before the sync
    assert publisher.confirms() == []
    life.run()
    assert life.engine.broken is not None
    assert outcomes(publisher, 12) == dict.fromkeys(early, False)
    worker.lose()  # what it held goes back to the queue
    life.run()
    second, getter = life.client(), life.client()
    second.consume("q")
    getter.method(m.BasicGet(queue="q"))
    life.run()
    assert not [one for one in (*second.take_all(), *getter.take_all()) if isinstance(one, Content)]
    publisher.publish("q", b"13 late", properties=MODES[mode])
    life.run()
    assert publisher.confirms() == [(False, 13, False)]
    life.kill()  # the system keeps what was written, synced or not
    disk.capacity = 1 << 40
    again = Life(disk, life.clock, log=LOG)
    assert again.contents("q") == []
    assert life.core.queue("/", "q").id == again.core.queue("/", "q").id
    publisher = again.client(confirm=True)
    publisher.publish("q", b"again")
    again.run()
    assert publisher.confirms() == [(True, 1, True)]
    assert again.contents("q") == [b"again"]


@pytest.mark.parametrize("mode", MODES)
def test_a_disk_that_fills_and_empties_never_takes_a_refusal_back(mode: str, effort: int) -> None:
    """Room comes and goes between any two steps; whoever was refused never sees his message again, nor saw it."""
    refusals = confirms = 0
    for seed in seeds(30 * effort):
        chance = random.Random(seed)
        disk = SimDisk(seed=seed)
        life = Life(disk, clock(), log=ROOMY)
        life.declare("q")
        publisher, worker = life.client(confirm=True), life.client(prefetch=20)
        worker.consume("q")
        life.run()
        worker.take(m.BasicConsumeOk)
        sent, told, seen, held = 0, dict[int, bool](), dict[int, int](), list[int]()

        def look() -> None:
            for number, good in outcomes(publisher, sent).items():  # noqa: B023  called within the round
                told.setdefault(number, good)  # noqa: B023
            for one in worker.messages():  # noqa: B023
                number = int(one.body.split()[0])
                assert told.get(number) is not False, f"seed {seed}: {number} was refused, and came"  # noqa: B023
                seen[number] = seen.get(number, 0) + 1  # noqa: B023
                held.append(one.tag)  # noqa: B023

        for _ in range(60):
            match chance.randrange(7):
                case 0 if RESERVE in disk.files():  # where others took what it was, there is nothing left for acks
                    full_after(disk, chance.choice([2_000, 6_000, 12_000]))
                case 1:
                    disk.capacity = 1 << 40
                case 2 | 3:
                    count = chance.randint(1, 8)
                    bodies = [b"%d " % (sent + 1 + n) + b"x" * chance.randint(10, 900) for n in range(count)]
                    sent += count
                    publisher.publish("q", *bodies, properties=MODES[mode])
                case 4:
                    if held:
                        worker.ack(held[-1], multiple=True)
                        held.clear()
                case 5:
                    life.advance(chance.choice([10_000, 200_000, 1_100_000]))
                case _:
                    life.turn()
            look()
            assert life.engine.broken is None
        disk.capacity = 1 << 40
        life.advance(1_100_000)
        look()
        assert sorted(told) == list(range(1, sent + 1)), f"seed {seed}"
        refused = {number for number, good in told.items() if not good}
        refusals, confirms = refusals + len(refused), confirms + len(told) - len(refused)
        assert not refused & set(seen), f"seed {seed}"
        life.kill()
        again = Life(disk, life.clock, log=ROOMY)
        found = {int(body.split()[0]) for body in again.contents("q")}
        assert not refused & found, f"seed {seed}"
        if mode == "durable":
            assert set(told) - refused <= found | set(seen), f"seed {seed}"
    assert refusals > 100
    assert confirms > 100
