"""The papers beside a checkpoint: what it was made for, so that a changed definition goes on from it or is refused.

A checkpoint knows nothing of options, SQL or code: with any other definition it would go on as if nothing had happened.
What may change: the filter and the SQL around what is remembered, outputs, limits and times.  What may not: what is
read, and everything below the topmost step that remembers something between batches.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, cast

from penstock.records.dataclass import dataclass

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


@dataclass(frozen=True, slots=True)
class Papers:
    """What a checkpoint was made for."""

    reads: tuple[str, ...]  # streams, in the order of the sources in the checkpoint
    columns: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])  # of bodies, by input
    state: tuple[str, ...] = ()  # the plan from the topmost remembering steps on; nothing where none remembers
    mode: str = "append"
    store: str = ""  # where Spark keeps state
    code: str | None = None
    version: int = VERSION

    def misfit(self, new: Papers) -> str | None:
        """Why the checkpoint of these papers is none for the new ones; None: it is."""
        if self.reads != new.reads:
            return f"it reads {_listed(new.reads)} now, and the checkpoint belongs to {_listed(self.reads)}"
        if not self.state and not new.state:
            return None
        if not self.state:
            return "it remembers something between batches now, and the checkpoint has nothing of it"
        if not new.state:
            return "it remembers nothing between batches any more, and the checkpoint does"
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
    def read(cls, path: Path) -> Papers | None:
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
        if below is None or step in ("SubqueryAlias", "View", "CollectMetrics"):
            continue
        rest = "" if step.startswith("StreamingRelation") else match["rest"]
        for pattern, plain in _NOISE:
            rest = pattern.sub(plain, rest)
        lines.append(f"{'~' if live else ''}{step}{rest}")
    return tuple(lines)


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
