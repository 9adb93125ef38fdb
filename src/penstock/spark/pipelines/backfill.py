"""The past of a pipeline: before its live stream, or beside it.

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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.definition import Definition, Input
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

    def query_id(self) -> str:
        """The same whatever becomes of the folder: a lost one cannot double results."""
        name = self.folder.name
        return f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{name}"


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
