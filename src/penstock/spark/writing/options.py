"""The options of a write: where rows go, in which order, and how long a full target is waited for."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.options import COMMON, Taker
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where

WRITE = (*COMMON, "ordered", "delta", "settleStream", "unroutable")

NO_STREAM = "off"
"""`settleStream` that keeps the input out of the commit."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go."""

    where: Where
    topic: str | None  # for rows without one of their own
    exchange: str = ""
    settle_stream: str | None = None  # None: the stream that the checkpoint names; `NO_STREAM`: none
    checkpoint: str | None = None
    name: str = ""  # of the query, for people
    queue: bool = False  # `topic` is a queue, and all rows go there
    order: str | None = None  # the column whose order rows become visible in; None: partition by partition
    delta: bool = False  # bodies are merged into the present records of their keys
    mandatory: bool = True  # a topic that nobody keeps is an error


def write_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> WriteOptions:
    """Options of a write; `patience_s` where they do not say.  Raises InvalidArgument."""
    take = Taker(given, WRITE)
    topic, queue, path = take.text("topic"), take.text("queue"), take.text("path")
    if sum(value is not None for value in (topic, queue, path)) > 1:
        raise InvalidArgument("options topic, queue and save(name) exclude each other: give one of them")
    if queue is not None and take.text("exchange"):
        raise InvalidArgument("option exchange goes with topic; a queue is written through the default exchange")
    delta = take.flag("delta")
    if delta and queue is not None:
        raise InvalidArgument("option delta is for records of a topic with a key; a queue has none: give option topic")
    unroutable = take.text("unroutable") or "fail"
    if unroutable not in ("fail", "drop"):
        raise InvalidArgument(f"option unroutable is {unroutable!r}, not fail or drop")
    return WriteOptions(
        take.where(patience_s),
        topic or queue or path,
        take.text("exchange") or "",
        take.text("settleStream"),
        take.text("checkpointLocation"),
        take.text("queryName") or "",
        queue is not None,
        _order(take.text("ordered")),
        delta,
        unroutable == "fail",
    )


def _order(given: str | None) -> str | None:
    """The column to order by.  `true` and `false` name none: rows keep the order of partitions and in them anyway."""
    return None if given is None or given.lower() in ("true", "false") else given
