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

from penstock.config.sections import Duration, Name, Section
from penstock.records.ddl import parse_ddl

_SPARKS_OWN = re.compile(r"\b(not\s+null|comment|interval|variant|time|char|varchar|void)\b", re.IGNORECASE)
"""What only Spark has in a schema, for tables."""


ONLY = "input"
"""The name of the input of a pipeline that has one and does not name it."""

Statement: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=2**20)]
InputName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]

Otherwise: TypeAlias = Literal["keep", "drop", "fail", "dead-letter"]


class Watermark(Section):
    """`watermark` of an input: how late its rows may be."""

    column: Name = Field(description="A column of type timestamp.")
    delay: Duration = Field(ge=0, description="Rows later than this behind the newest one may be left out.")


class Expectation(Section):
    """One of `expect`: what every input row should satisfy."""

    name: Name = Field(description="Its name, under which rows that fail are counted.  Default: the condition.")
    that: Statement = Field(description="A Spark SQL condition over the input's columns.  NULL does not satisfy it.")
    otherwise: Otherwise = Field(default="dead-letter", description="What becomes of rows that do not satisfy it.")
    topic: Name | None = Field(default=None, description="Where dead letters go; needed with `dead-letter`.")

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


def _apart(rules: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    """Rules are counted by their names."""
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"rule {name!r} is there twice: give each a name, under which its rows are counted")
    return rules


Rules: TypeAlias = Annotated[tuple[Expectation, ...], BeforeValidator(_rules), AfterValidator(_apart)]
Conf: TypeAlias = Annotated[dict[str, str], BeforeValidator(_texts)]


class PipelineInput(Section):
    """`from` of a pipeline, or one of its named inputs."""

    queue: Name | None = Field(default=None, description="The queue to read, as one of its consumers.")
    topic: Name | None = Field(default=None, description="Or the topic to read; nothing is consumed.")
    view: Name | None = Field(default=None, description="Or a view or topic with a key: its records at each start.")
    table: Name | None = Field(default=None, description="Or files: a folder or file of Parquet, CSV or JSON.")
    log: StrictBool = Field(default=False, description="Or the log itself at each start, every record of it.")
    exchange: str = Field(default="", description="The topic's exchange.")
    vhost: Name = Field(default="/", description="Its vhost.")
    mode: Literal["queue", "log"] | None = Field(
        default=None, description="`queue` settles what it read, `log` consumes nothing.  Default: by what is read."
    )
    filter: str | None = Field(default=None, description="An expression that the server applies.")
    columns: str = Field(default="json", description="Columns of the body: `json` to infer, or a Spark DDL schema.")
    max_rows: StrictInt = Field(default=100_000, ge=1, description="Most rows of one batch.")
    start: Name | None = Field(
        default=None, description="Where the first run begins in a topic: earliest (the default), latest, a bookmark."
    )
    watermark: Watermark | None = Field(default=None, description="How late rows may be, by one of their columns.")
    dedup: tuple[Name, ...] = Field(
        default=(), description="Of rows with the same values here only the first is taken, within the watermark."
    )
    format: Literal["parquet", "csv", "json"] | None = Field(
        default=None, description="Of the files.  Default: by the name's ending, else parquet."
    )
    options: Conf = Field(default_factory=dict[str, str], description="Options of Spark for reading the files.")
    refresh: Duration | None = Field(
        default=None, gt=0, description="Read table, view or log again so often, between two batches.  Default: never."
    )
    expect: Rules = Field(default=(), description="What its rows should satisfy.")

    @property
    def is_stream(self) -> bool:
        """Whether it brings new rows with every batch."""
        return self.queue is not None or self.topic is not None

    @property
    def reads(self) -> Literal["queue", "log", "table"]:
        """The mode in force."""
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
        named = [kind for kind in ("queue", "topic", "view", "table") if getattr(self, kind) is not None]
        named += ["log"] if self.log else []
        if len(named) != 1:
            raise ValueError(
                "an input is either a queue or a topic, a view, a table or the log: "
                + (f"{' and '.join(named)} are given, and one may be" if named else "none is given")
            )
        if self.mode == "queue" and self.queue is None:
            raise ValueError("mode 'queue' needs a queue; a topic is read in mode 'log'")
        if self.mode == "log" and self.queue is not None:
            raise ValueError("mode 'log' reads a topic: name the topic that the queue views, or read in mode 'queue'")
        if self.mode is not None and not self.is_stream:
            raise ValueError(f"mode {self.mode!r} is of queues and topics")
        if self.reads == "queue" and self.filter is not None:
            raise ValueError("in mode 'queue' the queue's own filter decides: set `filter` on the queue")
        if self.filter is not None and self.table is not None:
            raise ValueError("files have no filter of the server: filter them in the SQL")
        if self.topic is None and self.exchange:
            raise ValueError("an exchange goes with a topic, not with a queue")
        if self.start is not None and self.topic is None:
            raise ValueError("`start` is of topics; a queue is read from what it holds")
        if self.dedup and self.watermark is None:
            raise ValueError(
                "dedup needs a watermark, which says for how long rows are remembered; without end it is "
                "SELECT DISTINCT in the SQL"
            )
        if not self.is_stream and (self.watermark is not None or self.expect):
            raise ValueError("watermark, dedup and expect are of queues and topics, whose rows come one after another")
        if self.is_stream and self.refresh is not None:
            raise ValueError("refresh is of tables, views and the log; a queue or topic brings new rows by itself")
        if self.table is None and (self.format is not None or self.options):
            raise ValueError("format and options are of files: they go with table")
        csv = self.table is not None and (self.format or self.table.lower().removesuffix(".gz")).endswith("csv")
        if csv and self.columns == "json" and "inferschema" not in map(str.lower, self.options):
            raise ValueError("columns of CSV: name them as DDL, or set options = { inferSchema = true, header = true }")
        return self


def named_inputs(value: object) -> object:
    """One input without a name as `{input: ...}`."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[str, object]", value)
    named = bool(table) and all(isinstance(one, Mapping) for one in table.values())
    return table if named and not table.keys() & PipelineInput.model_fields.keys() else {ONLY: table}
