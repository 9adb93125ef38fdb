"""Where a pipeline begins: anew when that is asked for, and with its past before its live stream, or beside it.

A pipeline begins anew: its checkpoint is forgotten, and with it what the server keeps under its name.

    <folder>/<name>.anew        {"keep_place"}: asked for, and not done yet
    <folder>/<name>.places      {stream: bookmark}: where topics go on when their places were kept
    <folder>/<name>.forgotten/  the old checkpoint on its way out

What its outputs have already got is settled first, so that no queue brings it again.  Each step may be repeated:
whoever starts the pipeline next goes on with what a crash has left.

`handover` is for `backfill = {...}`: one stream reads the past in large batches and then what comes.  Where the past
ends is fixed when the pipeline first starts, a batch is cut exactly there, and every message is in one batch.

`Backfill` is one run over a past range, under a key of its own, `<pipeline>.backfill.<id>`: it has its own stream and
checkpoint and commits its batches as (id, batch), so it touches neither the live stream nor, when it is run again,
what an earlier run of it has written.

    <folder>/<name>.handover           {"lsn"}
    <folder>/<name>.backfill.<id>/     Spark's checkpoint
    <folder>/<name>.backfill.<id>.range  {"from", "to"}: LSNs, fixed at the first start
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.records.dataclass import dataclass
from penstock.spark.checkpoint import Checkpoint, Manifest
from penstock.spark.pipelines.definition import Definition, Input
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.outputs import files_of, name_of
from penstock.spark.remote import Remote, Where, remote

MAX_ROWS = 1_000_000
"""Rows of one batch, unless the command says otherwise."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def handover(where: Where, checkpoint: Checkpoint, manifest: Path) -> int:
    """The LSN at which the past ends; fixed before the first start, for as long as the checkpoint lives."""
    file = manifest.with_suffix(".handover")
    if checkpoint.exists and file.exists():
        return int(json.loads(file.read_text())["lsn"])
    lsn = int(remote(where).act("position")["durable"]) + 1
    keep(file, {"lsn": lsn})
    return lsn


def keep(file: Path, value: object) -> None:
    """Put JSON there in one step, onto the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.part")
    with open(aside, "w") as out:
        json.dump(value, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, file)


def backfill_id(start: str, end: str | None, to: str) -> str:
    """A name for a range and its outputs, so that the same command goes on with what it began."""
    return hashlib.sha256(json.dumps([start, end, to]).encode()).hexdigest()[:8]


class BackfillCheckpoint(Checkpoint):
    """The checkpoint of a backfill, whose batches are committed under its own key."""

    @property
    def key(self) -> str:
        """The same whatever becomes of the folder: a lost one cannot double results."""
        name = self.folder.name
        return f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{name}"

    def query_id(self) -> str:
        return self.key


def backfilled(given: Mapping[str, Any], what: Mapping[str, Any], where: Where, folder: Path) -> Definition:
    """The definition of one backfill: the pipeline's, over a past range, perhaps into other outputs.

    what: {"id", "from", "to"?, "outputs"?, "max_rows"?}, bookmarks or times as text.  The range is [from, to).
    Errors: InvalidArgument, PreconditionFailed for what cannot be run again over the past.
    """
    live = Definition.of(given)
    name, id = live.name, str(what["id"])
    if _ID.fullmatch(id) is None:
        raise InvalidArgument(f"backfill id {id!r} is not up to 40 letters, digits, - and _")
    if len(live.streams) != 1:
        raise PreconditionFailed(
            f"pipeline {name} reads {len(live.streams)} streams, and a backfill runs over a range of one"
        )
    outputs = cast("list[Mapping[str, Any]]", what.get("outputs") or ())
    to = live.to if not outputs else Definition.of({**given, "to": outputs}).to
    for one in to:
        if one.view and not outputs:
            raise PreconditionFailed(
                f"pipeline {name} writes the {one.text}: the past would replace its present rows; name another output"
            )
    server = remote(where)
    [source] = live.streams
    start, end = _range(server, folder / f"{name}.backfill.{id}.range", what)
    origin = int(server.act("position")["origin"])
    past = replace(
        _past(server, source),
        start=f"{origin}|{start - 1}|",
        end=end,
        max_rows=int(what.get("max_rows") or MAX_ROWS),
        min_rows=None,
        max_delay_us=None,
    )
    inputs = tuple(past if one is source else one for one in live.inputs)
    return replace(live, name=f"{name}.backfill.{id}", inputs=inputs, to=to, schedule=None, trigger_us=0, past=None)


def _range(server: Remote, file: Path, what: Mapping[str, Any]) -> tuple[int, int]:
    """LSNs [from, to), fixed at the first start."""
    if file.exists():
        kept = json.loads(file.read_text())
        return int(kept["from"]), int(kept["to"])
    start = int(server.act("position", bookmark=str(what["from"]))["start"])
    end = int(server.act("position", bookmark=str(what.get("to") or "NOW"))["start"])
    if start >= end:
        raise InvalidArgument(f"there is nothing between {what['from']} (LSN {start}) and {what.get('to')} (LSN {end})")
    first = int(server.act("position")["first"])
    keep(file, {"from": max(start, first), "to": end})
    return max(start, first), end


def _past(server: Remote, source: Input) -> Input:
    """A topic as it is; a queue as its topic through its filter, which is what it takes."""
    if source.mode == "log":
        return source
    told = server.act("stats", queue=source.queue, vhost=source.vhost)
    settings = cast("Mapping[str, Mapping[str, Any]]", told["settings"])

    def setting(name: str) -> str | None:
        return cast("str | None", settings.get(name, {}).get("value"))

    return replace(
        source, queue=None, topic=setting("underlying_topic") or source.queue, exchange=setting("exchange") or "",
        filter=setting("filter"), mode="log",
    )  # fmt: skip


class Resettable(Protocol):
    """What of a pipeline is forgotten, and what tells where it stands."""

    definition: Definition
    place: Place
    checkpoint: Checkpoint
    where: Where

    def old_manifest(self) -> Manifest | None:
        """What the checkpoint is for; None where nothing says it."""


@dataclass(frozen=True, slots=True)
class Reread:
    """What becomes of one input."""

    input: str
    stream: str
    start: int | None = None  # of a topic: what was read is in [start, position)
    position: int | None = None
    held: int = 0  # of a queue: messages that go back to it
    kept: bool = False  # the topic goes on at `position`

    @property
    def text(self) -> str:
        if self.start is None and not self.held:
            return f"{self.input}: nothing is in work, and what is settled does not come again"
        if self.start is None:
            count = f"{self.held:,} message{'' if self.held == 1 else 's'}"
            return f"{self.input}: {count} in work come again; what is settled does not"
        if self.kept:
            return f"{self.input}: goes on at LSN {self.position}"
        if self.position == self.start:
            return f"{self.input}: nothing was read yet"
        return (
            f"{self.input}: LSN {self.start} to {int(self.position or 0) - 1} are read again, so their rows come a "
            "second time into the outputs; --keep-place goes on where it was"
        )


def request_of(folder: Path, name: str) -> Path:
    """The file that asks for it."""
    return folder / f"{name}.anew"


def ask(folder: Path, name: str, *, keep_place: bool) -> None:
    """Whoever runs the pipeline is to let it begin anew."""
    keep(request_of(folder, name), {"keep_place": keep_place})


def places_of(folder: Path, name: str) -> dict[str, str]:
    with suppress(FileNotFoundError):
        found: dict[str, str] = json.loads((folder / f"{name}.places").read_text())
        return found
    return {}


def foreseen(pipeline: Resettable, *, keep_place: bool) -> list[Reread]:
    """What will be read again.  PreconditionFailed where places cannot be kept."""
    server = remote(pipeline.where)
    known = {one["stream"]: one for one in server.act("streams")["streams"]}
    places = _places(pipeline, server) if keep_place else {}
    out: list[Reread] = []
    for one in pipeline.definition.streams:
        stream = pipeline.definition.stream_of(one)
        told: Mapping[str, Any] = known.get(stream, {})
        if one.mode != "log":
            out.append(Reread(one.text, stream, held=int(told.get("held") or 0)))
            continue
        start, position = int(told.get("start") or 0), int(told.get("position") or 0)
        place = places.get(stream)
        if place is not None:
            position = int(place.split("|")[1]) + 1
        out.append(Reread(one.text, stream, start, max(start, position), kept=place is not None))
    return out


def carry_out(pipeline: Resettable) -> None:
    """Do what is asked for.  The pipeline does not run, and its lock is held."""
    folder, name = pipeline.place.folder, pipeline.definition.name
    request = json.loads(request_of(folder, name).read_text())
    server, checkpoint = remote(pipeline.where), pipeline.checkpoint
    forgotten = folder / f"{name}.forgotten"
    if checkpoint.exists:
        places = _places(pipeline, server) if request.get("keep_place") else {}
        _settle(pipeline, server)
        _clear_away(pipeline, server)
        keep(folder / f"{name}.places", places)
        shutil.rmtree(forgotten, ignore_errors=True)
        os.rename(checkpoint.folder, forgotten)
    for one in pipeline.definition.streams:
        with suppress(NotFound):
            server.act("stream_release", stream=pipeline.definition.stream_of(one), drop=True)
    for ending in ("json", "handover"):
        (folder / f"{name}.{ending}").unlink(missing_ok=True)
    shutil.rmtree(checkpoint.folder, ignore_errors=True)
    shutil.rmtree(forgotten, ignore_errors=True)
    request_of(folder, name).unlink(missing_ok=True)


def _committed(pipeline: Resettable, server: Remote) -> int | None:
    """The last batch that is in the outputs."""
    batch = server.act("sink", query=pipeline.checkpoint.query_id())["batch"]
    return None if batch is None else int(batch)


def _settle(pipeline: Resettable, server: Remote) -> None:
    """What the outputs have got is done, whoever was to settle it."""
    batch, streams = _committed(pipeline, server), pipeline.definition.settles
    if batch is None or not streams:
        return
    try:
        settled = pipeline.checkpoint.settled(batch, streams)
    except PreconditionFailed:
        return  # it has read other queues, or nobody knows any more; a commit has settled its batch itself
    origins = {stream: origin for stream, _, origin in pipeline.checkpoint.inputs(batch)}
    for stream, number in settled:
        with suppress(NotFound, PreconditionFailed):  # one that never planned it is a later one, of a queue made again
            server.act("settle", stream=stream, batch=number, origin=origins.get(stream))


def _clear_away(pipeline: Resettable, server: Remote) -> None:
    """Files that a kill has left between their batch and its commit: the batch comes under another name."""
    done = _committed(pipeline, server)
    name = name_of(pipeline.checkpoint.query_id(), 0 if done is None else done + 1)
    for to in pipeline.definition.to:
        if to.table is not None:
            shutil.rmtree(files_of(Path(to.table).absolute(), name), ignore_errors=True)


def _places(pipeline: Resettable, server: Remote) -> dict[str, str]:
    """Where each topic stands after the last batch that is in the outputs."""
    name, topics = pipeline.definition.name, [one for one in pipeline.definition.streams if one.mode == "log"]
    batch = _committed(pipeline, server) if pipeline.checkpoint.exists else None
    if batch is None or not topics:
        return {}
    old = pipeline.old_manifest()
    if old is None or old.reads != pipeline.definition.reads:
        raise PreconditionFailed(
            f"pipeline {name} reads something else now than its checkpoint, so places cannot be kept: begin anew "
            "without them, or put the old inputs back"
        )
    offsets = pipeline.checkpoint.offsets(batch)
    return {
        pipeline.definition.stream_of(one): _bookmark(offset)
        for one, offset in zip(pipeline.definition.streams, offsets, strict=True)
        if one in topics and offset.get("lsn") is not None
    }


def _bookmark(offset: Mapping[str, Any]) -> str:
    return f"{int(offset['origin'])}|{int(offset['lsn']) - 1}|"
