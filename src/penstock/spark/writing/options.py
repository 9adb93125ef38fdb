"""The options of a write: where rows go."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.options import COMMON, Taker
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where

WRITE = (*COMMON, "ordered", "settleStream")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go."""

    where: Where
    topic: str | None  # for rows without one of their own
    exchange: str = ""
    settle_stream: str | None = None
    checkpoint: str | None = None
    name: str = ""  # of the query, for people


def write_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> WriteOptions:
    """Options of a write; `patience_s` where they do not say.  Raises InvalidArgument."""
    take = Taker(given, WRITE)
    topic, queue, path = take.text("topic"), take.text("queue"), take.text("path")
    if sum(value is not None for value in (topic, queue, path)) > 1:
        raise InvalidArgument("options topic, queue and save(name) exclude each other: give one of them")
    if queue is not None and take.text("exchange"):
        raise InvalidArgument("option exchange goes with topic; a queue is written through the default exchange")
    take.flag("ordered", True)  # rows keep the order of partitions and of rows within them, asked for or not
    return WriteOptions(
        take.where(patience_s),
        topic or queue or path,
        take.text("exchange") or "",
        take.text("settleStream"),
        take.text("checkpointLocation"),
        take.text("queryName") or "",
    )
