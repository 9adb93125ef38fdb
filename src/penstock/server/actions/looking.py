"""Steps that look: `query_sow` takes the first message that matches, `delete_sow` removes the records that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.actions.rules import Deleting, Querying
from penstock.core.actions.templates import Happening
from penstock.errors import NotFound
from penstock.records.entries import Rows
from penstock.server.actions.walking import Walk, at_most, available_chunks, record_chunks

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.server.filters.judging import Judges
    from penstock.server.runtime import Runtime

LOOKED_MOST = 100_000
"""Messages that one query looks through; beyond these it has found nothing."""


def query(runtime: Runtime, judges: Judges, step: Querying, happening: Happening, then: Callable[[], None]) -> None:
    """Put the first message into the variable, then call `then`.  Raises NotFound for a name that is neither.

    The records of a SOW topic are meant before a queue of the same name; the oldest comes first.
    """
    vhost, name = step.step.vhost, step.topic.render(happening).decode(errors="replace")
    sow = runtime.core.sows.by_name.get((vhost, "", name))
    if sow is not None:
        chunks, _ = record_chunks(sow)
    elif (queue := runtime.core.find_queue(vhost, name)) is not None:
        chunks = available_chunks(queue)
    else:
        raise NotFound(f"no queue and no SOW topic '{name}' in vhost '{vhost}'")
    happening.added[step.step.capture] = step.default.render(happening)

    def found(rows: Rows, hits: list[bool]) -> bool:
        for body, hit in zip(rows.bodies, hits, strict=True):
            if hit:
                happening.added[step.step.capture] = body
                return True
        return False

    Walk(runtime, judges, at_most(chunks, LOOKED_MOST), step.filter, found, then).start()


def delete(runtime: Runtime, judges: Judges, step: Deleting, happening: Happening, then: Callable[[], None]) -> None:
    """Remove the records that match, then call `then`.  One that has changed meanwhile stays.  Raises NotFound."""
    vhost, name = step.step.vhost, step.topic.render(happening).decode(errors="replace")
    sow: Sow = runtime.core.sow(vhost, "", name)
    chunks, keys = record_chunks(sow)

    def found(rows: Rows, hits: list[bool]) -> bool:
        lsns = [lsn for lsn, hit in zip(rows.lsns, hits, strict=True) if hit]
        if lsns:
            runtime.core.sow_delete(runtime.now(), sow, [keys[lsn] for lsn in lsns], lsns=lsns, by="action")
            runtime.arm()
        return False

    Walk(runtime, judges, chunks, step.filter, found, then).start()
