"""A body of a batch is read once, whoever asks and whatever is in it: filters, priorities, keys, consumers.

A body of 60 kilobytes takes milliseconds: where each of a hundred queues read it anew, one message held all for a third
of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module

import orjson
import pytest

from message_samples import FIX_TAGS, SAMPLES, Sample
from penstock.core.effects import Scan
from penstock.core.queue.order.ranks import compile_ranking
from penstock.core.queue.staging import key_text
from penstock.expr import FilterSet, compile_filter, compile_value, compiler
from penstock.expr.bodies import body_type
from penstock.expr.context import LOOP_BODY, LOOP_VISITS, HandOver, meter
from penstock.expr.filter_set import LOOKUPS_A_VISIT
from penstock.records.entries import Messages, Publishes
from penstock.records.message_types import typed
from penstock.records.properties import EMPTY
from penstock.server.asking.judging import _answers, made_of, note  # pyright: ignore[reportPrivateUsage]
from unit.core.world import World

QUEUES = 4
ALL = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[bytes]]:
    """How often each body was read, be it within an expression or before it."""
    found = Counter[bytes]()

    def counting(read: Callable[[bytes], object]) -> Callable[[bytes], object]:
        def counted(body: bytes) -> object:
            found[body] += 1
            return read(body)

        return counted

    def forget() -> None:
        for kept in (body_type, compile_filter, compile_value, compile_ranking):
            kept.cache_clear()

    types = import_module("penstock.expr.bodies.body_type")  # whose name a function of the package has
    table_of = types._table_of
    monkeypatch.setattr(types, "_table_of", lambda read: table_of(counting(read)))
    monkeypatch.setitem(compiler._NAMES, "loads", counting(compiler._NAMES["loads"]))
    forget()
    yield found
    forget()


def bodies_of(sample: Sample, note_of: str) -> list[bytes]:
    """Some that are of the type, and more that are not."""
    good = [sample.body({**dict.fromkeys(FIX_TAGS, "x"), "id": n, "total": n, "note": note_of}) for n in range(4)]
    return [*good, *(body[:-3] for body in good), good[0][::-1], b"", b"\xff" * 2000, b"a=1\x01" * 500, b"<a>" * 500]


def batch_of(world: World, sample: Sample, note_of: str) -> Publishes:
    return Publishes(world.core.topic("/", "", "in"), sample.properties, bodies_of(sample, note_of))


def publish(world: World, batch: Publishes) -> None:
    """As a door does: what would hold the loop up is evaluated beside it before."""
    while asked := world.core.unjudged(batch):
        note(batch, asked, _answers([(batch, asked)], None)[0])
    assert not world.core.publish(world.now, batch).refused


@ALL
@pytest.mark.parametrize("size", [10, LOOP_BODY], ids=["on the loop", "beside it"])
def test_filters_of_queues_read_a_body_once(sample: Sample, size: int, reads: Counter[bytes]) -> None:
    world = World()
    for n in range(QUEUES):
        text = sample.said(f"{{total}} > {n} AND {{note}} != '{n}'" if n % 2 else f"{{id}} = {n} OR {{region}} = '{n}'")
        world.declare(f"q{n}", underlying_topic="in", message_type=sample.name, filter=text)
    batch = batch_of(world, sample, "x" * size)
    assert bool(world.core.unjudged(batch)) == (size == LOOP_BODY)
    reads.clear()
    publish(world, batch)
    assert len(reads) == len(set(batch.bodies))
    assert set(reads.values()) == {1}


ASKED = [
    {"priority_expression": "{total}"},
    {"priority_expression": "{total} + 1", "filter": "{id} IS NOT NULL"},
    {"group_key": "{region}"},
    {"fairness_key": "{note}", "group_key": "{id}"},
    {"last_value_key": "{id}"},
    {"last_value_key": "{region}"},
    {"dedup_key": "{id}", "unique": True},
    {"dedup_key": "{total}", "unique": True},
]


def assert_read_once(world: World, sample: Sample, reads: Counter[bytes]) -> None:
    """Each body of a batch, whoever asks for it."""
    batch = batch_of(world, sample, "x")
    reads.clear()
    publish(world, batch)
    assert len(reads) == len(set(batch.bodies))
    assert set(reads.values()) == {1}


@ALL
def test_filters_priorities_and_keys_of_queues_read_a_body_once(sample: Sample, reads: Counter[bytes]) -> None:
    world = World()
    for n, settings in enumerate(ASKED):
        said = {key: sample.said(text) if isinstance(text, str) else text for key, text in settings.items()}
        world.declare(f"q{n}", underlying_topic="in", message_type=sample.name, **said)
    assert_read_once(world, sample, reads)


@ALL
def test_consumers_of_queues_read_a_body_once(sample: Sample, reads: Counter[bytes]) -> None:
    world = World()
    for n in range(QUEUES):
        queue = world.declare(f"q{n}", underlying_topic="in", message_type=sample.name)
        for text in (f"{{total}} > {n}", f"{{id}} = {n}"):
            one = compile_filter(typed(sample.said(text), sample.name))
            world.subscribe(queue, tag=text, filter=one)
    assert_read_once(world, sample, reads)


@ALL
def test_keys_that_are_worked_out_later_are_so_together(sample: Sample, reads: Counter[bytes]) -> None:
    world = World()
    values = tuple(compile_value(typed(sample.path(name), sample.name)) for name in ("region", "note"))
    bodies = bodies_of(sample, "x")
    reads.clear()
    found = made_of(values, "text", Messages(bodies, sample.properties, world.core.topic("/", "", "in")))
    assert set(reads.values()) == {bodies.count(body) for body in bodies}
    assert found == [[key_text(one) for one in value.values(bodies, sample.properties)] for value in values]


def test_arrays_that_are_looked_up_do_not_hold_the_loop_up() -> None:
    """Sixteen bodies of a quarter megabyte have two million elements: to look each up takes half a second."""
    together = FilterSet([compile_filter(f"/a = '{n}'") for n in "xy"])
    long = orjson.dumps({"a": [*range(LOOKUPS_A_VISIT * LOOP_VISITS)] + ["x"]})
    short = orjson.dumps({"a": [*range(1000)]})
    assert together.matches([long], EMPTY, None) == {0: [0]}
    with meter.bounded():
        assert together.matches([short], EMPTY, None) == {}
        with pytest.raises(HandOver):
            together.matches([long], EMPTY, None)


def test_filters_of_all_queues_that_a_batch_reaches_have_the_time_of_one() -> None:
    """Each may look at twenty thousand elements on the loop: a hundred queues did so for two seconds in one turn."""
    world = World()
    queues = [world.declare(f"q{n}", underlying_topic="in") for n in range(QUEUES)]
    for queue in queues:
        world.subscribe(queue, filter=compile_filter("/a > 1000000 AND /b = 1"))
    body = orjson.dumps({"a": [*range(LOOP_VISITS // 2 - 1)], "b": 1})
    world.core.publish(world.now, Publishes(world.core.topic("/", "", "in"), EMPTY, [body]))
    asked = [effect for effect in world.core.take_effects() if isinstance(effect, Scan)]
    assert len(asked) == QUEUES - 2
