"""DoAction: JSON in, JSON out.  The log as a whole: where it is, its upkeep, and records of topics that go.

Each action is one function that takes the fields that its row names and gives a JSON object.  What changes something
is answered when it is durable.

backup, log_verify, log_audit       the bulk child does the work
hold                                a reader that comes back part by part keeps what it is going to read

`locate` tells where the files of the log are, for a reader who sees the same disk, and `cuts` its parts. Who reads
files passes by the door, so the server says beforehand whether he may: only who may read all of the topics, or of the
queue, is told the folder. Others are told why not, and read through Flight, where each row is judged. What the
operating system lets him open is its own business.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from penstock.core.sow.keyed import Removal, numbers_of, steps
from penstock.errors import AccessRefused, InvalidArgument
from penstock.history.history import History, names_wanted
from penstock.history.view import listing
from penstock.log.catalog import Span, cuts
from penstock.records.message_types import typed
from penstock.records.rights import ADMINISTERS, LOGIN, MONITORS, USES, Right
from penstock.server.asking.judging import asked_by
from penstock.server.flight.calls import Caller, Calls
from penstock.server.flight.gatekeeper import Action, Body, Gatekeeper, Reply, Table, type_of
from penstock.server.flight.record_rows import hold
from penstock.server.flight.sink_actions import SinkActions
from penstock.server.flight.streams import refuse_lost
from penstock.server.people.users import is_loopback
from penstock.server.upkeep.retention import HOLD_US, Holds
from penstock.server.views.record_query import Counts, Found, Query
from penstock.units import parted_address
from penstock.wire.fields import (
    LSN_MAX,
    VHOST,
    count,
    flag,
    name,
    nearest,
    read_json,
    text,
    texts,
)  # fmt: skip
from penstock.wire.flight.bookmarks import format_bookmark, parse_span
from penstock.wire.flight.commands import QueueContent, Replay, Sow
from penstock.wire.flight.tickets import RANGES_MOST, TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow as SowTopic
    from penstock.ports import Disk
    from penstock.server.bulk.log_upkeep import Upkeep
    from penstock.server.engine import Engine
    from penstock.server.flight.copier import Copier
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.sink_stages import Stages
    from penstock.server.people.entitlements import Rights


def status(engine: Engine) -> str:
    """How a server is that can store messages."""
    return "draining" if engine.core.draining else "ok"


class Actions(SinkActions):
    """All actions of a server."""

    def __init__(self, handover: Handover, stages: Stages, copier: Copier, calls: Calls, gate: Gatekeeper) -> None:
        super().__init__(handover, stages, copier, gate)
        self.calls = calls
        self.table: Table = {
            "health": Action(self._health, "whether the server confirms, and how far", LOGIN),
            "position": Action(
                self._position, "bookmark: its LSN now; the first and the durable LSN", LOGIN,
                (text("bookmark", "NOW", TEXT_LIMIT),),
            ),
            "segments": Action(self._segments, "the files of the log", MONITORS),
            **self.stream_table,
            **self.sink_table,
        }  # fmt: skip

    def run(self, caller: Caller, name: str, body: bytes) -> Reply:
        """Carry out one action; raises what is wrong with it."""
        found = self.table.get(name)
        if found is None:
            raise InvalidArgument(f"no action {name[:60]!r}{nearest(name, self.table)}")
        values = read_json(body, f"action {name}") if body else {}
        self.gate.act(caller, name, found.right_of(values), values, found.asks)
        return found.answer(caller, name, values)

    # -- looking

    def _health(self, caller: Caller) -> Reply:
        engine, calls = self.engine, self.calls

        def work() -> Reply:
            why = engine.refusal()
            return {
                "status": "broken" if engine.broken is not None else "full" if why is not None else status(engine),
                "why": str(why) if why is not None else None,
                "durable": engine.log.durable,
                "last": engine.core.last_lsn,
                "origin": engine.log.origin,
                "sync": engine.log.settings.sync,
                "retention": None if engine.keeper is None else engine.keeper.rule,
                "streams": calls.streams,
                "abandoned_streams": calls.abandoned,
                "streams_max": calls.streams_max,
                **engine.remarks(),
            }

        return self.do(caller, work, durable=False)

    def _segments(self, caller: Caller) -> Reply:
        return self.do(
            caller,
            lambda: {
                "segments": [one._asdict() for one in self.engine.log.segments()],
                "archive": None if self.engine.archive is None else self.engine.archive.told(),
            },
            durable=False,
        )

    def _position(self, caller: Caller, bookmark: str) -> Reply:
        log = self.engine.log
        past = self.engine.past
        start, end = History(past, caller.gone).resolve(parse_span(bookmark))
        return {
            "origin": log.origin,
            "first": past.first_lsn,
            "whole_from": log.whole_from,  # what is below may be in the archive alone
            "durable": log.durable,
            "start": start,
            "end": end,
            "bookmark": format_bookmark(log.origin, start - 1),
        }


def _locating(body: Body) -> Right:
    return ADMINISTERS if body.get("log") else USES


class Locating:
    """Where the files of the log are, and its parts, as rows of the table of all actions."""

    def __init__(self, handover: Handover, disk: Disk) -> None:
        """`disk`: the data folder; one in memory has no place to tell of."""
        self._handover = handover
        self._engine = handover.engine
        folder: object = getattr(disk, "folder", None)
        self._folder = folder.absolute() if isinstance(folder, Path) else None
        placed = (VHOST, text("exchange", ""), text("topic"), text("pattern", most=TEXT_LIMIT))
        between = (count("from", default=0), count("to", default=LSN_MAX))
        self.table: Table = {
            "cuts": Action(
                self._cuts, "topic or pattern, from, to, parts, most, each: where parts of like weight begin", USES,
                (
                    *placed, *between, count("parts", 1, RANGES_MOST), count("most", 1, RANGES_MOST, 1),
                    count("each", 1, default=1),
                ),
            ),
            "locate": Action(
                self._locate, "topic, pattern or queue, or log, from, to: the files of a range of the log", _locating,
                (
                    *placed, *between, text("queue"), flag("log"), text("filter", most=TEXT_LIMIT),
                    flag("fail_on_data_loss", True), text("held_for"),
                ),
                Gatekeeper.held_for,
            ),
        }  # fmt: skip

    def _cuts(
        self, caller: Caller, vhost: str, exchange: str, topic: str | None, pattern: str | None, to: int,
        parts: int | None, most: int, each: int, **begins: int,
    ) -> Reply:  # fmt: skip
        """Only indexes are read.  Who may read a part of the topics is told nothing of where messages lie."""
        start = begins["from"]
        if (topic is None) == (pattern is None):
            raise InvalidArgument("cuts: what is read is None, not one of topic and pattern")
        if caller.rights is not None:
            spans = [Span(start, to, to - start)]
        else:
            wanted = names_wanted(Replay(topic, pattern, exchange, vhost))
            spans = list(self._engine.past.spans(start, to, wanted))
        rows = sum(one.rows for one in spans)
        return {"rows": rows, "cuts": cuts(spans, parts or max(1, min(most, rows // each)))}

    def _locate(
        self, caller: Caller, vhost: str, exchange: str, topic: str | None, pattern: str | None, to: int,
        queue: str | None, log: bool, filter: str | None, fail_on_data_loss: bool,
        held_for: str | None, **begins: int,
    ) -> Reply:  # fmt: skip
        start = begins["from"]
        if sum((topic is not None, pattern is not None, queue is not None, log)) != 1:
            raise InvalidArgument("locate: what is read is None, not one of topic, pattern, queue and log = true")
        read = Replay(topic, pattern, exchange, vhost, "", filter) if queue is None else QueueContent(queue, vhost)
        why = self._why_not(caller, read)
        first = self._engine.past.first_lsn
        if why is None and start < first and fail_on_data_loss:
            left = "set failOnDataLoss to false to read what is left of it"
            why = f"the log's files begin at LSN {first}, and the range at {start}; {left}"
        if filter is not None:
            core, call = self._engine.core, self._handover.call
            instance, kind = call(lambda: (core.instance, type_of(core, read)), caller.gone, durable=False)
            filter = typed(asked_by(filter, client=caller.peer, user=caller.user, instance=instance), kind)
        if why is not None:
            return {"folder": None, "why": why, "limited": caller.rights is not None, "filter": filter}
        archive = self._engine.archive
        listed = listing(self._engine.log, start, to, None if archive is None else archive.shown)
        if not log:  # the names of others' exchanges are not his to know
            mine = {via: pair for via, pair in listed.vias.items() if pair[0] == vhost}
            listed = listed._replace(vias=mine)
        if held_for is not None:
            refuse_lost(self._handover, caller, held_for, start, to)
        limited = caller.rights is not None
        return {
            "folder": str(self._folder), "why": None, "limited": limited, "filter": filter, "log": listed.plain(),
        }  # fmt: skip

    def _why_not(self, caller: Caller, read: Replay | QueueContent) -> str | None:
        """Why this user, or anybody, is not to read files.  AccessRefused for who may read nothing of it."""
        self._engine.usable()
        limited = caller.rights is not None and partly(caller.rights, read)
        if isinstance(read, QueueContent):
            find = partial(self._engine.core.find_queue, read.vhost, read.name)
            if self._handover.call(find, caller.gone, durable=False) is None:
                raise self._engine.core.missing_queue(read.vhost, read.name)
        if self._folder is None:
            return "the server has its log in memory"
        return f"user '{caller.user}' may read a part of it" if limited else None


def partly(rights: Rights, read: Replay | QueueContent) -> bool:
    """Whether these rights let a part of it through.  AccessRefused where they let nothing through."""
    if isinstance(read, QueueContent):
        return rights.read_queue(read.vhost, read.name) is not None
    if read.topic is not None:
        topic = read.vhost, read.exchange, read.topic
        return rights.read_topic(*topic, whole=False) is not None or rights.fields(*topic) is not None
    if read.pattern is None:
        return False
    entries = rights.topic_rights(read.vhost, read.exchange)
    whole = next((at for at, (name, _) in enumerate(entries) if name is None), None)
    return whole is None or any(right is not True for _, right in entries[: whole + 1])


def sow_delete(handover: Handover) -> Action:
    """The action that removes records."""
    asks = "topic, exchange, filter or keys or data, or data64, a body in base64: remove records"
    fields = (
        name("topic"), text("exchange", ""), VHOST, text("filter", most=TEXT_LIMIT), text("data", most=1 << 20),
        text("data64", most=1 << 21), texts("keys", default=()),
    )  # fmt: skip
    return Action(partial(_remove, handover), asks, USES, fields, Gatekeeper.sow_delete)


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else b64decode(text, validate=True)
    except ValueError:
        raise InvalidArgument("sow_delete: data64 is no base64") from None


def _remove(
    handover: Handover, caller: Caller, topic: str, exchange: str, vhost: str, filter: str | None, data: str | None,
    data64: str | None, keys: Sequence[str],
) -> Reply:  # fmt: skip
    if data is not None and data64 is not None:
        raise InvalidArgument("sow_delete: data and data64 are two ways to say one body; give one of them")
    body = _bytes(data64) if data is None else data.encode()
    removal = Removal(filter, tuple(keys) or None, body)
    engine, call, by = handover.engine, handover.call, caller.user

    def known() -> SowTopic:
        core, name = engine.core, (vhost, exchange, topic)
        if name not in core.sows.by_name and not exchange and core.find_queue(vhost, topic) is not None:
            what = f"'{topic}' in vhost '{vhost}' is a queue, which has no records"
            raise InvalidArgument(f"sow_delete: {what}: its messages are settled by ack and ack_filter")
        return core.sow(*name)

    def drop(sow: SowTopic, numbers: Sequence[int], lsns: Sequence[int] | None = None) -> int:
        return engine.core.sow_delete(engine.now(), sow, numbers, lsns=lsns, by=by)

    if removal.filter is None:

        def remove() -> int:
            sow = known()
            return drop(sow, numbers_of(sow, removal))

        return {"removed": call(remove, caller.gone)}
    text = asked_by(removal.filter, client=caller.peer, user=by, instance=engine.core.instance)
    asked = Sow(topic, exchange, vhost, filter=text)
    sow, held = call(lambda: (known(), hold(engine, asked)), caller.gone)
    there = held()
    found = Found(there.numbers, there.lsns, History(engine.log, caller.gone), vhost, there.given)
    query = Query(text).reading(sow.rule.message_type)
    matched = [
        lsn for batch in found.run(query, Counts()) for lsn in cast("list[int]", batch.column("lsn").to_pylist())
    ]
    count = 0
    for some, theirs in steps(found.numbers[found.lsns.searchsorted(matched)].tolist(), matched):
        count += call(partial(drop, sow, some, theirs), caller.gone)
    return {"removed": count}


PATH_LIMIT = 4096
"""PATH_MAX of Linux."""


def upkeep_actions(upkeep: Upkeep) -> Table:
    """What the bulk child does with the whole log."""

    def backup(caller: Caller, target: str, copy: bool) -> Reply:
        if "\0" in target:
            raise InvalidArgument("backup: target is no path")
        host, _ = parted_address(caller.peer)
        if not is_loopback(host):
            raise AccessRefused(
                f"a backup writes files on the server's machine, so it is asked for from there, and not from {host}"
            )
        return upkeep.backup(target, copy, caller.gone)

    def verify(caller: Caller) -> Reply:
        return upkeep.verify(caller.gone)

    def audit(caller: Caller) -> Reply:
        return upkeep.audit(caller.gone)

    return {
        "backup": Action(
            backup, "target, copy: the log so far, as files of a folder of the server's machine", ADMINISTERS,
            (name("target", PATH_LIMIT), flag("copy")),
        ),
        "log_verify": Action(verify, "every checksum of the log so far", ADMINISTERS),
        "log_audit": Action(audit, "whether the log so far keeps each guarantee", ADMINISTERS),
    }  # fmt: skip


def hold_action(handover: Handover, holds: Holds) -> Action:
    """The action of a reader that comes back part by part."""
    engine = handover.engine

    def put(caller: Caller, read: str, start: int, release: bool) -> Reply:
        def work() -> Reply:
            if release:
                holds.drop(caller.user, read)
                return {"seconds": 0}
            kept = holds.put(caller.who, read, start)
            kept = kept or (engine.archive is not None and engine.archive.keeps(start))  # the rest is in the log
            first, floor = engine.log.first_lsn, engine.log.base_floor
            return {"seconds": HOLD_US // 1_000_000, "kept": kept, "first": first, "floor": floor}

        return handover.call(work, caller.gone, durable=False)

    asks = "read, start, release: keep the log from an LSN on for ten minutes; or no longer"
    return Action(put, asks, LOGIN, (name("read"), count("start", default=0), flag("release")))
