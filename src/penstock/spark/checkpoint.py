"""A query's checkpoint folder, as far as we read and mend it, and the manifest beside it, which says what it is for.

Of the folder Spark owns the contents:

    metadata           {"id": query id}
    offsets/<n>        v1, one line of batch metadata, then one line a source: its offset as JSON
    commits/<n>        there when batch n is done

Spark does not sync these files, so a power cut can leave the newest ones empty, which stops a query for good.

A checkpoint knows nothing of options, SQL or code: with any other definition it would go on as if nothing had happened.
So a changed definition goes on from it or is refused by its manifest.  What may change: the filter and the SQL around
what is remembered, outputs, limits and times.  What may not: what is read, and everything below the topmost step that
remembers something between batches.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, cast

from penstock.errors import PreconditionFailed
from penstock.records.dataclass import dataclass


def local_folder(location: str | None) -> Path | None:
    """The folder of a checkpoint location on this machine; None for another file system or none."""
    if not location:
        return None
    if location.startswith("file:"):
        return Path("/" + location[5:].lstrip("/"))
    return None if "://" in location else Path(location)


class Checkpoint:
    """The folder that Spark keeps a query's checkpoint in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        """Whether a query has started here."""
        return (self.folder / "metadata").exists()

    @property
    def key(self) -> str | None:
        """What its batches are committed by, where that is not the id that Spark gave the query."""
        return None

    def query_id(self) -> str:
        """The id of the query, for as long as the checkpoint lives.  PreconditionFailed when there is none."""
        try:
            found: Any = json.loads((self.folder / "metadata").read_text())
            return str(found["id"])
        except (OSError, ValueError, KeyError, TypeError):
            raise PreconditionFailed(f"the checkpoint {self.folder} has no query id in its file metadata") from None

    def offsets(self, batch: int) -> list[dict[str, Any]]:
        """Where each source of a batch ends, in the order of the sources."""
        path = self.folder / "offsets" / str(batch)
        try:
            lines = path.read_text().splitlines()
        except OSError as error:
            raise PreconditionFailed(f"the checkpoint has no {path}: {error.strerror}") from None
        out: list[dict[str, Any]] = []
        for line in lines[2:]:
            value: Any = json.loads(line) if line != "-" else {}
            out.append(cast("dict[str, Any]", value) if isinstance(value, dict) else {})
        return out

    def settled(self, batch: int, streams: Sequence[str]) -> list[tuple[str, int]]:
        """Of these streams of queues, which all are sources of the query, the batches that Spark's batch ends at.

        One whose first message is still to come is not among them.  PreconditionFailed for offsets of other streams.
        """
        out: list[tuple[str, int]] = []
        for offset in self.offsets(batch):
            stream, number = offset.get("stream"), offset.get("batch")
            if not isinstance(number, int) or not number:
                continue
            name = stream if isinstance(stream, str) else streams[0] if len(streams) == 1 else None
            if name is None or name not in streams:
                raise PreconditionFailed(
                    f"the checkpoint {self.folder} is at batch {number} of stream {stream!r}, and the query reads "
                    f"{', '.join(streams)}"
                )
            out.append((name, number))
        return out

    def inputs(self, batch: int) -> list[tuple[str, int, int]]:
        """The queues that a batch of Spark's ends in: stream, its batch, and the number of the server that has it."""
        out: list[tuple[str, int, int]] = []
        for offset in self.offsets(batch):
            stream, number, origin = offset.get("stream"), offset.get("batch"), offset.get("origin")
            if isinstance(stream, str) and isinstance(number, int) and isinstance(origin, int) and number > 0:
                out.append((stream, number, origin))
        return out

    def is_beginning(self, batch: int) -> bool:
        """Whether a source of a batch has given nothing yet, so that the checkpoint does not say which it is."""
        offsets = self.offsets(batch)
        return not offsets or any(offset in ({}, {"batch": 0}) for offset in offsets)

    def newest(self) -> int | None:
        """The last batch that was planned; None before the first."""
        return max((int(path.name) for path in self._numbered("offsets")), default=None)

    def sweep(self) -> list[Path]:
        """Remove the newest files if they are empty, which a power cut leaves and Spark cannot read."""
        removed: list[Path] = []
        for name in ("offsets", "commits"):
            for path in sorted(self._numbered(name), key=lambda path: int(path.name), reverse=True):
                if path.stat().st_size:
                    break
                for file in (path, path.with_name(f".{path.name}.crc")):
                    file.unlink(missing_ok=True)
                removed.append(path)
        return removed

    def _numbered(self, name: str) -> Iterator[Path]:
        folder = self.folder / name
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.name.isdigit())


VERSION = 2

SHOWN = 160
"""Letters of a step that are shown."""

STATEFUL = (
    "Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "Join", "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPandas", "TransformWithStateInPySpark",
    "GlobalLimit", "Limit",
)  # fmt: skip
"""Steps of a plan that remember something between batches."""

CODE = ("FlatMapGroupsInPandas", "TransformWithState", "MapInArrow", "MapInPandas", "PythonUDF", "FlatMapGroupsInArrow")
"""What shows that the user's code runs at or below such a step."""

_STEP = re.compile(r"^(?P<tree>[ :|+-]*)(?P<live>~?)(?P<step>[A-Z]\w*)(?P<rest>.*)$")
_NOISE = (
    (re.compile(r"#\d+L?"), ""),
    (re.compile(r"@[0-9a-f]+\b"), ""),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), ""),
    (re.compile(r" at 0x[0-9a-f]+"), ""),
)


_ONE_REMEMBERS = {
    False: "it remembers something between batches now, and the checkpoint has nothing of it",
    True: "it remembers nothing between batches any more, and the checkpoint does",
}
"""What is wrong, by whether the checkpoint has it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint was made for."""

    reads: tuple[str, ...]  # streams, in the order of the sources in the checkpoint
    columns: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])  # of bodies, by input
    state: tuple[str, ...] = ()  # the plan from the topmost remembering steps on; nothing where none remembers
    mode: str = "append"
    store: str = ""  # where Spark keeps state
    code: str | None = None
    version: int = VERSION

    def misfit(self, new: Manifest) -> str | None:
        """Why the checkpoint of this manifest is none for the new one; None: it is."""
        if self.reads != new.reads:
            return f"it reads {_listed(new.reads)} now, and the checkpoint belongs to {_listed(self.reads)}"
        if not self.state or not new.state:
            return None if self.state == new.state else _ONE_REMEMBERS[bool(self.state)]
        if self.state != new.state:
            return f"what it remembers between batches is made otherwise now: {_difference(self.state, new.state)}"
        if (self.mode == "complete") != (new.mode == "complete"):
            return f"its output mode is {new.mode} now, and the checkpoint's {self.mode}"
        if self.store != new.store:
            return f"its state is kept in {new.store or 'memory'} now, and the checkpoint's in {self.store or 'memory'}"
        if self.code != new.code and any(name in line for line in self.state for name in CODE):
            return "the Python code that makes what it remembers has changed, and nobody can tell whether it still fits"
        return None

    def write(self, path: Path) -> None:
        """Put them there in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(asdict(self)))
        os.replace(aside, path)

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """What lies there; None for nothing.  ValueError for what cannot be read."""
        try:
            found: Any = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        if not isinstance(found, dict):
            raise ValueError("no object")
        table = cast("dict[str, Any]", found)
        if table.get("version") != VERSION:
            raise ValueError(f"written by another version of Penstock ({table.get('version', 1)})")
        return cls(
            tuple(table["reads"]), table["columns"], tuple(table["state"]), table["mode"], table["store"], table["code"]
        )


def _listed(reads: tuple[str, ...]) -> str:
    return " and ".join(reads)


def _difference(old: Sequence[str], new: Sequence[str]) -> str:
    """The first steps in which two plans differ: a step that only one of them has, or one that is another there."""
    changes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    kind, a, b, c, d = next(change for change in changes if change[0] != "equal")
    if kind == "insert":
        return f"there is {_shown(' of '.join(new[c:d]))}, which the checkpoint does not know"
    if kind == "delete":
        return f"there is no {_shown(' of '.join(old[a:b]))} any more, which the checkpoint has"
    one, other = old[a], new[c]
    shorter = min(len(one), len(other))
    same = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    return f"{_shown(other, same)}, where the checkpoint has {_shown(one, same)}"


def _shown(text: str, place: int = 0) -> str:
    """A step; of a long one its name and what stands around a place, where it differs from another."""
    if len(text) <= SHOWN:
        return text
    start = min(max(0, place - SHOWN // 4), len(text) - SHOWN)
    name = f"{text.partition(' ')[0]} ..." if start else ""
    return f"{name}{text[start : start + SHOWN]}{'...' if start + SHOWN < len(text) else ''}"


def remembered(plan: str) -> tuple[str, ...]:
    """The lines of an analyzed plan from its topmost steps with state on, without what differs between two runs.

    Names of tables and views, and what is only counted, are left out: they change no row.
    """
    lines: list[str] = []
    below: int | None = None  # depth of the step with state that we are in
    parsed = [match for line in plan.splitlines() if (match := _STEP.match(line)) is not None]
    for place, match in enumerate(parsed):
        depth = len(match["tree"])
        if below is not None and depth <= below:
            below = None
        step, live = match["step"], bool(match["live"])
        if below is None and live and step in STATEFUL and (step != "Join" or _both_live(parsed, place)):
            below = depth
        if below is not None and step not in ("SubqueryAlias", "View", "CollectMetrics"):
            lines.append(f"{'~' if live else ''}{step}{_without_noise(step, match['rest'])}")
    return tuple(lines)


def _without_noise(step: str, rest: str) -> str:
    """What a step's line says that is the same in every run."""
    if step.startswith("StreamingRelation"):
        return ""
    for pattern, plain in _NOISE:
        rest = pattern.sub(plain, rest)
    return rest


def _both_live(parsed: list[re.Match[str]], join: int) -> bool:
    """Whether both sides of a join bring new rows: only then is something remembered."""
    depth = len(parsed[join]["tree"]) + 3
    sides: list[bool] = []
    for match in parsed[join + 1 :]:
        if len(match["tree"]) < depth:
            break
        if len(match["tree"]) == depth:
            sides.append(bool(match["live"]))
    return sum(sides) > 1
