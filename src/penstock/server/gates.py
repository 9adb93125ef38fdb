"""What waits on its way through the server: gates for deliveries to receivers, rooms for publishers.

Deliveries go in order, also when some have to wait. One whose bodies are in memory goes straight through. The first row
that is nowhere in memory, or that the connection has no room for, closes the receiver's gate; whatever comes for the
same gate waits behind it, until the loader has brought the rows or the connection takes bytes again. What waited is
judged anew before it is sent: nothing is delivered after its lease has ended. A delivery whose removal or message has
to be durable first waits for that before it comes to its gate. It knows no protocol and no queue rule.

A publisher waits for room in a full queue that holds it up, each queue's in the order they came.  In each turn it is
looked: while a queue has room for the first message of whoever is first in its line, he may go on.  He who has to wait
again, with what is left, stays at the front.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, cast

from penstock.core.effects import Deliver, DeliverEach, Verb
from penstock.core.queue.upcoming import Upcoming, reaches_back
from penstock.memory.arrived_batches import PIECE_MOST
from penstock.memory.slab import Piece, piece_of
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.server.base.faults import Asker, asker_of

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Deliveries, Delivery
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.dispatching.consumers import TargetList as Matches
    from penstock.core.queue.queue import Queue
    from penstock.errors import PenstockError
    from penstock.memory.shelf import TargetList
    from penstock.records.entries import Topic
    from penstock.server.base.runtime import Runtime


SCATTERED = 8
"""Rows of the log, for each that is wanted, beyond which these lie apart."""

BEHIND_MOST = 64
"""Deliveries behind a closed gate whose bodies are read together with those of the first."""


class Receiver(Protocol):
    """Receives deliveries: an AMQP channel, a Flight exchange, a subscription of the in-process broker."""

    __slots__ = ()

    @property
    def gate(self) -> object:
        """Deliveries of one gate keep their order, also when some are read from disk; each has its own, if not so."""
        return self

    @property
    def asker(self) -> Asker | None:
        """Who is ended when something of it fails."""
        return None

    @property
    def user(self) -> str:
        """The user who receives them, as far as it is known."""
        return ""

    @property
    def connection(self) -> str:
        """The name of the AMQP connection by which they go out; empty of another door."""
        return ""

    @property
    def full(self) -> bool:
        """Whether its connection buffers as many bytes as it may; the rest waits for `Gates.reopen`."""
        return False

    def deliver(self, effect: Delivery, piece: Piece) -> None:
        """Send neighbouring rows; `piece.bodies` is never None."""

    def deliver_each(self, effect: Deliveries, piece: Piece) -> None:
        """Send each row to its consumer; `piece` is all of the effect's rows, and `piece.bodies` is never None."""
        for row, one in enumerate(effect.singly()):
            self.deliver(one, piece.row(row))

    def deliver_one(self, effect: Delivery, topic: Topic, properties: bytes, body: bytes) -> None:
        """Send one row, whose content is this."""
        self.deliver(effect, Piece(effect.chunk, topic, properties, [body], len(properties) + len(body)))

    def cancelled(self, consumer: Consumer, why: PenstockError) -> None:
        """The queue went away under the consumer, or gives nothing any more."""


class Taps(Protocol):
    """Who is told of deliveries."""

    def delivered(self, effect: Delivery, piece: Piece) -> None:
        """Rows of a piece, which are in memory, are handed to who takes them."""


def receiver_of(consumer: Consumer) -> Receiver:
    """Who takes what this consumer is granted: sessions subscribe with themselves as holders."""
    return cast("Receiver", consumer.holder)


@dataclass(frozen=True, slots=True)
class Fence:
    """Something to do when the deliveries of a gate that came before it are done."""

    gate: object
    callback: Callable[[], None]


class Gates:
    """The gates of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._gates: dict[object, deque[tuple[Delivery, Chunk] | Fence]] = {}  # closed ones
        self._full: set[object] = set()  # of them, those whose connection takes no more bytes now
        self.late: deque[Delivery | Fence] = deque()  # until an LSN is durable
        self.sync_late = False  # among the new late ones some must wait for a sync, whatever the setting
        self.fences: list[Fence] = []  # of this turn
        self.traces: Taps | None = None  # told of each delivery of vhosts that are traced
        runtime.deliverers.append(self._underway)

    def _underway(self) -> Iterator[Chunk]:
        """All that is on its way: decided in this turn, late, or behind a gate."""
        for item in (*self._runtime.core.effects, *self.late):
            if isinstance(item, Deliver | DeliverEach):
                yield item.chunk
        for gate in self._gates.values():
            yield from (item[1] for item in gate if isinstance(item, tuple))

    # -- durability and turns

    def grant(self, effect: Delivery) -> None:
        """Send a delivery when what has to be durable before it is; one row with nothing in its way goes at once."""
        runtime = self._runtime
        if effect.after <= runtime.log.durable:
            chunk = effect.chunk
            receiver: Receiver = effect.consumer.holder  # type: ignore[assignment]  # as `receiver_of`, which is a call
            if (
                len(chunk) > 1 or effect.others or runtime.broken is not None or runtime.core.traced
                or (self._gates and receiver.gate in self._gates)
                or (row := runtime.bodies.arrivals.row(chunk[0])) is None
            ):  # fmt: skip
                self.deliver(effect)
                return
            receiver.deliver_one(effect, *row)
            if effect.queue.available:
                self._look_after(effect.queue, effect.consumer.targets, 1)
        elif runtime.broken is None:
            self.late.append(effect)
            runtime.await_lsn(effect.after)
            if at_most_once(effect):
                self.sync_late = True

    def after_deliveries(self, gate: object, callback: Callable[[], None]) -> None:
        """Run `callback` when all that was granted so far to the receivers of this gate has reached them."""
        self.fences.append(Fence(gate, callback))
        self._runtime.arm()

    def end_turn(self) -> None:
        """All effects of a turn were performed."""
        fences, self.fences = self.fences, []
        for fence in fences:
            if self.late:
                self.late.append(fence)
            else:
                self._runtime.faults.run(partial(self._pass_on, fence), _on_behalf_of(fence))

    def durable(self, lsn: int) -> None:
        """Everything up to an LSN is durable: what waited for it goes."""
        late = self.late
        while late and (isinstance(late[0], Fence) or late[0].after <= lsn):
            item = late.popleft()
            try:
                if isinstance(item, Fence):
                    self._pass_on(item)
                else:
                    self.deliver_again(item, item.chunk)
            except Exception as error:  # noqa: BLE001 - the border of each
                self._runtime.faults.contain(error, _on_behalf_of(item))

    def break_down(self) -> None:
        """Nothing more will be durable: late deliveries are sent all the same, but those of at-most-once queues."""
        late, self.late = self.late, deque()
        for item in late:
            if isinstance(item, Fence):
                self._pass_on(item)
            elif not at_most_once(item):
                self.deliver_again(item, item.chunk)

    def drop(self, gate: object) -> None:
        """Nothing that waits behind a gate is sent: who takes it is ended."""
        self._gates.pop(gate, None)
        self._full.discard(gate)

    def forget(self) -> None:
        """Nothing that waits is sent any more."""
        self.late.clear()
        self._gates.clear()
        self._full.clear()

    # -- through the gates

    def deliver(self, effect: Delivery) -> None:
        """Send what memory has; the first row that is not there closes the gate until the loader has brought it."""
        if self._runtime.broken is not None:
            effect.chunk = self._without_lost(effect, effect.chunk)
            if not len(effect.chunk):
                return
        if effect.others:
            self._runtime.bodies.want_more(effect.chunk[0], effect.others)
        receiver = receiver_of(effect.consumer)
        gate = self._gates.get(receiver.gate)
        if gate is not None:
            gate.append((effect, effect.chunk))
        else:
            rest = self._send(effect, effect.chunk, receiver)
            if rest is not None:
                self._gates[receiver.gate] = deque([(effect, rest)])
                self._wait(effect, rest, receiver)
        if effect.queue.available:
            self._look_after(effect.queue, effect.consumer.targets, len(effect.chunk))

    def deliver_each(self, effect: Deliveries) -> None:
        """The same for messages of which each has a consumer of its own: together, where nothing is in their way."""
        receiver = receiver_of(effect.consumers[0])
        if self._runtime.broken is None and receiver.gate not in self._gates and not self._runtime.core.traced:
            whole = self._runtime.bodies.arrivals.whole(effect.chunk)
            if whole is not None:
                receiver.deliver_each(effect, whole)
                if effect.queue.available:
                    for targets in {consumer.targets for consumer in effect.consumers}:
                        self._look_after(effect.queue, targets, len(effect.chunk))
                return
        for one in effect.singly():
            self.deliver(one)

    def _send(self, effect: Delivery, chunk: Chunk, receiver: Receiver) -> Chunk | None:
        """Send rows in their order as far as they are in memory and the connection takes them; the rest, or None."""
        whole = self._runtime.bodies.arrivals.whole(chunk, PIECE_MOST)
        if whole is not None:
            self._hand(effect, whole, receiver)
            return None
        done, total = 0, len(chunk)
        key = effect.consumer.targets or effect.queue
        for piece in self._runtime.bodies.pieces(chunk, key, effect.queue.id):
            if piece.bodies is None:
                if scattered(piece.chunk) or not self._runtime.log.at_hand(piece.chunk):
                    return chunk[done:]
                rows = self._runtime.log.read(piece.chunk)
                done += len(piece.chunk) - len(rows)
                piece = piece_of(rows, as_chunk(rows.lsns))
                if not len(rows):
                    continue
            done += len(piece.chunk)
            self._hand(effect, piece, receiver)
            if done < total and receiver.full:
                return chunk[done:]
        return None

    def _hand(self, effect: Delivery, piece: Piece, receiver: Receiver) -> None:
        """Hand rows to their receiver, and to whoever traces them."""
        if self.traces is not None and self._runtime.core.traced:
            self.traces.delivered(effect, piece)
        receiver.deliver(effect, piece)

    def _wait(self, effect: Delivery, rest: Chunk, receiver: Receiver) -> None:
        """Close the gate until the rows are read, or the connection takes bytes again."""
        gate = receiver.gate
        if receiver.full:
            self._full.add(gate)
        else:
            wanted = [rest]
            for item in islice(self._gates[gate], 1, BEHIND_MOST):
                if not isinstance(item, Fence) and item[0].consumer is effect.consumer:
                    wanted.append(item[1])
            one = self._list_of(effect.queue, effect.consumer.targets)
            self._runtime.loader.want(one, wanted, lambda: self._drain(gate))
            self._runtime.arm()

    def _drain(self, key: object) -> None:
        """Send what waits behind a gate, in order, until it is empty, has to wait again or others have their turn."""
        gate = self._gates.get(key)
        if gate is None or key in self._full:
            return
        turns, item = self._runtime.turns, None
        until = turns.mine()
        while gate:
            if item is not None and turns.over(until):
                turns.wait(partial(self._drain, key))
                break
            item = gate[0]
            if isinstance(item, Fence):
                gate.popleft()
                item.callback()
                continue
            effect, chunk = item
            receiver = receiver_of(effect.consumer)
            if receiver.full:
                self._full.add(key)
                return
            if self._runtime.loader.gone:
                chunk = self._without_gone(effect, chunk)
            held = still_held(effect, chunk) if len(chunk) else chunk
            if self._runtime.broken is not None and len(held):
                held = self._without_lost(effect, held)
            rest = self._send(effect, held, receiver) if len(held) else None
            if rest is not None:
                gate[0] = (effect, rest)
                self._wait(effect, rest, receiver)
                break
            gate.popleft()
        else:
            del self._gates[key]
        self._runtime.flush()

    def _without_gone(self, effect: Delivery, chunk: Chunk) -> Chunk:
        """Without what the log cannot give: of that, nobody holds any more what is leased still (`log.reader`)."""
        gone = self._runtime.loader.gone
        if gone.isdisjoint(chunk):
            return chunk
        unread = as_chunk([lsn for lsn in chunk if lsn in gone])
        self._runtime.core.set_aside(self._runtime.now(), effect.consumer, unread)
        self._runtime.arm()
        return as_chunk([lsn for lsn in chunk if lsn not in gone])

    def reopen(self, gate: object) -> None:
        """A connection takes bytes again: go on with what waited for that."""
        if gate in self._full:
            self._full.discard(gate)
            self._runtime.call_soon(lambda: self._drain(gate))
            self._runtime.arm()

    def deliver_again(self, effect: Delivery, chunk: Chunk, piece: Piece | None = None) -> None:
        """Send a delivery that had to wait, as far as its messages are still held on the same lease.

        `piece`: its rows, if the receiver had them already.
        """
        held = still_held(effect, chunk)
        if piece is not None and len(held) == len(chunk) and receiver_of(effect.consumer).gate not in self._gates:
            receiver_of(effect.consumer).deliver(effect, piece)
        elif len(held):
            again = Deliver(
                effect.consumer, effect.queue, held, effect.attempt, effect.redelivered, 0, effect.until,
                barrier=effect.barrier, sends=effect.sends,
            )  # fmt: skip
            self.deliver(again)

    def _pass_on(self, fence: Fence) -> None:
        gate = self._gates.get(fence.gate)
        if gate is not None:
            gate.append(fence)
        else:
            fence.callback()

    def _without_lost(self, effect: Delivery, chunk: Chunk) -> Chunk:
        """Take what a broken log has lost out of a delivery: it is shown to nobody, and takes nobody's credit."""
        place = bisect_right(chunk, self._runtime.log.durable)
        if place < len(chunk):
            self._runtime.core.settle(self._runtime.now(), effect.queue, [chunk[place:]], Verb.ACK, by=effect.consumer)
            self._runtime.arm()
        return chunk[:place]

    # -- what memory asks about positions

    def _list_of(self, queue: Queue, targets: Matches | None) -> TargetList:
        key = targets or queue
        one = self._runtime.bodies.area.lists.get(key)
        return one if one is not None else self._runtime.bodies.area.add(key, Upcoming(queue, targets))

    def _look_after(self, queue: Queue, targets: Matches | None, granted: int) -> None:
        """More is ready than was granted: have the loader fetch its bodies in time."""
        if reaches_back(queue, self._runtime.bodies.arrivals.lacking):
            self._runtime.loader.look_after(self._list_of(queue, targets), granted)


def _on_behalf_of(item: Delivery | Fence) -> Asker | None:
    return asker_of(item.gate if isinstance(item, Fence) else item.consumer.holder)


def at_most_once(effect: Delivery) -> bool:
    return effect.queue.settings.semantics == "at-most-once"


def scattered(chunk: Chunk) -> bool:
    """Whether rows lie so far apart in the log that one read for many lists costs less than one for these alone."""
    return chunk[-1] - chunk[0] > SCATTERED * len(chunk)


def still_held(effect: Delivery, chunk: Chunk) -> Chunk:
    """The part of a delayed delivery that may be sent: nothing is delivered after its lease has ended.

    What was settled when it was granted has no lease, and is sent for sure.
    """
    if effect.consumer.no_ack or effect.barrier or at_most_once(effect):
        return chunk
    return effect.consumer.leases.holding(chunk, sends=effect.sends)


class Waiter:
    """A publisher that may have to wait, and what it does when it is its turn."""

    __slots__ = ("go_on", "gone", "queue", "size")

    def __init__(self, go_on: Callable[[], None]) -> None:
        self.go_on = go_on
        self.queue: Queue | None = None  # in whose line it stands
        self.size = 0  # bytes of its first message
        self.gone = False  # and does nothing any more


class Rooms:
    """The lines of all full queues.  Belongs to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.lines: dict[Queue, deque[Waiter]] = {}
        self._going: Waiter | None = None  # whose turn it is

    @property
    def waiting(self) -> int:
        """Publishers that stand in the lines of all queues."""
        return sum(map(len, self.lines.values()))

    def wait(self, queue: Queue, size: int, waiter: Waiter) -> None:
        """Stand in line for a message of so many bytes; at its front if it is this one's turn."""
        assert waiter.queue is None
        waiter.queue, waiter.size = queue, size
        line = self.lines.setdefault(queue, deque())
        if waiter is self._going:
            line.appendleft(waiter)
        else:
            line.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """He does not wait any more."""
        queue, waiter.queue = waiter.queue, None
        if queue is None or (line := self.lines.get(queue)) is None:
            return
        line.remove(waiter)
        if not line:
            del self.lines[queue]

    def look(self) -> None:
        """Let go on who finds room now."""
        for queue in list(self.lines):
            self._serve(queue)

    def _first(self, queue: Queue) -> Waiter | None:
        line = self.lines.get(queue)
        return line[0] if line else None

    def _waits(self, queue: Queue, size: int) -> bool:
        return self._runtime.broken is None and self._runtime.core.holds_up(queue, size)

    def _serve(self, queue: Queue) -> None:
        while (line := self.lines.get(queue)) and not self._waits(queue, line[0].size):
            waiter = line.popleft()
            if not line:
                del self.lines[queue]
            waiter.queue = None
            self._going = waiter
            try:
                self._runtime.faults.run(waiter.go_on)
            finally:
                self._going = None
            if self._first(queue) is waiter and not self._waits(queue, waiter.size):
                return  # he found none after all: what is due comes first
