"""The messages of one queue of another broker, carried here, each with a confirm.

Nothing is acknowledged there unless the old broker is drained: closing the channel puts everything back.  Who asks has
the connections and the journal.  Refuses to know of definitions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from penstock.cli.amqp_link import Answered, Broker, Delivered, Link
from penstock.cli.migration_journal import Carried
from penstock.errors import NotFound, PenstockError, Refused, Unavailable
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import Written
from penstock.wire.amqp import methods as m

IDLE_S = 2.0
"""A queue that delivers nothing for so long is asked whether anything waits in it."""

PATIENCE_S = 10.0
"""Somebody else has what waits, if nothing of it comes for so long: as where one consumer alone is served."""

BACK_S = 2.0
"""What a queue may take to have again what was not acknowledged: a quorum queue has it a moment later."""

POLL_S = 0.05

WINDOW = 2000
"""Messages that are on their way to the new server at once."""

GETS = 100
"""Messages that are asked for at once, one by one."""

PREFETCH_MOST = 65_535
"""What AMQP has room for; a quorum queue of RabbitMQ takes 0, which is no bound, as 2,000."""

KEPT_APART: Mapping[str, str] = {"CC": "x-original-cc", "BCC": "x-original-bcc"}
"""Headers that would have a message go to more queues than the one that it was in, and what they become."""


@dataclass(slots=True)
class Moved:
    """What became of one queue."""

    vhost: str
    queue: str
    old: int = 0  # waiting there, at the end
    carried: int = 0  # in all runs
    there: int = 0  # of these the old broker has still
    now: int = 0  # in this one
    new: int = 0  # waiting in the new one, at the end
    drained: int = 0  # acknowledged there, in this run
    why: str = ""  # left out, wholly or from some message on
    failed: bool = False  # it is left out because something was refused
    kind: str = "classic"
    auto_delete: bool = False  # it would go with us, were we its only consumer
    limit: int | None = None  # after so many returns a message dies there
    dying: int = 0  # that were at this limit, and were not acknowledged

    @property
    def short(self) -> bool:
        """Whether something waits there that did not come."""
        return self.failed or (not self.why and self.old > self.there)


class Gone(Exception):
    """A queue of the old broker went away meanwhile, by itself or by somebody else."""


class Links:
    """A connection to each of both brokers, in one vhost at a time; what was refused once is not asked again there."""

    def __init__(self, old: Broker, new: Broker) -> None:
        self._ends = (old, new)
        self._vhost: str | None = None
        self._links: list[Link] = []
        self._refused: PenstockError | None = None
        self.name = old.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def of(self, vhost: str) -> tuple[Link, Link]:
        """To the old one and to the new one."""
        if vhost != self._vhost:
            self.drop()
            self._vhost, self._refused = vhost, None
        if self._refused is not None:
            raise self._refused
        try:
            while len(self._links) < 2:
                self._links.append(Link(self._ends[len(self._links)].of(vhost)))
        except Unavailable:
            raise
        except PenstockError as error:
            self._refused = error
            raise
        return self._links[0], self._links[1]

    def drop(self) -> None:
        """They are not to be used any more: something went wrong, or nobody needs them."""
        links, self._links = self._links, []
        for link in links:
            link.close()


def waiting(source: Link, queue: str) -> int:
    """How many messages wait in a queue of the old broker."""
    try:
        return source.ready(queue)
    except NotFound:
        raise Gone from None


def carry(links: Links, one: Moved, carried: Carried, *, drain: bool) -> None:
    """All that waits in one queue, and the counts of both sides afterwards.  Gone, or why something does not come."""
    held = 0
    try:
        source, target = links.of(one.vhost)
        one.old, one.new = waiting(source, one.queue), target.ready(one.queue)
        if one.old or one.kind == "stream":  # RabbitMQ counts what is in a stream some seconds later
            target.call(m.ConfirmSelect(), m.ConfirmSelectOk)
            pump = Pump(source, target, one, carried, drain=drain)
            pump.run()
            held = pump.held
            for link in (source, target):
                link.renew()
            count(links, one, held)
    except (Gone, PenstockError):
        links.drop()
        raise
    finally:
        one.carried, one.there = carried.total, carried.there


def count(links: Links, one: Moved, held: int = 0) -> None:
    """What waits on both sides; there at least what was held, once it is back."""
    source, target = links.of(one.vhost)
    one.old, one.new = _back(source, one.queue, held), target.ready(one.queue)


def _back(source: Link, queue: str, held: int) -> int:
    """How many wait, once what was held for a while is back."""
    until = time.monotonic() + BACK_S
    while (found := waiting(source, queue)) < held and time.monotonic() < until:
        time.sleep(POLL_S)  # nothing tells when a queue has it again
    return found


class Pump:
    """Messages from one connection to another, in order."""

    def __init__(self, source: Link, target: Link, one: Moved, carried: Carried, *, drain: bool) -> None:
        self._source, self._target, self._one, self._carried = source, target, one, carried
        self._stream, self._drain = one.kind == "stream", drain and one.kind != "stream"
        self._acknowledges = self._stream or drain
        self._waiting: dict[int, tuple[int, Delivered]] = {}  # by number of the publish: what is not confirmed
        self._published = 0
        self._oldest = 1  # the lowest number that may wait
        self._tags: deque[int] = deque()  # as they came; not acknowledged
        self._finished: dict[int, Delivered] = {}  # of these, what is in the new server
        self._taken = 0  # messages that came
        self._room = 0  # messages that may come before another consumer is needed

    @property
    def held(self) -> int:
        """Messages that go back when the channel is closed."""
        return 0 if self._acknowledges else self._taken

    def run(self) -> None:
        """Refused, with everything that was confirmed beside it in the journal, when the new server takes one not."""
        while self._drain or self._stream or self._taken < self._one.old:
            some = self._some()
            if not some:
                break
            self._put(some)
            self._confirmed(WINDOW // 2)
        self._confirmed(0)

    def _some(self) -> list[Delivered]:
        """What has come, a portion at most; none when nothing more does."""
        source, bound = self._source, WINDOW // 2
        if not self._acknowledges:
            bound = min(bound, self._one.old - self._taken)
        if self._one.auto_delete:  # the broker would delete it when this channel ends: it is asked for each message
            source.get(self._one.queue, min(GETS, bound))
        elif not source.delivered:
            self._await()
        some = [source.delivered.popleft() for _ in range(min(bound, len(source.delivered)))]
        self._taken += len(some)
        if self._acknowledges:
            self._tags.extend(one.tag for one in some)
        elif self._one.limit is not None:
            self._one.dying += sum(_returns(one) >= self._one.limit for one in some)
        return some

    def _await(self) -> None:
        """Until something is delivered, or nothing more will be."""
        until = time.monotonic() + PATIENCE_S
        while not self._source.delivered:
            if self._taken >= self._room:
                self._consume()  # whose answer may bring the first ones along
                continue
            if self._drained():
                return
            if self._source.read(IDLE_S):
                continue
            self._confirmed(0)  # what is not confirmed keeps others from coming
            seen = self._taken if self._stream else 0
            if waiting(self._source, self._one.queue) <= seen or time.monotonic() >= until:
                return

    def _drained(self) -> bool:
        """Whether all that waited has come, and nothing came meanwhile; of a stream nobody knows so soon."""
        return self._drain and self._taken >= self._one.old and not waiting(self._source, self._one.queue)

    def _consume(self) -> None:
        """From a stream, or to drain, in portions that are acknowledged; else as many as may be at once."""
        name = self._one.queue
        if self._acknowledges:
            self._room = 1 << 62
            self._source.consume(name, WINDOW, {"x-stream-offset": "first"} if self._stream else {})
            return
        unbounded = self._one.kind == "classic"
        self._room = 1 << 62 if unbounded else self._room + PREFETCH_MOST
        tag = f"penstock-migrate-{self._room}"
        self._source.consume(name, 0 if unbounded else PREFETCH_MOST, {}, tag)

    def _put(self, some: Sequence[Delivered]) -> None:
        """Publish those of them that have not come; the journal knows of them first."""
        fresh = [one for one in some if self._is_new(one)]
        first = self._carried.begin(fresh)
        for sequence, one in enumerate(fresh, first):
            self._published += 1
            self._waiting[self._published] = sequence, one
            header = _header(one, self._carried.sender, sequence)
            self._target.publish("", self._one.queue, header, one.body)
        self._acknowledge()

    def _is_new(self, one: Delivered) -> bool:
        if not self._carried.knows(one):
            return True
        self._done([one])
        return False

    def _done(self, some: Sequence[Delivered]) -> None:
        """They are in the new server."""
        if self._acknowledges:
            self._finished.update((one.tag, one) for one in some)

    def _acknowledge(self) -> None:
        """Tell the old broker what it may forget, as one word for all that came one after another."""
        some: list[Delivered] = []
        while self._tags and self._tags[0] in self._finished:
            some.append(self._finished.pop(self._tags.popleft()))
        self._forget(some)
        if some:
            self._source.tell(m.BasicAck(some[-1].tag, True))
            self._source.flush()

    def _acknowledge_rest(self) -> None:
        """The same of what stands behind messages that were refused."""
        some = [*self._finished.values()]
        self._forget(some)
        for one in some:
            self._source.tell(m.BasicAck(one.tag))
        self._source.flush()

    def _forget(self, some: Sequence[Delivered]) -> None:
        if self._drain and some:
            self._carried.forget(some)
            self._one.drained += len(some)

    def _confirmed(self, most: int) -> None:
        """Wait until no more than so many are on their way; all of them, where one was refused."""
        refused: list[int] = []
        while len(self._waiting) > most or self._target.answered:
            if not self._target.answered and not self._target.read(60):
                raise Unavailable(f"{self._target.broker.name} confirms nothing for 60 seconds")
            while self._target.answered:
                answer = self._target.answered.popleft()
                some = self._answered(answer)
                if answer.taken:
                    self._one.now += len(some)
                    self._done([one for _, one in some])
                else:
                    refused += [sequence for sequence, _ in some]
                    most = 0
        self._acknowledge()
        if refused:
            self._carried.refuse(refused)
            self._acknowledge_rest()
            raise Refused("the new server refuses its messages: a limit of the queue is met, or the disk is full")

    def _answered(self, answer: Answered) -> list[tuple[int, Delivered]]:
        """What is on its way no more, with its sequence."""
        numbers = range(self._oldest, answer.tag + 1) if answer.multiple else [answer.tag]
        some = [self._waiting.pop(number) for number in numbers if number in self._waiting]
        while self._oldest <= self._published and self._oldest not in self._waiting:
            self._oldest += 1
        return some


def _returns(one: Delivered) -> int:
    """How often it came back, as a quorum queue tells it."""
    found = (header_codec.decode(one.properties).headers or {}).get("x-delivery-count")
    return found if isinstance(found, int) else 0


def _header(one: Delivered, publisher: str, sequence: int) -> bytes:
    """The header as it came, with what numbers the message, and where it was published."""
    written: Written = {}
    header = header_codec.decode(one.properties, written)
    headers = {KEPT_APART.get(name, name): value for name, value in (header.headers or {}).items()}
    if one.exchange:
        headers.setdefault("x-original-exchange", one.exchange)
        headers.setdefault("x-original-routing-key", one.key)
    if header.user_id is not None:
        headers.setdefault("x-original-user-id", header.user_id)
        header.user_id = None
    header.headers = {**headers, "x-publisher": publisher, "x-sequence": sequence}
    return header_codec.encode(header, written)
