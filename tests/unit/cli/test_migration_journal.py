"""What a message is known by in the journal of `migrate`."""

from __future__ import annotations

import pytest

from penstock.cli.migration_journal import as_published
from penstock.records.field_tables import FieldValue, Long
from penstock.records.properties import Properties, encode

DEEP: dict[str, FieldValue] = {"n": 7, "deep": {"b": [{"y": 1, "x": 2}], "a": None}}


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (None, {"x-delivery-count": Long(1)}),
        ({}, {"x-delivery-count": Long(1), "x-acquired-count": Long(3)}),
        (DEEP, {"deep": {"a": None, "b": [{"x": 2, "y": 1}]}, "n": Long(7), "x-delivery-count": Long(2)}),
    ],
)
def test_a_message_that_was_given_again_is_the_same(
    first: dict[str, FieldValue] | None, again: dict[str, FieldValue]
) -> None:
    """As RabbitMQ gives it from a quorum queue: with one more field, all fields by their names, whole numbers wider."""
    headers = [encode(Properties(content_type="text/plain", headers=one, priority=3)) for one in (first, again)]
    assert len({*map(as_published, headers)}) == 1


def test_other_headers_are_another_message() -> None:
    others = [None, {"n": 7}, {"n": 8}, {"n": "7"}, {"n": [7]}, {"n": {"n": 7}}, {"x-delivery": 7}]
    assert len({as_published(encode(Properties(headers=one))) for one in others}) == len(others)
