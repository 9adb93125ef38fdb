"""Messages one at a time, published into an exchange or fetched from a queue: for a person with a browser, as at
RabbitMQ: no confirms but the answer, a few messages at once.

A message that is published is a batch of one, a get is a consumer for as long as it lasts.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response, StreamingResponse

from penstock.core.effects import Verb
from penstock.core.publishing.published import Published, read_traits
from penstock.core.queue import refusing
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PenstockError
from penstock.records.causes import death_reason
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, decode, peeked
from penstock.records.rights import USES, uses
from penstock.server.base.faults import TOLD
from penstock.server.gates import Receiver
from penstock.server.http.routes import Ask, Row, exchange_name
from penstock.server.operating import Operating, Waits, resolve
from penstock.server.people.entitlements import Rights, narrowed
from penstock.units import format_size
from penstock.wire.http.bodies import TEXTS
from penstock.wire.http.lists import HEADERS, json_response

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.queue import Queue
    from penstock.memory.slab import Piece
    from penstock.server.http.facts import Facts
    from penstock.server.services import Server


class Commands(Operating):
    """The base of the commands of one noun."""

    def __init__(self, server: Server, facts: Facts, waits: Waits) -> None:
        super().__init__(server, facts.refuse_early, waits)
        self.facts = facts

    def rights(self, user: str | None) -> Rights | None:
        """What a user may do; None where nothing is limited, and for nobody: all of it was judged before."""
        return None if user is None else self.server.users.rights(user)

    def vhost(self, name: str) -> str:
        """A vhost that is there.  Raises NotFound."""
        self.facts.refuse_early()
        if name not in self.facts.vhosts:
            raise NotFound("Not Found")
        return name

    def queue(self, vhost: str, name: str) -> Queue:
        """A queue that anybody may use.  Raises NotFound, ResourceLocked."""
        return self.core.queue(self.vhost(vhost), name)

    def refuse_full(self, *, new: bool = False) -> None:
        """LogBroken or DiskFull when nothing can be stored; Draining, when nothing new is to be."""
        if (why := self.engine.refusal(new=new)) is not None:
            raise why


GET_BYTES = 16 << 20
"""Bytes of messages in one answer, beyond which no more are asked for; one message may be longer."""

AT_ONCE = 64
"""Messages that are asked for at once."""


COUNT_MOST = 10_000
"""Messages of one get; their bytes have a bound of their own."""

ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")


@dataclass(frozen=True, slots=True)
class Got:
    """One message of a queue."""

    exchange: str
    key: str
    header: bytes  # the encoded properties
    body: bytes  # or as much of it as is shown
    size: int  # bytes of the whole body
    redelivered: bool
    left: int  # ready ones behind it


G = TypeVar("G", bound=Got)


class Messages(Commands):
    async def publish(self, user: str, vhost: str, exchange: str, key: str, header: bytes, body: bytes) -> bool:
        """Store a message; whether a queue or a topic took it."""
        engine = self.engine
        self.vhost(vhost)
        most = self.server.settings.amqp.message_max
        if len(body) > most:
            raise InvalidArgument(f"payload has {len(body)} bytes, {format_size(most)} are allowed")
        claimed = peeked(header).user_id
        if claimed is not None and claimed != user:
            raise InvalidArgument(f"user_id property set to '{claimed}' but authenticated user was '{user}'")
        self.refuse_full(new=True)
        rights = self.rights(user)
        for one in (key, *read_traits(header).keys):  # those of CC and BCC, too
            right = None if rights is None else rights.publish(engine.core, vhost, exchange, one)
            if right is not None and not right.matches([body], [header])[0]:
                raise AccessRefused(
                    f"this message to '{one}' in vhost '{vhost}' is not one that user '{user}' may write"
                )
        topic = engine.core.topic(vhost, exchange, key)
        batch = Publishes(topic, header, [body], sender=("", 0, user))
        while not await self._judged(batch):
            batch.topics = engine.core.topic(vhost, exchange, key)
        published = await self.decide(lambda: self._publish(batch))
        counters = self.server.counters
        here = counters.of(vhost)
        here.published += 1
        counters.sizes.add([body])
        counters.routed += published.stored
        if published.refused:
            counters.refused += 1
            raise published.refused[0][1]
        if published.unroutable:
            here.unroutable_dropped += 1
        return not published.unroutable

    def _publish(self, batch: Publishes) -> Published:
        """Raises QueueBlocked where it would have to wait."""
        core, now = self.engine.core, self.engine.now()
        by = core.let_in(now, batch)[1] if core.blocking else None
        if by is not None:
            raise refusing.blocked(by)
        return core.publish(now, batch)

    async def _judged(self, batch: Publishes) -> bool:
        """Whether it may be published now; if not, its filters have been evaluated when this returns."""
        judged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.engine.judges.ready([batch], partial(resolve, judged)):
            return True
        await judged
        return False

    async def get(self, user: str, vhost: str, name: str, count: int, mode: str) -> Sequence[Got]:
        """Up to `count` messages of a queue, settled as the mode says; fewer when they are long."""
        rights = self.rights(user)
        right = None if rights is None else rights.read_queue(vhost, name)
        queue = self.queue(vhost, name)
        getter = Getter(self, queue, user)
        consumer = self.core.subscribe(
            self.now(),
            queue,
            tag="",
            holder=getter,
            client=f"http/{user}",
            no_ack=mode == "ack_requeue_false",
            filter=narrowed(None, right),
            passive=True,
        )
        try:
            while len(getter.got) < count and getter.bytes < GET_BYTES:
                largest = max((len(one.body) for one in getter.got), default=GET_BYTES)
                room = (GET_BYTES - getter.bytes) // (largest + 1) + 1
                if not await getter.pull(consumer, min(count - len(getter.got), AT_ONCE, room)):
                    break
            verbs = {"reject_requeue_true": Verb.CANCEL, "reject_requeue_false": Verb.EXPIRE}
            if mode in verbs and not consumer.closed:
                chunks = getter.chunks
                await self.decide(lambda: self.core.settle(self.now(), queue, chunks, verbs[mode], by=consumer))
        finally:
            self._let_go(getter, consumer)
        if getter.got and mode != "ack_requeue_true":
            await self.durable(self.core.last_lsn)  # whoever is told that they are gone does not see them again
            await self.engine.turns.heard(self.engine.arm)  # of hundreds that wait for one sync
        return getter.got

    def _let_go(self, getter: Getter, consumer: Consumer) -> None:
        """What it has, and did not settle, goes back, also when this fails."""
        try:
            self.core.unsubscribe(self.now(), consumer, requeue=True)
        except Exception as error:
            self.engine.faults.contain(error, getter)
            raise
        finally:
            self.engine.arm()


class Getter(Receiver):
    """Who takes the deliveries of one get."""

    def __init__(self, commands: Messages, queue: Queue, user: str) -> None:
        self._engine = commands.engine
        self._counts = commands.server.counters.of(queue.vhost)
        self._queue = queue
        self._user = user
        self._waits: asyncio.Future[None] | None = None  # for what it is given
        self.got = list[Got]()
        self.chunks = list[Chunk]()
        self.bytes = 0

    @property
    def user(self) -> str:
        return self._user

    # -- faults

    kind = "http"

    def end_by_fault(self) -> None:
        """The request is told, and what it had goes back."""
        if self._waits is not None and not self._waits.done():
            self._waits.set_exception(PenstockError(TOLD))
        self._engine.faults.evict(self)
        self._engine.gates.drop(self)
        self._engine.arm()

    async def pull(self, consumer: Consumer, count: int) -> bool:
        """Ask for some messages, and wait until they are here; False when there are none."""
        engine = self._engine
        before = len(self.got)
        while not consumer.closed and not engine.core.pull(engine.now(), consumer, count):
            engine.arm()
            if consumer.targets is None or not self._queue.filters_look:
                self._counts.get_empty += 1
                return False
            looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            engine.scans.after.append(partial(resolve, looked))
            await looked
        self._waits = arrived = asyncio.get_running_loop().create_future()
        engine.gates.after_deliveries(self, partial(resolve, arrived))
        await arrived
        await engine.turns.heard(engine.arm)  # one turn may bring what hundreds have asked for
        return len(self.got) > before

    def deliver(self, effect: Delivery, piece: Piece) -> None:
        assert piece.bodies is not None
        left = effect.queue.ready
        self._counts.fetch(len(piece.bodies), no_ack=effect.consumer.no_ack, again=effect.redelivered)
        self.chunks.append(piece.chunk)
        for row, body in enumerate(piece.bodies):
            topic = piece.topic_of(row)
            header = piece.properties_of(row)
            behind = len(piece.bodies) - 1 - row
            self.got.append(Got(topic.exchange, topic.name, header, body, len(body), effect.redelivered, left + behind))
            self.bytes += len(body)

    def cancelled(self, consumer: Consumer, why: PenstockError) -> None:
        """The queue went away or was stopped; what it had delivered is answered."""


def message_rows(messages: Messages) -> Sequence[Row]:
    async def publish(ask: Ask) -> Response:
        brought = await ask.message()
        exchange = exchange_name(ask.names["name"])
        routed = await messages.publish(ask.user, ask.names["vhost"], exchange, *brought)
        return json_response({"routed": routed})

    async def get(ask: Ask) -> Response:
        fields = await ask.fields()
        if "ackmode" not in fields.values and "requeue" in fields.values:  # before 3.7
            mode = "reject_requeue_true" if fields.flag("requeue", True) else "ack_requeue_false"
        else:
            mode = fields.choice("ackmode", ACK_MODES)
        count = fields.number("count", 0, COUNT_MOST)
        encoding = fields.choice("encoding", ("auto", "base64"))
        truncate = fields.count("truncate", -1, 0, 1 << 40)
        found = await messages.get(ask.user, ask.names["vhost"], ask.names["name"], count, mode)
        return await told(found, lambda one: message_item(one, encoding, truncate))

    path = "/api/exchanges/{vhost}/{name}/publish"
    return (
        Row("POST", path, publish, "Publish a message", USES, "properties routing_key payload payload_encoding"),
        Row("POST", "/api/queues/{vhost}/{name}/get", get, "Get messages", uses(("read", "queue", "name")),
            "count ackmode encoding truncate"),
    )  # fmt: skip


TOLD_BYTES = 256 << 10
"""Bytes of bodies that are made into text at once; of an answer with more, one message may be longer."""

WRITTEN = 1 << 20
"""Bytes of text that are written at once."""


async def told(
    found: Sequence[G], shape: Callable[[G], dict[str, object]], headers: Mapping[str, str] = {}
) -> Response:
    """Messages as JSON; of many bytes so much at a time, beside the loop, when what comes before it is sent."""
    parts, size = [list[G]()], 0
    for one in found:
        if parts[-1] and size + len(one.body) > TOLD_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += len(one.body)
    if len(parts) == 1 and size <= TOLD_BYTES:
        return json_response(list(map(shape, found)), headers=headers)

    def text(part: list[G]) -> bytes:
        return bytes(json_response(list(map(shape, part))).body)[1:-1]

    async def pieces() -> AsyncIterator[bytes]:
        before = b"["
        for part in parts:
            made = await asyncio.to_thread(text, part)
            part.clear()  # whoever reads slowly has text alone
            for start in range(0, len(made), WRITTEN):
                yield before + made[start : start + WRITTEN]
                before = b""
            before = b","
        yield b"]"

    return StreamingResponse(pieces(), 200, {**HEADERS, **headers}, media_type="application/json")


def message_item(got: Got, encoding: str, truncate: int) -> dict[str, object]:
    """One message with RabbitMQ's field names, and for a dead letter `reason`: why it died.

    truncate: bytes of the payload that are shown; -1: all.
    """
    part = got.body if truncate < 0 else got.body[:truncate]
    text: str | None = None
    if encoding == "auto":
        try:
            text = part.decode()
        except UnicodeDecodeError:
            text = None
    why, properties = told_of(got.header)
    return {
        **({} if why is None else {"reason": why}),
        "payload_bytes": got.size,
        "redelivered": got.redelivered,
        "exchange": got.exchange,
        "routing_key": got.key,
        "message_count": got.left,
        "properties": properties,
        "payload": base64.b64encode(part).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }


def told_of(header: bytes) -> tuple[str | None, Mapping[str, object]]:
    """Why a message died, and its properties; of a short header remembered, for many have the same."""
    return _kept(header) if len(header) <= HEADER_KEPT else _told_of(header)


def _told_of(header: bytes) -> tuple[str | None, Mapping[str, object]]:
    found = decode(header)
    return death_reason(found.headers), properties_item(found)


HEADER_KEPT = 1024
"""Bytes of a header of which it is remembered what is told of it."""

_kept = lru_cache(maxsize=256)(_told_of)


def properties_item(p: Properties) -> Mapping[str, object]:
    """The properties that there are, by name."""
    names = (*TEXTS, "headers", "delivery_mode", "priority", "timestamp")
    return {name: value for name in names if (value := getattr(p, name)) is not None}
