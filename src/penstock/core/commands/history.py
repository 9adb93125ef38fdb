"""What who is bound to an exchange with a history gets: the messages that it remembers, as they are stored.

A queue that takes anything gets them in the group of the binding.  What has to be looked at comes a moment later: the
filters of a queue go through the messages off the loop, and keys and headers are read for an exchange that is bound,
whose bindings say which queues take each.  Who stops before that has no history; whatever was taken is in the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.core.chance import chance
from penstock.core.commands.life import RecoveryCommands
from penstock.core.effects import Fetch, Fetched, Found, Purpose, Scan, Scanned, Token
from penstock.core.queue.order.runs import packed
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import Ints, flat, spread
from penstock.core.topology.declaring import NO_TABLE
from penstock.core.topology.exchange_types import Told
from penstock.core.topology.topology import RECENT
from penstock.records.chunks import Chunk, Now, as_chunk

READ_AT_ONCE = 1_000
"""Messages whose keys and headers are read together: each is routed by itself."""


class HistoryCommands(RecoveryCommands):
    """Bindings, and the recent history that an exchange gives to a new one."""

    def bind(
        self, now: Now, vhost: str, source: str, destination: str, kind: str, key: str,
        arguments: Mapping[str, object] = NO_TABLE, by: object | None = None,
    ) -> None:  # fmt: skip
        """Bind a queue ("queue") or an exchange ("exchange") to an exchange; the same twice is one.

        by: the connection that asks.  Who is bound gets what the exchange remembers of late.
        """
        now = self._at(now)
        self._out.begin()
        try:
            new = self._admin.bind(now, vhost, source, destination, kind, key, arguments, by)
            recent = self._admin.queues.find(vhost, RECENT.prefix + source) if new else None
            if recent is not None and recent.exchange == source:
                into = self._admin.queue(vhost, destination, by) if kind == "queue" else destination
                self._give_history(now, recent, into, packed(_remembered(recent)))
        finally:
            self._out.end()

    def _give_history(self, now: Now, source: Queue, into: Queue | str, chunk: Chunk) -> None:
        """Give these messages to a queue, at once or after its filters (or an exchange's routing) were asked."""
        filters = () if isinstance(into, str) else self._router.filters_of(into)
        if isinstance(into, Queue) and not filters:
            self._take_history(now, source, into, chunk)
        elif len(chunk):
            self._histories_asked += 1
            self._histories[self._histories_asked] = source, into, chunk, filters
            token = Token(source.id, self._histories_asked, Purpose.HISTORY)
            self._out.effect(Scan(token, filters, chunk) if filters else Fetch(token, chunk[:READ_AT_ONCE]))

    def _history_answered(self, now: Now, answer: Fetched | Scanned) -> None:
        """A part of the history was judged: give what is wanted, and go on with the rest."""
        source, into, chunk, filters = self._histories.pop(answer.token.serial)
        there = self._admin.by_id.get
        if there(source.id) is not source or (isinstance(into, Queue) and there(into.id) is not into):
            return
        looked_at = bisect_right(chunk, answer.upto)
        self._out.begin()
        try:
            if isinstance(answer, Fetched):
                for queue, lsns in self._routed_history(source, str(into), answer).items():
                    self._give_history(now, source, queue, as_chunk(lsns))
            elif isinstance(into, Queue):
                if self._router.filters_of(into) != filters:  # it was altered meanwhile
                    looked_at = 0
                else:
                    wanted = as_chunk(answer.found[0]) if into.settings.filter else chunk[:looked_at]
                    barriers = answer.found[-1] if into.settings.barrier_expression else ()
                    self._take_history(now, source, into, wanted, barriers)
            self._give_history(now, source, into, chunk[looked_at:])
        finally:
            self._out.end()

    def _routed_history(self, source: Queue, exchange: str, answer: Fetched) -> dict[Queue, list[int]]:
        """Where an exchange would send these messages.  What keeps duplicates out on their way takes none of them."""
        out: dict[Queue, list[int]] = {}
        rows = answer.rows
        for lsn, topic, data in zip(rows.lsns, rows.topics, rows.properties, strict=True):
            traits = self._publisher.traits[data]
            told = Told(traits.headers, data, chance(lsn))
            plan = self._router.plan(source.vhost, exchange, (topic.name, *traits.keys), told)
            for queue in () if plan.gates else plan.queues:
                if queue is not source:
                    out.setdefault(queue, []).append(lsn)
        return out

    def _take_history(self, now: Now, source: Queue, queue: Queue, wanted: Chunk, barriers: Sequence[int] = ()) -> None:
        """A queue takes of these what is still remembered and it has not.  barriers: those that are such in it."""
        queue.catch_up(now, self._out)
        remembered = _remembered(source)
        lsns = remembered[np.isin(remembered, flat([wanted]))]
        lsns = lsns[~np.isin(lsns, flat(list(queue.living_pieces())))]
        if not len(lsns):
            return
        _, columns = source.snapshot()
        ends = spread(lsns, columns.get("expires_at", array("q")))
        transient = self._publisher.transient
        found = Found(
            lsns, np.full(len(lsns), now.wall), ends, np.zeros_like(lsns), self.sizes.of(packed(lsns)),
            lsns[np.isin(lsns, barriers)].tolist(), lsns[transient.among(lsns)].tolist(),
        )  # fmt: skip
        self._take(now, queue, found, None)
        if self._passes.get(queue.id, ((), None))[1] is None:
            queue.put_in_order(self._out.last_lsn, self._out)
        queue.go_on(now, self._out)
        self._touch(queue)


def _remembered(source: Queue) -> Ints:
    return flat([chunk for chunk in source.chunks("ready") if len(chunk)])
