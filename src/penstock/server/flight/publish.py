"""DoPut publish: Arrow batches in, each stored as one batch and answered when it is durable.

The end of an upload proves nothing: a vanished client looks like one that has finished.  So each batch stands alone and
has its own answer, and the client's end message says how many rows it sent; the last answer says whether that is true.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa

from penstock.errors import DiskFull, InvalidArgument, LogBroken, PenstockError, Refused
from penstock.records.entries import Publishes, Topic
from penstock.server.flight.calls import Caller, Slot
from penstock.server.flight.handover import Answer
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.fields import Fields, read_json
from penstock.wire.flight.schemas import PUBLISH, Bounds, check_schema
from penstock.wire.flight.tickets import Publish

if TYPE_CHECKING:
    from penstock.core.publishing.publishing import Published
    from penstock.server.engine import Engine
    from penstock.server.flight.handover import Handover

REFUSED_SHOWN = 1000
"""Refused rows that one answer names; `refused_rows` counts them all."""


def refusal(engine: Engine) -> PenstockError | None:
    """Why no message can be taken at present, if so."""
    if engine.broken is not None:
        return LogBroken(f"the log is broken: {engine.broken}")
    if engine.log.full:
        return DiskFull("the log has no room")
    return None


def to_publishes(engine: Engine, upload: Upload, vhost: str, exchange: str) -> Publishes:
    """An upload with its topics looked up; on the loop.  Raises NotFound for a missing exchange."""
    topics: Topic | list[Topic]
    found = [engine.core.topic(vhost, exchange, name) for name in upload.names]
    topics = found[0] if upload.name_of is None else [found[place] for place in upload.name_of]
    return Publishes(
        topics,
        upload.properties,
        upload.bodies,
        not_before=upload.not_before,
        expires_at=upload.expires_at,
        size=upload.size,
    )


class Publishing:
    """Stores uploads."""

    def __init__(self, handover: Handover, bounds: Bounds) -> None:
        self.engine = handover.engine
        self.bounds = bounds
        self._handover = handover

    def serve(
        self,
        caller: Caller,
        slot: Slot,
        command: Publish,
        reader: Any,
        writer: Any,
    ) -> None:
        """Read batches until the client has sent all; answer each, then the whole."""
        check_schema(reader.schema, PUBLISH, ("body",), "publish")
        sent = stored = duplicates = refused = batches = 0
        first = last = 0
        announced: int | None = None
        sequence = command.sequence
        for batch, metadata in chunks(reader):
            slot.touch()
            if metadata is not None:
                announced = end_rows(metadata, announced)
            if batch is None or batch.num_rows == 0:
                continue
            upload = read_upload(batch, command.topic, self.bounds, "publish")
            answer = self._store(caller, command, upload, sequence)
            sent += len(upload)
            if sequence is not None:
                sequence += len(upload)
            stored += cast("int", answer["stored"])
            duplicates += cast("int", answer["duplicates"])
            refused += cast("int", answer["refused_rows"])
            if answer["stored"]:
                first, last = first or cast("int", answer["first"]), cast("int", answer["last"])
            writer.write(orjson.dumps({"batch": batches, **answer}))
            batches += 1
        if caller.gone():
            return
        if announced is not None and announced != sent:
            raise InvalidArgument(
                f"publish: the end message says {announced} rows and {sent} came; {stored} of them are stored"
            )
        total = {"first": first, "last": last, "stored": stored, "duplicates": duplicates, "refused_rows": refused}
        writer.write(orjson.dumps({"end": True, "rows": sent, "complete": announced == sent, **total}))

    def _store(self, caller: Caller, command: Publish, upload: Upload, sequence: int | None) -> dict[str, object]:
        """One batch, stored and durable."""
        published = self._handover.submit(partial(self._decide, command, upload, sequence, None)).wait(caller.gone)
        return receipt(published, len(upload))

    def _decide(
        self,
        command: Publish,
        upload: Upload,
        sequence: int | None,
        before: Publishes | None,
        answer: Answer[Published],
    ) -> None:
        """Publish an upload when there is room; on the loop.  `before`: it, if content filters have judged it.

        No function here refers to itself: that would be a cycle, which keeps the upload until a full collection.
        """
        engine = self.engine
        if not engine.has_room():
            later = partial(self._decide, command, upload, sequence, before)
            engine.on_room.append(partial(self._handover.again, later, answer))
            return
        why = refusal(engine)
        if why is not None:
            raise why
        batch = to_publishes(engine, upload, command.vhost, command.exchange)
        batch.judged = None if before is None else before.judged
        again = partial(self._handover.again, partial(self._decide, command, upload, sequence, batch), answer)
        if not engine.judges.ready([batch], again, publisher=command.publisher, sequence=sequence):
            return
        if command.publisher is None:
            published = engine.core.publish(engine.now(), batch)
        else:
            published = engine.core.publish(
                engine.now(), batch, publisher=command.publisher, sequence=cast("int", sequence)
            )
        self._handover.when_durable(published.last, answer, published)


def receipt(published: Published, rows: int) -> dict[str, object]:
    """The answer for one batch."""
    refused = published.refused
    return {
        "first": published.first,
        "last": published.first + published.stored - 1 if published.stored else 0,
        "stored": published.stored,
        "duplicates": published.duplicates,
        "unroutable": len(published.unroutable),
        "refused_rows": len(refused),
        "refused": refused_rows(refused[:REFUSED_SHOWN]),
        "rows": rows,
    }


def refused_rows(refused: Sequence[tuple[int, object]]) -> list[dict[str, object]]:
    """Refused rows as JSON."""
    out: list[dict[str, object]] = []
    for row, why in refused:
        code = why.code if isinstance(why, PenstockError) else Refused.code
        reason = getattr(why, "reason", None) or code
        out.append({"row": row, "code": code, "reason": str(reason), "message": str(getattr(why, "text", why))})
    return out


def chunks(reader: Any) -> Iterator[tuple[pa.RecordBatch | None, bytes | None]]:
    """Batches and metadata of an upload, until its end."""
    while True:
        try:
            chunk: Any = reader.read_chunk()
        except StopIteration:
            return
        batch = cast("pa.RecordBatch | None", chunk.data)
        yield batch, None if chunk.app_metadata is None else cast("bytes", chunk.app_metadata.to_pybytes())


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
