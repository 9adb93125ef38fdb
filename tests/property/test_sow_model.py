"""A SOW topic agrees with a dict, through publishes, deltas, removal, expiry, crashes and restarts."""

from __future__ import annotations

import json
from array import array
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.sow import index as index_module
from penstock.core.sow.index import Index
from penstock.core.state.fold import Fold
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.testing import Broker

LIFE = 10
CONFIG: dict[str, object] = {
    "topic": [{"name": "plain", "key": ["/id"]}, {"name": "short", "key": ["/id", "/o/k"], "expiration": f"{LIFE}s"}],
    "queue": [{"name": "q", "underlying_topic": "^(plain|short)$", "default_publish_target": "plain"}],
}
HEADER = encode(Properties(delivery_mode=2))

KEYS = st.integers(0, 5)
VALUES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3) | st.none() | st.lists(st.integers()))
TOPICS = st.sampled_from(["plain", "short"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), TOPICS, KEYS, VALUES),
        st.tuples(st.just("delta"), TOPICS, KEYS, VALUES),
        st.tuples(st.just("batch"), TOPICS, st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=60), st.booleans()),
        st.tuples(st.just("delete"), TOPICS, KEYS, st.none()),
        st.tuples(st.just("filter"), TOPICS, st.integers(0, 3), st.none()),
        st.tuples(st.just("advance"), st.none(), st.floats(0.1, 6.0), st.none()),
        st.tuples(st.just("crash"), st.none(), st.none(), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none(), st.none()),
    ),
    max_size=25,
)

Fields = dict[str, Any]


class Model:
    """What a reader of the rules would write."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], tuple[Fields, float]] = {}
        self.published: list[Fields] = []

    def put(self, topic: str, key: int, fields: Fields, now: float, *, delta: bool) -> None:
        body: Fields = {"id": key, "o": {"k": "x"}, **fields}
        if delta and (topic, key) in self.records:
            body = {**self.records[topic, key][0], **fields}
        self.records[topic, key] = body, now + LIFE if topic == "short" else float("inf")
        self.published.append(body)

    def expire(self, now: float) -> None:
        self.records = {name: (body, due) for name, (body, due) in self.records.items() if due > now}

    def of(self, topic: str) -> dict[int, Fields]:
        return {key: body for (name, key), (body, _) in self.records.items() if name == topic}


@settings(max_examples=examples(25))
@given(STEPS)
def test_records_are_those_of_a_dict(steps: list[tuple[str, Any, Any, Any]]) -> None:
    model = Model()
    with Broker(CONFIG) as broker:
        for step in steps:
            take(broker, model, step)
            model.expire(broker.now())
            check(broker, model)
        check_fold(broker)


def take(broker: Broker, model: Model, step: tuple[str, Any, Any, Any]) -> None:
    verb, topic, what, more = step
    now = broker.now()
    match verb:
        case "publish" | "delta":
            body = json.dumps({"id": what, "o": {"k": "x"}, **more})
            (broker.delta_publish if verb == "delta" else broker.publish)(topic, body)
            model.put(topic, what, more, now, delta=verb == "delta")
        case "batch":
            publish_many(broker, topic, what, delta=more)
            for key, fields in what:
                model.put(topic, key, fields, now, delta=more)
        case "delete":
            there = (topic, what) in model.records
            assert broker.sow_delete(topic, data=json.dumps({"id": what, "o": {"k": "x"}})) == there
            model.records.pop((topic, what), None)
        case "filter":
            gone = [name for name, (body, _) in model.records.items() if name[0] == topic and body.get("a") == what]
            assert broker.sow_delete(topic, filter=f"/a = {what}") == len(gone)
            for name in gone:
                del model.records[name]
        case "advance":
            broker.advance(what)
        case _:
            check_fold(broker)
            if verb == "crash":
                broker.crash()
            broker.restart()


def publish_many(broker: Broker, topic: str, rows: list[tuple[int, Fields]], *, delta: bool) -> None:
    bodies = [json.dumps({"id": key, "o": {"k": "x"}, **fields}).encode() for key, fields in rows]

    def work(instance: Any) -> None:
        batch = Publishes(instance.core.topic("/", "", topic), HEADER, bodies, size=sum(map(len, bodies)), delta=delta)
        while not instance.engine.judges.ready([batch], lambda: None):
            instance.run_turns()
        published = instance.core.publish(instance.engine.now(), batch)
        assert (published.stored, list(published.refused)) == (len(rows), [])
        instance.make_durable()

    broker.command(work)


def fields_of(record: Any) -> Fields:
    """As Python's own reader has them, which keeps whole numbers of any length."""
    return json.loads(record.body)  # type: ignore[no-any-return]


def check(broker: Broker, model: Model) -> None:
    for topic in ("plain", "short"):
        found = broker.sow(topic)
        assert {fields_of(record)["id"]: fields_of(record) for record in found} == model.of(topic)
        assert len(found) == len(model.of(topic))
    if broker.stats("q")["ready"] == len(model.published):  # the queue's own messages expire with their records
        assert [fields_of(record) for record in broker.sow("q")] == model.published


def check_fold(broker: Broker) -> None:
    instance = broker.instance
    assert instance is not None
    fold = Fold()
    for table in instance.log.batches(0, instance.log.durable + 1):
        fold.feed(table)
    folded, living = fold.finish(), instance.core.durable_state()
    assert folded.sows == living.sows
    assert folded.decode(folded.encode()).sows == living.sows


PUTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40), st.integers(0, 5)),
        st.tuples(st.just("older"), st.integers(0, 40), st.integers(0, 5)),
        st.tuples(st.just("drop"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("many"), st.integers(48, 200), st.integers(0, 3)),
        st.tuples(st.just("due"), st.integers(0, 12), st.integers(1, 5)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(150))
@given(PUTS, st.integers(0, 2**32))
def test_an_index_is_a_dict(steps: list[tuple[str, int, int]], seed: int) -> None:
    with patch.object(index_module, "LEAF", 16):
        agree(steps, seed)


def agree(steps: list[tuple[str, int, int]], seed: int) -> None:
    chance = np.random.default_rng(seed)
    index, model = Index(), dict[int, tuple[int, int]]()
    kept: list[tuple[Any, dict[int, tuple[int, int]]]] = []
    spread = 2**64 // 300  # keys over the whole range
    lsn = 0
    for verb, a, b in steps:
        match verb:
            case "put":
                lsn += 1
                index.put(a * spread, lsn, b)
                model[a * spread] = lsn, b
            case "older":  # what a base writes again stands behind what came after it
                index.put(a * spread, -lsn - 1 if b else 1, b)
                model[a * spread] = -lsn - 1 if b else 1, b
            case "drop":
                assert index.drop(a * spread) == model.pop(a * spread, (0, 0))[0]
            case "many":
                numbers = chance.integers(0, 300, a).astype(np.uint64) * np.uint64(spread)
                lsns = np.arange(lsn + 1, lsn + 1 + a, dtype=np.int64)
                due = chance.integers(0, b + 1, a).astype(np.int64) if b else None
                lsn += a
                index.put_many(numbers, lsns, due)
                times = [0] * a if due is None else due.tolist()
                for number, one, time in zip(numbers.tolist(), lsns.tolist(), times, strict=True):
                    model[number] = one, time
            case "due":
                over = {number: one for number, (one, time) in model.items() if 0 < time <= a}
                gone, had = index.overdue(a, b)
                index.expire(gone, a)
                assert len(gone) == min(b, len(over))
                assert all(over[number] == one for number, one in zip(gone, had, strict=True))
                for number in gone:
                    del model[number]
                assert (index.due <= a) == (len(over) > b)
            case _:
                kept.append((index.snapshot(), dict(model)))
        assert index.count == len(model)
        if chance.random() < 0.5:  # it remembers, and must not remember what went meanwhile
            assert index.oldest() == min((one for one, _ in model.values()), default=1 << 62)
        assert all(index.get(number) == one for number, (one, _) in model.items())
        assert index.due <= min((time for _, time in model.values() if time), default=1 << 62)
    for snapshot, then in [*kept, (index.snapshot(), model)]:
        assert packed(snapshot.packed()) == then
        again = Index.load(*snapshot.packed())
        assert packed(again.snapshot().packed()) == then
        assert again.count == len(then)


def packed(columns: tuple[array[int], array[int], array[int]]) -> dict[int, tuple[int, int]]:
    numbers, lsns, deadlines = columns
    assert list(numbers) == sorted(numbers)
    return dict(zip(numbers, zip(lsns, deadlines or [0] * len(lsns), strict=True), strict=True))
