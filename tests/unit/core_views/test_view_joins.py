"""Joins: equality of texts, the first source always there, and any change of any side like a join made anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.view_contributions import AVAILABLE, AWAY, GONE, Join
from penstock.core.view_groups import Elements, Side, View, bring
from penstock.errors import ExpressionError
from penstock.expr.values import text
from penstock.expr.view_definition import Definition, parse_joins, qualified

JOINS = ("[a]./x = [b]./y", "[b]./z = [c]./z", "[a]./w = [c]./w")
VALUES = st.sampled_from([None, "", 1, "1", 2])


def anew(rows: list[dict[int, dict[str, Any]]], nulls: bool) -> list[tuple[Any, ...]]:
    def same(left: Any, right: Any) -> bool:
        one, other = text(left), text(right)
        if one is None or other is None:
            return nulls and one is None and other is None
        return one == other

    out: list[tuple[Any, ...]] = []
    for a in rows[0].values():
        mine = [b for b in rows[1].values() if same(a.get("x"), b.get("y"))] or [None]
        for b in mine:
            z = None if b is None else b.get("z")
            there = b is not None or nulls
            beside = [c for c in rows[2].values() if there and same(z, c.get("z")) and same(a.get("w"), c.get("w"))]
            out += [(a, b, c) for c in beside or [None]]
    return sorted(out, key=repr)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["put", "put", "gone", "leave", "back"]),
        st.fixed_dictionaries(dict.fromkeys("wxyz", VALUES)),
        st.integers(0, 8),
    ),
    max_size=30,
)


@given(steps=STEPS, nulls=st.booleans())
def test_any_change_gives_what_a_join_made_anew_gives(steps: Any, nulls: bool) -> None:
    join = Join(parse_joins(JOINS, "a view"), nulls)
    rows: list[dict[int, dict[str, Any]]] = [{}, {}, {}]
    away: list[dict[int, dict[str, Any]]] = [{}, {}, {}]
    last = [0, 0, 0]
    combined: dict[int, Any] = {}
    for place, what, record, number in steps:
        if what == "put":
            last[place] += 1
            join.enter(place, [last[place]], [record], b"")
            rows[place][last[place]] = record
        else:
            join.move(place, [number, number + 2], {"gone": GONE, "leave": AWAY, "back": AVAILABLE}[what])
            for one in (number, number + 1):
                if what == "gone":
                    rows[place].pop(one, None)
                    away[place].pop(one, None)
                elif what == "leave" and one in rows[place]:
                    away[place][one] = rows[place].pop(one)
                elif what == "back" and one in away[place]:
                    rows[place][one] = away[place].pop(one)
        gone, ids, records, _ = join.changes()
        for one in gone:
            del combined[one]
        combined.update(zip(ids, records, strict=True))
        found = sorted(((r["0"], r.get("1"), r.get("2")) for r in combined.values()), key=repr)
        assert found == anew(rows, nulls)
    assert join.count == sum(map(len, rows)) + sum(map(len, away))


def test_values_are_compared_as_texts() -> None:
    join = Join(parse_joins(["[a]./x = [b]./x"], "a view"), False)
    join.enter(0, [1, 2], [{"x": 1}, {"x": 1.0}], b"")
    join.enter(1, [1], [{"x": "1"}], b"")
    records = join.changes()[2]
    assert [record.get("1") for record in records] == [{"x": "1"}, None], "1.0 is written otherwise"


def test_names_may_have_a_type_before_them_slashes_and_odd_fields() -> None:
    sources = ["/Orders", "b c"]
    assert qualified("SUM([json].[/Orders]./a/b) + [b c].[/odd name]", sources) == "SUM(/0/a/b) + [/1/odd name]"
    assert qualified("'[b c]./x' = [b c]./x", sources) == "'[b c]./x' = /1/x"


@pytest.mark.parametrize(
    ("joins", "problem"),
    [
        (["[a]./x > [b]./y"], "an equality"),
        (["[a]./x = 1"], "a join is"),
        (["[a]./x = [a]./y"], "both sides"),
        (["/x = /y"], "a join is"),
        (["[a]./x = [b]./y", "[c]./x = [d]./y"], "'c' is joined to nothing before it"),
    ],
)
def test_what_is_no_join_is_refused(joins: list[str], problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem):
        parse_joins(joins, "a view")


def test_a_topic_that_is_not_joined_is_refused() -> None:
    with pytest.raises(ExpressionError, match="'c' is not among the joined topics"):
        qualified("[c]./x", ["a", "b"])


PAIR = ("[a]./k = [b]./k",)
DEFINITION = Definition("v", "", ("[b]./v AS /last", "ANY([b]./v) AS /any", "COUNT(1) AS /n"), ("[a]./g",), join=PAIR)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from("gh"), st.integers(0, 2), st.sampled_from([None, 1, 2, 3]), st.booleans()
    ),
    min_size=1,
    max_size=10,
)


def combined(rows: list[Any]) -> dict[str, tuple[Any, ...]]:
    """LAST, ANY and COUNT by the newest row of each combination, then by its rows in order; rows: by position."""
    firsts = [(n, row) for n, row in enumerate(rows, 1) if row[0] == 0 and not row[4]]
    seconds = [(n, row) for n, row in enumerate(rows, 1) if row[0] == 1 and not row[4]]
    groups: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for n, (_, group, key, _, _) in firsts:
        beside = [(m, row[3]) for m, row in seconds if row[2] == key] or [(0, None)]
        groups.setdefault(group, []).extend(((max(n, m), n, m), value) for m, value in beside)
    return {
        group: (
            max(found)[1],
            next((value for _, value in sorted(found, key=lambda one: one[0]) if value), None),
            len(found),
        )
        for group, found in groups.items()
    }


def test_rows_of_views_have_no_age_in_a_join() -> None:
    found = set[Any]()
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        view = View(Definition("v", "", ("[b]./v AS /last",), (), join=PAIR))
        assert view.plan.joined is not None
        join = Join(view.plan.joined, False)
        join.ageless.add(1)
        sides = [Side(join, 0), Side(join, 1)]
        sides[0].enter(sides[0].read(Elements([5], [{"k": 1}])))
        for number, value in enumerate(order, 1):
            sides[1].enter(sides[1].read(Elements([number], [{"k": 1, "v": value}])))
            bring(join, view)
        view.flush()
        found |= set(view.rows.values())
    assert len(found) == 1, "the same rows give the same, whenever they came"


@given(rows=ROWS, chance=st.randoms(use_true_random=False))
def test_the_last_of_a_join_depends_on_what_is_there_and_not_on_the_order_of_work(rows: Any, chance: Any) -> None:
    view = View(DEFINITION)
    joined = view.plan.joined
    assert joined is not None
    join = Join(joined, False)
    sides = [Side(join, 0), Side(join, 1)]
    steps: list[list[Any]] = [[], []]  # of each source in its order; the sources are mixed, and flushed, in any
    for n, (place, group, key, value, gone) in enumerate(rows, 1):
        record = {"g": group, "k": key, "v": value}
        steps[place].append(lambda side, n=n, record=record: side.enter(side.read(Elements([n], [record]))))
        if gone:
            steps[place].append(lambda side, n=n: side.move((n, n + 1), AWAY))
        elif chance.random() < 0.5:  # away for a while
            steps[place].append(lambda side, n=n: side.move((n, n + 1), AWAY))
            steps[place].append(lambda side, n=n: side.move((n, n + 1), AVAILABLE))
    while any(steps):
        place = chance.choice([place for place in (0, 1) if steps[place]])
        steps[place].pop(0)(sides[place])
        if chance.random() < 0.5:
            bring(join, view)
            view.flush()
    bring(join, view)
    view.flush()
    assert {key[0]: row for key, row in view.rows.items()} == combined(rows)
