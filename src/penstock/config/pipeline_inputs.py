"""`from` and `expect` of a `[[pipeline]]`: what is read, and what its rows must satisfy.

Every form that a person may write becomes one: `from` is a table of named inputs (`input` where there is one), `expect`
a list of rules with names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    field_validator,
    model_validator,
)

from penstock.config.sections import Duration, Name, Refusals, Section, one_of, refuse
from penstock.records.ddl import parse_ddl

_SPARKS_OWN = re.compile(r"\b(not\s+null|comment|interval|variant|time|char|varchar|void)\b", re.IGNORECASE)
"""What only Spark has in a schema, for tables."""


ONLY = "input"
"""The name of the input of a pipeline that has one and does not name it."""

Statement: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=2**20)]
InputName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]

Otherwise: TypeAlias = Literal["keep", "drop", "fail", "dead-letter"]


ROWS_MOST = 1_000_000_000
"""Of a batch: more than any machine has memory for."""


class Watermark(Section):
    """`watermark` of an input: how late its rows may be."""

    column: Name
    """A column of type timestamp."""
    delay: Duration = Field(ge=0)
    """Rows later than this behind the newest one may be left out."""


class Expectation(Section):
    """One of `expect`: what every input row should satisfy."""

    name: Name
    """Its name, under which rows that fail are counted.  Default: the condition."""
    that: Statement
    """A Spark SQL condition over the input's columns.  NULL does not satisfy it."""
    otherwise: Otherwise = "dead-letter"
    """What becomes of rows that do not satisfy it."""
    topic: Name | None = None
    """Where dead letters go; needed with `dead-letter`."""
    fail_above: str | None = None
    """How many rows of a batch, or what share of them (`1 %`), may fail it at most."""

    @field_validator("fail_above", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        if value is None:
            return None
        text = str(value).strip()
        number = text.removesuffix("%").strip()
        plain = number.replace(".", "", 1) if text != number else number
        if isinstance(value, bool) or not (plain.isascii() and plain.isdigit()):
            raise ValueError(f"fail_above is {text!r}, not a whole number of rows or a share such as '1 %'")
        if text != number and float(number) > 100:
            raise ValueError(f"fail_above is {text!r}, and no more than 100 % of rows can fail")
        return f"{number} %" if text != number else number

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if isinstance(value, Mapping):
            table = dict(cast("Mapping[str, object]", value))
            if "name" not in table and "that" in table:
                table["name"] = table["that"]
            return table
        return value

    @model_validator(mode="after")
    def _target(self) -> Expectation:
        if self.otherwise == "fail" and self.fail_above is not None:
            raise ValueError(f"rule {self.name!r}: otherwise = 'fail' stops at one row, so fail_above says nothing")
        if self.otherwise == "dead-letter" and self.topic is None:
            raise ValueError(f"rule {self.name!r}: otherwise = 'dead-letter' needs the topic where they go")
        if self.otherwise != "dead-letter" and self.topic is not None:
            raise ValueError(
                f"rule {self.name!r}: topic {self.topic!r} goes with otherwise = 'dead-letter', not {self.otherwise!r}"
            )
        return self


def _rules(value: object) -> object:
    """The named form, `{"delay is known" = "delay IS NOT NULL"}`, as a list; its rows are kept and counted."""
    if not isinstance(value, Mapping):
        return value
    rules: list[object] = []
    for name, rule in cast("Mapping[str, object]", value).items():
        table = dict(cast("Mapping[str, object]", rule)) if isinstance(rule, Mapping) else {"that": rule}
        table.setdefault("otherwise", "dead-letter" if "topic" in table else "keep")
        rules.append({"name": name, **table})
    return rules


def _texts(value: object) -> object:
    """Settings of Spark are text; numbers and truth are written as they are meant."""
    if not isinstance(value, Mapping):
        return value
    told = {True: "true", False: "false"}
    return {
        name: told[one] if isinstance(one, bool) else str(one) if isinstance(one, (int, float)) else one
        for name, one in cast("Mapping[str, object]", value).items()
    }


def _sparks(conf: dict[str, str]) -> dict[str, str]:
    """Spark reads no other, and says nothing of it."""
    for name in conf:
        if not name.startswith("spark."):
            raise ValueError(
                f"{name!r} is no property of Spark: write its whole name, as spark.sql.shuffle.partitions, and "
                "spark.hadoop. before one of Hadoop"
            )
    return conf


def _apart(rules: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    """Rules are counted by their names."""
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"rule {name!r} is there twice: give each a name, under which its rows are counted")
    return rules


Rules: TypeAlias = Annotated[tuple[Expectation, ...], BeforeValidator(_rules), AfterValidator(_apart)]
Texts: TypeAlias = Annotated[dict[str, str], BeforeValidator(_texts)]
Conf: TypeAlias = Annotated[Texts, AfterValidator(_sparks)]


class PipelineInput(Section):
    """`from` of a pipeline, or one of its named inputs."""

    queue: Name | None = None
    """The queue to read, as one of its consumers."""
    topic: Name | None = None
    """Or the topic to read; nothing is consumed."""
    view: Name | None = None
    """Or a view or topic with a key: its records at each start."""
    table: Name | None = None
    """Or files: a folder or file of Parquet, CSV or JSON."""
    log: StrictBool = False
    """Or the log itself at each start, every record of it."""
    exchange: str = ""
    """The topic's exchange."""
    vhost: Name = "/"
    """Its vhost."""
    mode: Literal["queue", "log"] | None = None
    """`queue` settles what it read, `log` consumes nothing.  Default: by what is read."""
    filter: str | None = None
    """An expression that the server applies."""
    columns: str = "json"
    """Columns of the body: `json` to infer, or a Spark DDL schema."""
    max_rows: StrictInt = Field(default=100_000, ge=1, le=ROWS_MOST)
    """Most rows of one batch."""
    min_rows: StrictInt | None = Field(default=None, ge=1, le=ROWS_MOST)
    """A batch waits until it has so many rows, or for `max_delay`."""
    max_delay: Duration | None = Field(default=None, gt=0)
    """How long after the batch before one waits for `min_rows`.  Default: 15m."""
    rescued: Name | None = None
    """A column, as text of JSON, of what of a body has no column or does not fit its own."""
    start: Name | None = None
    """Where the first run begins in a topic: earliest (the default), latest, a bookmark."""
    watermark: Watermark | None = None
    """How late rows may be, by one of their columns."""
    dedup: tuple[Name, ...] = ()
    """Of rows with the same values here only the first is taken, within the watermark."""
    format: Literal["parquet", "csv", "json"] | None = None
    """Of the files.  Default: by the name's ending, else parquet."""
    options: Texts = Field(default_factory=dict[str, str])
    """Options of Spark for reading the files."""
    refresh: Duration | None = Field(default=None, gt=0)
    """Read table, view or log again so often, between two batches.  Default: never."""
    expect: Rules = ()
    """What its rows should satisfy."""

    @property
    def is_stream(self) -> bool:
        """Whether it brings new rows with every batch."""
        return self.queue is not None or self.topic is not None

    @property
    def reads(self) -> Literal["queue", "log", "table"]:
        """The mode of reading that is in force."""
        if not self.is_stream:
            return "table"
        return self.mode or ("queue" if self.queue is not None else "log")

    @field_validator("columns")
    @classmethod
    def _typed(cls, value: str) -> str:
        """Spark reads more than we do: what it alone has is left to `penstock pipeline check`."""
        if value != "json" and _SPARKS_OWN.search(value) is None:
            parse_ddl(value)
        return value

    @model_validator(mode="after")
    def _sound(self) -> PipelineInput:
        one_of(
            self,
            ("queue", "topic", "view", "table", "log"),
            "an input is either a queue or a topic, a view, a table or the log",
        )
        refuse(self, _REFUSED)
        return self

    @property
    def is_csv(self) -> bool:
        """Whether it reads files of CSV, by their format or their name."""
        return self.table is not None and (self.format or self.table.lower().removesuffix(".gz")).endswith("csv")

    @property
    def infers(self) -> bool:
        """Whether Spark is asked to find out the columns of CSV."""
        return "inferschema" in map(str.lower, self.options)


_REFUSED: Refusals[PipelineInput] = (
    (
        lambda one: one.mode == "queue" and one.queue is None,
        "mode 'queue' needs a queue; a topic is read in mode 'log'",
    ),
    (
        lambda one: one.mode == "log" and one.queue is not None,
        "mode 'log' reads a topic: name the topic that the queue views, or read in mode 'queue'",
    ),
    (lambda one: one.mode is not None and not one.is_stream, "mode {one.mode!r} is of queues and topics"),
    (
        lambda one: one.reads == "queue" and one.filter is not None,
        "in mode 'queue' the queue's own filter decides: set `filter` on the queue",
    ),
    (
        lambda one: one.filter is not None and (one.table is not None or one.log),
        "files and the log itself have no filter of the server: filter them in the SQL",
    ),
    (lambda one: one.topic is None and one.exchange, "an exchange goes with a topic, not with a queue"),
    (
        lambda one: one.start is not None and one.topic is None,
        "`start` is of topics; a queue is read from what it holds",
    ),
    (
        lambda one: one.dedup and one.watermark is None,
        (
            "dedup needs a watermark, which says for how long rows are remembered; without end it is SELECT "
            "DISTINCT in the SQL"
        ),
    ),
    (
        lambda one: not one.is_stream and {"max_rows", "min_rows", "rescued"} & one.model_fields_set,
        "max_rows, min_rows and rescued are of queues and topics, whose rows come one after another",
    ),
    (
        lambda one: one.min_rows is not None and one.min_rows > one.max_rows,
        "min_rows is {one.min_rows}, and a batch has {one.max_rows} rows at most: max_rows says so",
    ),
    (
        lambda one: one.max_delay is not None and one.min_rows is None,
        "max_delay goes with min_rows, which says for what a batch waits",
    ),
    (
        lambda one: not one.is_stream and (one.watermark is not None or one.expect),
        "watermark, dedup and expect are of queues and topics, whose rows come one after another",
    ),
    (
        lambda one: one.is_stream and one.refresh is not None,
        "refresh is of tables, views and the log; a queue or topic brings new rows by itself",
    ),
    (
        lambda one: one.table is None and (one.format is not None or one.options),
        "format and options are of files: they go with table",
    ),
    (
        lambda one: one.is_csv and one.columns == "json" and not one.infers,
        "columns of CSV: name them as DDL, or set options = {{ inferSchema = true, header = true }}",
    ),
)


def named_inputs(value: object) -> object:
    """One input without a name as `{input: ...}`."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[str, object]", value)
    named = bool(table) and all(isinstance(one, Mapping) for one in table.values())
    return table if named and not table.keys() & PipelineInput.model_fields.keys() else {ONLY: table}
