"""`[spark]` and `[[pipeline]]`: how what is read is transformed, where it goes and when; inputs are `pipeline_inputs`.

Owns names, defaults and what excludes what.  Whether Spark can plan a pipeline is `penstock pipeline check`'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os.path import abspath
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast
from urllib.parse import SplitResult

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, field_validator, model_validator

from penstock.config.pipeline_inputs import (
    ROWS_MOST,
    Conf,
    Expectation,
    InputName,
    PipelineInput,
    Rules,
    Statement,
    named_inputs,
)
from penstock.config.queue_values import COUNT_MAX
from penstock.config.sections import MIB, Duration, Name, Refusals, Section, Size, one_of, refuse
from penstock.errors import told_as
from penstock.units import shown_address, split_url, wrong_master

_TLS_QUERY = re.compile(r"(?:ca|cert|key|verify)=[^&]*(?:&(?:ca|cert|key|verify)=[^&]*)*")
RESERVED = ("driver", "scratch", "server", "status")
"""What files beside the checkpoints are called."""


def _is_called(parts: SplitResult) -> bool:
    """Whether it names a host, and a port that is one or none."""
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _master(value: str | None) -> str | None:
    if value is not None and (why := wrong_master(value)):
        raise ValueError(why)
    return value


Master: TypeAlias = Annotated[Name, AfterValidator(_master)]


class PipelineTo(Section):
    """One of `to`: a topic, a queue, a view with its key, or a folder of Parquet files."""

    topic: Name | None = None
    """Publish the rows to this topic as JSON."""
    queue: Name | None = None
    """Publish the rows to this queue's topic."""
    view: Name | None = None
    """Keep the last row of each key in this topic."""
    table: Name | None = None
    """Write the rows as Parquet into this folder."""
    key: tuple[Name, ...] = ()
    """Columns that tell the records of a view apart."""
    partition_by: tuple[Name, ...] = ()
    """Columns of which a table has a folder a value."""
    exchange: str = ""
    """The topic's exchange."""
    vhost: Name = "/"
    """The vhost of topic, queue or view."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The key as a topic's settings have it: `/region`."""
        return tuple(one if one.startswith("/") else f"/{one}" for one in self.key)

    @model_validator(mode="after")
    def _one_target(self) -> PipelineTo:
        one_of(self, ("topic", "queue", "view", "table"), "an output is either a topic or a queue, a view or a table")
        if self.key and self.view is None:
            raise ValueError("a key goes with a view: its records are told apart by it")
        if self.partition_by and self.table is None:
            raise ValueError("partition_by goes with a table: its folders are named by it")
        if self.exchange and self.topic is None and self.view is None:
            raise ValueError("an exchange goes with a topic or a view")
        if self.key:
            from penstock.records.sow_settings import parse_paths

            parse_paths(self.keys)
        return self


class Backfill(Section):
    """`backfill` of a pipeline: the past first, then what comes."""

    start: Name = Field(alias="from")
    """Where the past begins: a date or time, a bookmark, or earliest."""
    max_rows: StrictInt = Field(default=1_000_000, ge=1, le=ROWS_MOST)
    """Most rows of a batch of the past."""


class Pipeline(Section):
    """`[[pipeline]]`"""

    name: Name = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Its name, also of its stream and its checkpoint folder."""
    source: Annotated[dict[InputName, PipelineInput], BeforeValidator(named_inputs)] = Field(alias="from", min_length=1)
    """What it reads: one input, or several by the names that SQL uses."""
    sql: Statement | None = None
    """A SELECT over `input`, or over the names of the inputs."""
    python: Name | None = Field(default=None, pattern=r"^[\w.]+:[\w.]+$")
    """Or module:function, from DataFrame to DataFrame."""
    to: tuple[PipelineTo, ...] = Field(min_length=1)
    """One output or several; a batch is visible in all."""
    trigger: Duration = Field(default=5_000_000, ge=0)
    """Time between batches; 0s as fast as it can."""
    schedule: Name | None = None
    """Instead: run at these times over what there is, then stop."""
    output_mode: Literal["append", "update", "complete"] | None = None
    """As Spark has it.  Default: by the query; see docs/pipelines.md."""
    unroutable: Literal["fail", "drop"] = "fail"
    """A row whose column `topic` names one that nobody keeps fails its batch; `drop` loses the row."""
    expect: Rules = ()
    """What the rows of the one input should satisfy."""
    abandon_after: Duration | None = Field(default=None, gt=0)
    """Without a run for so long, its streams let go of what they hold.  Default: never."""
    poison_after: StrictInt = Field(default=0, ge=0, le=COUNT_MAX)
    """Failures of a batch of its one queue after which the row to blame is looked for and put aside; 0: never."""
    backfill: Backfill | None = None
    """The first run begins in the past of its one topic, in large batches."""
    state: Literal["memory", "rocksdb"] | None = None
    """Where the query keeps its state.  Default: rocksdb for transformWithState, else memory."""
    master: Master | None = None
    """Where it runs.  Default: that of [spark]."""
    memory: Size | None = Field(default=None, ge=256 * MIB)
    """Heap of its driver.  Default: [spark]'s."""
    conf: Conf = Field(default_factory=dict[str, str])
    """Settings of Spark for this pipeline."""

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

            with told_as(ValueError, instead=InvalidArgument):
                parse_cron(value)
        return value

    @property
    def streams(self) -> list[str]:
        """The names of the inputs that bring new rows."""
        return [name for name, one in self.source.items() if one.is_stream]

    @property
    def first(self) -> PipelineInput:
        """The first of them; most pipelines have no other."""
        return self.source[self.streams[0]]

    @property
    def rules(self) -> list[Expectation]:
        """What the rows of its inputs should satisfy."""
        return [*self.expect, *(rule for one in self.source.values() for rule in one.expect)]

    @property
    def vhosts(self) -> list[str]:
        """Where the server has what it reads."""
        return sorted({one.vhost for one in self.source.values() if one.table is None})

    @property
    def doubled(self) -> str | None:
        """An output that is there twice."""
        seen = set[object]()
        for to in self.to:
            target = (to.vhost, to.exchange, to.topic or to.queue, to.view, to.table and abspath(to.table))
            if target in seen:
                return to.topic or to.queue or to.view or to.table
            seen.add(target)
        return None

    @property
    def nested(self) -> str | None:
        """Two tables of which one lies in the other, and would be read with it."""
        for to in self.to:
            for other in self.to:
                if to.table and other.table and Path(abspath(other.table)) in Path(abspath(to.table)).parents:
                    return f"table {to.table!r} lies in table {other.table!r}"
        return None

    @model_validator(mode="after")
    def _sound(self) -> Pipeline:
        refuse(self, _REFUSED)
        return self


_REFUSED: Refusals[Pipeline] = (
    (
        lambda one: one.name.partition("-")[0] in RESERVED,
        "a pipeline cannot be called {one.name!r}: files of the driver are called so",
    ),
    (lambda one: one.sql is None and one.python is None, "sql or python is missing: what it makes of its rows"),
    (
        lambda one: one.sql is not None and one.python is not None,
        "sql and python are both given: a pipeline has one of them",
    ),
    (lambda one: one.doubled is not None, "to: {one.doubled!r} is there twice"),
    (lambda one: one.nested is not None, "to: {one.nested}, whose readers would find its files too"),
    (
        lambda one: one.schedule is not None and "trigger" in one.model_fields_set,
        "a pipeline has either a trigger or a schedule",
    ),
    (
        lambda one: not one.streams,
        "a pipeline reads at least one queue or topic: what else it reads has no new rows",
    ),
    (
        lambda one: one.expect and len(one.streams) > 1,
        lambda one: (
            f"expect: there are the inputs {', '.join(one.streams)}: set it in the one that it is about, as in "
            f"[pipeline.inputs.{one.streams[0]}.expect]"
        ),
    ),
    (
        lambda one: one.expect and one.first.expect,
        "expect is there twice, of the pipeline and of its input {one.streams[0]}",
    ),
    (
        lambda one: one.poison_after and (len(one.streams) > 1 or one.first.reads != "queue"),
        (
            "poison_after is of a pipeline over one queue and no topic: of several, nobody knows whose row is to "
            "blame, and of a topic no row can be put aside"
        ),
    ),
    (
        lambda one: one.backfill is not None and (len(one.streams) > 1 or one.first.reads != "log"),
        (
            "backfill is of a pipeline over one topic, which has a past; a queue is read from what it holds, and "
            "`penstock pipeline backfill` runs a past range of it"
        ),
    ),
    (
        lambda one: one.backfill is not None and one.first.start is not None,
        "backfill and `start` both say where the first run begins: give one of them",
    ),
    (
        lambda one: len(one.vhosts) > 1,
        lambda one: f"its inputs are in the vhosts {', '.join(one.vhosts)}: they must be in one",
    ),
)


class Spark(Section):
    """`[spark]`"""

    master: Master = "local[*]"
    """Where pipelines run."""
    checkpoints: str | None = None
    """Folder of Spark's checkpoints.  Default: `spark` in the data."""
    url: Name | None = None
    """The server's address for drivers and executors, penstock://host:port.  Default: where it listens."""
    memory: Size = Field(default=1024 * MIB, ge=256 * MIB)
    """Heap of a pipeline's driver."""
    conf: Conf = Field(default_factory=dict[str, str])
    """More settings of Spark."""
    class_archive: StrictBool = True
    """Whether penstock up makes the archive of Spark's classes, after ten minutes."""
    openlineage: Name | None = None
    """Where OpenLineage events go: http://host:port, or file:PATH for a line each."""

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = split_url(value)
        known = parts.scheme in ("penstock", "penstocks") and _is_called(parts) and parts.port is not None
        if not known or parts.username or parts.path.strip("/") or parts.fragment:
            told = shown_address(value)
            raise ValueError(f"{told!r} is not the address of a server: write penstock://host:port and nothing more")
        if parts.query and (parts.scheme != "penstocks" or not _TLS_QUERY.fullmatch(parts.query)):
            told = shown_address(value)
            raise ValueError(f"{told!r}: behind the question mark of a penstocks:// address are ca, cert, key, verify")
        return value

    @field_validator("openlineage")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is None or value.startswith("file:"):
            return value
        if not value.startswith(("http://", "https://")) or not _is_called(split_url(value)):
            raise ValueError(f"{shown_address(value)!r} is no place for events: write http://host:port or file:PATH")
        return value
