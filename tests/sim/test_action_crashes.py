"""Actions over power cuts and failing disks: what the log says has happened sets each off, once or at least once."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from choices import examples, seeds
from penstock.core.state.encoding import load
from penstock.errors import PenstockError
from penstock.records.chunks import unpack_pairs
from penstock.records.kinds import Kind
from penstock.testing import Broker

BODY = '{"n": {{AMPS_DATA}}, "mark": "{{AMPS_BOOKMARK}}"}'


def to(topic: str, data: str = BODY) -> dict[str, object]:
    return {"publish": {"topic": topic, "data": data}}


CONFIG = {
    "topic": [{"name": "state", "key": ["/id"], "expiration": "20s"}, {"name": "all"}],
    "queue": [
        {"name": "q", "max_cancels": 1, "lease_period": "30s"},
        *({"name": name} for name in ("seen", "done", "dead", "late", "gone", "out", "several")),
    ],
    "action": [
        {"name": "seen", "on": {"topic": "q", "event": "publish"}, "do": to("seen")},
        {"name": "done", "on": {"queue": "q", "event": "delete"}, "do": to("done")},
        {
            "name": "dead",
            "on": {"queue": "q", "event": "expire"},
            "do": to("dead", '{"n": {{AMPS_DATA}}, "why": "{{AMPS_REASON}}"}'),
        },
        {
            "name": "late",
            "on": {"queue": "q", "event": "expire"},
            "if": "/n IS NULL",
            "do": [
                {"extract_values": {"values": {"KIND": "'late'"}}},
                {"increment_counter": {"counter": "expired", "capture": "N"}},
                to("late", '{"n": {{AMPS_DATA}}, "kind": "{{KIND}}"}'),
            ],
        },
        {"name": "gone", "on": {"topic": "state", "event": "delete"}, "do": to("gone", "{{AMPS_DATA}}")},
        {"name": "out", "on": {"topic": "state", "event": "oof"}, "do": to("out", "{{AMPS_PREVIOUS_DATA}}")},
        {
            "name": "several",
            "on": {"queue": "q", "event": "delete"},
            "do": [to("several", "first {{AMPS_DATA}}"), {"increment_counter": {"counter": "x", "capture": "X"}}],
        },
    ],
}


def told(broker: Broker, queue: str) -> Counter[bytes]:
    return Counter(message.body for message in broker.subscribe(queue, max_backlog=None).take())


def history(broker: Broker) -> tuple[Counter[int], Counter[int], Counter[int], Counter[bytes]]:
    """By the log alone: what was published to q, acknowledged, expired; and the records that went."""
    assert broker.instance is not None
    numbers = dict[int, int]()
    records = dict[int, bytes]()
    ended: dict[str, Counter[int]] = {"SETTLE": Counter(), "EXPIRE": Counter()}
    gone = Counter[bytes]()
    queue = broker.instance.core.find_queue("/", "q")
    assert queue is not None
    for batch in broker.instance.log.batches(1, broker.instance.log.durable + 1):
        for row in batch.to_pylist():
            kind = Kind(row["kind"])
            if kind is Kind.PUBLISH and row["name"] == "q":
                numbers[row["lsn"]] = int(row["body"])
            elif kind is Kind.PUBLISH and row["name"] == "state":
                records[row["lsn"]] = row["body"]
            elif kind.name in ended:
                number, pairs = unpack_pairs(row["body"])
                if number == queue.id:
                    for at in range(0, len(pairs), 2):
                        mine = [numbers[lsn] for lsn in range(pairs[at], pairs[at + 1]) if lsn in numbers]
                        ended[kind.name].update(mine)
            elif kind is Kind.SOW_DROP:
                gone.update(records[lsn] for lsn in load(row["properties"])["lsns"])
    return Counter(numbers.values()), ended["SETTLE"], ended["EXPIRE"], gone


def numbers_of(bodies: Counter[bytes]) -> Counter[int]:
    return Counter({json.loads(body)["n"]: count for body, count in bodies.items()})


def check(broker: Broker) -> None:
    """Each trigger that the log has has had its effect; those of one publish exactly once."""
    published, settled, expired, gone = history(broker)
    assert numbers_of(told(broker, "seen")) == published
    assert numbers_of(told(broker, "done")) == settled
    assert numbers_of(told(broker, "dead")) == expired
    assert numbers_of(told(broker, "late")) == expired
    assert told(broker, "out") == gone
    first = told(broker, "several")
    assert set(first) == {b"first %d" % number for number in settled}


class Load:
    """Somebody publishes, somebody works, and the server dies."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker(CONFIG, seed=seed)
        self.count = 0
        self.begin()

    def begin(self) -> None:
        self.worker = self.broker.subscribe("q", max_backlog=4, name="worker")
        self.held = list(self.worker.take())

    def step(self) -> None:
        self.held += self.worker.take()
        held = self.held.pop(self.chance.randrange(len(self.held))) if self.held else None
        match self.chance.randrange(7):
            case 0 | 1 | 2:
                self.count += 1
                self.broker.publish("q", str(self.count))
            case 3 if held is not None:
                held.ack()
            case 4 if held is not None:
                held.cancel()
            case 5:
                self.broker.publish("state", f'{{"id": {self.chance.randrange(3)}, "v": {self.count}}}')
                if self.chance.random() < 0.5:
                    self.broker.sow_delete("state", filter=f"/id = {self.chance.randrange(3)}")
            case _:
                self.broker.advance(self.chance.choice([0.01, 5]))


def run(seed: int, steps: int, fail: tuple[str, int] | None, *, kill: bool) -> Load:
    load = Load(seed)
    if fail is not None:
        load.broker.disk.fail_next(fail[0], after=fail[1])
    try:
        for _ in range(steps):
            load.step()
    except PenstockError:
        assert fail is not None  # the log is broken: nothing more is stored
    if kill:
        load.broker.crash()
    load.broker.disk._faults.clear()
    load.broker.restart()
    load.begin()
    return load


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_at_every_cut_what_the_log_has_is_done(kind: str, effort: int) -> None:
    for after in range(40 * effort) if effort > 1 else range(kind == "sync", 40, 3):
        load = run(after, 60, (kind, after), kill=True)
        try:
            check(load.broker)
        except AssertionError as error:
            raise AssertionError(f"{kind} {after} failed: {error}") from error
        finally:
            load.broker.close()


def test_lives_and_power_cuts() -> None:
    for seed in seeds(examples(10)):
        load = run(seed, 40, None, kill=True)
        for _ in range(3):
            for _ in range(load.chance.randrange(1, 30)):
                load.step()
            if load.chance.random() < 0.6:
                load.broker.crash()
            load.broker.restart()
            load.begin()
        try:
            check(load.broker)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            load.broker.close()


def test_an_action_that_is_new_leaves_what_was_before_alone() -> None:
    old = {"queue": [{"name": "q"}, {"name": "out"}]}
    action = {"name": "tell", "on": {"topic": "q", "event": "publish"}, "do": to("out", "{{AMPS_DATA}}")}
    with Broker(old) as broker:
        broker.publish("q", "before")
        broker.crash()
        broker.restart({**old, "action": [action]})
        broker.publish("q", "after")
        broker.crash()
        broker.restart()
        assert told(broker, "out") == {b"after": 1}
