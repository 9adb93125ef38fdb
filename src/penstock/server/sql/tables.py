"""What a name of a statement stands for: the read that gives its rows.

    queue.q     what waits in a queue or is leased from it: column `state` says which
    view.v      the rows of a view or of a conflated topic now
    sow.t       the records of a topic with keys now
    topic.t     every message of a topic that the log still has, settled or not

A name alone is the first of these that there is.  A topic of an exchange of its own is `exchange/key`, in quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, NotFound
from penstock.records.dataclass import dataclass
from penstock.server.sql.statement import MADE, SCHEMAS, Statement, Use
from penstock.wire.flight.commands import MESSAGES, RECORDS, QueueContent, Replay, Sow
from penstock.wire.flight.tickets import STATES

if TYPE_CHECKING:
    from penstock.server.engine import Engine

QUEUE = ("lsn", "time", "state", "attempt", "body")
TOPIC = ("lsn", "topic", "time", "body")
SOW = ("lsn", "time", "body")
VIEW = ("body",)
"""Columns of `SELECT *`, before the fields of the bodies; the bodies themselves are left out where they have fields."""

UNSHOWN = frozenset({"properties"})
"""Columns in our own encoding, which SQL could make nothing of."""


@dataclass(frozen=True, slots=True)
class Found:
    """The read of a table.  `sure` is False for a name that may be nothing at all: rows alone tell."""

    use: Use
    read: QueueContent | Replay | Sow
    sure: bool = True


def find(engine: Engine, vhost: str, use: Use, statement: Statement) -> Found | None:
    """The read of a name, None where it is nothing; on the loop.  InvalidArgument."""
    schema, name = use.schema.lower(), use.name
    if schema and schema not in SCHEMAS:
        raise InvalidArgument(f"{use.schema}.{name}: before the dot stands one of {', '.join(SCHEMAS)}")
    exchange, key = place(engine, vhost, name)
    if schema in ("", "queue") and engine.core.find_queue(vhost, name) is not None:
        return Found(use, QueueContent(name, vhost, STATES, columns=columns(QUEUE, MESSAGES.names, statement)))
    if schema in ("", "view") and not exchange and engine.views.shown(vhost, name) is not None:
        return Found(use, Sow(name, "", vhost, columns=columns(VIEW, RECORDS.names, statement)))
    if schema in ("", "sow") and (vhost, exchange, key) in engine.core.sows.by_name:
        return Found(use, Sow(key, exchange, vhost, columns=columns(SOW, RECORDS.names, statement)))
    if schema in ("", "topic"):
        shown = [one for one in MESSAGES.names if one not in ("state", "attempt")]
        read = Replay(key, exchange=exchange, vhost=vhost, columns=columns(TOPIC, shown, statement))
        return Found(use, read, bool(schema) or (vhost, exchange, key) in engine.core.topology.topics)
    return None


def place(engine: Engine, vhost: str, name: str) -> tuple[str, str]:
    """Exchange and key of a topic as people write it."""
    exchange, slash, key = name.partition("/")
    if slash and exchange and engine.core.topology.exchange(vhost, exchange) is not None:
        return exchange, key
    return "", name


def columns(usual: Iterable[str], possible: Iterable[str], statement: Statement) -> tuple[str, ...]:
    """The columns to read: those that are named, for `*` the usual ones, and bodies where a name may be a field."""
    there, asked = [name for name in possible if name not in UNSHOWN], statement.columns
    chosen = list(usual) if statement.whole else []
    chosen += [name for name in there if name in asked and name not in chosen]
    if "body" not in chosen and (asked - set(there) or asked & set(MADE)):
        chosen.append("body")
    return tuple(chosen) or ("lsn" if "lsn" in there else there[0],)


def missing(vhost: str, use: Use, there: Sequence[str]) -> NotFound:
    """The error for a name that is nothing; there: what may have been meant."""
    near = get_close_matches(use.name, there, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else "; SHOW TABLES says what there is"
    what = use.schema or "queue, view or topic"
    return NotFound(f"no {what} '{use.name}' in vhost '{vhost}'{hint}")


def names(engine: Engine, vhost: str) -> list[tuple[str, str]]:
    """Every table of a vhost: its schema and name; on the loop."""
    core = engine.core
    out = [("queue", queue.name) for queue in core.queues() if queue.vhost == vhost]
    out += [("view", one.name) for one in engine.views.all_shown() if one.vhost == vhost]
    topics = sorted(core.topology.topics)
    out += [
        ("sow" if (at, exchange, key) in core.sows.by_name else "topic", f"{exchange}/{key}" if exchange else key)
        for at, exchange, key in topics
        if at == vhost
    ]
    return out
