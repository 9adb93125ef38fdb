"""Many SOW records at once, as the fold meets them: neighbours of one topic and one kind are put together.

What is done is what each record says, one after the other; joined are only the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.core.sow.holding import Sows
from penstock.core.sow.index import Ints
from penstock.core.sow.records import Put, unpack_put


def fold(sows: Sows, puts: npt.NDArray[np.bool_], values: Ints, offsets: Ints) -> None:
    """Records in order: which are puts, else drops; the packed integers of all, and where each begins and ends.

    Shape: puts (n,), offsets (n + 1,).  ValueError for a record that cannot be read.
    """
    if (np.diff(offsets) < 2).any():
        raise ValueError("a SOW record of less than two integers")
    ids = values[offsets[:-1]]
    breaks = np.flatnonzero((np.diff(ids) != 0) | (puts[1:] != puts[:-1])) + 1
    starts = [0, *breaks.tolist()]
    for start, stop in zip(starts, [*breaks.tolist(), len(ids)], strict=True):
        number = int(ids[start])
        if number not in sows.by_id:
            continue
        if puts[start]:
            sows.put(_joined(number, values, offsets[start : stop + 1]))
        else:
            for at in range(start, stop):
                sows.drop(number, values[offsets[at] + 1 : offsets[at + 1]].view(np.uint64))


def _joined(number: int, values: Ints, offsets: Ints) -> Put:
    """Puts of one topic as one."""
    first = values[offsets[0] : offsets[1]]
    if len(offsets) == 2:
        return unpack_put(first)
    lone = bool((np.diff(offsets) == 4).all()) and not values[offsets[:-1] + 1].any()
    if lone:  # each of one message, published alone: no step for each
        return Put(number, values[offsets[:-1] + 3].view(np.uint64), values[offsets[:-1] + 2], None)
    puts = list(_each(values, offsets))
    deadlines: Ints | None = None
    if any(put.deadlines is not None for put in puts):
        none = np.int64(0)
        deadlines = np.concatenate(
            [np.full(len(put.lsns), none) if put.deadlines is None else put.deadlines for put in puts]
        )
    return Put(
        number, np.concatenate([put.numbers for put in puts]), np.concatenate([put.lsns for put in puts]), deadlines
    )


def _each(values: Ints, offsets: Ints) -> Iterator[Put]:
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield unpack_put(values[start:stop])
