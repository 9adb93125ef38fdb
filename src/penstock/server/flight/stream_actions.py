"""Actions of durable streams: the steps on which exactly-once rests.

Each is one durable step: it may be asked again after a crash and gives the same answer.  Beside them: replays are
halted and go on, and a publisher learns where it has got to.

Streams in log mode have steps of their own (`RangeActions`): where they begin, and their ranges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.core.queue.places import AVAILABLE
from penstock.core.state.lsns import Ints
from penstock.core.streams import Resumed
from penstock.core.streams.stream_table import Range, available, difference
from penstock.errors import InvalidArgument, NotFound
from penstock.history.history import Limits, Measured, search_of
from penstock.records.chunks import Chunk
from penstock.records.message_types import JSON, MESSAGE_TYPE, MessageType
from penstock.records.rights import LOGIN, USES
from penstock.server.flight.calls import Caller
from penstock.server.flight.gatekeeper import Action, Gatekeeper, Table
from penstock.server.flight.streams import SOON_S, Planner, Question, Siblings
from penstock.server.replaying.log_source import parse_rate
from penstock.units import format_duration
from penstock.wire.fields import LSN_MAX, VHOST, count, duration, flag, name, text, texts
from penstock.wire.flight.tickets import BATCH_ROWS_MOST, RANGES_MOST, TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.server.bulk.relay import Relay
    from penstock.server.flight.followed import Following, Handle
    from penstock.server.flight.handover import Handover


logger = logging.getLogger("penstock.server")

T = TypeVar("T")
Reply = Mapping[str, object]

PLAN_POLL_S = 0.02
"""How often a waiting `plan` looks again.  Messages become ready in many ways (published, returned, due), none of
which knows of plans; a look at a queue without ready messages costs the loop little."""

PLAN_WAIT_MAX_US = 10_000_000
WAIT_MAX_US = 10_000_000
SIBLINGS_MOST = 100
ROWS_DEFAULT = 10_000
FIGURE_MOST = 1 << 53

_STREAM, _EPOCH, _START = name("stream"), count("epoch"), count("start", needed=True)
_ROWS, _BESIDE = count("max_rows", 1, BATCH_ROWS_MOST, ROWS_DEFAULT), texts("beside", SIBLINGS_MOST, ())
_FAIL = flag("fail_on_data_loss", True)
BATCH = count("batch", 1, needed=True)
ORIGIN = count("origin", high=2**63 - 1)
"""Which server's stream is meant, where others may have one of its name."""


class StreamActions:
    """Streams; and how any action runs on the loop."""

    def __init__(self, handover: Handover, gate: Gatekeeper) -> None:
        self.engine = handover.engine
        self.gate = gate
        self._handover = handover
        self.siblings = Siblings(handover.engine)
        self.stream_table: Table = {
            "stream_open": Action(
                self._stream_open, "stream, queue or topic or pattern, ...: a new epoch of a durable reader", USES,
                (
                    _STREAM, VHOST, text("queue"), text("mode"), text("instance", ""), flag("anew"), text("pipeline"),
                    text("topic"), text("pattern", most=TEXT_LIMIT), text("exchange", ""),
                    text("filter", most=TEXT_LIMIT), duration("abandon_after"),
                ),
                Gatekeeper.stream_open,
            ),
            "plan": Action(
                self._plan,
                "stream, epoch, start, max_rows, max_bytes, min_rows, wait, beside, lost: settle to start, grant more",
                LOGIN,
                (
                    _STREAM, _EPOCH, _START, _ROWS, duration("wait", 0), count("min_rows", 0, BATCH_ROWS_MOST, 0),
                    count("max_bytes", 1, FIGURE_MOST, 0), flag("lost"), _BESIDE,
                ),
                Gatekeeper.stream,
            ),
            "stream_resume": Action(
                self._stream_resume,
                "stream, epoch, batch, poison_after, blame: go on with a batch that an earlier reader did not settle",
                LOGIN,
                (_STREAM, _EPOCH, BATCH, count("poison_after", default=0), flag("blame", True)),
                Gatekeeper.stream,
            ),
            "plan_changes": Action(
                self._plan_changes,
                "stream, epoch, start, queue, vhost, max_rows: what went and what came since the batch `start`", USES,
                (_STREAM, VHOST, name("queue"), _EPOCH, _START, _ROWS), Gatekeeper.stream_open,
            ),
            "settle": Action(
                self._settle, "stream, epoch, batch, origin: settle up to that batch, if this log is the one meant",
                LOGIN, (_STREAM, _EPOCH, count("batch", needed=True), ORIGIN), Gatekeeper.stream,
            ),
        }  # fmt: skip

    # -- helpers

    def do(self, caller: Caller, work: Callable[[], T], *, durable: bool = True) -> T:
        """Run on the loop; answered when what was decided is durable."""

        def checked() -> T:
            if durable:
                self.engine.usable()
            return work()

        return self._handover.call(checked, caller.gone, durable=durable)

    # -- streams

    def _stream_open(
        self, caller: Caller, stream: str, vhost: str, queue: str | None, mode: str | None, instance: str, anew: bool,
        pipeline: str | None, abandon_after: int | None, **reads: str | None,
    ) -> Reply:  # fmt: skip
        asked, mode = definition(vhost, **reads), mode or ("log" if queue is None else "queue")
        if asked is not None and mode != "log":
            raise InvalidArgument(f"stream '{stream}': a topic is read in mode 'log', a queue in mode 'queue'")
        if mode == "changes":
            if queue is None:
                raise InvalidArgument(f"stream '{stream}': mode 'changes' is of a queue: name it")
            asked = dict[str, object](vhost=vhost, queue=queue)

        def work() -> Reply:
            core = self.engine.core
            source = core.queue(vhost, queue) if queue is not None and mode != "changes" else None
            now, state = self.engine.now(), core.streams.states.get(stream)
            owner = None
            if asked is not None and "pattern" in asked:
                owner = self.gate.owner_after(caller, "" if state is None else state.owner)
            opened = core.streams.open(
                now, stream, source, instance, mode, anew=anew, asked=asked, abandon_after=abandon_after,
                pipeline=pipeline, owner=owner,
            )  # fmt: skip
            return {
                "stream": stream,
                "epoch": opened.epoch,
                "floor": opened.floor,
                "planned": opened.planned,
                "origin": core.origin,
            }

        return self.do(caller, work)

    def epoch(self, stream: str, named: int | None) -> Callable[[], int]:
        """The epoch that was named, or on the loop the present one."""
        streams = self.engine.core.streams
        return lambda: streams.state(stream).epoch if named is None else named

    def _plan(
        self, caller: Caller, stream: str, epoch: int | None, start: int, max_rows: int, wait: int, min_rows: int,
        max_bytes: int, lost: bool, beside: Sequence[str],
    ) -> Reply:  # fmt: skip
        now_epoch, wait_s = self.epoch(stream, epoch), min(wait, PLAN_WAIT_MAX_US) / 1e6
        began = time.monotonic()
        deadline = began if self.siblings.turn(stream, beside) else began + wait_s
        soon = began + min(wait_s, SOON_S)
        others = False  # whether something may have come for one of them

        def work() -> Reply:
            nonlocal others
            if lost:
                self.engine.core.streams.poison.take_over(self.engine.now(), stream, now_epoch())
            streams, now = self.engine.core.streams, self.engine.now()
            plan = streams.plan(now, stream, now_epoch(), start, max_rows, min_rows, max_bytes)
            chunks = [chunk for chunk in plan.chunks if len(chunk)]
            if beside and plan.batch == start and time.monotonic() >= soon:
                others = self.siblings.may_have(beside)
            return {
                "stream": stream,
                "batch": plan.batch,
                "revision": plan.revision,
                "rows": sum(map(len, chunks)),
                MESSAGE_TYPE: streams.queue(stream, streams.state(stream)).settings.message_type,
                "first": chunks[0][0] if chunks else None,
                "last": chunks[-1][-1] if chunks else None,
            }

        while True:
            reply = self.do(caller, work)
            if reply["batch"] != start:
                self.siblings.had(stream)
                return reply
            if others or caller.gone() or time.monotonic() >= deadline:
                return reply
            time.sleep(PLAN_POLL_S)

    def void(self, caller: Caller, query: str, batch: int) -> None:
        """What was staged up to this batch of a query was made of rows that it has no longer."""

    def _stream_resume(
        self, caller: Caller, stream: str, epoch: int | None, batch: int, poison_after: int, blame: bool
    ) -> Reply:
        named, poison = self.epoch(stream, epoch), self.engine.core.streams.poison

        def work() -> tuple[Resumed, MessageType]:
            streams = self.engine.core.streams
            found = poison.resume(self.engine.now(), stream, named(), batch, poison_after, blame=blame)
            return found, streams.queue(stream, streams.state(stream)).settings.message_type

        resumed, kind = self.do(caller, work)
        if resumed.link is not None:
            self.void(caller, resumed.link.query, resumed.link.query_batch)
        return {
            "stream": stream,
            "batch": batch,
            "rows": resumed.rows,
            "revision": resumed.revision,
            "tries": resumed.tries,
            "left": resumed.left,
            "poison": resumed.poison,
            MESSAGE_TYPE: kind,
        }

    def _plan_changes(
        self, caller: Caller, stream: str, vhost: str, queue: str, epoch: int | None, start: int, max_rows: int
    ) -> Reply:
        """What is available is looked at on the loop, compared here, and written down on the loop."""
        named = self.epoch(stream, epoch)
        core = self.engine.core
        kind: MessageType = JSON

        def look() -> tuple[int | None, int, Ints, list[Chunk]]:
            nonlocal kind
            planned = core.streams.changes.planned(stream, named(), start)
            core.streams.changes.refuse_other(stream, vhost, queue)
            try:
                found = core.queue(vhost, queue)
            except NotFound:
                return planned, 0, core.streams.changes.counted(stream), []
            kind = found.settings.message_type
            chunks = [] if planned is not None else list(found.chunks(*AVAILABLE))
            return planned, found.id, core.streams.changes.counted(stream), chunks

        planned, of, counted, chunks = self.do(caller, look, durable=False)
        if planned is None:
            change = difference(counted, available(chunks), max_rows)
            planned = self.do(
                caller, lambda: core.streams.changes.plan(self.engine.now(), stream, named(), start, of, change)
            )
        return {"stream": stream, "batch": planned, MESSAGE_TYPE: kind}

    def _settle(self, caller: Caller, stream: str, epoch: int | None, batch: int, origin: int | None) -> Reply:
        if origin not in {None, self.engine.core.origin}:
            return {"stream": stream, "floor": None}  # another server has a stream of this name, and that one is meant
        streams, named = self.engine.core.streams, self.epoch(stream, epoch)
        self.do(caller, lambda: streams.settle(self.engine.now(), stream, named(), batch))
        return {"stream": stream, "floor": batch}


def definition(
    vhost: str, topic: str | None, pattern: str | None, exchange: str | None, filter: str | None
) -> dict[str, object] | None:
    """What a stream in log mode reads, if it is said."""
    if topic is None and pattern is None:
        return None
    if topic is not None and pattern is not None:
        raise InvalidArgument("a stream reads a topic or a pattern of topics, not both")
    if pattern is not None:
        search_of(pattern)  # one that cannot be read is no stream's: it reads nothing else from then on
    asked = {"vhost": vhost, "exchange": exchange, "topic": topic, "pattern": pattern, "filter": filter}
    return {name: value for name, value in asked.items() if value is not None}


def replay_actions(handover: Handover, following: Following) -> Table:
    """Replays are halted and go on; a publisher learns where it has got to."""
    call, core = handover.call, handover.engine.core

    def handled(caller: Caller, name: str, work: Callable[[Handle], None], *, paused: bool) -> Reply:
        call(lambda: work(following.named(caller, name)), caller.gone, durable=False)
        return {"id": name, "paused": paused}

    def pause(caller: Caller, id: str) -> Reply:
        return handled(caller, id, lambda handle: handle.pause(), paused=True)

    def resume(caller: Caller, id: str, rate: str | None) -> Reply:
        wanted = None if rate is None else parse_rate(rate)
        return handled(caller, id, lambda handle: handle.resume(wanted), paused=False)

    def sequence(caller: Caller, vhost: str, publisher: str) -> Reply:
        """Answered when everything that was decided is durable, so a client resends nothing that is stored."""
        return call(lambda: {"publisher": publisher, "sequence": core.settled_of(vhost, publisher)}, caller.gone)

    said, goes_on = (name("id"),), "id, rate: go on, from now on at this rate if one is given"
    known, stored = (VHOST, name("publisher")), "publisher: up to which sequence all of it is stored in the vhost"
    return {
        "replay_pause": Action(pause, "id: send nothing more of this replay until it is resumed", LOGIN, said),
        "replay_resume": Action(resume, goes_on, LOGIN, (*said, text("rate"))),
        "publisher": Action(sequence, stored, USES, known),
    }


class RangeActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover, streams: StreamActions, gate: Gatekeeper, relay: Relay | None) -> None:
        self._engine = handover.engine
        self._streams = streams
        self.planner = Planner(handover, gate, relay, streams.siblings)
        self.table: Table = {
            "stream_begin": Action(
                self._begin, "stream, epoch, bookmark: log mode: where a new reader begins", LOGIN,
                (_STREAM, _EPOCH, text("bookmark", "EPOCH", TEXT_LIMIT), _FAIL), Gatekeeper.stream,
            ),
            "plan_range": Action(
                self._plan_range,
                "stream, epoch, start, max_rows, max_bytes, min_rows, parts, wait, beside: log mode: the next range",
                LOGIN,
                (
                    _STREAM, _EPOCH, _START, count("end"), count("max_rows", 1, FIGURE_MOST),
                    count("max_bytes", 1, FIGURE_MOST), count("min_rows", 0, FIGURE_MOST), count("until"),
                    count("parts", 1, RANGES_MOST), duration("wait"), flag("fail_on_data_loss", None), _BESIDE,
                ),
                Gatekeeper.stream,
            ),
            "range_parts": Action(
                self._range_parts, "stream, start, end, parts: the parts of a range, planned or not", LOGIN,
                (_STREAM, _START, count("end", needed=True), count("parts", 1, RANGES_MOST, 1)), Gatekeeper.stream,
            ),
            "stream_lag": Action(
                self._lag, "stream: messages that it has not read, as far as they are counted", LOGIN, (_STREAM,),
                Gatekeeper.stream,
            ),
            "stream_release": Action(
                self._release, "stream, drop: give back what it holds; and forget it", LOGIN, (_STREAM, flag("drop")),
                Gatekeeper.stream,
            ),
        }  # fmt: skip

    def tell_abandoned(self) -> None:
        """Into the server's log: which streams let go because nobody read them.  On the loop."""
        streams = self._engine.core.streams
        names, streams.keeping.abandoned = streams.keeping.abandoned, []
        for one in names:
            state = streams.states.get(one)
            after = "" if state is None else f" for {format_duration(state.abandon_after)}"
            logger.warning("stream '%s' is abandoned: nobody has read it%s, and it holds nothing any more", one, after)

    def _begin(self, caller: Caller, stream: str, epoch: int | None, bookmark: str, fail_on_data_loss: bool) -> Reply:
        start = self.planner.begin(caller, stream, self._streams.epoch(stream, epoch), bookmark, fail_on_data_loss)
        return {"stream": stream, "start": start, **self._log()}

    def _plan_range(
        self, caller: Caller, stream: str, epoch: int | None, start: int, end: int | None, wait: int | None,
        fail_on_data_loss: bool | None, beside: Sequence[str], **figures: int | None,
    ) -> Reply:  # fmt: skip
        named, given = self._streams.epoch(stream, epoch), {one: it for one, it in figures.items() if it is not None}
        if end is not None:
            if given or beside or wait is not None or fail_on_data_loss is not None:
                raise InvalidArgument("plan_range: end takes stream, epoch and start beside it, and nothing else")
            return self._named(caller, stream, named, start, end)
        limits = Limits(given.get("max_rows", FIGURE_MOST), given.get("max_bytes", FIGURE_MOST), given.get("parts", 1))
        wait_s, fail = min(wait or 0, WAIT_MAX_US) / 1e6, fail_on_data_loss is not False
        until, least = given.get("until", LSN_MAX), given.get("min_rows", 0)
        asked = Question(stream, start, limits, until, wait_s, fail, named, tuple(beside), least)
        return {"stream": stream, "start": start, **self._told(caller, start, *self.planner.plan(caller, asked))}

    def _named(self, caller: Caller, stream: str, epoch: Callable[[], int], start: int, end: int) -> Reply:
        """A range whose end the reader has found itself."""

        def work() -> Reply:
            last = min(end, self._engine.log.durable + 1)
            last = self._engine.core.streams.ranges.plan_range(self._engine.now(), stream, epoch(), start, last)
            return {"stream": stream, "start": start, "end": last}

        return self._streams.do(caller, work)

    def _range_parts(self, caller: Caller, stream: str, start: int, end: int, parts: int) -> Reply:
        found, lost = self.planner.parts(caller, stream, start, end, parts)
        return {"stream": stream, "start": start, **self._told(caller, start, found, None, lost)}

    def _told(
        self, caller: Caller, start: int, found: Range | None, measured: Measured | None, lost: str
    ) -> Mapping[str, object]:
        if found is None:
            return {"end": start, "parts": [], **self._log()}
        kind: MessageType = JSON  # of several topics, too
        if "topic" in found.asked:
            of = (str(found.asked.get(one, "")) for one in ("vhost", "exchange", "topic"))
            kind = self._streams.do(caller, partial(self._engine.core.message_type, *of), durable=False)
        missing = {"lost": lost} if lost else {}
        figures = {} if measured is None else {"rows": measured.rows, "bytes": measured.bytes}
        return {
            "end": found.end,
            "batch": found.batch,
            "parts": found.parts,
            "asked": found.asked,
            MESSAGE_TYPE: kind,
            **figures,
            **missing,
            **self._log(),
        }

    def _log(self) -> Mapping[str, object]:
        log = self._engine.past
        return {"origin": log.origin, "first": log.first_lsn, "durable": log.durable}

    def _lag(self, caller: Caller, stream: str) -> Reply:
        def work() -> Reply:
            self._engine.core.streams.state(stream)
            return {"stream": stream, "messages": self._engine.walked.ahead.look().get(stream)}

        return self._streams.do(caller, work, durable=False)

    def _release(self, caller: Caller, stream: str, drop: bool) -> Reply:
        def work() -> int:
            return self._engine.core.streams.release(self._engine.now(), stream, drop=drop)

        return {"stream": stream, "released": self._streams.do(caller, work), "dropped": drop}
