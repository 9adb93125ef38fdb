"""`[spark]` and `[[pipeline]]`: what is read, how it is transformed, where it goes, when, and what rows must satisfy.

Owns names, defaults and what excludes what.  Whether Spark can plan a pipeline is `penstock pipeline check`'s to say.
Every form that a person may write becomes one: `from` is a table of named inputs (`input` where there is one), `expect`
a list of rules with names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, cast
from urllib.parse import urlsplit

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

from penstock.config.sections import MIB, Duration, Name, Section, Size
from penstock.records.ddl import parse_ddl

_SPARKS_OWN = re.compile(r"\b(not\s+null|comment|interval|variant|time|char|varchar|void)\b", re.IGNORECASE)
"""What only Spark has in a schema, for tables."""

_TLS_QUERY = re.compile(r"(?:ca|cert|key|verify)=[^&]*(?:&(?:ca|cert|key|verify)=[^&]*)*")
ONLY = "input"
"""The name of the input of a pipeline that has one and does not name it."""

RESERVED = ("driver", "scratch", "server", "status")
"""What files beside the checkpoints are called."""

Statement: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=2**20)]
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://\S+|k8s://\S+|yarn")
"""What Spark takes for a master."""

InputName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]

Otherwise: TypeAlias = Literal["keep", "drop", "fail", "dead-letter"]


def _master(value: str | None) -> str | None:
    if value is not None and _MASTER.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is no master of Spark: write local[*], local[4], spark://host:7077, yarn or k8s://"
        )
    return value


Master: TypeAlias = Annotated[Name, AfterValidator(_master)]


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


Rules: TypeAlias = Annotated[tuple[Expectation, ...], BeforeValidator(_rules)]
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


class PipelineTo(Section):
    """One of `to`: a topic, a queue, a view with its key, or a folder of Parquet files."""

    topic: Name | None = Field(default=None, description="Publish the rows to this topic as JSON.")
    queue: Name | None = Field(default=None, description="Publish the rows to this queue's topic.")
    view: Name | None = Field(default=None, description="Keep the last row of each key in this topic.")
    table: Name | None = Field(default=None, description="Write the rows as Parquet into this folder.")
    key: tuple[Name, ...] = Field(default=(), description="Columns that tell the records of a view apart.")
    partition_by: tuple[Name, ...] = Field(default=(), description="Columns of which a table has a folder a value.")
    exchange: str = Field(default="", description="The topic's exchange.")
    vhost: Name = Field(default="/", description="The vhost of topic, queue or view.")

    @property
    def keys(self) -> tuple[str, ...]:
        """The key as a topic's settings have it: `/region`."""
        return tuple(one if one.startswith("/") else f"/{one}" for one in self.key)

    @model_validator(mode="after")
    def _one_target(self) -> PipelineTo:
        named = [kind for kind in ("topic", "queue", "view", "table") if getattr(self, kind) is not None]
        if len(named) != 1:
            raise ValueError(
                "an output is either a topic or a queue, a view or a table: "
                + (f"{' and '.join(named)} are given, and one may be" if named else "none is given")
            )
        if self.key and self.view is None:
            raise ValueError("a key goes with a view: its records are told apart by it")
        if self.partition_by and self.table is None:
            raise ValueError("partition_by goes with a table: its folders are named by it")
        if self.exchange and self.topic is None and self.view is None:
            raise ValueError("an exchange goes with a topic or a view")
        if self.key:
            from penstock.records.sow import parse_paths

            parse_paths(self.keys)
        return self


def _inputs(value: object) -> object:
    """One input without a name as `{input: ...}`."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[str, object]", value)
    named = bool(table) and all(isinstance(one, Mapping) for one in table.values())
    return table if named and not table.keys() & PipelineInput.model_fields.keys() else {ONLY: table}


class Backfill(Section):
    """`backfill` of a pipeline: the past first, then what comes."""

    start: Name = Field(alias="from", description="Where the past begins: a date or time, a bookmark, or earliest.")
    max_rows: StrictInt = Field(default=1_000_000, ge=1, description="Most rows of a batch of the past.")


class Pipeline(Section):
    """`[[pipeline]]`"""

    name: Name = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="Its name, also of its stream and its checkpoint folder."
    )
    source: Annotated[dict[InputName, PipelineInput], BeforeValidator(_inputs)] = Field(
        alias="from", min_length=1, description="What it reads: one input, or several by the names that SQL uses."
    )
    sql: Statement | None = Field(default=None, description="A SELECT over `input`, or over the names of the inputs.")
    python: Name | None = Field(
        default=None, pattern=r"^[\w.]+:[\w.]+$", description="Or module:function, from DataFrame to DataFrame."
    )
    to: tuple[PipelineTo, ...] = Field(min_length=1, description="One output or several; a batch is visible in all.")
    trigger: Duration = Field(default=5_000_000, ge=0, description="Time between batches; 0s as fast as it can.")
    schedule: Name | None = Field(
        default=None, description="Instead: run at these times over what there is, then stop."
    )
    output_mode: Literal["append", "update", "complete"] | None = Field(
        default=None, description="As Spark has it.  Default: by the query; see docs/pipelines.md."
    )
    unroutable: Literal["fail", "drop"] = Field(
        default="fail",
        description="A row whose column `topic` names one that nobody keeps fails its batch; `drop` loses the row.",
    )
    expect: Rules = Field(default=(), description="What the rows of the one input should satisfy.")
    abandon_after: Duration | None = Field(
        default=None,
        gt=0,
        description="Without a run for so long, its streams let go of what they hold.  Default: never.",
    )
    poison_after: StrictInt = Field(
        default=0,
        ge=0,
        description="Failures of a batch of its one queue after which the row to blame is looked for and put aside; "
        "0: never.",
    )
    backfill: Backfill | None = Field(
        default=None, description="The first run begins in the past of its one topic, in large batches."
    )
    state: Literal["memory", "rocksdb"] | None = Field(
        default=None,
        description="Where the query keeps its state.  Default: rocksdb for transformWithState, else memory.",
    )
    master: Master | None = Field(default=None, description="Where it runs.  Default: that of [spark].")
    memory: Size | None = Field(default=None, ge=256 * MIB, description="Heap of its driver.  Default: [spark]'s.")
    conf: Conf = Field(default_factory=dict[str, str], description="Settings of Spark for this pipeline.")

    @model_validator(mode="before")
    @classmethod
    def _one_from(cls, value: object) -> object:
        """`[pipeline.inputs.NAME]` is `from` by another name."""
        if not isinstance(value, Mapping):
            return value
        table = dict(cast("Mapping[str, object]", value))
        if "inputs" not in table:
            return table
        if "from" in table:
            raise ValueError("from and inputs say the same thing: give one of them")
        return {**{key: one for key, one in table.items() if key != "inputs"}, "from": table["inputs"]}

    @field_validator("schedule")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            from penstock.errors import InvalidArgument
            from penstock.records.cron import parse_cron

            try:
                parse_cron(value)
            except InvalidArgument as error:
                raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _sound(self) -> Pipeline:
        if self.name.partition("-")[0] in RESERVED:
            raise ValueError(f"a pipeline cannot be called {self.name!r}: files of the driver are called so")
        if self.sql is None and self.python is None:
            raise ValueError("sql or python is missing: what it makes of its rows")
        if self.sql is not None and self.python is not None:
            raise ValueError("sql and python are both given: a pipeline has one of them")
        targets = [(to.vhost, to.exchange, to.topic or to.queue, to.view, to.table) for to in self.to]
        for place, (to, target) in enumerate(zip(self.to, targets, strict=True)):
            if target in targets[:place]:
                raise ValueError(f"to: {to.topic or to.queue or to.view or to.table!r} is there twice")
        if self.schedule is not None and "trigger" in self.model_fields_set:
            raise ValueError("a pipeline has either a trigger or a schedule")
        streams = [name for name, one in self.source.items() if one.is_stream]
        if not streams:
            raise ValueError("a pipeline reads at least one queue or topic: what else it reads has no new rows")
        if self.expect and len(streams) > 1:
            raise ValueError(
                f"expect: there are the inputs {', '.join(streams)}: set it in the one that it is about, as in "
                f"[pipeline.inputs.{streams[0]}.expect]"
            )
        if self.expect and self.source[streams[0]].expect:
            raise ValueError(f"expect is there twice, of the pipeline and of its input {streams[0]}")
        if self.poison_after and (len(streams) > 1 or self.source[streams[0]].reads != "queue"):
            raise ValueError(
                "poison_after is of a pipeline over one queue and no topic: of several, nobody knows whose row is to "
                "blame, and of a topic no row can be put aside"
            )
        if self.backfill is not None:
            one = self.source[streams[0]]
            if len(streams) > 1 or one.reads != "log":
                raise ValueError(
                    "backfill is of a pipeline over one topic, which has a past; a queue is read from what it holds, "
                    "and `penstock pipeline backfill` runs a past range of it"
                )
            if one.start is not None:
                raise ValueError("backfill and `start` both say where the first run begins: give one of them")
        vhosts = {one.vhost for one in self.source.values() if one.table is None}
        if len(vhosts) > 1:
            raise ValueError(f"its inputs are in the vhosts {', '.join(sorted(vhosts))}: they must be in one")
        return self


class Spark(Section):
    """`[spark]`"""

    master: Master = Field(default="local[*]", description="Where pipelines run.")
    checkpoints: str | None = Field(
        default=None, description="Folder of Spark's checkpoints.  Default: `spark` in the data."
    )
    url: Name | None = Field(
        default=None,
        description="The server's address for drivers and executors, penstock://host:port.  Default: where it listens.",
    )
    memory: Size = Field(default=1024 * MIB, ge=256 * MIB, description="Heap of a pipeline's driver.")
    conf: Conf = Field(default_factory=dict[str, str], description="More settings of Spark.")
    openlineage: Name | None = Field(
        default=None, description="Where OpenLineage events go: http://host:port, or file:PATH for a line each."
    )

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = urlsplit(value)
        try:
            known = parts.scheme in ("penstock", "penstocks") and bool(parts.hostname) and parts.port is not None
        except ValueError:
            known = False
        if not known or parts.username or parts.path.strip("/") or parts.fragment:
            raise ValueError(f"{value!r} is not the address of a server: write penstock://host:port and nothing more")
        if parts.query and (parts.scheme != "penstocks" or not _TLS_QUERY.fullmatch(parts.query)):
            raise ValueError(f"{value!r}: behind the question mark of a penstocks:// address are ca, cert, key, verify")
        return value

    @field_validator("openlineage")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://", "file:")):
            raise ValueError(f"{value!r} is no place for events: write http://host:port or file:PATH")
        return value
