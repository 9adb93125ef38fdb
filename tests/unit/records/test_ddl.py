"""Schemas of bodies as text."""

from __future__ import annotations

import pytest

from penstock.config.vhost_sections import TopicSection
from penstock.records.ddl import for_spark, parse_ddl, quoted_name
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
        ("id bigint, ID int", "columns 'id' and 'ID' differ in case alone, and Spark takes them for one"),
        ("straße int, `STRASSE` int, Ä int, ä int", "columns 'Ä' and 'ä' differ in case alone"),
        (
            "a array<struct<b int, B int>>",
            "columns 'b' and 'B' differ in case alone, and Spark takes them for one in column 'a'",
        ),
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


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("a.b int, order-id: LONG, ä string, `n``o` int", "`a.b` int, `order-id` bigint, `ä` string, `n``o` int"),
        ("s struct<a-b: int, t array<struct<1/2: date>>>", "`s` struct<`a-b`:int,`t`:array<struct<`1/2`:date>>>"),
        ("id bigint NOT NULL, x-y int comment 'a, b'", "`id` bigint NOT NULL, `x-y` int comment 'a, b'"),
        ('s struct<a-b: int not null COMMENT "it\'s">', '`s` struct<`a-b`:int not null COMMENT "it\'s">'),
    ],
)
def test_spark_is_given_every_name_in_quotes(text: str, spelled: str) -> None:
    """Spark said of such a name `Syntax error at or near 'bigint'`, and meant a column of its own."""
    assert for_spark(text) == spelled
    assert for_spark(spelled) == spelled


@pytest.mark.parametrize(
    "text", ["id bigint DEFAULT 5", "id bigint NOT NULL DEFAULT 5", "id bigint COMMENT x", "id bigint NOT"]
)
def test_what_spark_would_not_take_behind_a_type_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="follows a column where a comma should$"):
        for_spark(text)
