"""Select lists: what of a body is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.sow.select import NESTED_MOST, PARTS_MOST, STEPS_MOST, parse_select
from penstock.errors import InvalidArgument

ORDER = {
    "id": 1,
    "notes": "long",
    "ship": {"to": "Oslo", "by": "sea"},
    "lines": [{"sku": "a", "n": 2}, {"sku": "b"}, 3],
}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("-/,+/id", {"id": 1}),
        ("[-/, +/id]", {"id": 1}),
        ("-/,+/ship/to", {"ship": {"to": "Oslo"}}),
        ("-/notes,-/lines", {"id": 1, "ship": {"to": "Oslo", "by": "sea"}}),
        ("-/,+/ship,-/ship/by", {"ship": {"to": "Oslo"}}),  # the longest path that fits decides, in any order
        ("-/ship/by,+/ship,-/", {"ship": {"to": "Oslo"}}),
        ("-/ship,+/ship/none,+/", {k: v for k, v in ORDER.items() if k != "ship"}),  # nothing of it is sent
        ("-/,+/lines/sku", {"lines": [{"sku": "a"}, {"sku": "b"}]}),
        ("-/lines/sku", {**ORDER, "lines": [{"n": 2}, {}, 3]}),
        ("-/,+/id/x", {}),  # a number holds nothing
        ("-/,+/none", {}),
        ("-/", {}),
        ("+/id", ORDER),  # without -/ a field that nobody names is sent
    ],
)
def test_the_longest_path_decides(text: str, sent: object) -> None:
    wanted = parse_select([text])
    assert wanted is not None
    assert json.loads(wanted.body(json.dumps(ORDER).encode())) == sent


def test_a_list_may_come_in_parts_and_none_is_none() -> None:
    assert parse_select([]) is None
    wanted = parse_select(["-/", "+/id, +/notes"])
    assert wanted is not None
    assert json.loads(wanted.body(b'{"id": 1, "notes": 2, "x": 3}')) == {"id": 1, "notes": 2}


@pytest.mark.parametrize("body", [b"plain", b"", b"[1, 2]", b"3", b'{"id": 1', b"\xff"])
def test_what_has_no_fields_is_sent_as_it_is(body: bytes) -> None:
    wanted = parse_select(["-/,+/id"])
    assert wanted is not None
    assert wanted.body(body) == body


def test_numbers_keep_their_digits() -> None:
    wanted = parse_select(["-/x"])
    assert wanted is not None
    assert wanted.body(b'{"n": 123456789012345678901234567890, "x": 1}') == b'{"n":123456789012345678901234567890}'


def test_a_delta_has_its_key() -> None:
    wanted = parse_select(["-/,-/id,+/a"])
    assert wanted is not None
    keyed = wanted.with_paths([("id",), ("customer", "id")])
    assert keyed.fields({"id": 1, "a": 2, "b": 3, "customer": {"id": 4, "name": "x"}}) == {
        "id": 1, "a": 2, "customer": {"id": 4},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id", "is no part of a list"),
        ("/id", "is no part of a list"),
        ("+id", "is no part of a list"),
        ("+/a//b", "is no part of a list"),
        ("-/,", "has an empty part"),
        ("", "has an empty part"),
        ("+/a,-/a", "/a is there twice"),
        ("-/,+/", "/ is there twice"),
        ("+/" + "/".join(["a"] * (STEPS_MOST + 1)), f"has {STEPS_MOST + 1} names, the most is {STEPS_MOST}"),
        (",".join(f"+/f{n}" for n in range(PARTS_MOST + 1)), f"more than {PARTS_MOST} parts"),
    ],
)
def test_what_is_no_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        parse_select([text])


def test_arrays_in_arrays_have_an_end() -> None:
    wanted = parse_select(["-/a/b"])
    assert wanted is not None
    deep: Any = {"b": 1}
    for _ in range(900):
        deep = [deep]
    body = json.dumps({"a": deep}, separators=(",", ":")).encode()
    assert wanted.body(body) == body
    near: Any = {"b": 1, "c": 2}
    for _ in range(NESTED_MOST):
        near = [near]
    assert b'"b"' not in wanted.body(json.dumps({"a": near}).encode())


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.dictionaries(st.lists(NAMES, max_size=3).map(tuple), st.booleans(), min_size=1, max_size=6)
BODIES = st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8)


def leaves(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    if isinstance(value, dict):
        out: dict[tuple[str, ...], object] = {}
        for name, inner in value.items():
            out |= leaves(inner, (*path, name))
        return out
    return {path: value}


@given(PATHS, st.dictionaries(NAMES, BODIES, max_size=3))
def test_of_each_value_the_longest_path_that_fits_decides(paths: dict[tuple[str, ...], bool], body: Any) -> None:
    wanted = parse_select([("+" if sent else "-") + "/" + "/".join(path) for path, sent in paths.items()])
    assert wanted is not None

    def sent(path: tuple[str, ...]) -> bool:
        fits = [paths[path[:n]] for n in range(len(path), -1, -1) if path[:n] in paths]
        return fits[0] if fits else True

    assert leaves(wanted.fields(body)) == {path: value for path, value in leaves(body).items() if sent(path)}
