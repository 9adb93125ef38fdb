"""Messages that the server takes from one queue and puts into another, each in one place at any moment.

Who calls has read the rows and says what becomes of them; here is decided which of them still wait, and the new rows
lie in one group with the record that ends the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.commands.waiting import WaitingCommands
from penstock.core.queue.order.runs import pairs_body
from penstock.core.queue.view import Queue
from penstock.errors import PreconditionFailed
from penstock.records.chunks import Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import Kind


class MovingCommands(WaitingCommands):
    """From queue to queue."""

    def interned(self, vhost: str, exchange: str, key: str) -> Topic:
        """The topic of that name, whether its exchange is there or not."""
        return self._topic(vhost, exchange, key)

    def move_messages(
        self,
        now: Now,
        source: Queue,
        target: Queue,
        lsns: Sequence[int],
        batch: Publishes,
        reason: str,
        *,
        by: str = "",
    ) -> int:
        """Move those that wait in `source` to the end of `target`; how many.

        lsns     ascending; what is leased, dying or gone by now is left out
        batch    what they become there, row by row: topics, headers, bodies, times
        They begin anew: no attempt counts.  Errors: PreconditionFailed for a queue that is its own target.
        """
        if source is target:
            raise PreconditionFailed(f"queue '{source.name}' cannot give its messages to itself")
        now = self._at(now)
        for queue in (source, target):
            if queue.is_due(now):
                queue.tick(now, self._out)
            self._touch(queue)
        runs = source.extract(as_chunk(list(lsns)))
        there = {lsn for run in runs for lsn in run.chunk}
        if not there:
            return 0
        rows = [row for row, lsn in enumerate(lsns) if lsn in there]
        chosen = batch if len(rows) == len(lsns) else batch.select(rows)
        self._out.begin()
        first = self._publisher.put_into(now, target, chosen)
        sent = [[lsns[row], first + i] for i, row in enumerate(rows)]
        header: dict[str, object] = {"reason": reason, "sent": sent}
        if by:
            header["by"] = by
        self._out.record(Kind.EXPIRE, source.name, header, pairs_body(source.id, runs))
        self._out.end()
        source.counted(now.mono).expired(reason, len(rows))
        source.go_on(now, self._out)
        self._touch(source)
        return len(rows)
