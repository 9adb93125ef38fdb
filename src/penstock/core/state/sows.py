"""SOW topics as part of an encoded durable state: their names among its JSON, their indexes after it.

Per topic, in order of the ids: numbers as uint64, LSNs as int64, and deadlines as int64 where some record expires.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import cast

from penstock.core.sow.holding import SowState


def dump_sows(states: Mapping[int, SowState], blobs: list[bytes]) -> list[list[object]]:
    """The rows for the JSON; the indexes go to the end of `blobs`."""
    rows: list[list[object]] = []
    for number, sow in sorted(states.items()):
        rows.append([number, sow.vhost, sow.exchange, sow.name, len(sow.numbers), bool(sow.deadlines)])
        blobs += (sow.numbers.tobytes(), sow.lsns.tobytes(), sow.deadlines.tobytes())
    return rows


def load_sows(states: dict[int, SowState], rows: object, data: bytes, place: int) -> int:
    """The inverse, from `place` on; where it ends.  ValueError when bytes are missing."""
    for row in cast("list[list[object]]", rows):
        number, count = cast(int, row[0]), cast(int, row[4])
        columns = [array("Q"), array("q"), array("q")]
        for column in columns if row[5] else columns[:2]:
            piece = data[place : place + 8 * count]
            if len(piece) != 8 * count:
                raise ValueError(f"the encoded state is cut: the index of SOW topic {row[3]!r} is short")
            column.frombytes(piece)
            place += 8 * count
        states[number] = SowState(number, str(row[1]), str(row[2]), str(row[3]), *columns)
    return place
