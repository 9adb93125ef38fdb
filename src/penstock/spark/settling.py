"""A finished batch of a stream in mode `queue` is settled as soon as Spark tells of it.

Asking for the batch after it settles a batch, and Spark asks with each trigger: where triggers are rare, or there is
none after it, the batch would stay leased for as long.  Spark's progress event comes when it is in the commit log.
"""

from __future__ import annotations

import json
import logging
from typing import Any, cast

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import PenstockError
from penstock.spark.options import Taker
from penstock.spark.remote import Where, remote

logger = logging.getLogger("penstock.spark")

PATIENCE_S = 2.0
"""How long a server that is away is waited for: Spark tells all listeners in one thread; the next batch settles too."""


class SettleOnProgress(StreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
    """Settles what a progress event says is done, of all streams in mode `queue` that read this server."""

    def __init__(self, where: Where) -> None:
        self.where = where

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing is done yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch is in the commit log."""
        for source in event.progress.sources:
            settle_source(self.where, source.endOffset)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """What is not done stays planned."""


def settle_source(where: Where, end: str | None) -> None:
    """Settle up to a source's end offset, JSON as progress has it, if it is one of this server's in mode `queue`.

    It may be said twice and late; what the server does not take, it says in the log of the driver.
    """
    try:
        found: Any = json.loads(end or "null")
    except ValueError:
        return
    offset = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    stream, batch, origin = offset.get("stream"), offset.get("batch"), offset.get("origin")
    if not isinstance(stream, str) or not isinstance(batch, int) or not batch:
        return
    try:
        remote(where).act("settle", stream=stream, batch=batch, origin=origin if isinstance(origin, int) else None)
    except PenstockError as error:
        logger.warning("batch %d of stream %s is done and could not be settled now: %s", batch, stream, error)


def settle_on_progress(
    spark: Any, url: str | None = None, user: str | None = None, password: str | None = None
) -> SettleOnProgress:
    """Settle finished batches of all queries of a session soon, also when no other batch follows.

    The server is named as by the options of the same names.  The listener is returned for
    `spark.streams.removeListener`.  Pipelines and Penstock's own sink settle in their commit and need it not.
    """
    given = {"url": url, "user": user, "password": password}
    where = Taker({name: value for name, value in given.items() if value}, tuple(given)).where(PATIENCE_S)
    listener = SettleOnProgress(where)
    spark.streams.addListener(listener)
    return listener
