"""Clients of a door that is a process: the machine and the link of each, and what of all gathers for the core.

link -> Hosted.receive: machine -> rows and events -> the house, which gathers over all clients
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import orjson

from penstock.errors import InvalidArgument
from penstock.records.one_or_each import each
from penstock.server.amqp import way
from penstock.server.amqp.links import SHORT_US, Guarded, Link
from penstock.server.amqp.way import Up
from penstock.server.doors.line import with_head
from penstock.wire.amqp import events
from penstock.wire.amqp.conversation import PAUSED
from penstock.wire.amqp.frames import SYNTAX_ERROR
from penstock.wire.amqp.publishes import ACK, ACK_FRAME, PUBLISH, SMALL

if TYPE_CHECKING:
    from penstock.server.base.rounds import Turns
    from penstock.wire.amqp.events import AckRun
    from penstock.wire.amqp.machine import ServerConnection
    from penstock.wire.amqp.methods import Method

FEW = 16
"""Messages of one read that go with those of others."""

FEW_BYTES = 64 << 10

TARGETS_MOST = 1000
"""Numbers of one session, beyond which they begin anew; the core takes a few more."""

PARTIAL_STEP = 64 << 10
"""The core is told of bytes of bodies begun when they have changed by so much, or are none any more."""

MOST = 1 << 20
"""Bytes gathered beyond which whoever brings more is not read."""

ENDS: Mapping[type[events.Event], Up] = {
    events.ChannelClosed: Up.CHANNEL_CLOSED, events.ChannelFailed: Up.CHANNEL_FAILED,
}  # fmt: skip
"""What the core is told where a channel ends."""

CORE, GATHERS, ASKS, TURN = 1, 2, 4, 8
"""Why a client is not read: the core says so, too much gathers, the core is asked about it, the others have their turn.
"""


def _acks() -> way.Rows:
    return way.Rows(Up.ACKS, way.ACKS)


class Gathered:
    """What one door has for the core: frames in order, and open columns of rows of many clients at their end.

    Nothing of one client changes places.  Acks go before messages, as in `gathering`: those of clients that have
    messages in the same columns go behind them.
    """

    def __init__(self) -> None:
        self._round = 1  # number of the open columns
        self._out = list[bytes]()  # closed frames
        self._size = 0  # bytes of them
        self._before, self._behind, self._messages = _acks(), _acks(), way.Messages()

    @property
    def full(self) -> bool:
        """Whether more gathers than should."""
        return self._size + self._messages.size > MOST

    def message(self, one: Hosted, place: int, header: bytes, body: bytes) -> None:
        """A message among those of others; place: the number of its target."""
        if one.acked == self._round or len(self._messages) >= way.ROWS_MOST or self._messages.size > MOST:
            self.close()
        self._messages.add(one.number, place, header, body)
        one.gathered = self._round

    def acks(self, one: Hosted, run: AckRun) -> None:
        """Acks among those of others."""
        acks = self._before
        if one.gathered == self._round:
            one.acked, acks = self._round, self._behind
        for low, high in run.spans:
            acks.rows.append((one.number, run.channel, low, high))

    def add(self, pieces: Sequence[bytes]) -> None:
        """A frame, behind all that came before."""
        self.close()
        self.put(pieces)

    def put(self, pieces: Sequence[bytes]) -> None:
        """The same before the open columns: a name for what is yet to come."""
        self._out += pieces
        self._size += sum(map(len, pieces))

    def close(self) -> None:
        """What comes next comes behind the open columns."""
        if self._messages or self._before.rows or self._behind.rows:
            self.put(self._before.pieces())
            if self._messages:
                self.put(self._messages.pieces())
            self.put(self._behind.pieces())
            self._before, self._behind, self._messages = _acks(), _acks(), way.Messages()
            self._round += 1

    def take(self) -> list[bytes]:
        """All that has gathered, which begins anew."""
        self.close()
        out, self._out, self._size = self._out, [], 0
        return out


class House(Protocol):
    """All clients of the door."""

    gathered: Gathered
    dirty: list[Hosted]
    """Those whose machines have something to say."""
    mono: Callable[[], int]
    turns: Turns
    failed: Callable[[Exception], object]
    """Told of a fault that ends one client."""

    def add(self, pieces: Sequence[bytes]) -> None:
        """A frame for the core, behind all that came before."""

    def arm(self) -> None:
        """See that the round ends with what is to be said."""

    def hold(self, one: Hosted) -> None:
        """It is not read until the core has taken what gathers."""

    def forget(self, one: Hosted) -> None:
        """Its link is gone: nothing is sent any more."""


class Hosted:
    """One client: its machine, its link, and what the core knows of it."""

    __slots__ = (
        "_dirty", "_ended", "_host", "_stopped", "_told", "_told_bodies", "_unheard", "acked", "cut", "gathered",
        "heard_at", "link", "machine", "number", "opened", "password", "reads", "received", "sent", "sent_at",
        "stranger", "targets", "told", "writes",
    )  # fmt: skip

    def __init__(
        self, host: House, number: int, machine: ServerConnection, link: Link, stranger: Guarded | None
    ) -> None:
        self.number = number
        self.machine = machine
        self.link = link
        self.stranger = stranger
        self.opened = False  # its vhost
        self.cut = ""  # why the door has cut its link
        self.password = ""  # until it is let in or refused
        self.gathered = self.acked = 0  # the number of the last batch that has messages of it, or acks behind these
        self.targets: dict[events.Target, int] = {}
        self.heard_at = self.sent_at = host.mono()
        self.received = self.reads = self.sent = self.writes = 0
        self.told: tuple[int, ...] = (0, 0, 0, 0, 0)  # of these, with what waits, as the core knows them
        self._host = host
        self._unheard = b""  # what came while the others had their turn
        self._dirty = False
        self._ended = False  # the last word is said
        self._stopped = 0  # why it is not read
        self._told = 0  # bytes of bodies begun, as the core knows them
        self._told_bodies: int = 0  # how many had begun by then

    # -- the link's calls

    def receive(self, data: bytes) -> int:
        """What one read brought; microseconds that this took."""
        host, machine = self._host, self.machine
        began = self.heard_at = host.mono()
        self.received += len(data)
        self.reads += 1
        if machine.finished:
            return 0  # it has not heard our last word yet
        if self._unheard or not (ACK_FRAME <= len(data) <= SMALL and self._small(data)):
            if self._unheard or not host.turns.share():
                self._defer(data)
                return SHORT_US  # which says nothing of how long it takes
            self._read(data)
        self._brought()
        return host.mono() - began

    def _brought(self) -> None:
        host = self._host
        if host.gathered.full:
            host.hold(self)
        host.arm()

    def _defer(self, data: bytes) -> None:
        """What came is looked at when the others have had their turn."""
        if not self._unheard:
            self.stop(TURN)
            self._host.turns.wait(self._hear_late)
        self._unheard += data
        self._host.arm()

    def _hear_late(self) -> None:
        data, self._unheard = self._unheard, b""
        try:
            if data and not self.machine.finished:
                self._read(data)
                self._brought()
        except Exception as error:  # noqa: BLE001 - the border of one client, which asyncio is where it is not late
            self._host.failed(error)
            self.link.abort()
        self.start(TURN)

    def pause_writing(self) -> None:
        """The client does not read."""
        self._tell(Up.SLOW)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._tell(Up.FAST)

    def connection_lost(self) -> None:
        """The link is gone; what came before counts."""
        self._stopped &= ~TURN  # it is not read any more
        self._hear_late()
        self._host.forget(self)

    # -- what comes

    def _small(self, data: bytes) -> bool:
        """Take a read that is one plain message, or some acks, or both; False: it is as any."""
        machine, host = self.machine, self._host
        run: events.AckRun | None = None
        if data[10] == PUBLISH:
            message = machine.lone_message(data)
            if message is None:
                return False
            target, header, body, _, end = message
            if end < len(data) and (run := machine.lone_acks(data, end)) is None:
                return False
            host.gathered.message(self, self.place_of(target), header, body)
        elif data[10] != ACK or (run := machine.lone_acks(data)) is None:
            return False
        if run is not None:
            host.gathered.acks(self, run)
        return True

    def _read(self, data: bytes) -> None:
        machine = self.machine
        try:
            for event in machine.receive(data):
                self._bring(event)
            while machine.unread:
                for event in machine.receive(b""):
                    self._bring(event)
        except InvalidArgument as error:  # a value of a table that can be read and not written
            machine.fail_connection(SYNTAX_ERROR, str(error))
            self._tell_code(Up.FAILED, 0, SYNTAX_ERROR, str(error)[:100])
        self.tell_begun()
        self.mark_dirty()
        if machine.phase in PAUSED:  # what it sends meanwhile is no mistake of its
            self.stop(ASKS)

    def go_on(self) -> None:
        """The core has answered what the machine waited for."""
        self.start(ASKS)
        if self.machine.unread:
            self._read(b"")
        self.mark_dirty()
        self._host.arm()

    def fail_channel(self, channel: int, code: int, text: str, method: type[Method] | None) -> None:
        """The core has closed it.  What was open here is told to be over: it may be another than the core meant."""
        was_open = self.machine.in_use(channel)
        self.machine.fail_channel(channel, code, text, method)
        if was_open:
            self._tell_code(Up.CHANNEL_FAILED, channel, code, "")
            self.tell_begun()

    def tell_begun(self) -> None:
        """The core knows how much of bodies was announced and is not complete, roughly."""
        machine, told = self.machine, self._told
        size = machine.partial_size
        another = machine.begun != self._told_bodies and size >= PARTIAL_STEP
        if another or (size != told and (abs(size - told) >= PARTIAL_STEP or (told and not size))):
            self._told, self._told_bodies = size, machine.begun
            self._tell(Up.PARTIAL, channel=self.machine.largest_partial() if size else 0, count=min(size, 0xFFFFFFFF))

    def _bring(self, event: events.Event) -> None:
        host = self._host
        match event:
            case events.PublishRun():
                self._messages(event)
            case events.AckRun():
                host.gathered.acks(self, event)
            case events.MethodReceived():
                self._tell(Up.METHOD, event.method.encode(), event.channel)
            case events.ChannelOpened():
                self._tell(Up.CHANNEL, channel=event.channel)
            case events.ChannelClosed() | events.ChannelFailed():
                self._tell_code(ENDS[type(event)], event.channel, event.code, event.text)
            case events.ConnectionClosed():
                self._tell_code(Up.CLOSED, 0, event.code, event.text)
            case events.ConnectionFailed():
                if event.drop and not self.opened and self.stranger is not None:
                    self.stranger.tell(event.text)
                self._tell_code(Up.FAILED, 0, event.code, event.text)
            case events.LoginAsked():
                self.password = event.password
                told: dict[str, object] = {"mechanism": event.mechanism, "user": event.user, "password": event.password}
                self._tell(Up.LOGIN, b"".join(with_head(told, self.machine.told)))
            case events.OpenAsked():
                machine = self.machine
                wanted: dict[str, object] = {
                    "vhost": event.vhost, "frame_max": machine.frame_max, "channel_max": machine.channel_max,
                    "heartbeat": machine.heartbeat,
                }  # fmt: skip
                self._tell(Up.VHOST, orjson.dumps(wanted))
            case events.HeartbeatReceived():
                pass

    def _messages(self, run: events.PublishRun) -> None:
        host, count = self._host, len(run.bodies)
        if count <= FEW and sum(map(len, run.bodies)) <= FEW_BYTES:
            for row, body in enumerate(run.bodies):
                host.gathered.message(self, self.place_of(run.target_of(row)), run.properties_of(row), body)
            return
        for low in range(0, count, way.ROWS_MOST):
            self._say(run.part(low, min(count, low + way.ROWS_MOST)))

    def _say(self, run: events.PublishRun) -> None:
        """Messages as a frame; where the numbers of targets begin anew those before that go ahead, by the old ones."""
        places, targets = list[int](), each(run.targets, 1)
        if len(self.targets) + len(targets) > TARGETS_MOST:
            for row, target in enumerate(targets):
                if places and len(self.targets) >= TARGETS_MOST and target not in self.targets:
                    self._add(run.part(row - len(places), row), places)
                    places = []
                places.append(self.place_of(target))
            run = run if len(places) == len(targets) else run.part(len(targets) - len(places), len(targets))
        else:
            places = [self.place_of(target) for target in targets]
        self._add(run, places)

    def _add(self, run: events.PublishRun, places: Sequence[int]) -> None:
        self._host.add(way.run_pieces(self.number, run.channel, places, run.properties, run.bodies))

    def place_of(self, target: events.Target) -> int:
        """The number under which the core knows a target."""
        place = self.targets.get(target)
        return self._named(target) if place is None else place

    def _named(self, target: events.Target) -> int:
        anew = len(self.targets) >= TARGETS_MOST
        if anew:
            self._host.gathered.close()
            self.targets.clear()
        place = self.targets[target] = len(self.targets)
        piece = way.target_piece(
            self.number, target.channel, place, target.exchange, target.key, mandatory=target.mandatory, anew=anew
        )
        self._host.gathered.put((piece,))
        return place

    def _tell(self, kind: Up, payload: bytes = b"", channel: int = 0, count: int = 0) -> None:
        self._host.add((way.head(kind, len(payload), self.number, channel, count), payload))

    def _tell_code(self, kind: Up, channel: int, code: int, text: str) -> None:
        self._host.add((way.text_piece(kind, self.number, channel, code, text),))

    # -- reading

    def stop(self, why: int) -> None:
        """Read nothing more, for one reason more."""
        if not self._stopped:
            self.link.pause_reading()
        self._stopped |= why

    def start(self, why: int) -> None:
        """This reason is none any more."""
        if self._stopped & why:
            self._stopped &= ~why
            if not self._stopped:
                self.heard_at = self._host.mono()
                self.link.resume_reading()

    @property
    def unread(self) -> bool:
        """Whether we do not read, so that it need not be heard of."""
        return bool(self._stopped)

    # -- what goes out

    def mark_dirty(self) -> None:
        """See that what the machine has to say is written at the end of the round."""
        if not self._dirty:
            self._dirty = True
            self._host.dirty.append(self)

    def flush(self) -> None:
        """Write what the machine has to say, in one piece."""
        self._dirty = False
        data = self.machine.take_output()
        if data:
            self.sent_at = self._host.mono()
            self.sent += len(data)
            self.writes += 1
            self.link.write(data)
        if self.machine.finished and not self._ended:
            self._ended = True
            self._tell(Up.FINISHED)
            self.start(CORE | GATHERS | ASKS | TURN)
            self.link.end_writing()
