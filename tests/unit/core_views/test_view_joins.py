"""Joins: equality of texts, the first source always there, and any change of any side like a join made anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.views.joins import Join, parse_joins, qualified
from penstock.errors import ExpressionError
from penstock.expr.values import text

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
            getattr(join, what)(place, [number, number + 2])
            for one in (number, number + 1):
                if what == "gone":
                    rows[place].pop(one, None)
                    away[place].pop(one, None)
                elif what == "leave" and one in rows[place]:
                    away[place][one] = rows[place].pop(one)
                elif what == "back" and one in away[place]:
                    rows[place][one] = away[place].pop(one)
        gone, ids, records = join.changes()
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
