"""Which messages a planned batch of a stream has; their rows come from `contents`, which the bulk child runs too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.streams.poison import Link

if TYPE_CHECKING:
    from penstock.core.streams.streams import Streams
    from penstock.records.chunks import Chunk
    from penstock.wire.flight.commands import Plan


def read_batch(streams: Streams, command: Plan) -> tuple[Chunk, ...]:
    """Positions of a planned batch; on the loop.  Errors as `Streams.read`."""
    link = None if command.query is None else Link(command.batch, command.query, command.query_batch)
    return streams.poison.read(command.stream, command.batch, command.revision, link, command.epoch)
