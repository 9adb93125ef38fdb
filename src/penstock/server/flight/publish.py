"""DoPut publish: Arrow batches in, each stored as one batch and answered when it is durable.

The end of an upload proves nothing: a vanished client looks like one that has finished.  So each batch stands alone and
has its own answer, and the client's end message says how many rows it sent; the last answer says whether that is true.
A batch for a full queue that holds its publishers up is stored as far as there is room; the rest waits in line, and the
upload with it, until there is some or the client goes.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import orjson

from penstock.core.queue import refusing
from penstock.errors import InvalidArgument, PenstockError, Refused, Unavailable
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import lengths, listed
from penstock.records.one_or_each import bytes_of, rows_at
from penstock.server.asking.judging import breathe
from penstock.server.flight.arriving import Arriving
from penstock.server.flight.calls import Caller
from penstock.server.flight.handover import Answer, Handover
from penstock.server.gates import Waiter
from penstock.wire.fields import Fields, read_json
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.commands import Publish
from penstock.wire.flight.received import PUBLISHED, Bounds

if TYPE_CHECKING:
    from penstock.core.publishing.published import Published
    from penstock.server.engine import Engine
    from penstock.server.flight.gatekeeper import Gatekeeper

WAITING_MOST = 32
"""Uploads that may wait for room in full queues: their threads are those of the calls that make room."""

TRIED = 256
"""Rows of a batch that are tried at once after it had to wait: each try looks at all of them."""

REFUSED_SHOWN = 1000
"""Refused rows that one answer names; `refused_rows` counts them all."""

DELTAS_AT_ONCE = 500
"""Deltas that are merged in one turn of the loop: some milliseconds."""

KEYED_HERE = 250
"""Rows whose keys are worked out between two breaths; fewer are left to the loop."""


def to_publishes(engine: Engine, user: str, upload: Upload, vhost: str, exchange: str) -> Publishes:
    """An upload of a user with its topics looked up; on the loop.  Raises NotFound for a missing exchange."""
    topics: Topic | list[Topic]
    found = [engine.core.topic(vhost, exchange, name) for name in upload.names]
    topics = found[0] if upload.name_of is None else [found[place] for place in upload.name_of]
    time = engine.clock.wall()
    return Publishes(
        topics,
        upload.properties,
        upload.bodies,
        not_before=upload.starts(time),
        expires_at=upload.ends(time),
        size=upload.size,
        sender=("", 0, user),
    )


class Storing(Waiter):
    """Rows that a client has brought, until they are stored: it may have to stand in line for room."""

    __slots__ = ("command", "judged", "keyed", "sequence", "upload", "user")

    def __init__(
        self, user: str, command: Publish, upload: Upload, keyed: tuple[int, list[int]] | None, sequence: int | None
    ) -> None:
        super().__init__(_nobody)
        self.user, self.command, self.upload = user, command, upload
        self.keyed, self.sequence = keyed, sequence
        self.judged: Publishes | None = None  # by content filters, as it was when they were asked


class Publishing:
    def __init__(self, handover: Handover, bounds: Bounds, gate: Gatekeeper, waiting_most: int = WAITING_MOST) -> None:
        self._gate = gate
        self._waiting_most = waiting_most
        self._waiting: dict[Storing, Answer[tuple[Published, int]]] = {}  # uploads that wait for room; on the loop
        self.engine = handover.engine
        self.bounds = bounds
        self._handover = handover

    def serve(self, caller: Caller, arriving: Arriving, command: Publish, writer: Any) -> None:
        """Read batches until the client has sent all; answer each, then the whole."""
        arriving.expect(PUBLISHED)
        sent = batches = 0
        counts = dict.fromkeys(COUNTS, 0)
        first = last = 0
        announced: int | None = None
        sequence = command.sequence
        for received, metadata in arriving.each(PUBLISHED):
            if metadata is not None:
                announced = end_rows(metadata, announced)
            if not received:
                continue
            upload = read_upload(received, command.topic, self.bounds)
            self._gate.publish(caller, command.vhost, command.exchange, upload)
            answer = self.store(caller, command, upload, sequence)
            arriving.release()
            sent += len(upload)
            covered: dict[str, int] = {}
            if sequence is not None:
                sequence += len(upload)
                covered = {"sequence": sequence - 1}  # all up to here are stored, for good
            for name in COUNTS:
                counts[name] += cast("int", answer[name])
            if answer["stored"]:
                first, last = first or cast("int", answer["first"]), cast("int", answer["last"])
            writer.write(orjson.dumps({"batch": batches, **answer, **covered}))
            batches += 1
        if caller.gone():
            return
        if announced is not None and announced != sent:
            raise InvalidArgument(
                f"publish: the end message says {announced} rows and {sent} came; {counts['stored']} of them are stored"
            )
        total: dict[str, object] = {"first": first, "last": last, **counts}
        if sequence is not None:
            total["sequence"] = sequence - 1
        writer.write(orjson.dumps({"end": True, "rows": sent, "complete": announced == sent, **total}))

    def store(self, caller: Caller, command: Publish, upload: Upload, sequence: int | None) -> dict[str, object]:
        """One batch, stored and durable; deltas in parts, since each is merged on the loop."""
        receipts: list[dict[str, object]] = []
        for whole in self._parts(command, upload):
            left = deque((whole,))
            while left:
                part = left.popleft()
                published, count = self._submit(caller, command, part, sequence)
                receipts.append(receipt(published, count))
                if sequence is not None:
                    sequence += count
                if count < len(part):
                    part.bodies = listed(part.bodies)
                    edges = [*range(count, len(part), TRIED), len(part)]
                    left.extendleft([part_of(part, *ends) for ends in pairwise(edges)][::-1])
        return receipts[0] if len(receipts) == 1 else together(receipts)

    def _submit(self, caller: Caller, command: Publish, part: Upload, sequence: int | None) -> tuple[Published, int]:
        """Store the first rows of a part, as many as there is room for; how many that were."""
        storing = Storing(caller.user, command, part, self._keys(command, part), sequence)
        answer: Answer[tuple[Published, int]] = self._handover.submit(partial(self._decide, storing))
        try:
            return answer.wait(caller.gone)
        except BaseException:
            if not answer.given:
                self._handover.post(partial(self._leave, storing, answer))
            raise

    def _leave(self, storing: Storing, answer: Answer[tuple[Published, int]]) -> None:
        """Its client is gone, or was told that its login is none any more: what was refused is not stored later."""
        self._handover.forget(answer)
        self.engine.rooms.leave(storing)
        storing.gone = True
        self._waiting.pop(storing, None)
        storing.go_on = _nobody

    def stop(self) -> None:
        """Nobody waits for room any more: the server stops.  On the loop."""
        for storing, answer in list(self._waiting.items()):
            self._leave(storing, answer)
            answer.fail(Unavailable("the server stops"))

    def _parts(self, command: Publish, upload: Upload) -> Iterator[Upload]:
        """An upload as it is stored: whole, unless its rows are deltas to the records of a topic."""
        by_name = self.engine.core.sows.by_name
        found = (by_name.get((command.vhost, command.exchange, name)) for name in upload.names if by_name)
        if (most := min((sow.rule.body_most for sow in found if sow is not None), default=None)) is None:
            yield upload
            return
        if command.delta or (upload.size > most and int(lengths(upload.bodies).max()) > most):
            upload.bodies = listed(upload.bodies)  # what is worked out about a large body is known by its object
        if not command.delta or len(upload) <= DELTAS_AT_ONCE:
            yield upload
            return
        for low in range(0, len(upload), DELTAS_AT_ONCE):
            yield part_of(upload, low, min(low + DELTAS_AT_ONCE, len(upload)))

    def _keys(self, command: Publish, upload: Upload) -> tuple[int, list[int]] | None:
        """The keys of a large upload to a SOW topic, worked out before the loop has it."""
        if upload.name_of is not None:
            return None
        sow = self.engine.core.sows.by_name.get((command.vhost, command.exchange, upload.names[0]))
        if sow is None or sow.rule.given or (len(upload) < KEYED_HERE and upload.size <= sow.rule.body_most):
            return None
        bodies, heads, numbers = listed(upload.bodies), upload.properties, list[int]()
        for start in range(0, len(bodies), KEYED_HERE):
            part = slice(start, start + KEYED_HERE)
            some = sow.rule.of_bodies(bodies[part], heads if isinstance(heads, bytes) else heads[part])
            if some is None:
                return None  # a row without a key: the core says which
            numbers += some
            breathe()
        return sow.id, numbers

    def _decide(self, storing: Storing, answer: Answer[tuple[Published, int]]) -> None:
        """Publish the first rows of an upload, as many as there is room for; on the loop.

        No function here refers to itself: that would be a cycle, which keeps the upload until a full collection.
        """
        if storing.gone:
            return
        engine, command = self.engine, storing.command
        storing.go_on = _nobody
        self._waiting.pop(storing, None)
        decide = partial(self._decide, storing)
        if not self._handover.has_room(decide, answer):
            return
        if (why := engine.refusal(new=True)) is not None:
            raise why
        batch = to_publishes(engine, storing.user, storing.upload, command.vhost, command.exchange)
        if storing.judged is not None:
            batch.take_judged(storing.judged)
        batch.delta, batch.keyed = command.delta, storing.keyed
        storing.judged = batch
        again = partial(self._handover.again, decide, answer)
        if not engine.judges.ready([batch], again, publisher=command.publisher, sequence=storing.sequence):
            return
        if engine.core.blocking:
            some = self._let_in(storing, batch, answer, again)
            if some is None:
                return
            batch = some
        published = engine.core.publish(
            engine.now(), batch, publisher=command.publisher, sequence=storing.sequence, mandatory=command.mandatory
        )
        self._handover.when_persisted(published.last, answer, (published, len(batch)))

    def _let_in(
        self, storing: Storing, batch: Publishes, answer: Answer[tuple[Published, int]], again: Callable[[], None]
    ) -> Publishes | None:
        """The first rows, as many as no queue holds up; None: there are none, and `again` is called later."""
        engine = self.engine
        count, queue = engine.core.let_in(engine.now(), batch)
        if not count:
            assert queue is not None
            if len(self._waiting) >= self._waiting_most:
                raise refusing.blocked(queue)
            storing.go_on = again
            self._waiting[storing] = answer
            self._handover.keep(answer)
            engine.rooms.wait(queue, int(lengths(batch.bodies)[0]), storing)
            return None
        if count == len(batch):
            return batch
        some = batch.select(range(count))
        some.delta, some.ahead = batch.delta, batch.ahead
        some.keyed = None if storing.keyed is None else (storing.keyed[0], storing.keyed[1][:count])
        return some


def _nobody() -> None:
    """Whoever waited does not any more."""


def part_of(upload: Upload, low: int, high: int) -> Upload:
    """Rows low..high-1 of an upload whose bodies are a list."""

    def some(column: list[int] | None) -> list[int] | None:
        return None if column is None else column[low:high]

    bodies, heads = listed(upload.bodies)[low:high], rows_at(upload.properties, slice(low, high))
    size = sum(map(len, bodies)) + bytes_of(heads, len(bodies))
    return Upload(
        bodies, heads, upload.names, some(upload.name_of), some(upload.not_before), some(upload.expires_at),
        some(upload.delay), some(upload.expiration), size,
    )  # fmt: skip


COUNTS = ("stored", "duplicates", "unroutable", "refused_rows", "replies")
"""What an answer counts; `replies` were given to who waits for them, and are in no queue."""


def together(receipts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The answers for the parts of one batch as one."""
    out: dict[str, object] = {"first": 0, "last": 0}
    refused: list[dict[str, object]] = []
    rows = 0
    for one in receipts:
        if one["stored"]:
            out["first"], out["last"] = out["first"] or one["first"], one["last"]
        for row in cast("list[dict[str, object]]", one["refused"]):
            refused.append({**row, "row": cast("int", row["row"]) + rows})
        rows += cast("int", one["rows"])
    for name in COUNTS:
        out[name] = sum(cast("int", one[name]) for one in receipts)
    return {**out, "refused": refused[:REFUSED_SHOWN], "rows": rows}


def receipt(published: Published, rows: int) -> dict[str, object]:
    """The answer for one batch."""
    refused = published.refused
    return {
        "first": published.first,
        "last": published.positions[-1] if published.stored else 0,
        "stored": published.stored,
        "duplicates": published.duplicates,
        "unroutable": len(published.unroutable),
        "refused_rows": len(refused),
        "replies": len(published.replied),
        "refused": refused_rows(refused[:REFUSED_SHOWN]),
        "rows": rows,
    }


def refused_rows(refused: Sequence[tuple[int, object]]) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for row, why in refused:
        code = why.code if isinstance(why, PenstockError) else Refused.code
        reason = getattr(why, "reason", None) or code
        out.append({"row": row, "code": code, "reason": str(reason), "message": str(getattr(why, "text", why))})
    return out


def end_rows(metadata: bytes, before: int | None) -> int | None:
    """The row count of an end message; other metadata is refused."""
    fields = Fields("publish metadata", read_json(metadata, "publish metadata"))
    end = fields.inner("end")
    fields.finish()
    if end is None:
        return before
    rows = end.number("rows")
    end.finish()
    return rows
