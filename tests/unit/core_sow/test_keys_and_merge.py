"""Keys, merging and ordering, one at a time."""

from __future__ import annotations

import pytest

from penstock.core.sow.holding import KeyRule, domain_of, parse_number
from penstock.core.sow.select import Ordered, Window, changed, merge, parse_order, with_key
from penstock.errors import InvalidArgument
from penstock.records.sow_settings import parse_paths, wrong

RULE = KeyRule(domain_of("/", "", "orders"), parse_paths(["/id", "/customer/id"]))


def number(body: bytes) -> int:
    found = RULE.of_body(body, b"")
    assert isinstance(found, int), found
    return found


def test_a_key_is_its_values_in_their_order() -> None:
    key = number(b'{"id": 1, "customer": {"id": "x"}, "total": 9}')
    assert key == number(b'{"customer":{"id":"x"},"id":1}')
    assert key != number(b'{"id": "x", "customer": {"id": 1}}')
    assert key != KeyRule(domain_of("/", "", "other"), RULE.paths).of_body(b'{"id":1,"customer":{"id":"x"}}', b"")
    assert 0 <= key < 2**64
    assert parse_number(str(key)) == key


def test_the_number_of_a_key_never_changes() -> None:
    """It is in logs, and people have written it down."""
    assert number(b'{"id": 1, "customer": {"id": "x"}}') == KEY_OF_THE_EXAMPLE


KEY_OF_THE_EXAMPLE = 17356165425942260669


def test_equal_texts_are_equal_keys_and_long_numbers_are_told_apart() -> None:
    assert number(b'{"id": 1, "customer": {"id": 2}}') == number(b'{"id": "1", "customer": {"id": "2"}}')
    long = [number(b'{"id": %d, "customer": {"id": 1}}' % (10**25 + more)) for more in range(2)]
    assert long[0] != long[1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"customer": {"id": 1}}', "/id is null or missing"),
        (b'{"id": null, "customer": {"id": 1}}', "/id is null or missing"),
        (b'{"id": 1, "customer": 7}', "/customer/id is null or missing"),
        (b'{"id": [1], "customer": {"id": 1}}', "/id is no single value"),
        (b"[1]", "/id is null or missing"),
        (b"nonsense", "is no JSON"),
    ],
)
def test_a_body_without_the_key_is_told_what_is_missing(body: bytes, said: str) -> None:
    found = RULE.of_body(body, b"")
    assert isinstance(found, str)
    assert said in found


@pytest.mark.parametrize("text", ["", "x" * 256, "ä" * 128])
def test_a_given_key_has_a_length(text: str) -> None:
    assert isinstance(KeyRule(b"t").of_text(text), str)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "18446744073709551616", "x", "٣"])
def test_what_is_no_number_of_a_key(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": []}, "list of paths"),
        ({"key": ["id"]}, "is no path"),
        ({"key": ["/a//b"]}, "is no path"),
        ({"key": ["/a", "/a"]}, "is there twice"),
        ({"key": [f"/f{n}" for n in range(17)]}, "at most 16 fields"),
        ({"key": ["/a"], "key_from": "publisher"}, "or, with `key_from`, from its publisher"),
        ({"key_from": "sender"}, "'publisher' or nothing"),
        ({"key": ["/a"], "key_domain": ""}, "key_domain is '', not a name of 1 to 255 bytes"),
        ({"key": ["/a"], "key_domain": "ä" * 128}, "not a name of 1 to 255 bytes"),
        ({"key_from": "publisher", "key_domain": "d"}, "keys that come from the fields"),
        ({"expiration": 5}, "without a key has none"),
        ({"key": ["/a"], "expiration": -1}, "not a number of microseconds"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], said: str) -> None:
    assert said in (wrong(settings) or "")


def test_a_delta_merges_objects_and_replaces_the_rest() -> None:
    record = b'{"id":1,"o":{"a":1,"b":{"c":2}},"list":[1,2],"gone":5}'
    delta = b'{"id":1,"o":{"b":{"d":3}},"list":[9],"gone":null,"new":{"x":1}}'
    assert merge(record, delta) == (b'{"id":1,"o":{"a":1,"b":{"c":2,"d":3}},"list":[9],"gone":null,"new":{"x":1}}')


def test_a_delta_keeps_long_numbers_of_fields_that_it_does_not_name() -> None:
    assert merge(b'{"id":1,"n":123456789012345678901234567890}', b'{"a":1}') == (
        b'{"id":1,"n":123456789012345678901234567890,"a":1}'
    )


@pytest.mark.parametrize(("record", "delta"), [(b"[1]", b"{}"), (b"{}", b"7"), (b"{}", b"{"), (b"x", b"{}")])
def test_what_is_no_object_is_not_merged(record: bytes, delta: bytes) -> None:
    with pytest.raises(InvalidArgument, match="no JSON"):
        merge(record, delta)


def test_changes_are_fields_that_differ_with_the_key_before_them() -> None:
    before: dict[str, object] = {"id": 1, "o": {"a": 1, "b": 2}, "t": True, "same": [1]}
    after: dict[str, object] = {"id": 1, "o": {"a": 1, "b": 3}, "t": 1, "same": [1], "n": None}
    changes = changed(before, after)
    assert changes == {"o": {"b": 3}, "t": 1, "n": None}
    assert list(with_key(changes, after, [("id",), ("o", "a")])) == ["id", "o", "t", "n"]
    assert with_key(changes, after, [("id",), ("o", "a")])["o"] == {"a": 1, "b": 3}


def test_an_order_puts_null_first_and_numbers_before_text() -> None:
    ordered = Ordered(parse_order("/v, /w DESC"), None)
    values = [None, "b", 2, "a", 10, 2, float("nan"), True]
    ordered.add(list(range(8)), list(range(10, 18)), [values, [0, 0, 1, 0, 0, 5, 0, 0]])
    assert [values[lsn - 10] for lsn in ordered.lsns()][:5] == [None, True, 2, 2, 10]
    assert ordered.lsns()[2:4] == [15, 12]
    assert [values[lsn - 10] for lsn in ordered.lsns()][-2:] == ["a", "b"]


def test_ties_are_in_the_order_of_the_keys_and_only_the_first_are_kept() -> None:
    ordered = Ordered(parse_order(None), 3)
    for start in range(0, 10_000, 500):
        numbers = [(n * 7919) % 10_000 for n in range(start, start + 500)]
        ordered.add(numbers, [n + 1 for n in numbers], [])
    assert ordered.lsns() == [1, 2, 3]


def test_commas_inside_parentheses_and_quotes_part_nothing() -> None:
    terms = parse_order("CONCAT(/a, ','), /b desc")
    assert [term.descending for term in terms] == [False, True]
    with pytest.raises(InvalidArgument, match="empty part"):
        parse_order("/a,,/b")


def test_a_page_tells_who_left_and_who_came() -> None:
    window = Window(parse_order("/v DESC"), 2, 1)
    assert window.fill([(n, n + 100, (n,)) for n in range(5)]) == [103, 102]
    assert window.change(0, 200, (9,)) == ([2], [104])
    assert window.has(3)
    assert window.change(3, 201, (3.5,)) == ([], [])
    assert window.change(0, 202, None) == ([4], [102])
    assert window.page() == [3, 2]
