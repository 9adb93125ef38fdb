"""Every aggregate on small sets, with the check values of the documents; what a projection may say."""

from __future__ import annotations

import gc
import math
import pickle
import random
import sys
import tracemalloc
from typing import Any

import orjson
import pytest

from penstock.core.view_contributions import AVAILABLE, AWAY, GONE
from penstock.core.view_groups import Elements, View, body_of
from penstock.errors import ExpressionError
from penstock.expr.aggregates import Bag, key_of
from penstock.expr.group_rows import key_text
from penstock.expr.values import to_bytes
from penstock.expr.view_definition import Definition

NAN = float("nan")


def view(select: str, *group_by: str, filter: str | None = None) -> View:
    return View(Definition("v", "q", (select,), group_by, filter))


def put(one: View, records: list[dict[str, Any]], first: int = 1) -> None:
    lsns = range(first, first + len(records))
    one.enter(one.read(Elements(lsns, records, [orjson.dumps(record) for record in records])))


def shown(one: View) -> list[dict[str, Any]]:
    one.flush()
    return [orjson.loads(body_of(one, row)) for row in one.rows.values()]


def value(expression: str, values: list[Any]) -> Any:
    one = view(f"{expression} AS /x")
    put(one, [{} if item is ... else {"v": item} for item in values])
    one.flush()
    ((found,),) = one.rows.values()
    return found


def test_the_documents_example_gives_45_and_2() -> None:
    one = view("SUM(/qty) AS /total, SUM(IF((/qty % 10) == 0,1,0)) AS /tens", "/symbol")
    put(one, [{"symbol": "A", "qty": 10}, {"symbol": "A", "qty": 10}, {"symbol": "A", "qty": 25}])
    assert shown(one) == [{"total": 45, "tens": 2}]


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("COUNT(/v)", [1, None, ..., "", "a"], 2),
        ("COUNT(/v)", [None], 0),
        ("COUNT(1)", [None, 1], 2),
        ("SUM(/v)", [None, ...], None),
        ("SUM(/v)", [1, 2.5], 3.5),
        ("SUM(/v)", [2, "3"], 5),
        ("SUM(/v)", [True, 1], 2),
        ("SUM(/v)", [2**63, 2**63], 2.0**64),
        ("SUM(/v)", [0.1] * 10, 1.0),
        ("SUM(/v)", [[4, 9], 1], 5),
        ("AVG(/v)", [1, 2, None], 1.5),
        ("AVG(/v)", [None], None),
        ("MIN(/v)", [3, None, 2.5, "a"], 2.5),
        ("MAX(/v)", [3, None, 2.5], 3),
        ("MAX(/v)", [3, "10", "9"], "9"),
        ("MIN(/v)", ["b", "B", "é"], "B"),
        ("MAX(/v)", ["b", "B", "é"], "é"),
        ("MIN(/v)", [None], None),
        ("STDDEV_POP(/v)", [2, 4, 4, 4, 5, 5, 7, 9], 2.0),
        ("STDDEV_POP(/v)", [1e8 + 1, 1e8 + 2, 1e8 + 3], (2 / 3) ** 0.5),
        ("STDDEV_POP(/v)", [None], None),
        ("COUNT_DISTINCT(/v)", [1, 1.0, "1", "1.00", True, "a", None], 2),
        ("GROUP_CONCAT(/v)", ["b", 10, 2, "b", None], "2,10,b"),
        ("GROUP_CONCAT(/v, ' / ')", ["b", "a"], "a / b"),
        ("GROUP_CONCAT(/v)", [None], None),
        ("UNIQUE(/v)", ["a", "a", None], "a"),
        ("UNIQUE(/v)", ["a", "b"], None),
        ("UNIQUE(/v)", [2, "2.0"], 2),
        ("ANY(/v)", [None, 7, 8], 7),
        ("ANY(/v)", [None], None),
        ("/v", [1, 2], 2),
        ("/v", [1, None], None),
        ("CONCAT(/v, '!')", ["a", "b"], "b!"),
        ("SUM(/v) / COUNT(/v)", [1, 2], 1),
        ("SUM(/v) * 1.0 / COUNT(/v)", [1, 2], 1.5),
        ("MAX(/v) - MIN(/v)", [1, 5, 3], 4),
        ("COALESCE(SUM(/v), 0)", [None], 0),
        ("IF(COUNT(/v) > 1, 'many', 'few')", [1, 2], "many"),
    ],
)
def test_an_aggregate_of_values(expression: str, values: list[Any], expected: Any) -> None:
    found = value(expression, values)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("expression", ["SUM(/v)", "AVG(/v)", "STDDEV_POP(/v)"])
def test_a_text_that_is_no_number_makes_it_nan_as_long_as_it_is_there(expression: str) -> None:
    one = view(f"{expression} AS /x")
    put(one, [{"v": 1}, {"v": "zebra"}])
    one.flush()
    ((found,),) = one.rows.values()
    assert found != found
    assert shown(one) == [{"x": None}], "JSON has no NaN"
    one.move([2, 3], GONE)
    one.flush()
    ((found,),) = one.rows.values()
    assert found == found


def test_nan_is_neither_lowest_nor_highest() -> None:
    assert value("MIN(/v / 0)", [1]) != value("MIN(/v / 0)", [1])
    assert value("MAX(IF(/v > 1, /v, NAN_VALUE()))", [1, 2, 3]) == 3


KINDS = [True, 1, 1.5, -0.0, 2**63, -(2**70), math.inf, -math.inf, "", "a", "1", "\u00e9", "\udcff", "\ud800", False]
"""Values of every kind, the last with bytes that are no text and a surrogate that is no byte."""


@pytest.mark.parametrize("many", [0, 100], ids=["looked through", "in heaps"])
def test_the_lowest_and_highest_are_those_of_a_look_at_all_whatever_comes_and_goes(many: int) -> None:
    chance, bag, there = random.Random(many), Bag(), list[Any]()
    bag.change(range(1000, 1000 + many), 1)
    for _ in range(500):
        if there and chance.random() < 0.5:
            bag.change([there.pop(chance.randrange(len(there)))], -1)
        else:
            there.append(chance.choice(KINDS))
            bag.change(there[-1:], 1)
        every = [*there, *range(1000, 1000 + many)] or [None]
        expected = min(every, key=key_of), max(every, key=key_of)
        assert repr((bag.lowest(), bag.highest())) == repr(expected)


def test_no_number_is_compared_in_python_for_the_highest() -> None:
    """43,000 values of a group took 0.2 s of everybody's time each time that as many had changed."""
    bag = Bag()
    bag.change([float(n * 7919 % 10_000) for n in range(10_000)], 1)
    called = list[object]()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code) if event == "call" else None)
    try:
        assert bag.highest() == 9999
    finally:
        sys.setprofile(None)
    assert len(called) < 11_000  # each is turned round, once


def test_what_an_older_version_has_gathered_is_read() -> None:
    """A pipeline of Spark keeps it from one version to the next."""
    text, bag = "\u00e9\udcff", Bag()
    key = (1, to_bytes(text).decode("latin-1"), 0)
    bag.__setstate__(({key: 2, (0, 1, 2): 1, (1, "a", 0): 1}, {key: text, (0, 1, 2): True, (1, "a", 0): "a"}, 3))
    again = pickle.loads(pickle.dumps(bag))
    assert (again.lowest(), again.highest(), again.nans) == (True, text, 3)
    again.change([text, text], -1)
    assert again.highest() == "a"


@pytest.mark.parametrize("groups", [4, 4000], ids=["few groups", "each its own"])
def test_a_view_knows_about_how_much_memory_it_takes(groups: int) -> None:
    one = view("/g AS /g, COUNT(/v) AS /n, MIN(/v) AS /low, MAX(/v) AS /high, SUM(/v) AS /sum", "/g")
    tracemalloc.start()
    for first in range(0, 4000, 500):
        put(one, [{"g": n % groups, "v": n * 1.5} for n in range(first, first + 500)], first=first + 1)
        one.flush()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert one.held / 2 < taken < 1.25 * one.held


def test_groups_come_and_go_with_their_messages() -> None:
    one = view("/region, COUNT(/id) AS /n", "/region")
    put(one, [{"region": "n", "id": 1}, {"region": "s", "id": 2}, {"id": 3}])
    assert {change.key for change in one.flush()} == {("n",), ("s",), (None,)}
    one.move([1, 2], AWAY)
    [change] = one.flush()
    assert (change.key, change.old, change.new) == (("n",), ("n", 1), None)
    one.move([1, 2], AVAILABLE)
    assert [change.new for change in one.flush()] == [("n", 1)]
    one.move([1, 4], GONE)
    assert [change.new for change in one.flush()] == [None, None, None]
    assert one.rows == {}
    assert one.messages == 0


def test_what_changes_nothing_is_not_told() -> None:
    one = view("/region, MAX(/p) AS /p", "/region")
    put(one, [{"region": "n", "p": 5}])
    one.flush()
    put(one, [{"region": "n", "p": 3}], first=2)
    assert one.flush() == []


def test_kinds_of_values_are_groups_of_their_own() -> None:
    one = view("/g AS /g, COUNT(1) AS /n", "/g")
    put(one, [{"g": g} for g in (1, 1.0, True, "1", None, "", False, 0)])
    found = {key_text(key): orjson.loads(body_of(one, row))["n"] for key, row in ((one.flush(), one.rows)[1]).items()}
    assert found == {"[1]": 2, "[true]": 1, '["1"]': 1, "[null]": 2, "[false]": 1, "[0]": 1}


def test_several_groupings_and_a_path_as_name() -> None:
    one = view("/a AS /key/a, /b AS /key/b, SUM(/x) AS /sum", "/a", "/b")
    put(one, [{"a": 1, "b": 2, "x": 3}, {"a": 1, "b": 2, "x": 4}])
    assert shown(one) == [{"key": {"a": 1, "b": 2}, "sum": 7}]


def test_a_filter_is_about_messages() -> None:
    one = view("COUNT(1) AS /n", filter="/x > 1")
    put(one, [{"x": 1}, {"x": 2}, {"x": 3}])
    assert shown(one) == [{"n": 2}]
    assert one.messages == 2


def test_bytes_that_are_no_text_do_not_break_the_row() -> None:
    one = view(r"CONCAT('\xff', /a) AS /x")
    put(one, [{"a": "b"}])
    assert shown(one) == [{"x": "�b"}]


@pytest.mark.parametrize(
    ("select", "group_by", "problem"),
    [
        ("SUM(/a)", (), "needs a name"),
        ("SUM(/a) AS total", (), "is a path: expr AS /path"),
        ("SUM(SUM(/a)) AS /x", (), "cannot stand inside SUM"),
        ("SUM(/a, /b) AS /x", (), "SUM takes 1 argument, 2 were given"),
        ("GROUP_CONCAT(/a, /b) AS /x", (), "must be a literal string"),
        ("UNIX_TIMESTAMP() AS /x", (), "its answer changes with time"),
        ("SUM(UNIX_TIMESTAMP()) AS /x", (), "its answer changes with time"),
        ("/a, /a", (), "projected twice"),
        ("/a AS /x, /b AS /x/y", (), "projected twice"),
        ("/a AS /x[1]", (), "path of names"),
        ("/a,,/b", (), "nothing between two commas"),
        ("NOSUCH(/a) AS /x", (), "no function NOSUCH"),
        ("/a", ("SUM(/a)",), "cannot be grouped by"),
        ("/a", ("/a", "/a"), "twice"),
        ("'" + "x" * 70_000 + "' AS /x", (), "more than 65536 bytes"),
    ],
)
def test_what_cannot_be_projected_is_refused(select: str, group_by: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem):
        view(select, *group_by)


def test_commas_and_names_inside_strings_brackets_and_calls() -> None:
    one = view("IF(/a = ',', 'x AS /y', \"(\") AS /one, [/b, c] AS [/two, three] HINT SOME, OTHER, /d AS /e")
    put(one, [{"a": ",", "b, c": 2, "d": 3}])
    assert shown(one) == [{"one": "x AS /y", "two, three": 2, "e": 3}]


def test_a_long_span_is_measured_and_a_view_is_emptied_at_once() -> None:
    one = view("/g AS /g, COUNT(1) AS /n", "/g")
    put(one, [{"g": id % 3} for id in range(10_000)], first=100)
    assert one.measure(0, 1 << 50, 20_000) == (1 << 50, 10_000)
    assert one.measure(0, 1 << 50, 5000) == (5100, 5000)
    assert one.measure(200, 300, 50) == (250, 50)
    one.flush()
    one.clear()
    put(one, [{"g": 1}], first=20_000)
    changes = {(change.key, change.new) for change in one.flush()}
    assert changes == {((0,), None), ((1,), (1, 1)), ((2,), None)}
    assert one.rows == {(1,): (1, 1)}
    one.move([0, 1 << 50], GONE)
    assert [change.new for change in one.flush()] == [None]
    assert (one.rows, one.messages) == ({}, 0)
