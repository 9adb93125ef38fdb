"""`[[pipeline]]`: every form of it, and what cannot be."""

from __future__ import annotations

import pytest

from penstock.config.load import load_mapping, load_text
from penstock.config.pipeline_inputs import Expectation
from penstock.errors import SettingsError
from penstock.spark.options import read_options
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.expectations import Limit
from penstock.spark.pipelines.pipeline import Inputs
from penstock.spark.remote import Where

HEAD = '[[pipeline]]\nname = "p"\n'
REST = 'sql = "SELECT 1"\nto = [{ topic = "t" }]\n'


def test_one_input_and_named_ones_are_one_form() -> None:
    plain = load_text(f'{HEAD}from = {{ queue = "q", watermark = {{ column = "at", delay = "10s" }} }}\n{REST}')
    [pipeline] = plain.pipeline
    assert list(pipeline.source) == ["input"]
    assert pipeline.source["input"].watermark is not None
    assert pipeline.source["input"].watermark.delay == 10_000_000
    inline = load_text(
        f'{HEAD}from = {{ f = {{ topic = "f" }}, p = {{ table = "p.csv", columns = "a INT" }} }}\n{REST}'
    )
    nested = load_text(
        f'{HEAD}{REST}[pipeline.inputs.f]\ntopic = "f"\n[pipeline.inputs.p]\ntable = "p.csv"\ncolumns = "a INT"\n'
    )
    assert inline.pipeline == nested.pipeline
    assert [one.reads for one in inline.pipeline[0].source.values()] == ["log", "table"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("1 %", "1 %"), ("0.5%", "0.5 %"), (" 100 % ", "100 %"), (7, "7"), ("0", "0"), ("1.5", None), ("101 %", None),
     ("many", None), ("-1", None), (True, None), ("1 % %", None)],
)  # fmt: skip
def test_how_many_rows_may_fail_a_rule(given: object, kept: str | None) -> None:
    if kept is None:
        with pytest.raises(ValueError, match="fail_above is"):
            Expectation.model_validate({"that": "true", "otherwise": "drop", "fail_above": given})
        return
    rule = Expectation.model_validate({"that": "true", "otherwise": "drop", "fail_above": given})
    assert rule.fail_above == kept
    limit = Limit.of(kept)
    assert not limit.passed(0, 0)
    assert limit.passed(8, 8) == (kept != "100 %")
    assert Limit.of("1 %").passed(2, 199)
    assert not Limit.of("1 %").passed(2, 200)


def test_rules_have_names_and_two_forms() -> None:
    named = load_text(
        f'{HEAD}from = {{ queue = "q" }}\n{REST}[pipeline.expect]\n"delay is known" = "delay IS NOT NULL"\n'
        '"id" = { that = "id > 0", topic = "bad" }\n"two" = { that = "b", otherwise = "fail" }\n'
    )
    assert [(one.name, one.otherwise, one.topic) for one in named.pipeline[0].expect] == [
        ("delay is known", "keep", None),
        ("id", "dead-letter", "bad"),
        ("two", "fail", None),
    ]
    listed = load_text(f'{HEAD}from = {{ queue = "q" }}\n{REST}expect = [{{ that = "id > 0", topic = "bad" }}]\n')
    assert [(one.name, one.otherwise) for one in listed.pipeline[0].expect] == [("id > 0", "dead-letter")]


def test_a_view_declares_its_topic_once() -> None:
    text = f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ view = "v", key = ["region", "/day"] }}]\n'
    assert [(one.name, one.key) for one in load_text(text).topics] == [("v", ("/region", "/day"))]
    declared = '[[topic]]\nname = "v"\nkey = ["/region", "/day"]\nexpiration = "1d"\n'
    assert [one.expiration for one in load_text(declared + text).topics] == [86_400_000_000]


def test_settings_of_spark_are_text() -> None:
    settings = load_text('[spark.conf]\n"spark.sql.shuffle.partitions" = 4\n"spark.x" = true\n')
    assert settings.spark.conf == {"spark.sql.shuffle.partitions": "4", "spark.x": "true"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'{HEAD}from = {{ queue = "q", topic = "t" }}\n{REST}', "queue and topic are given, and one may be"),
        (f'{HEAD}from = {{ queue = "q", topik = "t" }}\n{REST}', "from.topik: unknown key; did you mean 'topic'"),
        (f'{HEAD}{REST}[pipeline.inputs.a]\ntopik = "t"\n', "inputs.a.topik: unknown key"),
        (f'{HEAD}{REST}[pipeline.inputs.a-b]\ntopic = "t"\n', "inputs"),
        (f'{HEAD}from = {{ table = "t" }}\n{REST}', "reads at least one queue or topic"),
        (
            f'{HEAD}from = {{ queue = "q" }}\n{REST}conf = {{ "spark.ui.port" = 1, "shuffle.partitions" = 3 }}\n',
            "conf: 'shuffle.partitions' is no property of Spark: write its whole name",
        ),
        ('[spark]\nconf = { "fs.s3a.endpoint" = "x" }\n', "spark.hadoop. before one of Hadoop"),
        (f'{HEAD}from = {{ topic = "t", dedup = ["id"] }}\n{REST}', "dedup needs a watermark"),
        (f'{HEAD}from = {{ queue = "q", start = "latest" }}\n{REST}', "`start` is of topics"),
        (f'{HEAD}from = {{ queue = "q" }}\n{REST}schedule = "sometimes"\n', "'sometimes' is no schedule"),
        (f'{HEAD}from = {{ queue = "q" }}\n{REST}schedule = "02:00"\ntrigger = "5s"\n', "a trigger or a schedule"),
        (f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ view = "v" }}]\n', "needs a key"),
        (f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ topic = "v", key = ["a"] }}]\n', "goes with a view"),
        (
            (f'[[topic]]\nname = "v"\nkey = ["/b"]\n{HEAD}from = {{ queue = "q" }}\nsql = "s"\n'
            'to = [{ view = "v", key = ["a"] }]\n'),
            "is /a, and elsewhere /b",
        ),
        (
            f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ topic = "t", partition_by = ["a"] }}]\n',
            "partition_by goes with a table",
        ),
        (
            (f'{HEAD}from = {{ a = {{ topic = "a" }}, b = {{ topic = "b" }} }}\n{REST}'
            'expect = { x = "y" }\n'),
            "set it in the one that it is about",
        ),
        (f'{HEAD}from = {{ queue = "q", vhost = "x" }}\n{REST}', "there is no [[vhost]] 'x'"),
        (f'{HEAD}from = {{ topic = "t" }}\n{REST}expect = [{{ that = "a", topic = "t" }}]\n',
         "rule 'a': its topic 't' is read by the pipeline, so a row would come for ever"),
        (f'{HEAD}from = {{ topic = "^t" }}\n{REST}expect = [{{ that = "a", topic = "to" }}]\n', "'to' is read by"),
        (f'{HEAD}from = {{ queue = "q" }}\n{REST}expect = [{{ that = "a", topic = "q" }}]\n', "its topic 'q' is read"),
        ((f'[[queue]]\nname = "q"\nunderlying_topic = "t"\n{HEAD}{REST}[pipeline.inputs.a]\nqueue = "q"\n'
          'expect = [{ that = "a", topic = "t" }]\n'), "its topic 't' is read"),
        (f'{HEAD}from = {{ queue = "q" }}\nto = [{{ topic = "t" }}]\n', "sql or python is missing"),
        (f'{HEAD}from = {{ queue = "q" }}\npython = "a:b"\n{REST}', "sql and python are both given"),
        (f'{HEAD}from = {{ queue = "q" }}\npython = "a.py"\nto = []\n', "python: 'a.py' is not module:function"),
        (f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = []\n', "to: needs at least 1 of them, and there is none"),
        (f'{HEAD}from = {{ queue = "q" }}\nsql = ""\nto = [{{ topic = "t" }}]\n', "sql: is empty"),
        (
            f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ table = "/x/t" }}, {{ table = "/x/./t/" }}]\n',
            "to: '/x/./t/' is there twice",
        ),
        (
            f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ table = "/x/t/of" }}, {{ table = "/x/t" }}]\n',
            "to: table '/x/t/of' lies in table '/x/t', whose readers would find its files too",
        ),
        (
            f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ topic = "t" }}, {{ topic = "t" }}]\n',
            "to: 't' is there twice",
        ),
        (
            f'{HEAD}from = {{ queue = "q", columns = "id BIGIN" }}\n{REST}',
            "from.columns: column 'id' has the type 'BIGIN'; ",
        ),
        (f'{HEAD}from = {{ queue = "q", columns = "id" }}\n{REST}', "column 'id' has no type"),
        (
            f'{HEAD}{REST}[pipeline.inputs.a]\ntopic = "t"\n[pipeline.inputs.b]\ntable = "b.csv"\n',
            "inputs.b: columns of CSV: name them",
        ),
        (f'{HEAD}{REST}from = {{ queue = "q" }}\nexpect = {{ x = {{ that = "a", otherwise = "log" }} }}\n',
         "expect.x.otherwise: 'log' is not one of"),
        (f'{HEAD}{REST}from = {{ queue = "q" }}\nexpect = {{ x = 5 }}\n', "expect.x: must be a valid string, not 5"),
        (f'{HEAD}{REST}from = {{ queue = "q" }}\nexpect = {{ x = {{ that = "a", otherwise = "dead-letter" }} }}\n',
         "expect.x: rule 'x': otherwise = 'dead-letter' needs the topic"),
        (f'{HEAD}{REST}from = {{ queue = "q" }}\nexpect = {{ x = {{ that = "a", otherwise = "drop", topic = "t" }} }}',
         "topic 't' goes with otherwise = 'dead-letter', not 'drop'"),
        (f'{HEAD}{REST}from = {{ queue = "q", max_rows = 5, min_rows = 6 }}\n',
         "min_rows is 6, and a batch has 5 rows"),
        (f'{HEAD}{REST}from = {{ queue = "q", max_delay = "5s" }}\n', "max_delay goes with min_rows"),
        (f'{HEAD}{REST}from = {{ view = "v", min_rows = 5 }}\n', "min_rows and rescued are of queues and topics"),
        ('[spark]\nmaster = "loca[2]"\n', "'loca[2]' is no master of Spark: write local[*]"),
        ('[spark]\nmemory = "64MiB"\n', "[spark] memory: must be at least 256 MiB, not 64 MiB"),
        (f'{HEAD}{REST}from = {{ queue = "q" }}\nmemory = "1MiB"\n', "memory: must be at least 256 MiB, not 1MiB"),
        (
            f'[[topic]]\nname = "v"\n{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ view = "v", key = ["a"] }}]\n',
            "is /a, and [[topic]] 'v' has no key",
        ),
        (f'[[pipeline]]\nname = "driver"\nfrom = {{ queue = "q" }}\n{REST}', "cannot be called 'driver'"),
    ],
)  # fmt: skip
def test_what_cannot_be(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_text(text)
    assert told in str(caught.value)


def test_a_list_whose_items_are_wrong_is_not_called_empty() -> None:
    with pytest.raises(SettingsError) as caught:
        load_text(f'{HEAD}from = {{ queue = "q" }}\nsql = "s"\nto = [{{ topics = "t" }}]\n')
    assert str(caught.value).splitlines() == [
        "settings:5: [[pipeline]] \"p\" to[1].topics: unknown key; did you mean 'topic'?"
    ]


def test_statements_may_be_long() -> None:
    sql = "SELECT " + ", ".join(f"id + {n} AS id_{n}" for n in range(200)) + " FROM input"
    pipeline = {"name": "wide", "from": {"queue": "q"}, "sql": sql, "to": [{"topic": "t"}]}
    assert load_mapping({"pipeline": [pipeline]}).pipeline[0].sql == sql


def test_what_a_batch_waits_for_and_what_has_no_column_are_said_to_the_stream() -> None:
    given = 'queue = "q", columns = "id INT", min_rows = 500, max_delay = "90s", rescued = "_rest"'
    [section] = load_text(f"{HEAD}from = {{ {given} }}\n{REST}").pipeline
    definition = Definition.of(section.model_dump(mode="json", by_alias=True))
    inputs = Inputs(definition, Where("penstock://localhost"))
    options = inputs.options(definition.inputs[0], "id INT")
    read = read_options(options)
    assert (read.min_rows, read.max_delay_s, read.rescued) == (500, 90.0, "_rest")
