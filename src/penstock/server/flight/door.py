"""The Flight door's inside: what each kind of call leads to.  gRPC and Arrow's reader are in a process of their own.

It counts how many streams run, parses the command, and hands over to `publish`, `consume`, `history`, `contents`,
`stages` and `actions`.  A call has a thread (`entrance`), which never touches the core; the loop never waits for it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, cast

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, Unavailable
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import as_json
from penstock.server.bulk.log_upkeep import Upkeep
from penstock.server.bulk.relay import Relay
from penstock.server.flight.call_streams import Answers, FromDoor, Sent
from penstock.server.flight.calls import Caller, Calls, Intake, Slot
from penstock.server.flight.consume import Exchange
from penstock.server.flight.copier import Copier
from penstock.server.flight.decided import GroupLimits
from penstock.server.flight.doget import EventOutlet, Reads
from penstock.server.flight.entrance import Entrance, Info
from penstock.server.flight.gatekeeper import Gatekeeper
from penstock.server.flight.handover import Handover, Piece
from penstock.server.flight.log_actions import Actions, Locating, hold_action, sow_delete, upkeep_actions
from penstock.server.flight.publish import Publishing
from penstock.server.flight.sink_stages import Stages
from penstock.server.flight.stream_actions import RangeActions, replay_actions
from penstock.server.flight.transacting import Transacting
from penstock.server.sql.queries import Queries, SqlLimits
from penstock.server.upkeep.retention import Holds
from penstock.wire.flight.commands import (
    CONTENT_DEFAULT,
    DEFAULT_VHOST,
    MESSAGES,
    RECORDS,
    RECORDS_DEFAULT,
    REPLAY_DEFAULT,
    Link,
    Publish,
    Transact,
    select,
)
from penstock.wire.flight.received import Bounds
from penstock.wire.flight.tickets import command, parse_exchange, parse_get, parse_put

if TYPE_CHECKING:
    from penstock.memory import Held
    from penstock.ports import Disk
    from penstock.server.bulk.process import Bulk
    from penstock.server.engine import Engine
    from penstock.server.flight.followed import PageOutlet
    from penstock.server.links.links import Links
    from penstock.server.links.receiving import Incoming
    from penstock.server.people.logins import Logins


SWEEP_BEATS = 600
"""Stages are swept every so many beats of a second."""


@dataclass(frozen=True, slots=True)
class FlightLimits:
    """What the door allows."""

    streams: int = 64  # open at once: each has a thread
    stalled_s: float = 60.0  # nothing moves for so long: the stream no longer counts among those
    bounds: Bounds = field(default_factory=Bounds)
    stage_quota: int = 4 * 2**30
    group: GroupLimits = field(default_factory=GroupLimits)
    sql: SqlLimits = field(default_factory=SqlLimits)


VIEW_BYTES_LEAST = 64 << 20
"""What all that is asked for with a projection may take, however little memory there is."""


class FlightDoor:
    """All Flight calls of a server.  Make it on the loop's thread, before `listen`."""

    def __init__(
        self,
        engine: Engine,
        people: Logins,
        vhosts: Container[str],
        disk: Disk,
        *,
        wake: Callable[[Callable[[], None]], object],
        limits: FlightLimits | None = None,
        bulk: Bulk | None = None,
        entrance: Entrance | None = None,
        scratch: str | None = None,
    ) -> None:
        """`wake`: `loop.call_soon_threadsafe`.  `disk`: the data folder, for stages.  `bulk`: where large reads run.

        `entrance`: where calls wait already, if it listens.  `scratch`: a folder of this machine where SQL puts aside
        what does not fit into its memory; a temporary one by default.
        """
        self.engine = engine
        self.limits = limits or FlightLimits()
        self.handover = Handover(engine, wake)
        shares = engine.shares
        self.entrance = entrance or Entrance(people, shares=shares, bounds=self.limits.bounds)
        shares.of("view_bytes").bound(max(VIEW_BYTES_LEAST, engine.bodies.budget.limit // 2))
        intake = Intake(engine.bodies.budget.limit)
        self.calls = Calls(intake, self.limits.streams, self.limits.stalled_s, shares)
        engine.bodies.budget.hold("uploads", intake)
        self.stages = Stages(disk, engine.clock, self.limits.bounds, self.limits.stage_quota, intake, shares)
        self.copier = Copier(self.handover, self.stages, disk, self.limits.group)
        self.gate = Gatekeeper(self.handover, vhosts, people.who)
        self.actions = Actions(self.handover, self.stages, self.copier, self.calls, self.gate)
        self.actions.table["sow_delete"] = sow_delete(self.handover)
        self.publishing = Publishing(self.handover, self.limits.bounds, self.gate, self.limits.streams // 2)
        relay = Relay(bulk, engine.log, engine.past, engine.archive) if bulk is not None else None
        self.ranges = RangeActions(self.handover, self.actions, self.gate, relay)
        self.actions.table |= self.ranges.table
        if bulk is not None:
            upkeep = Upkeep(bulk, engine, self.handover, self.stages, engine.core.instance)
            self.actions.table |= upkeep_actions(upkeep)
        self.exchanges = set[Exchange]()
        self.transacting = Transacting(self.handover, self.limits.bounds, self.gate, lambda: list(self.exchanges))
        self.reads = Reads(self.handover, self.gate, relay)
        self.following, self.watching, self.viewing = self.reads.following, self.reads.watching, self.reads.viewing
        self.queries = Queries(self.handover, self.reads.table, scratch, self.limits.sql, shares)
        self.reads.queries = self.queries
        self.actions.table |= replay_actions(self.handover, self.following)
        engine.bodies.budget.watch("flight", self._queued)
        engine.relief.register("flight", self._held)
        self.closing = False
        self.links: Callable[[], Links] = _unlinked  # made when the first is wanted
        self._beats = 0
        engine.on_broken.append(self._broken)
        engine.readers.append(self.calls.floor)
        engine.on_left_out.append(self.calls.left_out)
        self.holds = Holds(engine.clock, shares.of("holds"))
        self.actions.table["hold"] = hold_action(self.handover, self.holds)
        self.actions.table |= Locating(self.handover, disk).table
        engine.readers.append(self.holds.floor)

    # -- the loop's thread

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to accept; returns the address that was bound.  Raises OSError."""
        bound = self.entrance.listen(host, port)
        self.open()
        return bound

    def open(self) -> None:
        """Let in who waits at the entrance, and who comes."""
        self.entrance.open(self)

    def _queued(self) -> int:
        """Bytes of deliveries that wait for clients to read them."""
        if not (self.exchanges or self.following.open or self.watching.open):
            return 0
        return sum(one.queued for one in self._readers())

    def _readers(self) -> list[Exchange | PageOutlet | EventOutlet]:
        return [*list(self.exchanges), *list(self.following.open), *list(self.watching.open)]

    def _held(self) -> Iterator[Held]:
        """The same of each, for when memory is short."""
        return (one.held() for one in self._readers())

    def beat(self) -> None:
        """Once a second: silent consumers lose their leases, still streams their places, old stages go."""
        now = self.engine.clock.mono()
        for exchange in list(self.exchanges):
            exchange.beat(now)
        self.calls.beat()
        self.ranges.tell_abandoned()
        self.queries.beat()
        self._beats += 1
        if self._beats % SWEEP_BEATS == 0:
            threading.Thread(target=self.stages.sweep, name="penstock-stage-sweep", daemon=True).start()  # files go
        self.engine.arm()

    def stop(self) -> None:
        """End consumers and refuse new calls; `close` follows, in a thread, while the loop still runs."""
        self.closing = True
        for exchange in list(self.exchanges):
            exchange.end(Unavailable("the server stops"))
        self.publishing.stop()
        self.following.stop()
        self.watching.stop()
        self.queries.close()
        self.engine.arm()

    def shut(self) -> None:
        """The loop runs no more jobs: whoever still waits is told."""
        self.handover.close("the server stops")

    def _broken(self, reason: str) -> None:
        for exchange in list(self.exchanges):
            exchange.log_broken(reason)

    # -- any other thread

    def close(self, timeout: float = 5.0) -> bool:
        """Stop listening and wait for running calls, at most so many seconds; whether all have ended.

        pyarrow waits for every call, and a call whose client stands still does not end: then a thread stays behind.
        """
        self.copier.stop(timeout)
        return self.entrance.close(timeout)

    # -- the threads of calls

    def put(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None:
        """DoPut: publish, transact or stage, as the command says; answers go back by the writer."""
        with self._streaming(caller) as slot:
            wanted = parse_put(command)
            self.gate.admit(caller, wanted)
            arriving = FromDoor(sent, slot, self.limits.bounds)
            if isinstance(wanted, Publish):
                self.publishing.serve(caller, arriving, wanted, writer)
            elif isinstance(wanted, Transact):
                self.transacting.serve(caller, arriving, wanted, writer)
            else:
                stage, rows = self.stages.write(caller, arriving, wanted, self.gate)
                self.actions.have_copied(caller, [stage])
                writer.write(orjson.dumps({"stage": stage, "rows": rows}))

    def get(self, caller: Caller, ticket: bytes) -> tuple[pa.Schema, Iterator[Piece]]:
        """DoGet: what the ticket names, as a stream that holds the log from its first LSN on."""
        slot = self._enter(caller)
        try:
            slot.floor = self.engine.past.first_lsn  # nothing is deleted under a reader
            return self.reads.get(caller, slot, parse_get(ticket))
        except BaseException:
            slot.close()
            raise

    def exchange(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None:
        """DoExchange: a consumer, or a link of another site, until it or the server leaves."""
        with self._streaming(caller) as slot:
            wanted = parse_exchange(command)
            self.gate.admit(caller, wanted)
            if isinstance(wanted, Link):
                self._linked(caller, wanted, slot).serve(FromDoor(sent, slot, self.limits.bounds), writer)
                return
            stream = Exchange(self.handover, caller, wanted, slot)
            self.exchanges.add(stream)
            try:
                stream.serve(FromDoor(sent, slot, self.limits.bounds), writer, secrets.token_hex(8))
            finally:
                self.exchanges.discard(stream)

    def _linked(self, caller: Caller, wanted: Link, slot: Slot) -> Incoming:
        from penstock.server.links.receiving import Incoming  # most servers have none

        links = self.handover.call(self.links, caller.gone, durable=False)
        return Incoming(links, self.handover, caller, wanted, slot, self.limits.bounds)

    def act(self, caller: Caller, name: str, body: bytes) -> bytes:
        """DoAction: one JSON object for one JSON object."""
        with self._call(caller):
            return as_json(self.actions.run(caller, name, body))

    def known(self, caller: Caller) -> list[tuple[str, str]]:
        """ListActions: name and sentence of all of them, whatever the user may do."""
        with self._call(caller):
            return [(name, action.text) for name, action in self.actions.table.items()]

    def listing(self, caller: Caller, criteria: bytes) -> list[Info]:
        """ListFlights: every queue of the vhost that the criteria name, the default one without."""
        vhost = criteria.decode(errors="replace") or DEFAULT_VHOST
        with self._call(caller):
            asked = orjson.dumps({"vhost": vhost})
            queues = cast("list[dict[str, object]]", self.actions.run(caller, "list", asked)["queues"])
            views = self.handover.call(lambda: self.viewing.flights(caller, vhost), caller.gone, durable=False)
            return [*map(queue_info, queues), *views]

    def info(self, caller: Caller, command: bytes, path: list[str]) -> Info:
        """GetFlightInfo: of a queue by path ["queue", name] or [vhost, "queue", name], or of any DoGet command.

        A declared topic by ["topic", name] or [vhost, "topic", name], name as `E/K` or `K`: its messages; what is
        declared of their bodies is the schema's metadata `penstock.schema`.
        """
        with self._call(caller):
            return self._info(caller, command, path)

    def _info(self, caller: Caller, asked_for: bytes, path: list[str]) -> Info:
        if asked_for:
            return Info(self.reads.schema(caller, parse_get(asked_for)), (), asked_for)
        if len(path) == 2:
            path = [DEFAULT_VHOST, *path]
        if len(path) != 3 or path[1] not in ("queue", "topic"):
            raise InvalidArgument('the path of a flight is ["queue", name], ["topic", name] or [vhost, "queue", name]')
        vhost, name = path[0], path[2]
        if path[1] == "topic":
            exchange, key = parted(self.engine.core.topology.topics, vhost, name)
            asked = orjson.dumps({"topic": key, "exchange": exchange, "vhost": vhost})
            return topic_info(self.actions.run(caller, "topic", asked), vhost, exchange, key)
        return queue_info(self.actions.run(caller, "stats", orjson.dumps({"queue": name, "vhost": vhost})))

    def _enter(self, caller: Caller) -> Slot:
        self.engine.announce_guest()
        self._refuse_when_closing()
        return self.calls.stream(caller)

    @contextmanager
    def _streaming(self, caller: Caller) -> Generator[Slot]:
        """The place of a call that is a stream, for as long as this lasts."""
        with closing(self._enter(caller)) as slot:
            yield slot

    @contextmanager
    def _call(self, caller: Caller) -> Generator[None]:
        """A call that is no stream counts as his who makes it, for as long as this lasts."""
        self._refuse_when_closing()
        with self.calls.working(caller.who):
            yield

    def _refuse_when_closing(self) -> None:
        if self.closing:
            raise Unavailable("the server stops")


def _unlinked() -> Links:
    raise Unavailable("this server takes no links")


def parted(declared: Container[tuple[str, str, str]], vhost: str, name: str) -> tuple[str, str]:
    """Exchange and key of a topic as people write it, `K` or `E/K`; a declared one may have a slash in its key."""
    exchange, slash, key = name.partition("/")
    return ("", name) if not slash or (vhost, "", name) in declared else (exchange, key)


def topic_info(told: Mapping[str, object], vhost: str, exchange: str, name: str) -> Info:
    """What the action `topic` told, as a flight: a topic's messages, or the rows of a view."""
    if told["kind"] == "topic":
        schema, ticket = select(MESSAGES, REPLAY_DEFAULT), command("replay", topic=name, exchange=exchange, vhost=vhost)
    else:
        schema, ticket = select(RECORDS, RECORDS_DEFAULT), command("sow", topic=name, vhost=vhost)
    if isinstance(ddl := told.get("schema"), str):
        schema = schema.with_metadata({"penstock.schema": ddl})
    return Info(schema, (vhost, "topic", f"{exchange}/{name}" if exchange else name), ticket)


def queue_info(counts: Mapping[str, object]) -> Info:
    """A queue as a flight: its ready messages."""
    name, vhost, ready = str(counts["queue"]), str(counts["vhost"]), counts["ready"]
    ticket = command("queue", name=name, vhost=vhost)
    rows = ready if isinstance(ready, int) else -1
    return Info(select(MESSAGES, CONTENT_DEFAULT), (vhost, "queue", name), ticket, rows)
