"""Parts of a read: plain values that Spark pickles to the tasks that read them (`fetching`)."""

from __future__ import annotations

from dataclasses import field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.records.dataclass import dataclass
from penstock.records.message_types import MessageType

Lsns = npt.NDArray[np.int64]

PART_ROWS = 50_000
"""About how many rows a partition of a stream's batch has."""

PARTS_MAX = 8
"""More parts only when `minPartitions` asks for them."""


@dataclass
class LogPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Records of the log, of all kinds."""

    start: int
    end: int
    held: str = ""  # name of the hold on the log that lasts as long as parts are read
    part: int = 0


@dataclass
class ReplayPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Messages of the topics with start <= lsn < end."""

    origin: int
    start: int
    end: int
    part: int = 0
    held: str = ""
    asked: dict[str, object] | None = None  # which messages, where it is not what the options say
    kind: MessageType | None = None  # what the bodies are, as the server said when it was planned; None: it did not


@dataclass
class PlanPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One part of a planned batch of a stream."""

    stream: str
    batch: int
    part: int
    parts: int
    revision: int = 0  # how often the batch was narrowed
    order_by: str | None = None  # an expression: a part has the rows of its keys, instead of its share of the rows
    epoch: int | None = None  # of the reader
    kind: MessageType | None = None


@dataclass
class ChangePart(PlanPart):
    """The same of a stream in mode changes, where all messages of a batch came, or all went."""

    change: int = 1  # -1: they went


@dataclass
class ContentPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Messages that were in a queue when the read was planned, by runs of neighbouring LSNs."""

    origin: int
    exchange: str
    runs: list[tuple[int, int, int, str]] = field(default_factory=list[tuple[int, int, int, str]])
    """(first LSN, one past the last, attempt, state)"""
    held: str = ""
    part: int = 0
    kind: MessageType | None = None

    @property
    def start(self) -> int:
        return self.runs[0][0]

    def lsns(self) -> Lsns:
        return np.concatenate([np.arange(run[0], run[1], dtype=np.int64) for run in self.runs])

    def extra(self) -> dict[str, pa.Array[Any]]:
        """Columns that the log does not have, a row for each LSN."""
        sizes = [run[1] - run[0] for run in self.runs]
        attempts = np.repeat(np.array([run[2] for run in self.runs], np.int32), sizes)
        states = np.repeat(np.arange(len(sizes)), sizes)
        names: Any = pa.array([run[3] for run in self.runs], pa.string())
        return {"attempt": cast("pa.Array[Any]", pa.array(attempts)), "state": names.take(pa.array(states))}


@dataclass
class RecordPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Records of a topic with a key as they were when the read was planned."""

    origin: int
    exchange: str
    packed: bytes  # LSNs, ascending
    keys: pa.Array[Any]
    held: str = ""
    part: int = 0
    kind: MessageType | None = None

    @property
    def start(self) -> int:
        return int(self.lsns()[0])

    def lsns(self) -> Lsns:
        return np.frombuffer(self.packed, np.int64)

    def extra(self) -> dict[str, pa.Array[Any]]:
        """Columns that the log does not have, a row for each LSN."""
        return {"sow_key": self.keys}


@dataclass
class RowsPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Rows of a view, as they were when the read was planned."""

    packed: bytes  # an Arrow stream
    held: str = ""
    part: int = 0
    kind: MessageType | None = None


def parts_for(rows: int, least: int | None) -> int:
    """How many parts so many rows are read in; it depends on nothing else, so that a replay has the same parts."""
    wanted = max(least or 1, min(PARTS_MAX, -(-rows // PART_ROWS)))
    return max(1, min(wanted, rows))
