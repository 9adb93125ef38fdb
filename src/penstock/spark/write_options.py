"""The options of a write of `format("penstock")`: where rows go, in which order, and which write this is."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import orjson

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.options import WRITE, Taker
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where

APP_MOST = 255
"""Bytes of `txnAppId`, and of the id that a server knows it by."""

VERSION_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """A batch write that may come again: one application's version of what it brings to a target."""

    app: str
    version: int

    def query(self, vhost: str, exchange: str, topic: str | None) -> str:
        """What the server knows these writes by, as it does a query of a stream: the application and the target."""
        text = f"txn:{orjson.dumps([self.app, vhost, exchange, topic]).decode()}"
        return text if len(text.encode()) <= APP_MOST else f"txn:{sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where the rows of a DataFrame go, as the options of a write say."""

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
    transaction: Transaction | None = None  # of a batch write: what makes it the same as an earlier one


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
        take.word("unroutable", "fail", "drop") != "drop",
        _transaction(take),
    )


def _transaction(take: Taker) -> Transaction | None:
    app, version = take.text("txnAppId"), take.count("txnVersion")
    if app is None and version is None:
        return None
    if app is None or version is None:
        given, missing = ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
        raise InvalidArgument(f"option {given} goes with {missing}: together they say which write this is")
    if len(app.encode()) > APP_MOST:
        raise InvalidArgument(f"option txnAppId has {len(app.encode())} bytes; at most {APP_MOST} are allowed")
    if version > VERSION_MOST:
        raise InvalidArgument(f"option txnVersion is {version}, and at most {VERSION_MOST} is allowed")
    return Transaction(app, version)


def _order(given: str | None) -> str | None:
    """The column to order by.  `true` and `false` name none: rows keep the order of partitions and in them anyway."""
    return None if given is None or given.lower() in ("true", "false") else given
