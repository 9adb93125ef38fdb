"""What a Flight call may do: every command and action passes here before it is carried out.

What each asks stands beside it as data, in an `Action` or in the table of commands; what cannot be said as data, for
it depends on more than the names in a request, is a method of `Gatekeeper`.  Reads come back narrowed: the filter of
the user's right is part of the command, so it holds wherever the rows are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, assert_never, cast

from penstock.core.publishing.published import read_traits
from penstock.core.queue.queue import Queue
from penstock.core.sow.holding import Sow as Keyed
from penstock.core.sow.select import SelectList, order_of, parse_order
from penstock.core.streams.stream_table import unknown
from penstock.errors import AccessRefused, InvalidArgument, NotFound, Refused, Unavailable
from penstock.expr import Filter, parse, tree
from penstock.expr.context import RECORDS, Group
from penstock.expr.tree import walk_tree
from penstock.records.entries import Topic
from penstock.records.message_bodies import listed
from penstock.records.message_types import JSON, MessageType, typed
from penstock.records.rights import ADMINISTERS, LOGIN, USES, Right, uses
from penstock.server.asking.judging import asked_by, breathe
from penstock.server.people.access import Who, open_vhost, owns
from penstock.server.people.entitlements import Rights, asks_shown, narrowed_text, refused, told
from penstock.server.replaying.selection import Selection, refuse_several
from penstock.server.views.row_source import read_by
from penstock.wire.fields import Field, Fields
from penstock.wire.flight.commands import (
    DEFAULT_VHOST,
    Consume,
    Get,
    Link,
    LogRange,
    Plan,
    Publish,
    Put,
    QueueContent,
    Replay,
    Sow,
    Sql,
    Stage,
    Subscribe,
    Transact,
)

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.state.streams import StreamState
    from penstock.core.streams.sinks import Owner
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.handover import Answer, Handover
    from penstock.wire.flight.codec import Upload


T = TypeVar("T")

SLICE = 500
"""Rows of an upload that are judged between two breaths."""

COMMANDS: Mapping[type[Get | Put | Consume | Link], Right] = {
    Publish: USES,  # and each of its rows, see `Gatekeeper.publish`
    Stage: USES,
    Transact: USES,
    Consume: USES,  # and the queue, or each of a pattern
    Link: ADMINISTERS,  # it publishes to any topic, and settles in any queue
    QueueContent: uses(("read", "queue", "name")),
    Replay: USES,  # and its topics, see `Gatekeeper.get`
    Sow: USES,
    Subscribe: USES,
    Sql: USES,  # and each of its tables
    Plan: LOGIN,  # and its stream
    LogRange: ADMINISTERS,
}
"""What each command asks."""


Body = Mapping[str, Any]

Asks: TypeAlias = "Callable[[Gatekeeper, Caller, Rights, Body], None]"
"""What a right cannot say as data, for it is about the topology that a name leads to.  Raises AccessRefused."""


class Gatekeeper:
    """Asks for rights.  Methods belong to Flight's threads; what needs the core is handed to the loop."""

    def __init__(self, handover: Handover, vhosts: Container[str], people: Callable[[str], Who] = Who) -> None:
        """vhosts: names of those that there are.  people: who somebody is, and whether he is there still."""
        self._handover = handover
        self._vhosts = vhosts
        self._people = people

    def _call(self, caller: Caller, work: Callable[[Core], T]) -> T:
        core = self._handover.engine.core
        return self._handover.call(lambda: work(core), caller.gone, durable=False)

    # -- every command

    def admit(self, caller: Caller, wanted: Get | Put | Consume | Link) -> None:
        """AccessRefused unless the user may give such a command; NotFound for a vhost or exchange that is not there."""
        names = {name: getattr(wanted, name, None) for name in ("vhost", "name")}
        caller.judge(COMMANDS[type(wanted)], names, self._vhosts, type(wanted).__name__.lower())
        if isinstance(vhost := names["vhost"], str):
            ended = self._handover.engine.core.ended_vhosts
            caller.enter(vhost, partial(_is, ended, vhost, ended[vhost]))
        if isinstance(wanted, (Publish, Stage)) and wanted.exchange:
            self._call(caller, partial(_begin, caller.rights, wanted))
        if (rights := caller.rights) is None:
            return
        if isinstance(wanted, Consume):
            rights.take(wanted.vhost, wanted.queue)
        for stream in (wanted.stream, wanted.held_for) if isinstance(wanted, Replay) else ():
            if stream is not None:
                self._stream_of(caller, rights, stream)

    # -- publishing

    def publish(self, caller: Caller, vhost: str, exchange: str, upload: Upload) -> None:
        """AccessRefused unless the user may publish every row of an upload."""
        rights = caller.rights
        if rights is None:
            return
        data = upload.properties
        bodies = listed(upload.bodies)
        for filter, rows in self._asked(caller, rights, vhost, exchange, upload).items():
            for start in range(0, len(rows), SLICE):
                some = rows[start : start + SLICE]
                names = [upload.names[0 if upload.name_of is None else upload.name_of[row]] for row in some]
                heads = data if isinstance(data, bytes) else [data[row] for row in some]
                topics = [Topic(vhost, exchange, name) for name in names]
                hits = filter.matches([bodies[row] for row in some], heads, topics)
                if not all(hits):
                    at = hits.index(False)
                    raise AccessRefused(
                        f"row {some[at]} to topic '{names[at]}' in vhost '{vhost}' is not one that user "
                        f"'{rights.user}' may write; nothing of its batch is stored"
                    )
                breathe()

    def _asked(
        self, caller: Caller, rights: Rights, vhost: str, exchange: str, upload: Upload
    ) -> dict[Filter, list[int]]:
        """What has to let rows of an upload through, and which: by their topics, and those that headers add."""
        data = upload.properties
        extra = [read_traits(one).keys if b"CC" in one else () for one in ([data] if isinstance(data, bytes) else data)]
        names = {*upload.names, *(key for keys in extra for key in keys)}
        found = self._call(caller, lambda core: {n: rights.publish(core, vhost, exchange, n) for n in names})
        asked = dict[Filter, list[int]]()
        if any(one is not None for one in found.values()):
            for row, place in enumerate([0] * len(upload) if upload.name_of is None else upload.name_of):
                keys = extra[0] if len(extra) == 1 else extra[row]
                for one in {found[key] for key in (upload.names[place], *keys)}:
                    if one is not None:
                        asked.setdefault(one, []).append(row)
        return asked

    # -- reading

    def get(self, caller: Caller, wanted: Get) -> Get:
        """The command as far as the user may read, and as it reads the bodies that there are.

        Raises AccessRefused; ExpressionError for its filter; InvalidArgument for one that reads other bodies.
        """
        narrowed = self._narrowed(caller, wanted)
        if isinstance(narrowed, (Plan, LogRange, Sql, Subscribe)):
            return narrowed
        if isinstance(narrowed, Sow):
            found = self._call(caller, lambda core: self._about(narrowed))
            kind = JSON if found is None else (found.rule if isinstance(found, Keyed) else found.settings).message_type
        else:
            kind = self._call(caller, lambda core: type_of(core, narrowed))
        return as_read(narrowed, kind)

    def _narrowed(self, caller: Caller, wanted: Get) -> Get:
        self.admit(caller, wanted)
        if not isinstance(wanted, (Plan, LogRange, Sql)) and wanted.filter:
            instance = self._call(caller, lambda core: core.instance)
            wanted = replace(
                wanted, filter=asked_by(wanted.filter, client=caller.peer, user=caller.user, instance=instance)
            )
        rights = caller.rights
        if rights is None:
            return wanted
        match wanted:
            case QueueContent():
                return replace(
                    wanted, filter=narrowed_text(wanted.filter, rights.read_queue(wanted.vhost, wanted.name))
                )
            case Replay():
                return self._replay(rights, wanted)
            case Sow() | Subscribe():
                return self._records(caller, rights, wanted)
            case Plan():
                self._stream_of(caller, rights, wanted.stream)
                return wanted
            case Sql() | LogRange():
                return wanted  # each table of a statement is asked for by itself; the log is the administrator's
        assert_never(wanted)  # a new read says what right it takes

    def _records(self, caller: Caller, rights: Rights, wanted: Sow | Subscribe) -> Sow | Subscribe:
        """A read of records or rows, or of what a queue shows where it is asked for by name."""
        by_name = isinstance(wanted, Sow) or wanted.grouping is not None
        known = RECORDS if isinstance(wanted, Sow) else frozenset[Group]()
        found = self._call(caller, lambda core: self._about(wanted))
        topic = (found.exchange, found.name) if isinstance(found, Keyed) else (wanted.exchange, wanted.topic)
        if by_name and isinstance(found, Queue):
            try:
                right = rights.read_queue(wanted.vhost, wanted.topic)
            except AccessRefused:  # like a topic that is none
                raise rights.unread(wanted.vhost, wanted.exchange, wanted.topic) from None
            return replace(wanted, filter=narrowed_text(wanted.filter, right, known))
        right = rights.read_topic(wanted.vhost, *topic, whole=_gathers(wanted))
        fields = rights.fields(wanted.vhost, *topic)
        ordered = [term.value.text for term in parse_order(wanted.order_by or None)]
        conflated = wanted.conflation_key if isinstance(wanted, Subscribe) else ()
        asks_shown(rights.user, fields, (wanted.filter, *ordered, *conflated))
        narrow = replace(wanted, filter=narrowed_text(wanted.filter, right, known), shown=parts_of(fields))
        return replace(narrow, within=right is not None) if isinstance(narrow, Subscribe) else narrow

    def _about(self, wanted: Sow | Subscribe) -> Keyed | Queue | None:
        """The topic with a key or the queue that is read; None for rows of a view, or what is neither.  On the loop."""
        name = wanted.vhost, wanted.exchange, wanted.topic
        if not wanted.exchange and self._handover.engine.views.shown(wanted.vhost, wanted.topic) is not None:
            return None
        return read_by(self._handover.engine.core, *name, gathers=_gathers(wanted))

    def _replay(self, rights: Rights, wanted: Replay) -> Replay:
        if wanted.topic is not None:
            name = wanted.vhost, wanted.exchange, wanted.topic
            right, fields = rights.read_topic(*name, whole=False), rights.fields(*name)
            asks_shown(rights.user, fields, [wanted.filter])
            return replace(wanted, filter=narrowed_text(wanted.filter, right), shown=parts_of(fields))
        return replace(wanted, rights=rights.topic_rights(wanted.vhost, wanted.exchange))

    # -- actions

    def act(self, caller: Caller, name: str, right: Right, body: Body, asks: Asks | None = None) -> None:
        """AccessRefused unless the user may do this; NotFound for a vhost that is not there."""
        caller.judge(right, body, self._vhosts, name)
        if asks is not None and caller.rights is not None:
            asks(self, caller, caller.rights, body)

    def stream_open(self, caller: Caller, rights: Rights, body: Body) -> None:
        if body.get("queue") is not None:
            rights.read_all_of_queue(_vhost(body), _text(body, "queue"), "a stream")
        if body.get("topic") is not None:
            rights.read_topic(_vhost(body), str(body.get("exchange", "")), _text(body, "topic"))
        try:
            self.stream(caller, rights, body)
        except NotFound:
            raise refused("read", f"stream '{_text(body, 'stream')}'", rights.user) from None

    def stream(self, caller: Caller, rights: Rights, body: Body) -> None:
        self._stream_of(caller, rights, _text(body, "stream"))

    def held_for(self, caller: Caller, rights: Rights, body: Body) -> None:
        """A read that is a part of what a stream reads, if it says so."""
        if body.get("held_for") is not None:
            self._stream_of(caller, rights, _text(body, "held_for"))

    def stage_drop(self, caller: Caller, rights: Rights, body: Body) -> None:
        rights.writes("dropping stages")

    def sink_commit(self, caller: Caller, rights: Rights, body: Body) -> None:
        rights.writes("committing a batch")
        settle = body.get("settle")
        for one in cast("list[object]", settle) if isinstance(settle, list) else [settle]:
            if isinstance(one, dict):
                self._stream_of(caller, rights, _text(cast("Body", one), "stream"))
        drop = body.get("drop")
        if isinstance(drop, dict):
            self.sow_delete(caller, rights, cast("Body", drop))

    def owns(self, caller: Caller, owner: str) -> bool:
        """Whether the caller may go on with what belongs to this user."""
        return owns(caller.who, owner, self._people)

    def owner(self, caller: Caller, query: str) -> Owner:
        """Whose a query is after a commit of the caller's: it stays whose it is, unless nobody has it any more."""

        def after(before: str) -> str:
            if not self.owns(caller, before):
                raise AccessRefused(
                    f"query '{query}' belongs to another user: '{caller.user}' may commit for it with the tag "
                    "'administrator', or when that user is gone"
                )
            return self.owner_after(caller, before)

        return after

    def owner_after(self, caller: Caller, before: str) -> str:
        """Whose something is that the caller goes on with: it stays whose it is, unless nobody has it any more."""
        return before if before and self._people(before).there else caller.user

    def sow_delete(self, caller: Caller, rights: Rights, body: Body) -> None:
        """A user removes what he may publish, all of it; of a commit it is a part, with a vhost of its own."""
        self._enter(caller, _vhost(body))
        vhost, exchange, name = _vhost(body), body.get("exchange", ""), _text(body, "topic")
        right = self._call(caller, lambda core: rights.publish(core, vhost, str(exchange), name))
        if right is not None:  # whether the records match is not looked at
            raise refused("remove records of", f"topic '{name}' in vhost '{vhost}'", rights.user)
        asked = body.get("filter")
        if isinstance(asked, str) and any(isinstance(node, tree.Field | tree.Call) for node in walk_tree(parse(asked))):
            # how many it takes tells what stands in them
            if rights.read_topic(vhost, str(exchange), name, whole=False) is not None:
                raise refused("read all of", told(vhost, str(exchange), name), rights.user)
            asks_shown(rights.user, rights.fields(vhost, str(exchange), name), [asked])

    def _stream_of(self, caller: Caller, rights: Rights, stream: str) -> None:
        """A stream of a queue takes all of it; one of a topic reads what of the topic the user may read.

        What one of several topics has read, others may not read: so it belongs to who opened it.  One of changes is of
        a queue's name, whether that is there or not.

        NotFound for one that the user may not read, as for one that is not there; who has opened it knows that it is.
        """

        def look(core: Core) -> tuple[StreamState | None, Queue | None]:
            state = core.streams.states.get(stream)
            return state, None if state is None else core.queue_by_id(state.queue)

        state, queue = self._call(caller, look)
        if state is None:
            return  # whoever carries it out says so
        try:
            if queue is not None:
                self._enter(caller, queue.vhost)
                rights.read_all_of_queue(queue.vhost, queue.name, "a stream")
            elif state.mode == "changes" and not state.asked and not self.owns(caller, state.owner):
                raise refused("read", f"what stream '{stream}' has counted", rights.user)
            if state.asked:
                vhost = str(state.asked.get("vhost"))
                self._enter(caller, vhost)
                if state.asked.get("queue") is not None:
                    rights.read_all_of_queue(vhost, str(state.asked["queue"]), "a stream")
                exchange = str(state.asked.get("exchange", ""))
                if state.asked.get("topic") is not None:
                    rights.read_topic(vhost, exchange, str(state.asked["topic"]))
                elif "pattern" in state.asked and (
                    not self.owns(caller, state.owner)
                    or all(one is False for _, one in rights.topic_rights(vhost, exchange))
                ):
                    raise refused("read", f"topics of exchange '{exchange}' in vhost '{vhost}'", rights.user)
        except AccessRefused as refusal:
            raise _told(refusal, stream, knows=state.owner == caller.user) from None

    def _enter(self, caller: Caller, vhost: str) -> None:
        open_vhost(caller.who, vhost, None, self._vhosts)


def _told(refusal: AccessRefused, stream: str, *, knows: bool) -> Refused:
    """Why a stream is not read.  knows: that it is there."""
    return refusal if knows else unknown(stream)


def _begin(rights: Rights | None, wanted: Publish | Stage, core: Core) -> None:
    """An exchange that is missing ends an upload before its rows; who may not write there is not told.  On the loop."""
    if rights is not None:
        try:
            rights.publish(core, wanted.vhost, wanted.exchange, wanted.topic or "")
        except AccessRefused:  # each row may name another topic, and is asked for
            return
    core.check_exchange(wanted.vhost, wanted.exchange)


def _is(ended: Mapping[str, int], vhost: str, before: int) -> bool:
    """Whether no vhost of that name has ended since."""
    return ended[vhost] == before


def parts_of(fields: SelectList | None) -> tuple[str, ...]:
    """A list of fields as a command carries it; empty: all of them."""
    return () if fields is None else fields.parts


def type_of(core: Core, wanted: QueueContent | Replay) -> MessageType:
    """What the bodies of a read are.

    InvalidArgument where something is asked of the bodies of several topics, and some of them are no JSON.
    """
    if isinstance(wanted, QueueContent):
        return core.queue(wanted.vhost, wanted.name).settings.message_type
    if wanted.topic is not None:
        return core.message_type(wanted.vhost, wanted.exchange, wanted.topic)
    asks = wanted.filter is not None or any(isinstance(right, str) for _, right in wanted.rights or ())
    if asks or wanted.select:
        refuse_several(core, Selection.pattern(wanted.vhost, wanted.exchange, wanted.pattern or ""))
    return JSON


def as_read(wanted: QueueContent | Replay | Sow, kind: MessageType) -> QueueContent | Replay | Sow:
    """A read of bodies of a type.  InvalidArgument for one that says another, by which a right would read them, too.

    One that gathers is told the type where it gathers.
    """
    if isinstance(wanted, Sow) and _gathers(wanted):
        return wanted
    told = replace(wanted, filter=None if wanted.filter is None else typed(wanted.filter, kind), message_type=kind)
    if isinstance(told, Sow) and told.order_by:
        return replace(told, order_by=tuple(typed(one, kind) for one in order_of(told.order_by)))
    return told


def _gathers(wanted: Sow | Subscribe) -> bool:
    return bool(wanted.projection) or wanted.grouping is not None


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise InvalidArgument(f"{key} is missing, or no text")
    return value


def _vhost(body: Body) -> str:
    value = body.get("vhost", DEFAULT_VHOST)
    return value if isinstance(value, str) else DEFAULT_VHOST


Reply = Mapping[str, object]


class Action(NamedTuple):
    """One row of the table of all actions."""

    run: Callable[..., Reply]  # of the caller, with its fields by name
    text: str
    right: Right | Callable[[Body], Right]  # of every request, or of this one
    fields: Sequence[Field] = ()
    asks: Asks | None = None  # not asked where nothing is limited

    def right_of(self, body: Body) -> Right:
        return self.right if isinstance(self.right, Right) else self.right(body)

    def answer(self, caller: Caller, name: str, body: Body) -> Reply:
        """Carry it out.  InvalidArgument for fields that it does not have, or not so; raises what is wrong with it."""
        return self.run(caller, **Fields(name, body).read(self.fields))


Table: TypeAlias = "dict[str, Action]"


class Awaiting:
    """What runs for Flight's threads at present.  `call` is theirs, the rest is the loop's."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._running = set[asyncio.Future[Any]]()  # the loop alone does not keep them alive

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], gone: Callable[[], bool] | None) -> T:
        """The result of a coroutine, which goes on when its caller is gone.  Raises what it raises, and Unavailable."""

        def job(answer: Answer[T]) -> None:
            task = asyncio.ensure_future(work())
            self._running.add(task)
            task.add_done_callback(partial(self._tell, answer))

        return self._handover.submit(job).wait(gone)

    def _tell(self, answer: Answer[T], done: asyncio.Future[T]) -> None:
        self._running.discard(done)
        if done.cancelled():
            answer.fail(Unavailable("the server stops"))
        elif (error := done.exception()) is not None:
            answer.fail(error)  # what is not ours is logged and shown as internal where the call ends
        else:
            answer.give(done.result())
