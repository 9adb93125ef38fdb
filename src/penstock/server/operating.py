"""What operations work on, in a server; the wait for the disk before an answer; and what changes are told as.

A command is decided at once on the loop that serves messages, like an AMQP session's, and answered when its records
are durable.

A change of users, vhosts, permissions and limits is told as events by the names and fields of RabbitMQ 3.10:

    {"vhosts": [...]}, {"vhosts": [..., {"name": "v"}]}  ->  vhost.created {"name": "v"}

What goes with a user is not told one by one, what goes with a vhost is, as there.  Passwords are in no event.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import orjson

from penstock.errors import LogBroken, NotFound, PenstockError, Refused, Unavailable
from penstock.records.rights import MONITORING
from penstock.server.asking.caching import Burying
from penstock.server.people.access import ACTING, Who
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.effects import Effect
    from penstock.operations.operation import Operation, Sites
    from penstock.records.chunks import Now
    from penstock.server.cluster.leading import Cluster
    from penstock.server.engine import Engine
    from penstock.server.figures import Links
    from penstock.server.flight.handover import Handover
    from penstock.server.people.accounts import Accounts
    from penstock.server.people.users import Users
    from penstock.server.services import Server


Fields: TypeAlias = "dict[str, Any]"
Event = tuple[str, Fields]


class _Row(NamedTuple):
    """Objects of one kind, and what is told of one that came, is another, or has gone."""

    kind: str
    keys: tuple[str, ...]
    noun: str
    changed: str = "created"


_VHOSTS = _Row("vhosts", ("name",), "vhost", "updated")
_PERMISSIONS = (
    _Row("permissions", ("user", "vhost"), "permission"),
    _Row("topic_permissions", ("user", "vhost", "exchange"), "topic.permission"),
)
_VALUES: Mapping[str, tuple[str, str]] = {
    "vhost_limits": ("vhost.limits", "vhost"), "user_limits": ("user.limits", "username"),
}  # fmt: skip


def events_between(before: bytes, after: bytes, fixed: Collection[str] = ("/",)) -> list[Event]:
    """before, after: all that is kept, as `Accounts.state` gives it.  fixed: vhosts that are always there."""
    old, new = _differing(orjson.loads(before), orjson.loads(after))
    gone = _by(old, "users", ("name",)).keys() - _by(new, "users", ("name",)).keys()
    gone |= _by(new, "removed", ("name",)).keys() - _by(old, "removed", ("name",)).keys()
    rights = [one for row in _PERMISSIONS for one in _of(row, old, new)]
    ended = [(name, one) for name, one in rights if name.endswith("deleted") and (one["user"],) not in gone]
    made = [(name, one) for name, one in rights if not name.endswith("deleted")]
    vhosts = [_of_fixed(*one) if one[1]["name"] in fixed else one for one in _of(_VHOSTS, old, new)]
    deleted: Sequence[Event] = [("user.deleted", {"name": name}) for (name,) in sorted(gone)]
    return [*ended, *deleted, *_of_users(old, new), *vhosts, *_of_values(old, new), *made]


def _differing(old: Fields, new: Fields) -> tuple[Fields, Fields]:
    """Both without the rows with which each list begins, and ends, in both: of very many a change touches one."""
    parts = {kind: _between(old.get(kind, []), new.get(kind, [])) for kind in {*old, *new}}
    return {kind: part[0] for kind, part in parts.items()}, {kind: part[1] for kind, part in parts.items()}


def _between(old: list[Fields], new: list[Fields]) -> tuple[list[Fields], list[Fields]]:
    first = behind = 0
    most = min(len(old), len(new))
    while first < most and old[first] == new[first]:
        first += 1
    while behind < most - first and old[-1 - behind] == new[-1 - behind]:
        behind += 1
    return old[first : len(old) - behind], new[first : len(new) - behind]


def _by(told: Fields, kind: str, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Fields]:
    return {tuple(one[key] for key in keys): one for one in cast("list[Fields]", told[kind])}


def _of(row: _Row, old: Fields, new: Fields) -> Iterator[Event]:
    before, after = _by(old, row.kind, row.keys), _by(new, row.kind, row.keys)
    for key, one in after.items():
        if key not in before:
            yield f"{row.noun}.created", one
        elif one != before[key]:
            yield f"{row.noun}.{row.changed}", one
    for key in before.keys() - after.keys():
        yield f"{row.noun}.deleted", dict(zip(row.keys, key, strict=True))


def _of_fixed(_: str, one: Fields) -> Event:
    """One of the settings is kept while it is described."""
    return "vhost.updated", one


def _of_users(old: Fields, new: Fields) -> Iterator[Event]:
    before, after = _by(old, "users", ("name",)), _by(new, "users", ("name",))
    for key, one in after.items():
        name, was = {"name": one["name"]}, before.get(key)
        if was is None:
            yield "user.created", name
        elif was["password_hash"] != one["password_hash"]:
            yield f"user.password.{'changed' if one['password_hash'] else 'cleared'}", name
        if one["tags"] != ([] if was is None else was["tags"]):
            yield "user.tags.set", {**name, "tags": one["tags"]}


def _limits(kept: Mapping[tuple[Any, ...], Fields], key: tuple[Any, ...]) -> Fields:
    return cast("Fields", kept[key]["value"]) if key in kept else {}


def _of_values(old: Fields, new: Fields) -> Iterator[Event]:
    for kind, (noun, whose) in _VALUES.items():
        before, after = _by(old, kind, ("name",)), _by(new, kind, ("name",))
        for key in sorted(before.keys() | after.keys()):
            was, limits = _limits(before, key), _limits(after, key)
            if was != limits:
                yield f"{noun}.{'set' if limits else 'cleared'}", {"name": "limits", whose: key[0], **limits}
    before, after = (_by(some, "global_parameters", ("name",)) for some in (old, new))
    for key, one in after.items():
        if before.get(key) != one:
            yield "parameter.set", {"component": "global", **one}
    for (name,) in sorted(before.keys() - after.keys()):
        yield "parameter.cleared", {"component": "global", "name": name}


T = TypeVar("T")

FIGURES = {
    "connections": "rabbitmq_connections",
    "channels": "rabbitmq_channels",
    "published": "rabbitmq_global_messages_received",
    "confirmed": "rabbitmq_global_messages_confirmed",
    "delivered": "rabbitmq_global_messages_delivered",
    "acknowledged": "rabbitmq_global_messages_acknowledged",
    "redelivered": "rabbitmq_global_messages_redelivered",
    "resident_bytes": "rabbitmq_process_resident_memory_bytes",
    "body_cache_limit_bytes": "penstock_body_cache_limit_bytes",
    "log_bytes": "penstock_log_bytes",
    "log_segments": "penstock_log_segments",
    "disk_free_bytes": "rabbitmq_disk_space_available_bytes",
}
"""What an overview calls some of the metrics; counts are since the start of the process."""


def resolve(future: asyncio.Future[None]) -> None:
    """Let whoever awaits it go on, unless he has gone."""
    if not future.done():
        future.set_result(None)


def reject(future: asyncio.Future[None], error: PenstockError) -> None:
    """Tell whoever awaits it why that is in vain, unless he has gone."""
    if not future.done():
        future.set_exception(error)


class Waits:
    """Futures of answers that wait for the log; all of them fail when it breaks."""

    def __init__(self) -> None:
        self._open = set[asyncio.Future[None]]()
        self._engine: Engine | None = None

    def until(self, engine: Engine, lsn: int, since: int) -> asyncio.Future[None] | None:
        """Done when what was decided behind LSN `since` may be answered, and is durable up to `lsn`; None: it may now.

        LogBroken, of the future too.
        """
        if self._engine is not engine:
            self._engine = engine
            engine.on_broken.append(self._broken)
        if lsn <= engine.log.durable and not engine.publishes(since):
            return None
        if engine.broken is not None:
            raise LogBroken(f"{engine.broken}; whether this will last is unknown")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        engine.when_answerable(since, lsn, partial(resolve, future))
        engine.arm()
        return future

    def _broken(self, reason: str) -> None:
        for future in list(self._open):
            if not future.done():
                future.set_exception(LogBroken(f"{reason}; whether this will last is unknown"))


class _Unlinked:
    """A server without links."""

    def facts(self) -> Sequence[Mapping[str, object]]:
        """No rows: a server without `[[link]]` has no links."""
        return ()

    def pause(self, name: str, *, paused: bool) -> Mapping[str, object]:
        """NotFound, whatever the name: there are no links."""
        raise NotFound(f"no [[link]] {name!r}: this server has none")


UNLINKED = _Unlinked()


class Operating:
    """The `House` of a server.  Methods belong to the loop."""

    def __init__(self, server: Server, early: Callable[[], None] | None = None, waits: Waits | None = None) -> None:
        """early: raises Unavailable while the server starts."""
        self.server = server
        self._early = early  # None: it is over
        self._waits = waits or Waits()
        self._links: Links | None = None
        self._handover: Handover | None = None

    @property
    def engine(self) -> Engine:
        """Raises Unavailable while the server starts."""
        if self._early is not None:
            self.refuse_early()
        return self.server.engine

    def refuse_early(self) -> None:
        """Unavailable while the server starts."""
        if self._early is not None:
            self._early()
            self._early = None

    @property
    def core(self) -> Core:
        if self._early is not None:
            self.refuse_early()
        return self.server.engine.core

    @property
    def accounts(self) -> Accounts:
        """What is administered at run time beside the core."""
        return self.server.accounts

    @property
    def users(self) -> Users:
        """Who may log in, and what for."""
        return self.server.users

    def now(self) -> Now:
        """The instant of a command."""
        return self.server.engine.now()

    async def change(self, work: Callable[[Accounts], T]) -> T:
        """The result of a change that is on disk now.  Raises what it raises, and Unavailable; nothing is changed."""
        self.refuse_early()
        return await self.accounts.change(work, self._changed)

    def _changed(self, before: bytes, after: bytes) -> None:
        self.server.engine.notices.accounts(events_between(before, after, self.accounts.fixed_vhosts))

    async def decide(self, work: Callable[[], T], *, wait: bool = True) -> T:
        """The result of a command, when its records are durable, with the dead letters of what it let die.

        Raises what the core refuses, and LogBroken.

        wait: False leaves the waiting to whoever decides many things at once.
        """
        engine = self.usable()
        if not self.server.serving:
            raise Unavailable("the server stops")
        since, effects = engine.core.last_lsn, engine.core.effects
        before = len(effects)
        try:
            with engine.notices.by(ACTING.get()):
                result = work()
        except Refused:
            engine.arm()
            raise
        engine.arm()
        if wait:
            if len(effects) > before:
                await self._buried(engine, effects[before:])
            # also for what was there already: whose record that is may not be on the disk yet
            future = self._waits.until(engine, engine.core.last_lsn, since)
            if future is not None:
                await future
        return result

    async def _buried(self, engine: Engine, effects: Sequence[Effect]) -> None:
        """Return when what a command has let die, by its effects, has its dead letters."""
        burying = Burying(engine)
        burying.note_effects(effects)
        if burying.noted:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            burying.when_buried(partial(resolve, written), partial(reject, written))
            await written
            self.usable()  # a broken log has none

    def usable(self) -> Engine:
        """LogBroken when nothing that is decided would last."""
        engine = self.engine
        engine.usable()
        return engine

    async def durable(self, lsn: int) -> None:
        """Return when everything up to `lsn` is durable.  Raises LogBroken."""
        engine = self.engine
        future = self._waits.until(engine, lsn, engine.core.last_lsn)
        if future is not None:
            await future

    async def operate(self, operation: Operation, who: Who, arguments: Mapping[str, Any]) -> Any:
        """What an operation answers: of a list an iterable, of any other an object.  Rights were judged before.

        What is not among the arguments is as the operation has it.
        """
        self.refuse_early()
        arguments = operation.filled(arguments)
        done = partial(operation.run, self, who, **arguments)
        match operation.manner:
            case "decide":
                return await self.decide(done)
            case "change" | "sum":
                return await done()
            case "look" | "list":
                return done()
            case "read":
                return await self._read(operation, who, arguments)

    async def _read(self, operation: Operation, who: Who, arguments: Mapping[str, Any]) -> Any:
        """In a thread of its own."""
        from penstock.server.flight.handover import Aside, Handover  # not loaded before somebody asks

        if self._handover is None:
            self._handover = Handover(self.engine, asyncio.get_running_loop().call_soon_threadsafe)
        gone = threading.Event()
        house = Aside(self._handover, f"http/{who.user}", gone.is_set)
        try:
            return await asyncio.to_thread(partial(operation.run, house, who, **arguments))
        finally:
            gone.set()

    async def declare(self, user: str, vhost: str, queue: str) -> None:
        """A queue without settings that ends with the server, as the test of a vhost makes one."""
        from penstock.operations.queues import DECLARE_BY_ARGUMENTS

        asked: dict[str, object] = {"queue": queue, "vhost": vhost, "durable": False}
        await self.operate(DECLARE_BY_ARGUMENTS, self.users.who(user), asked)

    # -- connections

    def hang_up(self, why: str, *, users: tuple[str, ...] = (), vhost: str | None = None) -> None:
        """Close the connections of these users, or those to this vhost, with code 320."""
        for session in list(self.server.amqp.sessions):
            there = session.user in users or (session.opened and vhost is not None and session.vhost == vhost)
            if there and not session.closing:
                session.close_by_server(why)
        self.engine.arm()

    def forget_counts(self, vhost: str) -> None:
        """What was counted of a vhost's messages is not told of the next one of its name."""
        self.server.counters.forget(vhost)

    @property
    def links(self) -> Links:
        """Sessions as administrators see them.  Raises Unavailable while the server starts."""
        self.refuse_early()
        if self._links is None:
            from penstock.server.figures import Links  # not loaded before somebody looks

            self._links = Links(self.server)
        return self._links

    def connections(self, user: str | None) -> Iterator[dict[str, object]]:
        """Open ones in RabbitMQ's words, oldest first; user None: everybody's."""
        return self.links.connections(user)

    def close(self, connection: str, reason: str) -> None:
        """Close one with code 320.  NotFound."""
        self.links.close(connection, reason)

    @property
    def cluster(self) -> Cluster:
        """NotFound for a server in none."""
        if self.server.cluster is None:
            raise NotFound("this server is in no cluster")
        return self.server.cluster

    @property
    def sites(self) -> Sites:
        """Links to other sites; of a server without them there are none."""
        return self.server.links or UNLINKED

    @property
    def open_connections(self) -> int:
        """AMQP connections that are open now."""
        return len(self.server.amqp.sessions)

    def unblock(self) -> None:
        """Publishes that waited may go on."""
        self.server.amqp.publishers.alarm.look()

    def addresses(self) -> Mapping[str, str]:
        """Where the doors are, by their names in the settings."""
        return dict(self.server.addresses)

    async def overview(self, who: Who) -> Mapping[str, object]:
        """The server as a whole, from the counters that `/metrics` has; what somebody sees of them."""
        from penstock.server.figures import processes  # not loaded before somebody looks
        from penstock.server.http.facts import Facts
        from penstock.server.sums import Seen

        facts = Facts(self.server, __version__)
        metrics = facts.metrics()
        figures: dict[str, object] = {name: metrics[of] for name, of in FIGURES.items()}
        if not MONITORING.holds(who.tags):
            seen = Seen(self.server, who)
            sums, (connections, channels) = await seen.queues(), seen.connections()
            figures |= {"connections": connections, "channels": channels}
            figures |= {name: getattr(sums, name) for name in ("published", "delivered", "acknowledged")}
            del figures["confirmed"], figures["redelivered"]
        there = [one._asdict() for one in processes(self.server)]
        more = {"processes": there, "memory_gave_way": metrics.gave_way}
        return {**facts.health(), "version": metrics.version, **figures, **more}

    def streams(self) -> Sequence[Mapping[str, object]]:
        from penstock.server.figures import facts  # not loaded before somebody looks

        return facts(self.engine)

    def views(self, vhost: str) -> Iterator[Mapping[str, object]]:
        """Views and conflated topics of a vhost as facts, by name."""
        shown = [one for one in self.engine.views.all_shown() if one.vhost == vhost]
        return (one.facts() for one in sorted(shown, key=lambda one: one.name))

    def renew(self, user: str) -> None:
        """Open connections of a user go on with the rights as they are now."""
        rights = self.users.rights(user)
        for session in self.server.amqp.sessions:
            if session.user == user and session.rights is not None:
                session.take_rights(rights)
