"""The way to an AMQP door that is a process, on the core's side: frames are rows and events of its clients' sessions.

    socket -> Doorway.receive -> Connection: the same as for a client of its own
    Connection -> Far -> Doorway -> one write a turn

A door is not believed: what it may not say, or says of a session in the wrong stage, is `Broken`, and whoever has the
socket cuts it off.  Its sessions are lost then, as if each client had gone: leases return, what was begun is dropped.
A fault of our own ends the client whose row or event it was; where that is nobody's alone, nobody knows what has been
heard of the frame, or what the door has to hear, and it is cut off as well.
Knows no rule; whether a client may do what it asks is decided by its session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import starmap
from sys import intern
from typing import TYPE_CHECKING

from penstock.errors import ProtocolError
from penstock.records.field_tables import read_table
from penstock.records.properties import HeaderClasses, peeked
from penstock.records.remembered import Remembered
from penstock.server.amqp import way
from penstock.server.amqp.far import Far, Stage, peer_of
from penstock.server.amqp.way import Down, Frame, Up
from penstock.server.base.faults import TOLD, Told
from penstock.server.doors.line import Broken, head_of, number, plain, text
from penstock.wire.amqp import events
from penstock.wire.amqp.conversation import client_capabilities
from penstock.wire.amqp.frames import Bytes, decode_method
from penstock.wire.amqp.pieces import behind

if TYPE_CHECKING:
    from penstock.records.entries import Topic
    from penstock.server.amqp.door import AmqpDoor


class Doorway:
    """The way to one door.  Belongs to the loop's thread."""

    def __init__(
        self,
        door: AmqpDoor,
        write: Callable[[bytes], object],
        waiting: Callable[[], int],
        cut: Callable[[str], object],
    ) -> None:
        """write: to the door.  waiting: bytes of that which the kernel has not taken.  cut: ends it, and tells why."""
        self.delivered = list[Far]()  # those with many bytes of deliveries on their way
        self._door = door
        self._engine = door.engine
        self._write = write
        self._waiting = waiting
        self._cut = cut
        self._charged = 0  # bytes that count against the budget
        self._fars = dict[int, Far]()
        self._unopened = set[int]()  # sessions that a fault has ended as they began: the door has not heard it yet
        self._last = 0  # number of the newest session
        self._classes = HeaderClasses()
        self._programs = Remembered[bytes, "tuple[bytes, frozenset[str]]"](PROGRAMS_MOST)
        self._cutter = way.Cutter(way.up_most(door.limits.frame_max, door.limits.max_message_size))
        self._out = list[Bytes]()
        self.confirms: way.Rows | None = None  # the last of what goes out is one of these, or neither
        self.deliveries: way.Deliveries | None = None
        self.heads: Remembered[Topic, bytes] = Remembered(HEADS_MOST)
        self._decided = 0  # batches, not told
        self._dirty = False
        self._blocked = False  # the door does not read
        self._lost = False
        self._of: dict[int, Callable[[Far, Frame], None]] = {
            Up.LOGIN: self._login,
            Up.VHOST: self._vhost,
            Up.CHANNEL: self._channel,
            Up.CHANNEL_FAILED: partial(self._channel_over, events.ChannelFailed),
            Up.CHANNEL_CLOSED: partial(self._channel_over, events.ChannelClosed),
            Up.FAILED: partial(self._over, events.ConnectionFailed),
            Up.CLOSED: partial(self._over, events.ConnectionClosed),
            Up.FINISHED: self._finished,
            Up.LOST: self._gone,
            Up.SLOW: self._slow,
            Up.FAST: self._fast,
            Up.PARTIAL: self._partial,
            Up.ECHO: self._echo,
            Up.DERIVED: self._derived,
            Up.METHOD: self._method,
            Up.TARGET: self._target,
            Up.RUN: self._run,
        }

    # -- what goes out

    def add(self, pieces: Sequence[Bytes]) -> None:
        """Append frames behind all that was said before."""
        self._close_rows()
        self._out += pieces
        self._mark_dirty()

    def confirm(self, session: int, channel: int, tag: int, how: int) -> None:
        """The outcome of a publish, in the same order."""
        (self.confirms or self.begin_confirms()).rows.append((session, channel, tag, how))

    def begin_confirms(self) -> way.Rows:
        """Columns for outcomes, in the same order."""
        self._close_rows()
        self._mark_dirty()
        self.confirms = way.Rows(Down.CONFIRMS, way.CONFIRMS)
        return self.confirms

    def head(self, again: bool, topic: Topic) -> bytes:
        """What stands behind the tag of a delivery with this topic."""
        if again:
            return behind(again, topic.exchange, topic.name)
        return self.heads.keep(topic, behind(again, topic.exchange, topic.name))

    def begin_deliveries(self) -> way.Deliveries:
        """Columns for deliveries, in the same order."""
        self._close_rows()
        self._mark_dirty()
        self.deliveries = way.Deliveries()
        return self.deliveries

    def _close_rows(self) -> None:
        """What comes next comes behind the open columns."""
        if self.confirms is not None:
            self._out += self.confirms.pieces()
            self.confirms = None
        elif self.deliveries is not None:
            self._out += self.deliveries.pieces()
            self.deliveries = None

    def _mark_dirty(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._engine.on_flush.append(self.flush)

    def flush(self) -> None:
        """One write of everything this turn brought; where that fails nobody knows what the door has to hear."""
        try:
            self._send_all()
        except Exception as error:  # noqa: BLE001 - the border of the door
            self._engine.faults.contain(error, Told("amqp", partial(self._cut, TOLD)), sure=True)

    def _send_all(self) -> None:
        self._dirty = False
        if self._lost:
            return
        delivered, self.delivered = self.delivered, []
        for far in delivered:
            self._engine.faults.run(far.mark)
        self._dirty = False
        self._close_rows()
        out, self._out = self._out, []
        if self._decided and (out or self._decided >= way.WINDOW):  # else the door may send one more without it
            out.append(way.head(Down.TAKEN, 0, count=self._decided))
            self._decided = 0
        if out:
            self._write(b"".join(out))
            self.count_waiting()

    def count_waiting(self) -> None:
        """Charge what waits for the door to the budget."""
        waiting = 0 if self._lost else self._waiting()
        if waiting != self._charged:
            self._engine.bodies.sending.add(waiting - self._charged)
            self._charged = waiting

    def pause_writing(self) -> None:
        """The door does not read: none of its clients gets anything until it does."""
        self._blocked = True
        for far in self._fars.values():
            if not far.blocked:
                self._engine.faults.run(far.connection.pause_writing)

    def resume_writing(self) -> None:
        """It reads again."""
        self._blocked = False
        self.count_waiting()
        for far in list(self._fars.values()):
            if far.blocked and not far.slow:
                self._engine.faults.run(far.connection.resume_writing)

    # -- what comes

    def receive(self, data: bytes) -> None:
        """What the door has sent.  Raises Broken: then nothing more of it is to be believed, or known."""
        try:
            self._receive(data)
        except Broken:
            raise
        except Exception as error:  # noqa: BLE001 - the border of the door
            self._engine.faults.contain(error, Told("amqp"), sure=True)
            raise Broken(TOLD) from None

    def _receive(self, data: bytes) -> None:
        for frame in self._cutter.feed(data):
            if self._lost:
                return
            kind = frame.kind
            if kind == Up.MESSAGES:
                self._messages(frame)
            elif kind == Up.ACKS:
                self._acks(frame)
            elif kind == Up.BATCH:
                self._decided += 1
                self._mark_dirty()
            elif kind == Up.OPENED:
                self._opened(frame)
            elif kind == Up.FIGURES:
                self._figures(frame)
            elif frame.session in self._unopened:
                if kind == Up.LOST:
                    self._unopened.discard(frame.session)
            else:
                far = self._far(frame.session)
                try:
                    self._of[kind](far, frame)
                except Broken:
                    if not far.faulty:
                        raise
                except Exception as error:  # noqa: BLE001 - the border of each client
                    self._fault(error, far)
        if self._charged:
            self.count_waiting()
        self._engine.arm()

    def lost(self) -> None:
        """The door is gone, and so are all of its clients."""
        if self._lost:
            return
        self._lost = True
        self.count_waiting()
        for far in list(self._fars.values()):
            self._forget(far, "the process of its door has ended")
        self._engine.arm()

    def _far(self, session: int) -> Far:
        far = self._fars.get(session)
        if far is None:
            raise Broken(f"session {session} is none")
        return far

    def _open(self, session: int) -> Far:
        far = self._far(session)
        if far.stage < Stage.OPEN:
            raise Broken(f"session {session} is not open, and has messages")
        return far

    def _messages(self, frame: Frame) -> None:
        sessions, targets, pieces = way.messages_of(frame)
        rows = iter(pieces)
        mode_of = self._classes.mode
        fars, opened = self._fars, Stage.OPEN
        for session, place, header, body in zip(sessions, targets, rows, rows, strict=True):
            far = fars.get(session)
            if far is None or far.stage < opened:
                raise Broken(f"session {session} has messages and is not open")
            if place >= len(far.targets):
                if far.faulty:
                    continue
                raise Broken(f"target {place} of {len(far.targets)}")
            try:
                mode = mode_of(header)
                if mode < 0:
                    _well_formed(header)
                target = far.targets[place]
                if not far.connection.gather(target, header, body, mode):
                    self._take(far, events.PublishRun(target.channel, target, header, [body], plain=mode, told=1))
            except Broken:
                raise
            except Exception as error:  # noqa: BLE001 - the border of each client
                self._fault(error, far)
        self._make_room(sessions)

    def _fault(self, error: Exception, far: Far) -> None:
        """A client's session is ended; what its door has said before it knows may rest on what was not heard."""
        self._engine.faults.contain(error, far.connection)
        far.faulty = True

    def _make_room(self, sessions: Iterable[int]) -> None:
        """Read nothing more of these while the log, or the memory, has no room."""
        if not self._engine.has_room():
            for session in dict.fromkeys(sessions):
                far = self._fars[session]
                if far.stage is Stage.OPEN and not far.connection.closing:
                    hold = partial(far.connection.incoming.hold_reading, self._engine.on_room)
                    self._engine.faults.run(hold, far.connection)

    def _run(self, far: Far, frame: Frame) -> None:
        places, headers, bodies = way.run_of(frame)
        self._open(frame.session)
        if max(places) >= len(far.targets):
            raise Broken(f"target {max(places)} of {len(far.targets)}")
        targets = [far.targets[place] for place in places]
        if any(one.channel != frame.channel for one in targets):
            raise Broken("a run with the target of another channel")
        plain = self._classes.mode(headers[0])
        for header in headers:
            mode = self._classes.mode(header)
            if mode != plain:
                plain = -1
            if mode < 0:
                _well_formed(header)
        run = events.PublishRun(
            frame.channel,
            targets if len(targets) > 1 else targets[0],
            headers if len(headers) > 1 else headers[0],
            bodies,
            plain=plain,
            told=len(bodies),
        )
        self._take(far, run)
        self._make_room((frame.session,))

    def _acks(self, frame: Frame) -> None:
        fars, opened = self._fars, Stage.OPEN
        for session, channel, low, high in way.rows_of(frame, way.ACKS):
            far = fars.get(session)
            if far is None or far.stage < opened:
                raise Broken(f"session {session} has acks and is not open")
            try:
                if not 0 < low == high or not far.connection.acknowledge(channel, low):
                    self._take(far, events.AckRun(channel, [(low, high)]))
            except Exception as error:  # noqa: BLE001 - the border of each client
                self._fault(error, far)

    def _figures(self, frame: Frame) -> None:
        for one in starmap(way.Figure, way.rows_of(frame, way.FIGURES)):
            if (far := self._fars.get(one.session)) is not None:
                incoming = far.connection.incoming
                incoming.received, incoming.reads = one.received, one.reads
                self._engine.bodies.sending.add(one.waiting - far.waiting)
                far.sent, far.writes, far.waiting = one.sent, one.writes, one.waiting

    def _take(self, far: Far, event: events.Event) -> None:
        far.connection.incoming.take((event,))

    # -- one session's

    def _opened(self, frame: Frame) -> None:
        if frame.session <= self._last:
            raise Broken(f"session {frame.session} after {self._last}")
        self._last = frame.session
        far = Far(self, frame.session, self._door.limits)
        try:
            told = plain(memoryview(frame.payload))
            local = intern(text(told, "local"))  # what many have in common is there once
            far.connection = self._door.open_far(far, text(told, "peer"), local, peer_of(told.get("tls")))
        except Broken:
            raise
        except Exception as error:  # noqa: BLE001 - the border of each client
            self._unopened.add(frame.session)
            self._engine.faults.contain(error, Told("amqp", far.abort), sure=True)
            return
        self._fars[frame.session] = far
        if self._blocked:
            far.connection.pause_writing()

    def _login(self, far: Far, frame: Frame) -> None:
        self._must_be(far, Stage.FRESH)
        told, rest = head_of(memoryview(frame.payload))
        far.told, far.client_capabilities = self._properties(bytes(rest))
        far.mechanism = intern(text(told, "mechanism"))
        far.stage = Stage.ASKED
        self._take(far, events.LoginAsked(far.mechanism, intern(text(told, "user")), text(told, "password")))

    def _derived(self, far: Far, frame: Frame) -> None:
        if far.derived is None:
            raise Broken(f"session {far.number} was not asked for a digest")
        heard, far.derived = far.derived, None
        heard(frame.payload)

    def _properties(self, table: bytes) -> tuple[bytes, frozenset[str]]:
        """What clients say of themselves, as it is kept; those that say the same share it."""
        known = self._programs.get(table)
        if known is not None:
            return known
        try:
            found, end = read_table(table)
        except ProtocolError as error:
            raise way.broken(error) from None
        if end != len(table):
            raise Broken("bytes behind a table")
        told = table, client_capabilities(found)
        if len(table) <= PROGRAM_MOST:
            self._programs.keep(table, told)
        return told

    def _vhost(self, far: Far, frame: Frame) -> None:
        self._must_be(far, Stage.IN)
        told, limits = plain(memoryview(frame.payload)), self._door.limits
        far.frame_max = number(told, "frame_max", limits.frame_max)
        far.channel_max = number(told, "channel_max", limits.channel_max)
        far.heartbeat = number(told, "heartbeat", 65535)
        if far.frame_max < FRAME_MAX_LEAST:
            raise Broken(f"frames of {far.frame_max} bytes")
        far.stage = Stage.ASKS
        self._take(far, events.OpenAsked(intern(text(told, "vhost"))))

    def _must_be(self, far: Far, stage: Stage) -> None:
        if far.stage is not stage:
            raise Broken(f"session {far.number} is in stage {far.stage}, not {stage}")

    def _channel(self, far: Far, frame: Frame) -> None:
        self._open(frame.session)
        if frame.channel == 0 or far.opened.bit_count() >= far.channel_max:
            raise Broken(f"channel {frame.channel} beside {far.opened.bit_count()} of {far.channel_max}")
        if far.opened >> frame.channel & 1:
            raise Broken(f"channel {frame.channel} is open")
        far.opened |= 1 << frame.channel
        self._take(far, events.ChannelOpened(frame.channel))

    def _channel_over(self, how: type[events.ChannelFailed | events.ChannelClosed], far: Far, frame: Frame) -> None:
        self._open(frame.session)
        far.opened &= ~(1 << frame.channel)
        self._take(far, how(frame.channel, frame.number & 0xFFFF, way.text_of(frame)))

    def _over(self, how: type[events.ConnectionFailed | events.ConnectionClosed], far: Far, frame: Frame) -> None:
        self._take(far, how(frame.number & 0xFFFF, way.text_of(frame)))

    def _finished(self, far: Far, frame: Frame) -> None:
        far.stage = Stage.OVER
        far.connection.linger()

    def _gone(self, far: Far, frame: Frame) -> None:
        self._forget(far, way.text_of(frame))

    def _forget(self, far: Far, cut: str) -> None:
        far.connection.cut = far.connection.cut or cut
        del self._fars[far.number]
        self._engine.bodies.sending.add(-far.waiting)
        far.connection.connection_lost()
        if far.derived is not None:
            far.derived(None)

    def _slow(self, far: Far, frame: Frame) -> None:
        far.slow = True
        if not far.blocked:
            far.connection.pause_writing()

    def _fast(self, far: Far, frame: Frame) -> None:
        far.slow = False
        if far.blocked and not self._blocked:
            far.connection.resume_writing()

    def _echo(self, far: Far, frame: Frame) -> None:
        if far.echo():
            far.connection.go_on_delivering()

    def _partial(self, far: Far, frame: Frame) -> None:
        far.partial_size, far.largest = frame.number, frame.channel
        far.connection.count_begun()

    def _method(self, far: Far, frame: Frame) -> None:
        self._open(frame.session)
        try:
            method = decode_method(frame.payload)
        except ProtocolError as error:
            raise way.broken(error) from None
        self._take(far, events.MethodReceived(frame.channel, method))

    def _target(self, far: Far, frame: Frame) -> None:
        self._open(frame.session)
        bits, exchange, key = way.target_of(frame)
        if bits & way.ANEW:
            far.targets = ()
        if frame.number != len(far.targets) or frame.number >= TARGETS_MOST:
            raise Broken(f"target {frame.number} behind {len(far.targets)}")
        far.targets = (*far.targets, events.Target(b"", frame.channel, exchange, key, bool(bits & way.MANDATORY)))


PROGRAMS_MOST, PROGRAM_MOST = 256, 4096
"""Of how many clients' properties those are kept that others may have, too, and with how many bytes."""

HEADS_MOST = 4096
"""Topics whose names are kept as deliveries have them."""

FRAME_MAX_LEAST = 4096
TARGETS_MOST = 1024


def _well_formed(header: bytes) -> None:
    """Raise Broken for a header that the door should have refused."""
    try:
        peeked(header)
    except ProtocolError as error:
        raise way.broken(error) from None
