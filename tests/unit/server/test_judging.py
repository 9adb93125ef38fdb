"""Filters off the loop: slices, the child for large bodies, and what happens when it is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import orjson
import pytest

from message_samples import SAMPLES, Sample
from penstock import expr
from penstock.core.effects import Made
from penstock.core.publishing.evaluating import costly
from penstock.core.queue.last_values import key_of
from penstock.core.queue.order.ranks import rank_of
from penstock.errors import Unavailable
from penstock.expr.bodies import heavy
from penstock.log.disk import OsDisk
from penstock.records.entries import Messages, Publishes, Topic
from penstock.records.message_types import typed
from penstock.records.properties import EMPTY, Properties, encode
from penstock.server.asking.judging import CHILD_BODY, judge_there, look, made_of
from penstock.server.bulk.process import Bulk

FILTERS = [expr.compile_filter(text) for text in ("/kind = 'a'", "/n > 1 AND /@headers/x = 1", "BOOKMARK() IS NULL")]
TOPIC = Topic("/", "ex", "t")
HEADER = encode(Properties(headers={"x": 1}))


def body(kind: str, n: int, size: int = 0) -> bytes:
    return orjson.dumps({"kind": kind, "n": n, "pad": "x" * size})


def test_slices_give_the_answers_of_each_filter() -> None:
    bodies = [body("ab"[n % 2], n, 400) for n in range(2_000)]
    headers = [HEADER if n % 3 else EMPTY for n in range(2_000)]
    found = look(FILTERS, Messages(bodies, headers, [TOPIC] * 2_000, range(2_000), range(2_000)))
    assert found == [
        [row for row, yes in enumerate(one.matches(bodies, headers, TOPIC)) if yes] for one in FILTERS
    ]  # fmt: skip


def test_only_large_bodies_are_sent_elsewhere() -> None:
    asked: list[int] = []

    def ask(job: str, values: dict[str, Any]) -> dict[str, Any]:
        asked.append(len(values["body"]))
        given = {**values, "body": memoryview(values["body"]), "properties": memoryview(values["properties"])}
        return judge_there(OsDisk(Path()), **given)

    bodies = [body("a", 1), body("b", 2, CHILD_BODY), body("a", 3), body("a", 4, CHILD_BODY)]
    assert look(FILTERS[:2], Messages(bodies, HEADER, TOPIC), ask) == [[0, 2, 3], [1, 2, 3]]
    assert asked == [len(bodies[1]), len(bodies[3])]


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_dense_bodies_of_other_types_than_json_do_not_hold_the_loop_up(sample: Sample) -> None:
    """They take up to thirty times as long: sixteen of 60 KB of MessagePack took a second of everybody's time."""
    sizes, batch = [60_000] * 16, Publishes(TOPIC, EMPTY, [b"x" * 60_000] * 16)
    value = expr.compile_value(typed(sample.path("total"), sample.name))
    found = expr.compile_filter(typed(sample.said("{total} > 1"), sample.name))
    away = sample.name not in ("json", "binary")
    assert costly(batch, "a name", value, range(16), 2) == (list(range(16)) if away else [])
    assert expr.FilterSet([found]).too_much(16, sum(sizes)) == heavy(sample.name, sizes) == away
    assert not heavy(sample.name, [1000] * 20)


def test_a_dense_body_goes_to_the_child_before_it_is_as_large_as_one_of_json() -> None:
    asked: list[int] = []

    def ask(job: str, values: dict[str, Any]) -> dict[str, Any]:
        asked.append(len(values["body"]))
        given = {**values, "body": memoryview(values["body"]), "properties": memoryview(values["properties"])}
        return judge_there(OsDisk(Path()), **given)

    small, dense = msgpack.packb({"n": 2}), msgpack.packb({"n": 3, "pad": [[]] * (CHILD_BODY // 3)})
    messages = Messages([small, dense], EMPTY, TOPIC)
    assert look([expr.compile_filter("[msgpack] /n = 3")], messages, ask) == [[1]]
    assert made_of([expr.compile_value("[msgpack] /n")], "rank", messages, ask) == [[rank_of(2), rank_of(3)]]
    assert asked == [len(dense)] * 2


def test_without_the_child_the_answer_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def ask(job: str, values: dict[str, Any]) -> dict[str, Any]:
        raise Unavailable("the bulk process cannot be started")

    bodies = [body("a", 1, CHILD_BODY), body("b", 2, CHILD_BODY)]
    assert look(FILTERS[:1], Messages(bodies, EMPTY, TOPIC), ask) == [[0]]
    assert "the bulk process cannot be started" in caplog.text


def test_the_child_judges_as_the_server_does(tmp_path: Path) -> None:
    bulk = Bulk(tmp_path)
    try:
        bodies = [body("a", 2, CHILD_BODY), b"[" * 10 + b" " * CHILD_BODY, b"\xff" * (CHILD_BODY + 1)]
        headers = [HEADER, EMPTY, HEADER]
        messages = Messages(bodies, headers, [TOPIC] * 3, [7, 8, 9], [1, 2, 3])
        assert look(FILTERS, messages, bulk.call) == look(FILTERS, messages)
        assert bulk.requests == 3
    finally:
        bulk.close()


@pytest.mark.parametrize(
    ("made", "wanted"), [("rank", [rank_of(7), rank_of(None)]), ("key", [key_of(7), 0]), ("text", ["7", None])]
)
def test_what_is_made_of_large_bodies_is_the_same_in_the_child(made: Made, wanted: list[object]) -> None:
    asked: list[str] = []

    def ask(job: str, values: dict[str, Any]) -> dict[str, Any]:
        asked.append(job)
        given = {**values, "body": memoryview(values["body"]), "properties": memoryview(values["properties"])}
        return judge_there(OsDisk(Path()), **given)

    value = [expr.compile_value("/n")]
    bodies = [body("a", 7, CHILD_BODY), orjson.dumps({"pad": "x" * CHILD_BODY}), body("a", 7), b"{}"]
    assert made_of(value, made, Messages(bodies, EMPTY, TOPIC), ask) == [wanted * 2]
    assert made_of(value, made, Messages(bodies, EMPTY, TOPIC)) == [wanted * 2]
    assert asked == ["judge", "judge"]


def test_text_that_is_no_utf8_comes_back_from_the_child(tmp_path: Path) -> None:
    bulk = Bulk(tmp_path)
    header = encode(Properties(headers={"k": b"\xff\xfe"}))
    value = expr.compile_value("COALESCE(/missing, /@headers/k)")
    large = [orjson.dumps({"pad": "x" * CHILD_BODY})]
    try:
        assert made_of([value], "text", Messages(large, header, TOPIC), bulk.call) == [["\udcff\udcfe"]]
        assert bulk.requests == 1
    finally:
        bulk.close()
