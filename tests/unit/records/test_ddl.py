"""Schemas of bodies as text."""

from __future__ import annotations

import pytest

from penstock.config.vhost_sections import TopicSection
from penstock.records.ddl import parse_ddl, quoted_name
from penstock.records.sow_settings import wrong


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("id bigint, total double", (("id", "bigint"), ("total", "double"))),
        ("id: LONG, `the day` date", (("id", "bigint"), ("the day", "date"))),
        ("price decimal(10, 2), n decimal", (("price", "decimal(10,2)"), ("n", "decimal(10,0)"))),
        (
            "lines array<struct<sku: string, `n``o` int>>, more map<string, array<int>>",
            (("lines", "array<struct<`sku`:string,`n``o`:int>>"), ("more", "map<string,array<int>>")),
        ),
    ],
)
def test_a_schema_is_read(text: str, columns: tuple[tuple[str, str], ...]) -> None:
    assert parse_ddl(text) == columns
    assert parse_ddl(", ".join(f"{quoted_name(name)} {kind}" for name, kind in columns)) == columns, "as it is written"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a column's name should stand where 'the end' does"),
        ("id", "column 'id' has no type: write one behind its name"),
        ("id number", "column 'id' has the type 'number'; there are boolean, tinyint"),
        ("id bigint, id string", "column 'id' is there twice"),
        ("id bigint NOT NULL", "columns may be null and have no comment"),
        ("a array<int", "'>' should follow array of column 'a', not 'the end'"),
        ("a map<int, int>", "the keys of a JSON object are string"),
        ("a struct<b int, b int>", "column 'b' is there twice in column 'a'"),
        ("a decimal(50, 2)", "at most 38 digits"),
        ("a " + "array<" * 40, "more than 16 deep"),
    ],
)
def test_what_is_no_schema_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match="schema|column|should|keys|digits|deep") as caught:
        parse_ddl(text)
    assert told in str(caught.value)


def test_a_topic_declares_its_schema() -> None:
    section = TopicSection.model_validate({"name": "orders", "schema": "id bigint"})
    assert section.declared() == {"schema": "id bigint"}
    with pytest.raises(ValueError, match="column 'id' has the type 'number'"):
        TopicSection.model_validate({"name": "orders", "schema": "id number"})
    assert wrong({"schema": 7}) == "schema is text such as 'id bigint, total double', not '7'"
