"""The action `locate`: where the files of the log are, for a reader who sees the same disk; and `cuts`, its parts.

Who reads files passes by the door, so the server says beforehand whether he may: only who may read all of the topics,
or of the queue, is told the folder.  Others are told why not, and read through Flight, where each row is judged.  What
the operating system lets him open is its own business.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import LogBroken, NotFound
from penstock.history.history import names_wanted
from penstock.history.view import listing
from penstock.log.catalog import Span, cuts
from penstock.records.rights import ADMINISTERS, USES, Right
from penstock.server.filters.evaluating import asked_by
from penstock.server.flight.actions.action import Action, Reply, Table
from penstock.server.flight.calls import Caller
from penstock.wire.fields import LSN_MAX, Fields
from penstock.wire.flight.commands import DEFAULT_VHOST, Replay
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.entitlements import Rights
    from penstock.server.flight.entitled import Body
    from penstock.server.flight.handover import Handover


def _locating(body: Body) -> Right:
    return ADMINISTERS if body.get("log") else USES


class LocateAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover, disk: Disk) -> None:
        """`disk`: the data folder; one in memory has no place to tell of."""
        self._handover = handover
        self._engine = handover.engine
        folder: object = getattr(disk, "folder", None)
        self._folder = folder.absolute() if isinstance(folder, Path) else None
        self.table: Table = {
            "cuts": Action(
                self._cuts, "topic or pattern, from, to, parts, most, each: where parts of like weight begin", USES
            ),
            "locate": Action(
                self._locate, "topic, pattern or queue, or log, from, to: the files of a range of the log", _locating
            ),
        }

    def _cuts(self, caller: Caller, f: Fields) -> Reply:
        """Only indexes are read.  Who may read a part of the topics is told nothing of where messages lie."""
        topic, pattern = f.optional_text("topic"), f.optional_text("pattern", TEXT_LIMIT)
        exchange, vhost = f.text("exchange"), f.text("vhost", DEFAULT_VHOST)
        start, end = f.count("from"), f.count("to", LSN_MAX)
        parts, most, each = f.optional_count("parts", 1), f.count("most", 1, 1), f.count("each", 1, 1)
        f.finish()
        if (topic is None) == (pattern is None):
            raise f.bad("what is read", None, "one of topic and pattern")
        if caller.rights is not None:
            spans = [Span(start, end, end - start)]
        else:
            wanted = names_wanted(Replay(topic, pattern, exchange, vhost))
            spans = list(self._engine.past.spans(start, end, wanted))
        rows = sum(one.rows for one in spans)
        return {"rows": rows, "cuts": cuts(spans, parts or max(1, min(most, rows // each)))}

    def _locate(self, caller: Caller, f: Fields) -> Reply:
        topic, pattern, queue = f.optional_text("topic"), f.optional_text("pattern"), f.optional_text("queue")
        exchange, vhost, whole = f.text("exchange"), f.text("vhost", DEFAULT_VHOST), f.flag("log")
        start, end, filter = f.count("from"), f.count("to", LSN_MAX), f.optional_text("filter", TEXT_LIMIT)
        f.finish()
        if sum((topic is not None, pattern is not None, queue is not None, whole)) != 1:
            raise f.bad("what is read", None, "one of topic, pattern, queue and log = true")
        why = self._why_not(caller, vhost, exchange, topic, pattern, queue)
        first = self._engine.past.first_lsn
        if why is None and start < first:
            why = f"the log's files begin at LSN {first}, and the range at {start}"
        if why is not None:
            return {"folder": None, "why": why, "limited": caller.rights is not None}
        if filter is not None:
            instance = self._handover.call(lambda: self._engine.core.instance, caller.gone, durable=False)
            filter = asked_by(filter, client=caller.peer, user=caller.user, instance=instance)
        archive = self._engine.archive
        listed = listing(self._engine.log, start, end, None if archive is None else archive.shown)
        if not whole:  # the names of others' exchanges are not his to know
            mine = {via: pair for via, pair in listed.vias.items() if pair[0] == vhost}
            listed = listed._replace(vias=mine)
        limited = caller.rights is not None
        return {
            "folder": str(self._folder), "why": None, "limited": limited, "filter": filter, "log": listed.plain(),
        }  # fmt: skip

    def _why_not(
        self, caller: Caller, vhost: str, exchange: str, topic: str | None, pattern: str | None, queue: str | None
    ) -> str | None:
        """Why this user, or anybody, is not to read files.  AccessRefused for who may read nothing of it."""
        if self._engine.broken is not None:
            raise LogBroken(f"the log is broken: {self._engine.broken}")
        partly = caller.rights is not None and self._partly(caller.rights, vhost, exchange, topic, pattern, queue)
        find = self._engine.core.find_queue
        if queue is not None and self._handover.call(lambda: find(vhost, queue), caller.gone, durable=False) is None:
            raise NotFound(f"no queue '{queue}' in vhost '{vhost}'")
        if self._folder is None:
            return "the server has its log in memory"
        return f"user '{caller.user}' may read a part of it" if partly else None

    @staticmethod
    def _partly(
        rights: Rights, vhost: str, exchange: str, topic: str | None, pattern: str | None, queue: str | None
    ) -> bool:
        """Whether these rights let a part through.  AccessRefused where they let nothing through."""
        if queue is not None:
            return rights.read_queue(vhost, queue) is not None
        if topic is not None:
            filter = rights.read_topic(vhost, exchange, topic, whole=False)
            return filter is not None or rights.fields(vhost, exchange, topic) is not None
        if pattern is None:
            return False
        entries = rights.topic_rights(vhost, exchange)
        whole = next((at for at, (name, _) in enumerate(entries) if name is None), None)
        return whole is None or any(right is not True for _, right in entries[: whole + 1])
