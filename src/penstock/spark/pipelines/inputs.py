"""What a pipeline reads, as frames: streams of queues and topics, and tables that are read when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from penstock.errors import NotFound, PenstockError, SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.options import read_options
from penstock.spark.pipelines.definition import Definition, Input
from penstock.spark.pipelines.expectations import checked
from penstock.spark.pipelines.letters import Post
from penstock.spark.reading.bodies import NO_MESSAGE
from penstock.spark.remote import Where
from penstock.spark.source import examined


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one pipeline, on one server."""

    definition: Definition
    where: Where
    until: int | None = None  # the LSN at which a backfill hands over to the live stream
    places: Mapping[str, str] = field(default_factory=dict[str, str])  # where topics begin instead, by stream
    blame: bool = True  # whether rows may be to blame for what ended the run before

    def columns(self, one: Input, patience: float | None = None) -> str | None:
        """DDL of the columns of its bodies: as given, or by its first messages.  None for files that tell their own.

        Raises NotFound with the reason NO_MESSAGE while there is no message to tell by, Unavailable when no server
        answers within the patience.
        """
        if one.columns != "json":
            return one.columns
        if one.table is not None or one.log:
            return None
        where = (
            self.where if patience is None else Where(self.where.url, self.where.user, self.where.password, patience)
        )
        given = {name: value for name, value in self.options(one, None, where).items() if name != "maxRowsPerTrigger"}
        try:
            return examined(read_options(given))
        except NotFound as error:
            if error.reason != NO_MESSAGE:
                raise
            told = f"{one.text} has no message yet whose JSON could tell its columns"
            raise NotFound(told, reason=NO_MESSAGE) from None

    def options(self, one: Input, columns: str | None, where: Where | None = None) -> dict[str, str]:
        """Options of `format("penstock")`."""
        where, stream = where or self.where, self.definition.stream_of(one)
        given: dict[str, str | None] = {
            "url": where.url,
            "user": where.user,
            "password": where.password,
            "patience": f"{where.patience:g}s",
            "queue": one.queue,
            "topic": one.topic,
            "view": one.view,
            "log": "true" if one.log else None,
            "exchange": one.exchange,
            "filter": one.filter,
            "startingBookmark": self.places.get(stream, one.start),
            "schema": columns,
        }
        if one.is_stream:
            given |= {
                "mode": one.mode,
                "stream": stream,
                "pipeline": self.definition.owner,
                "abandon_after": f"{self.definition.abandon_us // 1000}ms" if self.definition.abandon_us else "off",
                "maxRowsPerTrigger": str(one.max_rows),
                "beside": ",".join(name for name in map(self.definition.stream_of, self.definition.streams)
                                   if name != stream),
            }  # fmt: skip
            given |= self._range(one, stream)
        if one.mode == "queue":  # a lost checkpoint is told of at the start, and deleted as our own errors advise
            given["onLostCheckpoint"] = "continue"
            if self.definition.poison_after:
                given["poisonAfter"] = str(self.definition.poison_after)
                given["poisonBlame"] = "true" if self.blame else "false"
        return {name: value for name, value in given.items() if value}

    def _range(self, one: Input, stream: str) -> dict[str, str | None]:
        """Where a backfill, or the first run over the past of a topic, begins and ends."""
        past = self.definition.past
        if one.end is not None:
            return {
                "backfillUntil": str(one.end),
                "backfillMaxRows": str(one.max_rows),
                "backfillOnly": "true",
            }
        if past is None or self.until is None or stream in self.places:
            return {}
        return {
            "startingBookmark": past.start,
            "backfillUntil": str(self.until),
            "backfillMaxRows": str(past.max_rows),
        }

    def frames(self, session: Any, columns: Mapping[str, str | None], post: Post) -> dict[str, Any]:
        """A frame for each input, by name; `columns` as told before.  post: who takes its dead letters."""
        return {one.name: self.frame(session, one, columns.get(one.name), post) for one in self.definition.inputs}

    def frame(self, session: Any, one: Input, columns: str | None, post: Post) -> Any:
        """Its rows: checked, with their watermark, each once where that is asked for."""
        if not one.is_stream:
            return self._table(session, one, columns)
        given = self.options(one, columns)
        self.refuse(one, given)
        frame = session.readStream.format("penstock").options(**given).load()
        frame = checked(frame, one.expect, post, self.definition.name, one.name)
        if one.watermark is not None:
            column, delay_us = one.watermark
            frame = frame.withWatermark(column, f"{delay_us} microseconds")
        return frame.dropDuplicatesWithinWatermark(list(one.dedup)) if one.dedup else frame

    def refuse(self, one: Input, given: Mapping[str, str]) -> None:
        """SettingsError in the words of the settings for options that cannot be read."""
        past = self.definition.past
        try:
            read_options(given)
            if past is not None:
                read_options({**given, "startingBookmark": past.start})
        except PenstockError as error:
            start = "start" if past is None else "backfill.from"
            said = str(error).replace("option startingBookmark", start).replace("option ", "", 1)
            raise SettingsError(f"pipeline {self.definition.name}: {one.name}: {said}") from None

    def _table(self, session: Any, one: Input, columns: str | None) -> Any:
        if one.table is None:
            return session.read.format("penstock").options(**self.options(one, columns)).load()
        reader = session.read.format(file_format(one)).options(**one.options)
        if columns is not None:
            reader = reader.schema(columns)
        return reader.load(location(one.table))


def file_format(one: Input) -> str:
    """As it is given, or as the name ends."""
    if one.format is not None:
        return one.format
    name = str(one.table).lower().removesuffix(".gz")
    return next((kind for kind in ("csv", "json") if name.endswith(f".{kind}")), "parquet")


def location(table: str) -> str:
    """A folder as Spark takes it: one of this machine unless it says otherwise."""
    return table if "://" in table else f"file://{Path(table).absolute()}"
