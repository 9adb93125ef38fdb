"""Sizes of messages as part of an encoded durable state: how many rows and blocks among its JSON, the rest after it.

Rows first: the distance of each from the one before and its size plus one (0: it has a block), as integers of the
widths that the JSON names.  Then of each block how many LSNs it covers and its width, and the blocks.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from penstock.core.sizes.sizes import Sizes
from penstock.core.state.columns import narrow, wide

_BLOCK = np.dtype([("count", "<u4"), ("width", "u1")])


def dump_sizes(sizes: Sizes, blobs: list[bytes]) -> list[int]:
    """For the JSON; the columns go to the end of `blobs`."""
    firsts, each, blocks = sizes.rows()
    if not len(firsts):
        return []
    gaps, told = np.diff(firsts, prepend=0).astype(np.uint64), (each + 1).astype(np.uint64)
    widths = [max(int(column.max()).bit_length() + 7 >> 3, 1) for column in (gaps, told)]
    shapes = np.array([(len(block), block.itemsize) for block in blocks], dtype=_BLOCK)
    blobs += (narrow(gaps, widths[0]), narrow(told, widths[1]), shapes.tobytes())
    blobs += (block.astype(f"<u{block.itemsize}").tobytes() for block in blocks)
    return [len(firsts), *widths, len(blocks)]


def load_sizes(sizes: Sizes, told: object, data: bytes, place: int) -> int:
    """The inverse, from `place` on; where it ends.  ValueError when that does not fit."""
    if not told:
        return place
    count, gap_width, size_width, held = cast("list[int]", told)

    def piece(size: int) -> bytes:
        nonlocal place
        part = data[place : place + size]
        if len(part) != size:
            raise ValueError("the encoded state is cut: its sizes are short")
        place += size
        return part

    gaps = wide(piece(count * gap_width), gap_width)
    each = wide(piece(count * size_width), size_width)
    shapes = np.frombuffer(piece(held * _BLOCK.itemsize), _BLOCK)
    blocks = [
        np.frombuffer(piece(length * width), f"<u{width}")
        for length, width in zip(shapes["count"].tolist(), shapes["width"].tolist(), strict=True)
    ]
    if np.count_nonzero(each == 0) != held:
        raise ValueError(f"the encoded state has {held} blocks of sizes, its rows say otherwise")
    sizes.load_rows(np.cumsum(gaps).astype(np.int64), each.astype(np.int64) - 1, blocks)
    return place
