"""Actions about messages by name or by filter, and about why a queue does not deliver: `explain`, `story`, `cancel`,
`reschedule`, `redrive`, `move`; `ack` and `ack_filter`, with which whoever may read a queue settles.

Positions and decisions are the loop's; the log is read in the thread of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.effects import Verb
from penstock.core.explaining import Reason, explain_queue
from penstock.errors import InvalidArgument, LogBroken, NotFound, PreconditionFailed
from penstock.expr import compile_filter
from penstock.records.chunks import Chunk
from penstock.records.rights import TENDS, Right, sees, uses
from penstock.server.entitlements import narrowed
from penstock.server.filters.evaluating import asked_by
from penstock.server.flight.actions.action import Action, Body, Reply, Table
from penstock.server.flight.calls import Caller
from penstock.server.flight.handover import Answer
from penstock.server.messages.looking import having, known, lsn_of, past
from penstock.server.messages.moving import CALL_MOST, Wanted, move
from penstock.server.messages.story import Story, tell
from penstock.wire.fields import Fields, nearest
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.marks import MARKS_MOST, read_marks
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.server.engine import Engine
    from penstock.server.flight.handover import Handover


LOOKS = sees("queue", "queue")


def _explaining(body: Body) -> Right:
    return LOOKS if isinstance(body.get("queue"), str) else TENDS


class MessageActions:
    """These, as rows of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self.table: Table = {
            "explain": Action(
                self._explain, "queue, bookmark: why it, or one message, is not delivered now", _explaining
            ),
            "story": Action(self._story, "bookmark: what happened to one message", TENDS),
            "cancel": Action(self._cancel, "bookmark, queue: withdraw a message where it waits", TENDS),
            "reschedule": Action(
                self._reschedule, "bookmark, queue, when or wait (microseconds): let it wait until then", TENDS
            ),
            "redrive": Action(
                self._redrive,
                "queue, filter, count, after, dry, lsns: dead letters back to their origin",
                TENDS,
            ),
            "move": Action(self._move, "queue, to, filter, count, after, dry: what waits to another queue", TENDS),
        }

    # -- a queue

    def _explain(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, text = (
            f.optional_text("queue"),
            f.text("vhost", DEFAULT_VHOST),
            f.optional_text("bookmark", TEXT_LIMIT),
        )
        f.finish()
        engine = self._handover.engine
        if text is None:
            if name is None:
                raise InvalidArgument("explain: name a queue, or a bookmark, or both")

            def look() -> list[Reason]:
                return explain_queue(engine.core.queue(vhost, name), engine.now())

            return {"queue": name, "reasons": reasons_of(self._handover.call(look, caller.gone, durable=False))}
        lsn = lsn_of(text, engine.log.origin)

        def find() -> tuple[list[tuple[str, list[Reason]]], int]:
            if name is not None:
                engine.core.queue(vhost, name)
            found = having(engine.core, lsn, engine.now(), engine.log.durable, vhost)
            return [(q.name, why) for q, why in found if name is None or q.name == name], engine.core.last_lsn

        found, last = self._handover.call(find, caller.gone, durable=False)
        if lsn > last:
            raise NotFound(f"no message has the LSN {lsn}: the last that was given out is {last}")
        told = {queue: reasons_of(why) for queue, why in found}
        if not told or name is None:
            rights = caller.rights

            def sees_queue(queue: str) -> bool:
                return rights is None or rights.sees_queue(vhost, queue)

            story = self._told(caller, lsn, vhost)
            if not story.events and not told:
                raise _unknown(story, lsn, engine.log.origin)
            for queue in [name] if name is not None else _had(story):
                told.setdefault(queue, reasons_of([past(story, queue, lsn, sees_queue)]))
            if not told:
                told[""] = reasons_of([Reason("not_routed", "no queue took it: a topic keeps it")])
        queues = [{"queue": queue, "reasons": why} for queue, why in told.items()]
        return {"bookmark": format_bookmark(engine.log.origin, lsn), "lsn": lsn, "queues": queues}

    # -- a message

    def _story(self, caller: Caller, f: Fields) -> Reply:
        text, vhost = f.name("bookmark", TEXT_LIMIT), f.text("vhost", DEFAULT_VHOST)
        f.finish()
        log = self._handover.engine.log
        lsn = lsn_of(text, log.origin)
        story = self._told(caller, lsn, vhost)
        if not story.events:
            raise _unknown(story, lsn, log.origin)
        return {
            "bookmark": format_bookmark(log.origin, lsn),
            "lsn": lsn,
            "events": [
                {
                    "event": one.event, "queue": one.queue, "time": one.time, "bookmark": one.bookmark,
                    "details": dict(one.details),
                }
                for one in story.events
            ],
            "log_begins": story.first_lsn,
            "read_to": story.read_to,
            "whole": story.whole,
        }  # fmt: skip

    def _cancel(self, caller: Caller, f: Fields) -> Reply:
        return self._each(caller, f, lambda engine, queues, chunk: engine.core.cancel_messages(
            engine.now(), queues, chunk, by=caller.user
        ))  # fmt: skip

    def _reschedule(self, caller: Caller, f: Fields) -> Reply:
        when, wait = f.optional_count("when", 1, 1 << 61), f.optional_count("wait", 0, 1 << 60)
        if (when is None) == (wait is None):
            raise InvalidArgument("reschedule: say `when`, or how long to `wait`")

        def work(engine: Engine, queues: Sequence[Queue], chunk: Chunk) -> list[tuple[Queue, int]]:
            now = engine.now()
            at = when if when is not None else now.wall + (wait or 0)
            return engine.core.reschedule_messages(now, queues, chunk, at, by=caller.user)

        return self._each(caller, f, work)

    def _each(
        self, caller: Caller, f: Fields, work: Callable[[Engine, Sequence[Queue], Chunk], list[tuple[Queue, int]]]
    ) -> Reply:
        """Do something to a message in one queue, or wherever it waits."""
        name, vhost, text = f.optional_text("queue"), f.text("vhost", DEFAULT_VHOST), f.name("bookmark", TEXT_LIMIT)
        f.finish()
        lsn = lsn_of(text, self._handover.engine.log.origin)

        def do() -> list[str]:
            engine = self._usable()
            core = engine.core
            queues = [q for q in core.queues() if q.vhost == vhost] if name is None else [core.queue(vhost, name)]
            return [queue.name for queue, _ in work(engine, queues, range(lsn, lsn + 1))]

        done = self._handover.call(do, caller.gone)
        if not done:
            raise self._not_waiting(caller, lsn, vhost, name)
        return {"lsn": lsn, "queues": done}

    def _not_waiting(self, caller: Caller, lsn: int, vhost: str, name: str | None) -> Exception:
        """Why a message could not be moved: what is said of it where it is, or was."""
        fields: dict[str, object] = {"vhost": vhost, "bookmark": str(lsn)}
        if name is not None:
            fields["queue"] = name
        told = self._explain(caller, Fields("explain", fields))
        sentences = list[str]()
        for one in cast("list[dict[str, object]]", told["queues"]):
            whys = "; ".join(reason["text"] for reason in cast("list[dict[str, str]]", one["reasons"]))
            sentences.append(f"queue '{one['queue']}': {whys}" if one["queue"] else whys)
        return PreconditionFailed(f"the message at LSN {lsn} does not wait: {'. '.join(sentences)}")

    # -- from queue to queue

    def _redrive(self, caller: Caller, f: Fields) -> Reply:
        return self._moved(caller, f, None, f.numbers("lsns", CALL_MOST))

    def _move(self, caller: Caller, f: Fields) -> Reply:
        return self._moved(caller, f, f.name("to"))

    def _moved(self, caller: Caller, f: Fields, to: str | None, lsns: list[int] | None = None) -> Reply:
        wanted = Wanted(
            f.name("queue"), f.text("vhost", DEFAULT_VHOST), to, f.optional_text("filter", TEXT_LIMIT),
            f.count("count", CALL_MOST, 1, CALL_MOST), f.count("after"), f.flag("dry"), caller.user,
            None if lsns is None else tuple(lsns),
        )  # fmt: skip
        f.finish()
        if wanted.filter is not None:
            compile_filter(wanted.filter)
        engine = self._usable()
        return move(
            engine, wanted, lambda work: self._handover.call(work, caller.gone, durable=not wanted.dry), caller.gone
        ).told()

    # -- small things

    def _told(self, caller: Caller, lsn: int, vhost: str) -> Story:
        core, log = self._handover.engine.core, self._handover.engine.log
        what = self._handover.call(lambda: known(core), caller.gone, durable=False)
        return tell(log, lsn, what.names, what.routes, caller.gone, anew=what.anew, vhost=vhost)

    def _usable(self) -> Engine:
        engine = self._handover.engine
        if engine.broken is not None:
            raise LogBroken(f"the log is broken: {engine.broken}")
        return engine


def reasons_of(reasons: Sequence[Reason]) -> list[dict[str, str]]:
    """Reasons as JSON."""
    return [reason._asdict() for reason in reasons]


def _had(story: Story) -> list[str]:
    """The queues that had the message, by its story."""
    out = dict[str, None]()
    for event in story.events:
        told = event.details.get("queues")
        if isinstance(told, list):
            out.update(dict.fromkeys(str(name) for name in told))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - JSON
        if event.queue:
            out[event.queue] = None
    return list(out)


def _unknown(story: Story, lsn: int, origin: int) -> NotFound:
    return NotFound(
        f"the log has no message {format_bookmark(origin, lsn)!r}: it begins at LSN {story.first_lsn}, and what stands "
        "there is no message, or retention has passed it"
    )


OPTIONS = {"": Verb.ACK, "ack": Verb.ACK, "cancel": Verb.CANCEL, "expire": Verb.EXPIRE}


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
