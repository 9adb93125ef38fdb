"""A pipeline as the driver gets it: plain values from the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, cast
from urllib.parse import quote, urlunsplit

from penstock.client.urls import split_address
from penstock.records.dataclass import dataclass

ONLY = "input"
"""The name of the input of a pipeline that has one and does not name it."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STORES = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
"""What Spark calls the places that keep state."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a batch goes: messages of a topic or queue, or Parquet files in a folder."""

    topic: str | None
    table: str | None = None
    exchange: str = ""
    vhost: str = "/"
    partition_by: tuple[str, ...] = ()
    view: bool = False  # the topic keeps the last row of each key
    key: tuple[str, ...] = ()  # of the view: paths such as `/region`
    queue: bool = False  # `topic` is a queue, and all rows go there

    @property
    def text(self) -> str:
        if self.table is not None:
            return f"table {self.table}"
        name = f"{self.exchange}/{self.topic}" if self.exchange else self.topic
        return f"{'view' if self.view else 'queue' if self.queue else 'topic'} {name}"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Output:
        return cls(
            given.get("topic") or given.get("queue") or given.get("view"),
            view=given.get("view") is not None,
            queue=given.get("queue") is not None,
            partition_by=tuple(given.get("partition_by") or ()),
            key=tuple("/" + key.removeprefix("/") for key in given.get("key") or ()),
            **_given(given, ("table", "exchange", "vhost")),
        )


@dataclass(frozen=True, slots=True)
class Check:
    """What each input row should satisfy, and what becomes of the others."""

    that: str
    otherwise: str  # keep, drop, fail, dead-letter
    topic: str | None
    name: str
    fail_above: str | None = None  # rows, or a share as in `1 %`, of a batch that may not meet it


def in_order(checks: Iterable[Check]) -> tuple[Check, ...]:
    """As rows meet them: what drops rows comes last, so that it takes none that another rule would put aside."""
    return tuple(sorted(checks, key=lambda check: check.otherwise == "drop"))


@dataclass(frozen=True, slots=True)
class Input:
    """One thing that is read."""

    name: str  # as SQL has it
    queue: str | None = None
    topic: str | None = None
    view: str | None = None
    table: str | None = None
    log: bool = False
    exchange: str = ""
    vhost: str = "/"
    mode: str = "log"  # queue, log, table
    filter: str | None = None
    columns: str = "json"  # `json`, or DDL
    max_rows: int = 100_000
    min_rows: int | None = None
    max_delay_us: int | None = None
    rescued: str | None = None  # the column of what no column has
    start: str | None = None
    end: int | None = None  # of a backfill: the LSN where it ends
    watermark: tuple[str, int] | None = None  # column, microseconds
    dedup: tuple[str, ...] = ()
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    refresh_us: int | None = None
    expect: tuple[Check, ...] = ()

    @property
    def is_stream(self) -> bool:
        """Whether it brings new rows with every batch."""
        return self.mode != "table"

    @property
    def text(self) -> str:
        if self.log:
            return "log"
        kind = "queue" if self.queue else "topic" if self.topic else "view" if self.view else "table"
        name = self.queue or self.topic or self.view or self.table
        return f"{kind} {self.exchange}/{name}" if self.exchange else f"{kind} {name}"

    @classmethod
    def of(cls, name: str, source: Mapping[str, Any], expect: object = None) -> Input:
        """From its JSON form; `expect`: that of the pipeline."""
        mode = "queue" if source.get("queue") else "log" if source.get("topic") else "table"
        watermark = source.get("watermark")
        checks = cast("list[dict[str, Any]]", source.get("expect") or expect or ())
        return cls(
            name,
            mode=mode if mode == "table" else source.get("mode") or mode,
            watermark=None if watermark is None else (str(watermark["column"]), int(watermark["delay"])),
            dedup=tuple(source.get("dedup") or ()),
            refresh_us=source.get("refresh"),
            max_delay_us=source.get("max_delay"),
            expect=in_order(
                Check(
                    one["that"],
                    one["otherwise"],
                    one.get("topic"),
                    one.get("name") or one["that"],
                    one.get("fail_above"),
                )
                for one in checks
            ),
            **_given(source, _INPUT),
        )


_INPUT = (
    "queue", "topic", "view", "table", "log", "exchange", "vhost", "filter", "columns", "max_rows", "min_rows",
    "rescued", "start", "format", "options",
)  # fmt: skip
"""What an input has under the names of the settings."""


def _given(source: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What is set; of the rest the fields have their defaults."""
    return {name: source[name] for name in names if source.get(name)}


@dataclass(frozen=True, slots=True)
class Past:
    """Where the first run of a topic begins, and how much it takes at once until it has caught up."""

    start: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class Definition:
    """One pipeline.  Its name is also that of its stream and of its checkpoint folder."""

    name: str
    inputs: tuple[Input, ...]
    to: tuple[Output, ...]
    sql: str | None = None
    python: str | None = None
    trigger_us: int = 0
    schedule: str | None = None
    output_mode: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    past: Past | None = None
    mandatory: bool = True  # a row for a topic that nobody keeps fails its batch
    abandon_us: int = 0  # without a run, after which its streams let go of what they hold; 0: never
    poison_after: int = 0  # failures of a batch after which the row to blame is put aside; 0: never

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Definition:
        """From the JSON form of a `[[pipeline]]` (durations in microseconds)."""
        source = cast("Mapping[str, Any]", given["from"])
        if not all(isinstance(one, Mapping) for one in source.values()):
            source = {ONLY: source}
        streams = [name for name, one in source.items() if one.get("queue") or one.get("topic")]
        expect = {streams[0]: given.get("expect")} if streams else {}
        conf = dict(cast("Mapping[str, str]", given.get("conf") or {}))
        if (store := given.get("state")) is not None:
            conf.setdefault(PROVIDER, STORES[store])
        past = given.get("backfill")
        return cls(
            given["name"],
            tuple(Input.of(name, one, expect.get(name)) for name, one in source.items()),
            tuple(Output.of(one) for one in given["to"]),
            trigger_us=int(given.get("trigger") or 0),
            conf=conf,
            past=None if past is None else Past(str(past["from"]), int(past["max_rows"])),
            mandatory=given.get("unroutable") != "drop",
            abandon_us=int(given.get("abandon_after") or 0),
            **_given(given, ("sql", "python", "schedule", "output_mode", "poison_after")),
        )

    @property
    def owner(self) -> str:
        """The pipeline whose streams it opens: a backfill's are its pipeline's."""
        return self.name.partition(".backfill.")[0]

    @property
    def vhost(self) -> str:
        """Of all inputs on the server."""
        return next((one.vhost for one in self.inputs if one.table is None), "/")

    @property
    def streams(self) -> tuple[Input, ...]:
        """The inputs that bring new rows, in order: also that of the sources in the checkpoint."""
        return tuple(one for one in self.inputs if one.is_stream)

    @property
    def reads(self) -> tuple[str, ...]:
        """What a checkpoint has offsets of, in their order."""
        return tuple(one.text + (f" in vhost {one.vhost}" if one.vhost != "/" else "") for one in self.streams)

    def stream_of(self, one: Input) -> str:
        """The name under which the server knows how far an input is read."""
        return self.name if one.name == ONLY and len(self.inputs) == 1 else f"{self.name}.{one.name}"

    @property
    def settles(self) -> tuple[str, ...]:
        """The streams of queues, whose batches a commit of the outputs settles."""
        return tuple(self.stream_of(one) for one in self.streams if one.mode == "queue")

    @property
    def refresh_us(self) -> int | None:
        """How often the tables are read again."""
        return min((one.refresh_us for one in self.inputs if one.refresh_us), default=None)


def with_vhost(url: str, vhost: str) -> str:
    """The same server, another vhost."""
    return urlunsplit(split_address(url)._replace(path="/" + ("" if vhost == "/" else quote(vhost, safe=""))))
