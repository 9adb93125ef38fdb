"""To which part of a planned batch each of its messages belongs, where all messages of one key belong together.

Which part that is depends on the text of the key alone; messages without a key (NULL) are spread by their LSNs.  The
keys of a batch are worked out once, by whoever reads its first part, in the log's order, and kept while other parts
may be read: a number of four bytes for each message.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import sha256
from typing import Any, TypeAlias, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.history.history import Batches, History, Past
from penstock.records.dataclass import dataclass
from penstock.wire.flight.codec import present
from penstock.wire.flight.commands import MESSAGES, select

NEEDED = ("body", "properties", "topic", "lsn", "time")
"""Columns that a key may be made of."""

BYTES_MOST = 32 << 20
"""Of all that is kept; the newest batch is kept in any case."""

Ints: TypeAlias = "npt.NDArray[np.int64]"
Sums: TypeAlias = "npt.NDArray[np.uint32]"


@dataclass(slots=True)
class _Known:
    """The keys' sums of one batch, once they are worked out, by one reader while others wait."""

    lock: threading.Lock
    sums: Sums | None = None


_kept: OrderedDict[tuple[int, str, bytes], _Known] = OrderedDict()
_guard = threading.Lock()


def rows_of_part(lsns: Ints, key: str, part: int, parts: int, log: Past, history: History) -> Ints:
    """Of ascending LSNs those whose messages are of this part.

    A message that the log no longer has is of a part all the same, whose reader misses it.
    """
    if parts == 1 or not len(lsns):
        return lsns
    name = (log.origin, key, sha256(lsns.tobytes()).digest())
    with _guard:
        known = _kept.setdefault(name, _Known(threading.Lock()))
        _kept.move_to_end(name)
    with known.lock:
        if known.sums is None:
            sums = _sums(lsns, key, log, history)
            if history.gone():
                return lsns[:0]  # nobody waits for them, and not all were looked at
            known.sums = sums
        sums = known.sums
    _forget(name)
    mine: Ints = lsns[sums % np.uint32(parts) == part]
    return mine


def _forget(newest: tuple[int, str, bytes]) -> None:
    with _guard:
        total = 0
        for name in reversed(list(_kept)):
            sums = _kept[name].sums
            total += 0 if sums is None else sums.nbytes
            if total > BYTES_MOST and name != newest:
                del _kept[name]


def _sums(lsns: Ints, key: str, log: Past, history: History) -> Sums:
    """A number for each message, the same for all of one key."""
    from penstock.expr import compile_value  # a sixth of the start of a child

    value, schema = compile_value(key), select(MESSAGES, NEEDED)
    sums = lsns.astype(np.uint32)
    known: dict[object, int] = {}
    rows: Batches = history.rows_at(lsns)
    for batch in rows:
        shown: Any = present(batch, schema, log.origin, history.exchange_of)
        places = np.searchsorted(lsns, batch.column("lsn").to_numpy())
        keys: Any = value.on_batch(shown)
        if pa.types.is_string(keys.type):
            told = keys.dictionary_encode()
            each = np.array(_of_keys(told.dictionary.to_pylist(), known) or [0], np.uint32)
            found, there = each[told.indices.fill_null(0).to_numpy()], told.is_valid().to_numpy(zero_copy_only=False)
        else:
            values = cast("list[object]", keys.to_pylist())
            there = np.array([one is not None for one in values], bool)
            found = np.array(_of_keys(values, known), np.uint32)
        sums[places[there]] = found[there]
    return sums


def _of_keys(keys: list[object], known: dict[object, int]) -> list[int]:
    """Their sums.  `known`: those of keys seen before; 5 and 5.0 are one key, with the sum of which came first."""
    found = list[int]()
    for key in keys:
        made = 0 if key is None else known.get(key)
        if made is None:
            text = key if isinstance(key, bytes) else str(key).encode(errors="surrogateescape")
            made = known[key] = crc32(text)
        found.append(made)
    return found
