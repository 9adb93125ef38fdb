"""pyarrow's server in the door's process: each call, from gRPC's thread to a line of the server and back.

gRPC's thread   CALL -> WELCOME; then what the server asks for is read from the client and judged (`arriving`)
a second one    of a consumer: what the server sends is written to the client, while the first one reads
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import logging
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, cast

import orjson
import pyarrow as pa
from pyarrow import flight

from penstock.errors import InvalidArgument, PenstockError, Unavailable, told_as
from penstock.server.doors.columns import batch_here
from penstock.server.doors.line import ABOUT_MOST, BEGUN, Ended, Frame, Kind, Lines, with_head
from penstock.server.flight.connections import Connections, Strangers, host_and_port
from penstock.server.flight.crowding import Crowding
from penstock.server.flight.remote_call import AnyHandshake, Call, Credentials, Failed, Logins, reported, writing
from penstock.server.flight.senders import Holder, Living, Peer
from penstock.server.flight.uploads import Down, Uploads
from penstock.units import format_address
from penstock.wire.fields import COMMAND_LIMIT
from penstock.wire.flight.commands import Link, Stage
from penstock.wire.flight.linking import LINKED
from penstock.wire.flight.received import PUBLISHED, SETTLED, STAGED, STAGED_IN_ORDER, TRANSACTED, Bounds, Layout
from penstock.wire.flight.tickets import parse_exchange, parse_put

logger = logging.getLogger("penstock.flight")

NOTHING: Mapping[str, object] = {}

NAMED_MOST = 60
"""Letters of the name of what is asked for that a refusal says again."""

ENDED = b'{"ended":'
"""How the words begin that are an exchange's last: its client ends his half at them."""

CUT_S, LOOK_S = 3.0, 0.02
"""How long calls may take to end whose connection was cut, and how often it is looked whose may be cut."""

AHEAD_MOST = 16
"""Uploads whose first piece is waited for before the server has heard of them: it counts those that stand still."""

REBIND_S = 5.0
REBIND_PAUSE_S = 0.002
"""How long the port of a server that makes room for another may be taken before it is told, and between tries."""


class Server:
    """All of gRPC's ports, and the calls that come there."""

    def __init__(
        self,
        lines: Lines,
        strangers: Strangers,
        bounds: Bounds,
        left: Callable[[list[Peer]], None],
        *,
        alone: bool = False,
    ) -> None:
        """left: told of connections that had logged in, and have ended.  alone: the process is a door, nothing else."""
        self.lines = lines
        self.bounds = bounds
        self.left = left
        self.logins = Logins(partial(self._says, "wrong"), partial(self._says, "right"))
        crowding = Crowding(self._under_way) if alone else None
        if crowding is not None:
            self.logins.begun = crowding.begun
        self.connections = Connections(strangers, left, crowding, bounds.batch_bytes)
        self._servers = dict[str, _Server]()  # by door
        self._tls_at = ("", 0)
        self._tls_wanted: dict[str, Any] | None = None  # the newest
        self._tls_shown: dict[str, Any] | None = None
        self._ending = list[threading.Thread]()  # servers that listen no more, until their last call is over
        self._alone = alone
        self._kept = list[_Server]()  # those that listen no more, for good
        self._closed = threading.Event()
        self._renewing = threading.Lock()
        self._ahead = Living()

    def _under_way(self) -> int:
        """Threads of calls that have said who they are: one each, and of some a second one."""
        return self.logins.under_way() + Down.running.count()

    def listen(self, door: str, host: str, port: int, tls: dict[str, Any] | None, *, again: bool) -> int:
        """Start to accept; the port that was bound.  OSError.  again: it was this door's, and may be taken still."""
        until = time.monotonic() + (REBIND_S if again else 0.0)
        made: _Server | None = None
        while made is None:
            try:
                made = self._made(host, port, tls)
            except OSError:
                if time.monotonic() >= until or self._closed.wait(REBIND_PAUSE_S):
                    raise
        self._servers[door] = made
        if tls is not None:
            self._tls_at = host, made.port
        self.connections.watch(made.port, door)
        return made.port

    def _made(self, host: str, port: int, tls: dict[str, Any] | None) -> _Server:
        scheme, options = "grpc", dict[str, Any]()
        if tls is not None:
            scheme = "grpc+tls"
            options["tls_certificates"] = [(tls["chain"].encode(), tls["key"].encode())]
            if tls["ca"] is not None:
                options |= {"verify_client": True, "root_certificates": tls["ca"].encode()}
        try:
            return _Server(self, f"{scheme}://{format_address(host, port)}", options)
        except (flight.FlightError, pa.ArrowException) as error:
            raise OSError(0, f"Flight cannot listen there: {str(error)[:200]}") from error

    def renew(self, tls: dict[str, Any]) -> None:
        """Show another certificate from now on.  In a thread of its own: it may wait for the port.

        gRPC's server keeps the certificate it began with, so another one takes its place at the same port: calls under
        way go on with the old one until they end, clients that stay connected come to the new one with their next call.
        Between the two the port is closed for about a millisecond.  Where it stays closed longer the newest is shown.
        """
        self._tls_wanted = tls
        with self._renewing:
            before = self._servers.get("flight_tls")
            if before is None or self._closed.is_set() or self._tls_shown is self._tls_wanted:
                return
            self._end(before)
            until, told = time.monotonic() + REBIND_S, False
            while not self._closed.is_set():
                wanted = self._tls_wanted
                try:
                    self._servers["flight_tls"] = made = self._made(*self._tls_at, wanted)
                    self._tls_shown = wanted
                    self.connections.watch(made.port, "flight_tls")
                    return
                except OSError as error:
                    if time.monotonic() > until and not told:
                        told = True
                        logger.error("flight_tls: the port was lost while the certificate was renewed: %s", error)
                    self._closed.wait(REBIND_PAUSE_S if not told else REBIND_S)

    def _end(self, server: _Server) -> None:
        """Let it listen no more.

        pyarrow frees a server while it has Python's lock, and after attacks that may wait for ever for what wants the
        lock: the door stood still then.  So a process that is a door frees none: 22 KiB for each certificate.
        """
        if self._alone:
            self._kept.append(server)
        self._ending = [one for one in self._ending if one.is_alive()]
        thread = threading.Thread(target=server.shutdown, name="penstock-flight-stop", daemon=True)
        thread.start()
        self._ending.append(thread)

    def close(self, timeout: float) -> bool:
        """Stop listening and wait for running calls, at most so many seconds; whether all have ended then.

        pyarrow waits for every call, and a call whose client stands still or does not end its half of a stream never
        ends.  Where all that came has its answer the connection is cut at once.  After that time all are, and what
        runs on them ends with them.
        """
        self._closed.set()
        until = time.monotonic() + timeout
        with self._renewing:
            servers, self._servers = self._servers, {}
            for server in servers.values():
                self._end(server)
        self.connections.cut_strangers(time.monotonic())  # they have no call, and pyarrow waits for them, too
        while not self._over(min(LOOK_S, until - time.monotonic())) and time.monotonic() < until:
            self.connections.cut_those(self.logins.at_rest())
        if not self._over():
            logger.info("%d Flight connections are cut: their calls did not end", self.connections.cut_all())
            self._over(CUT_S)
        self.connections.end()
        return self._over()

    def _over(self, seconds: float = 0.0) -> bool:
        """Whether the calls of all that listen no more have ended, in so many seconds at most."""
        until = time.monotonic() + seconds
        for thread in self._ending:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._ending)

    def strangers(self) -> tuple[dict[str, int], Counter[tuple[str, str]]]:
        """Connections without a login by door, and those that were sent away, by door and why."""
        return self.connections.there(), Counter(self.connections.closed)

    # -- gRPC's threads

    @contextmanager
    def call(
        self,
        context: Any,
        what: str,
        blob: bytes | memoryview = b"",
        more: Mapping[str, object] = NOTHING,
        ahead: Callable[[Call], None] | None = None,
    ) -> Generator[Call]:
        """A call that the server has let in.  more: what it tells of itself.  ahead: as of `Call.begin`."""
        with closing(self._begun(context, what, blob, more, ahead)) as call:
            yield call

    def begun(self, context: Any, what: str, blob: bytes) -> Call:
        """The same, to be closed by whoever reads it."""
        return self._begun(context, what, blob, NOTHING)

    def _begun(
        self,
        context: Any,
        what: str,
        blob: bytes | memoryview,
        more: Mapping[str, object],
        ahead: Callable[[Call], None] | None = None,
    ) -> Call:
        name = str(more.get("name", what))[:NAMED_MOST]
        if len(blob) > COMMAND_LIMIT:
            raise InvalidArgument(f"{name} has {len(blob)} bytes of JSON; at most {COMMAND_LIMIT} are read")
        credentials = cast("Credentials", context.get_middleware("login"))
        host, port = credentials.place.peer = _peer(context)
        about = {"call": what, "user": credentials.user, "password": credentials.password, **more}
        about |= {"peer": format_address(host, port), "host": host, "port": port}
        if (size := sum(map(len, with_head(about)))) > ABOUT_MOST:  # else the server cuts off the whole door
            said = f"{name}: its name or path, user and password have {size} bytes as JSON"
            raise InvalidArgument(f"{said}; at most {ABOUT_MOST} are read")
        call = Call(self.lines, context, credentials.place)
        try:
            call.begin(about, blob, ahead)
        except BaseException as error:
            call.close()
            if isinstance(error, Failed) and error.told[0] == "unauthenticated":
                self.logins.delay()
            elif not isinstance(error, Failed) and not self.connections.is_known((host, port)):
                self.left([(host, port)])  # the server may have counted it
            raise
        self.logins.proven(credentials)
        self.connections.known((host, port), len(blob))
        return call

    def _says(self, what: str, user: str, password: str) -> bool:
        """Whether the server finds a login wrong, or right; False where it does not answer."""
        try:
            with closing(Call(self.lines, None)) as call:
                return call.ask({"call": what, "user": user, "password": password}) == b"true"
        except (Failed, Ended, Unavailable):
            return False

    def put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = _command(descriptor)
        layout = _layout(command)
        peer, began = _peer(context), list[Uploads]()

        def uploads_of(call: Call) -> Uploads:
            return Uploads(call, reader, layout, self.bounds, context, came, self._closed.is_set)

        def ahead(call: Call) -> None:
            began.append(uploads_of(call))
            began[0].begin()

        with self.connections.senders.uploading(peer) as came:
            # Somebody who was let in before is hardly refused: he may hear of it with his first batch.
            likely, waits = peer in self.connections.senders and layout is not TRANSACTED, Holder()
            likely = likely and self._ahead.take(waits, AHEAD_MOST)
            with self.call(context, "put", command, ahead=ahead if likely else None) as call:
                waits.over = True
                uploads = began[0] if began else uploads_of(call)
                while (frame := call.next()).kind is not Kind.DONE:
                    if frame.kind is Kind.WORDS:
                        with writing():
                            writer.write(pa.py_buffer(frame.payload))
                    elif frame.flags & BEGUN:
                        uploads.begin()
                    else:
                        uploads.go_on()

    def get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        with ExitStack() as refused:
            call = refused.enter_context(closing(self.begun(context, "get", ticket.ticket)))
            schema = pa.ipc.read_schema(pa.py_buffer(call.next().payload))
            stream = flight.GeneratorStream(schema, cast("Any", Rows(call, schema)))
            refused.pop_all()
        return stream

    def exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = _command(descriptor)
        layout = _said_by(command)
        with (
            self.call(context, "exchange", command) as call,
            self.connections.senders.uploading(_peer(context)) as came,
        ):
            schema = list[pa.Schema]()

            def told(frame: Frame) -> None:
                if frame.kind is Kind.SCHEMA:
                    schema.append(pa.ipc.read_schema(pa.py_buffer(frame.payload)))
                    writer.begin(schema[0])
                elif frame.kind is Kind.BATCH:
                    batch, _ = batch_here(frame, schema[0])
                    writer.write_batch(batch)
                elif frame.kind is Kind.WORDS:
                    writer.write_metadata(pa.py_buffer(frame.payload))
                    if bytes(frame.payload[: len(ENDED)]) == ENDED:
                        call.place.told_at = time.monotonic()

            while (frame := call.next()).kind is not Kind.MORE:
                if frame.kind is Kind.DONE:
                    return
                told(frame)
            uploads = Uploads(call, reader, layout, self.bounds, context, came, self._closed.is_set)
            down = Down(call, told)
            down.start()
            try:
                while uploads.go_on() and down.asked():
                    pass
            except Ended:
                pass  # the other thread knows why
            except BaseException:
                call.cut()
                raise
            finally:
                down.join()
            if down.error is not None:
                raise down.error

    def ask(self, context: Any, what: str, blob: bytes | memoryview = b"", **more: object) -> bytes:
        """A call that is no stream."""
        with self.call(context, what, blob, more) as call:
            return bytes(call.next().payload)

    def infos(self, told: bytes, asked: Any = None) -> list[flight.FlightInfo]:
        found = orjson.loads(told)
        schemas = [pa.ipc.read_schema(pa.py_buffer(b64decode(one))) for one in found["schemas"]]
        out = list[flight.FlightInfo]()
        for place, path, ticket, rows in found["infos"]:
            about = flight.FlightDescriptor.for_path(*path) if path else asked
            ends = [flight.FlightEndpoint(flight.Ticket(ticket.encode()), [])]
            out.append(flight.FlightInfo(schemas[place], about, ends, rows, -1))
        return out

    def info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        path = [part.decode(errors="replace") for part in descriptor.path or []]
        [found] = self.infos(self.ask(context, "info", descriptor.command or b"", path=path), descriptor)
        return found


class Rows(Iterator[Any]):
    """The rows of an answer, as they come."""

    def __init__(self, call: Call, schema: pa.Schema) -> None:
        self._call = call
        self._schema = schema

    def __next__(self) -> Any:
        with reported():
            try:
                frame = self._call.next()
            except BaseException:
                self._call.close()
                raise
        if frame.kind is Kind.DONE:
            self._call.close()
            raise StopIteration
        batch, words = batch_here(frame, self._schema)
        return batch if words is None else (batch, words)


def _peer(context: Any) -> Peer:
    """Who calls."""
    said: Any = context.peer()
    return host_and_port(said.decode() if isinstance(said, bytes) else str(said))


def _command(descriptor: Any) -> bytes:
    if descriptor.descriptor_type != flight.DescriptorType.CMD or not descriptor.command:
        raise InvalidArgument("the descriptor must be a command: a JSON object that names the operation")
    return cast("bytes", descriptor.command)


def _layout(command: bytes) -> Layout:
    """What an upload brings; of a command that the server will refuse anything."""
    try:
        wanted = parse_put(command)
    except PenstockError:
        return PUBLISHED
    if isinstance(wanted, Stage):
        return STAGED_IN_ORDER if wanted.ordered else STAGED
    return TRANSACTED if type(wanted).__name__ == "Transact" else PUBLISHED


def _said_by(command: bytes) -> Layout:
    """What the client of an exchange brings; of a command that the server will refuse anything."""
    try:
        return LINKED if isinstance(parse_exchange(command), Link) else SETTLED
    except PenstockError:
        return SETTLED


class Refusal(Exception):  # clients read this name
    """What GetSchema raises: of that alone pyarrow makes no status, and sends the traceback behind the text.

    A traceback that cannot be written is left out.
    """

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]  # whoever writes a traceback asks
        raise AttributeError("the traceback is nobody's business outside")


class _Server(flight.FlightServerBase):
    """pyarrow's server: each method runs in a thread of its own.  (The stubs have some results wrong: hence Any.)"""

    def __init__(self, server: Server, location: str, tls: dict[str, Any]) -> None:
        self._calls = server
        super().__init__(location, auth_handler=AnyHandshake(), middleware={"login": server.logins}, **tls)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with reported():
            self._calls.put(context, descriptor, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        with reported():
            return self._calls.get(context, ticket)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with reported():
            self._calls.exchange(context, descriptor, reader, writer)

    def do_action(self, context: Any, action: Any) -> Any:
        with reported():
            body = b"" if action.body is None else memoryview(action.body)  # it may be long: that is refused uncopied
            return [flight.Result(pa.py_buffer(self._calls.ask(context, "act", body, name=action.type)))]

    def list_actions(self, context: Any) -> Any:
        with reported():
            return [flight.ActionType(*one) for one in orjson.loads(self._calls.ask(context, "known"))]

    def list_flights(self, context: Any, criteria: Any) -> Iterator[flight.FlightInfo]:
        with reported():
            return iter(self._calls.infos(self._calls.ask(context, "listing", criteria)))

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with reported():
            return self._calls.info(context, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with told_as(Refusal, instead=flight.FlightError), reported():
            return flight.SchemaResult(self._calls.info(context, descriptor).schema)
