"""HTTP/1.1 read strictly, by uvicorn on a loop of ours: whoever serves it brings the application, and its listeners.

Strictly, so that nobody before us reads another request out of the same bytes.  In the server's own process, or in that
of its door (`front`).
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeAlias, cast
from urllib.parse import unquote_to_bytes

import h11
import orjson
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import Unavailable
from penstock.server.base.faults import reports
from penstock.server.doors.line import Ended
from penstock.server.http.calls import PARAMETERS_MOST
from penstock.server.sockets.listening import Entry, Listener
from penstock.server.sockets.tls_transport import cut_off, farewell, parted

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from penstock.server.sockets.strangers import Stranger
    from penstock.server.sockets.tls import Identity


LINES_MOST = 128
"""Lines of a request's head."""

_LINE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\n[ \t]|\0")
"""A bare LF, a bare CR (not the last byte so far), a line that continues the one before, a zero byte."""

_SIZE = re.compile(rb"[0-9A-Fa-f]*")

LENGTH_DIGITS, SIZE_DIGITS, SHOWN_DIGITS = 19, 16, 12
"""What a Content-Length and the size of a chunk may have, each below 2**64, and what a refusal shows of more."""

_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(/[^?]*)?(\?.*)?", re.IGNORECASE)
"""A target that names its host: that, the path and the query.  Source: RFC 9112, 3.2.2; RFC 9110, 4.2.4."""

_QUOTED = re.compile(r":? ?(?:bytearray\()?b['\"].*")
"""What h11 quotes of a stranger's words; a password may be among them."""

CHUNKS_MOST, CHUNK_LEAST = 10_000, 64
"""A body has so many chunks at most, and one more for each so many bytes: reading one takes 8 us, however small."""

P = ParamSpec("P")

Event: TypeAlias = "type[h11.NEED_DATA | h11.PAUSED] | h11.Event"


class StrictConnection(h11.Connection):
    """The server's side of one connection."""

    def __init__(self, head_most: int) -> None:
        """head_most: bytes of a request line with its headers, and of a chunk's line."""
        super().__init__(h11.SERVER, head_most)
        self.trusted = False  # bodies are read
        self._most = head_most
        self._unread = bytearray()  # what h11 has and has not taken yet
        self._judged = 0  # bytes of it that are no wrong lines
        self._chunked = False
        self._border: bytes | None = None  # where a chunk begins: what h11 has taken since the last one's data
        self._body = False  # of the present request: there is one
        self._chunks = self._sent = 0  # of it so far, and their bytes
        self._wrong: h11.RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        super().receive_data(data)
        self._unread += data

    def next_event(self) -> Event:
        """h11's.  Raises RemoteProtocolError, with the status to answer in `error_status_hint`."""
        if self._wrong is not None:
            raise self._wrong
        if self.their_state is h11.IDLE:
            return self._head()
        if self.their_state is h11.SEND_BODY:
            if self._body and not self.trusted:
                return h11.NEED_DATA
            if self._chunked:
                return self._piece()
        event, _ = self._next()
        return event

    @property
    def begun(self) -> bool:
        """Whether a request has begun and its headers have not ended."""
        return self.their_state is h11.IDLE and bool(self._unread)

    @property
    def withheld(self) -> bool:
        """Whether there is a body that is not read: its sender is not trusted."""
        return self._body and not self.trusted and self.their_state is h11.SEND_BODY

    def _next(self) -> tuple[Event, bytes]:
        """The next event, and the bytes that it took."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self._refuse(_QUOTED.sub("", str(error)), error.error_status_hint)
        size = len(self._unread) - len(self._receive_buffer)
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return event, taken

    def _head(self) -> Event:
        end = self._unread.find(b"\r\n\r\n", max(0, self._judged - 3))
        size = len(self._unread) if end < 0 else end
        if (wrong := _LINE.search(self._unread, max(0, self._judged - 2), size)) is not None:
            self._refuse(f"byte {wrong.start()} of the request ends or continues a line as none may be, or is zero")
        self._judged = size
        if size > self._most:
            self._refuse(f"the request line and the headers have {size} bytes, {self._most} are allowed", 431)
        if end >= 0 and (lines := self._unread.count(b"\r\n", 0, end)) > LINES_MOST:
            self._refuse(f"the request has {lines} headers, {LINES_MOST} are allowed", 431)
        sized = end >= 0 and self._sized(bytes(self._unread[:end]))
        event, _ = self._next()
        if isinstance(event, h11.Request):
            self._judged = 0
            self._judge(event, sized=sized)
            return self._placed(event)
        return event

    def _placed(self, request: h11.Request) -> h11.Request:
        """With a target that is a path; one that names its host says that better than the header does."""
        target = request.target
        if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
            return request
        if (found := _ABSOLUTE.fullmatch(target)) is None:
            self._refuse("what is asked for is neither a path nor an address with http or https")
        host, path, query = found.groups(b"")
        others = [(name, value) for name, value in request.headers if name != b"host"]
        target, headers = (path or b"/") + query, [(b"host", host), *others]
        return h11.Request(method=request.method, target=target, headers=headers, http_version=request.http_version)

    def _sized(self, head: bytes) -> bool:
        """Whether the request has a Content-Length."""
        lengths = [line[15:].strip() for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"]
        if len(lengths) > 1 or (lengths and b"," in lengths[0]):
            self._refuse("Content-Length is there twice")
        if lengths and not lengths[0].isdigit():
            self._refuse("Content-Length is no whole number of bytes")
        if lengths and (digits := len(lengths[0])) > LENGTH_DIGITS:
            few = f"{lengths[0][:SHOWN_DIGITS].decode()}..., {LENGTH_DIGITS} are allowed"
            self._refuse(f"Content-Length has {digits} digits, {few}")
        return bool(lengths)

    def _judge(self, request: h11.Request, *, sized: bool) -> None:
        if request.http_version not in {b"1.0", b"1.1"}:
            self._refuse(f"HTTP/{request.http_version.decode()} is not spoken here, HTTP/1.1 is", 505)
        if (parameters := request.target.count(b"&") + 1) > PARAMETERS_MOST:
            self._refuse(f"the query has {parameters} parameters, {PARAMETERS_MOST} are allowed", 414)
        try:
            unquote_to_bytes(request.target).decode()
        except UnicodeDecodeError as error:
            self._refuse(f"the path or the query is no UTF-8: {error.object[error.start : error.end].hex(' ')}")
        headers = dict(request.headers)
        if [name for name, _ in request.headers].count(b"authorization") > 1:
            self._refuse("Authorization is there twice")
        self._chunked = b"transfer-encoding" in headers
        if self._chunked and sized:
            self._refuse("Content-Length stands beside Transfer-Encoding")
        if self._chunked and request.http_version == b"1.0":
            self._refuse("HTTP/1.0 has no Transfer-Encoding")
        self._chunks = self._sent = 0
        self._border = b"\r\n"  # as behind a chunk
        self._body = self._chunked or int(headers.get(b"content-length", b"0")) > 0

    def _piece(self) -> Event:
        """The next of a chunked body."""
        if self._border is not None and (why := _wrong_at(self._border + self._unread[: SIZE_DIGITS + 6])):
            self._refuse(why)
        event, taken = self._next()
        if event is h11.NEED_DATA and self._border is not None:
            self._border += taken
        if isinstance(event, h11.Data):
            self._border = b"" if event.chunk_end else None
            self._chunks += event.chunk_start
            self._sent += len(event.data)
            if self._chunks > CHUNKS_MOST + self._sent // CHUNK_LEAST:
                few = f"{CHUNKS_MOST:,} are allowed, and one more for each {CHUNK_LEAST} bytes"
                self._refuse(f"{self._sent:,} bytes of the body came in {self._chunks:,} chunks: {few}")
        return event

    def _refuse(self, why: str, status: int = 400) -> NoReturn:
        self._wrong = h11.RemoteProtocolError(why, error_status_hint=status)
        raise self._wrong


def _wrong_at(border: bytes) -> str | None:
    """Why no chunk begins so: behind the line end of the one before, with a size alone, the last with an empty line."""
    size = _SIZE.match(border, 2)
    digits, rest = (b"", b"") if size is None else (size[0], border[size.end() :])
    if not b"\r\n".startswith(border[:2]):
        return "a chunk is longer than its size"
    if len(digits) > SIZE_DIGITS:
        few = f"{digits[:SHOWN_DIGITS].decode()}..., {SIZE_DIGITS} are allowed"
        return f"the size of a chunk has {len(digits)} digits or more, {few}"
    if rest and not digits:
        return "the size of a chunk is no number in hexadecimal digits"
    if not b"\r\n".startswith(rest[:2]):
        return "a chunk has more than a size"
    if digits and not int(digits, 16) and not b"\r\n".startswith(rest[2:4]):
        return "what follows the last chunk is no empty line"
    return None


KEPT_S = 75
"""For so long a connection waits for its next request: longer than load balancers keep theirs, which is a minute."""

SPARED = 4
"""Where descriptors are short one in so many of those that wait for a request ends at each look."""

DATED_S = 1.0
"""For so long an answer says the same time of day."""

REASON_MOST = 160
"""Characters of a reason that may quote a stranger."""


class HttpLink(H11Protocol):
    """A request finds its connection's `transport`, and this as `visitor`, in its scope under `state`."""

    derive = None
    """Who makes a digest of its password: nobody but this process."""

    def __init__(
        self, stranger: Stranger, *, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        assert config.h11_max_incomplete_event_size is not None
        self.conn: StrictConnection = StrictConnection(config.h11_max_incomplete_event_size)
        self._stranger = stranger
        self._deaf = False  # it was answered before its body was read, and nothing more is

    def known(self) -> None:
        """The application's: a request has logged in.  If it has a body that is read now."""
        self._stranger.known()
        if not self.conn.trusted:
            self.conn.trusted = True
            if not self._deaf and not self.transport.is_closing():
                self.flow.resume_reading()
                self._bounded(self.handle_events)

    @property
    def rests_until(self) -> float | None:
        """Until when it waits for its next request, by the loop's time, if it does."""
        timer = self.timeout_keep_alive_task
        idle = timer is not None and self.conn.our_state is h11.IDLE and not self.transport.is_closing()
        return timer.when() if timer is not None and idle else None

    @property
    def stands(self) -> bool:
        """Whether the client does not read: what is sent now waits."""
        return self.flow.write_paused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = cast("asyncio.Transport", transport)
        self._stranger.close, self._stranger.doing = partial(cut_off, own), ""
        super().connection_made(own)
        if self.client is None or self.server is None:  # it was reset before it was taken, and may have sent something
            own.abort()
        self.app_state = {**self.app_state, "transport": own, "visitor": self}

    def connection_lost(self, exc: Exception | None) -> None:
        self._stranger.gone()
        self._bounded(super().connection_lost, exc)
        last = cast("Any", self)
        last.cycle = last.scope = None  # they lead back here; no cycle is left for the collector
        last.app_state = {}
        self._unset_keepalive_if_required()
        parted(self.transport)

    def data_received(self, data: bytes) -> None:
        stranger = self._stranger
        if stranger.idle:
            stranger.again()
        stranger.heard(len(data))
        if self._deaf or self.transport.is_closing():
            return
        self._bounded(super().data_received, data)
        if self.conn.withheld:
            self.flow.pause_reading()
        if self.conn.begun and not stranger.counted and not self.transport.is_closing():
            stranger.again()

    def eof_received(self) -> None:
        """asyncio's: the client says nothing more."""
        farewell(self.transport)

    def on_response_complete(self) -> None:
        """uvicorn's: an answer is on its way."""
        if self._stranger.counted:
            self._deaf = self.conn.withheld
            self._stranger.again(idle=not self._deaf)
        self._bounded(super().on_response_complete)  # the next request may be here already
        if self._deaf and self.transport.can_write_eof():
            with suppress(OSError):  # it has gone already
                self.transport.write_eof()  # so that it hears the answer, and no reset while it sends

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's: nothing came for a while."""
        self._bounded(super().timeout_keep_alive_handler)

    def shutdown(self) -> None:
        self._bounded(super().shutdown)

    def send_400_response(self, msg: str) -> None:
        """uvicorn's, from within the handling of what h11 has raised: the peer does not speak HTTP/1.1 as one may."""
        error = sys.exception()
        why = str(error or msg)[:REASON_MOST]
        self._stranger.tell(why)
        if getattr(error, "error_status_hint", 0) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._stranger.beyond("bytes")
        cycle = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the application has nobody to answer any more
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # by hand: h11 may take it for the answer to a HEAD
            status = HTTPStatus(getattr(error, "error_status_hint", 400))
            body = orjson.dumps({"error": "bad_request", "reason": why})
            head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        self.transport.close()

    def _bounded(self, act: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
        """What goes wrong there ends this connection and no more."""
        try:
            act(*args, **named)
        except h11.ProtocolError as error:  # of ours: it did what cannot be answered any more
            self._stranger.tell(str(error)[:REASON_MOST])
            cut_off(self.transport)
        except MemoryError:  # not of this connection alone
            raise
        except Exception as error:  # noqa: BLE001 - the border of one connection: nothing else is touched behind it
            reports.tell(error, "http")
            cut_off(self.transport)


ENDING_S = 1.0
"""For what is being answered when the door closes."""

LOOK_S = 0.005


class _Served(uvicorn.Server):
    """uvicorn, which looks at its clock ten times a second for what it tells at once here: that it has to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """A date for each second, until it has to end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATED_S):
                    await self.stopping.wait()

    async def shutdown(self, sockets: object = None) -> None:
        """Connections that wait for a request end now, the others when they are answered, or their time is over."""
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(ENDING_S):
                while state.connections or state.tasks:  # noqa: ASYNC110 - once in a door's life
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()


async def _served_by(app: Any, scope: Any, receive: Any, send: Any) -> None:
    """One request.  Who is answered in part is cut off: he never takes it for the whole.  That is no fault."""
    transport = scope["state"]["transport"]
    try:
        await app(scope, receive, send)
    except Ended:
        cut_off(transport)
    while transport.is_closing() and (await receive())["type"] != "http.disconnect":
        pass


class HttpServer:
    """uvicorn without its own sockets and signals.  For one loop's thread."""

    def __init__(self, app: Any, head_most: int) -> None:
        """app: ASGI's.  head_most: bytes of a request's head."""
        config = uvicorn.Config(
            partial(_served_by, app),
            interface="asgi3",
            log_level="error",  # what strangers send is told by the guard, which counts the lines
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # `reception` reads them
            http=HttpLink,
            ws="none",  # whatever packages there are: its protocol would take strangers over, and the guard not know
            h11_max_incomplete_event_size=head_most,
            timeout_keep_alive=KEPT_S,
        )
        self._uvicorn = _Served(config)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Be ready for connections; twice does no harm."""
        if self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._serve())
        while not self._uvicorn.started:
            if self._task.done():
                raise Unavailable("the HTTP door did not open") from self._task.exception()
            await asyncio.sleep(0)

    def listener(self, entry: Entry, name: str, identity: Callable[[], Identity] | None = None) -> Listener:
        """One for a door of this name.  identity: what TLS shows, where there is TLS."""
        entry.guards.of(name).spare = self.spare
        return entry.listener(name, self._link, identity)

    def spare(self) -> None:
        """Descriptors are short: some that wait for their next request end, who has waited longest first."""
        links = cast("set[HttpLink]", self._uvicorn.server_state.connections)
        resting = [(until, one) for one in links if (until := one.rests_until) is not None]
        resting.sort(key=itemgetter(0))
        for _, one in resting[: -(-len(resting) // SPARED)]:
            one.timeout_keep_alive_handler()

    def stop(self) -> None:
        """What is being answered has a second; connections that wait for a request end at once."""
        self._uvicorn.should_exit = True
        self._uvicorn.stopping.set()

    @property
    def over(self) -> bool:
        """Whether it has stopped, or never began."""
        return self._task is None or self._task.done()

    async def ended(self) -> None:
        """Wait until it has stopped."""
        if self._task is not None:
            await self._task

    def _link(self, stranger: Stranger) -> asyncio.Protocol:
        """What uvicorn would make for a connection that it has accepted itself."""
        served = self._uvicorn
        state = served.lifespan.state
        return HttpLink(stranger, config=served.config, server_state=served.server_state, app_state=state)

    async def _serve(self) -> None:
        await self._uvicorn._serve([])  # pyright: ignore[reportPrivateUsage]  # `serve` takes signals
