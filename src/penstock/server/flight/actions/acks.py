"""The actions `ack` and `ack_filter`: messages are settled by name, by whoever may read their queue.

A user who may read a part of a queue only settles by a filter, which his right narrows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.errors import InvalidArgument, LogBroken
from penstock.expr import compile_filter
from penstock.records.rights import uses
from penstock.server.entitlements import narrowed
from penstock.server.filters.evaluating import asked_by
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.server.flight.handover import Answer
from penstock.wire.fields import Fields, nearest
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.marks import MARKS_MOST, read_marks
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.flight.handover import Handover

OPTIONS = {"": Verb.ACK, "ack": Verb.ACK, "cancel": Verb.CANCEL, "expire": Verb.EXPIRE}

Reply = Mapping[str, object]


class AckActions:
    """Both, as rows of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self.table: Table = {
            "ack": Action(
                self._ack,
                "queue, bookmarks, option, by: settle messages wherever they are; how many it affected",
                uses(("read all", "queue", "queue")),
            ),
            "ack_filter": Action(
                self._ack_filter,
                "queue, filter, option, by: settle whatever matches; how many it affected",
                uses(("read", "queue", "queue")),
            ),
        }

    def _ack(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), f.text("vhost", DEFAULT_VHOST)
        marks = read_marks(f.texts("bookmarks", MARKS_MOST))
        verb, by = _option(f), f.text("by") or caller.peer
        f.finish()
        if caller.rights is not None:
            caller.rights.read_all_of_queue(vhost, name, "settling by bookmark")

        def work() -> Reply:
            engine = self._usable()
            queue = engine.core.queue(vhost, name)
            return {"affected": engine.core.acknowledge(engine.now(), queue, marks, verb, client=by)}

        return self._handover.call(work, caller.gone)

    def _ack_filter(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), f.text("vhost", DEFAULT_VHOST)
        text = f.name("filter", TEXT_LIMIT)
        verb, by = _option(f), f.text("by") or caller.peer
        f.finish()
        text = asked_by(text, client=by, user=caller.user, instance=self._handover.engine.core.instance)
        right = None if caller.rights is None else caller.rights.read_queue(vhost, name)
        filter = narrowed(text, right) or compile_filter(text)

        def job(answer: Answer[Reply]) -> None:
            engine = self._usable()
            queue = engine.core.queue(vhost, name)
            engine.core.settle_matching(engine.now(), queue, filter, partial(swept, answer), verb, client=by)

        def swept(answer: Answer[Reply], affected: int) -> None:
            self._handover.when_durable(self._handover.engine.core.last_lsn, answer, {"affected": affected})

        return self._handover.submit(job).wait(caller.gone)

    def _usable(self) -> Engine:
        engine = self._handover.engine
        if engine.broken is not None:
            raise LogBroken(f"the log is broken: {engine.broken}")
        return engine


def _option(f: Fields) -> Verb:
    text = f.text("option")
    verb = OPTIONS.get(text)
    if verb is None:
        raise InvalidArgument(f"{f.where}: option {text[:60]!r} is unknown{nearest(text, filter(None, OPTIONS))}")
    return verb
