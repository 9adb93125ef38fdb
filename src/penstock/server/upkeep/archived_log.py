"""The log and its archive as one, in the server's own process: for replays, and for who looks up places.

Archived rows come from the bulk child in windows of a few MiB, of which some are kept: readers come page by page, and
several at about the same place share the work.  Nothing of it may run on the loop but `first_lsn`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.log.archive.row_groups import may_have, pieces
from penstock.log.catalog import Span, pieces_of
from penstock.log.record_batches import column
from penstock.server.bulk.process import on_log

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.name_index import Wanted
    from penstock.log.reader import Vias
    from penstock.server.bulk.process import Bulk
    from penstock.server.upkeep.archive import Archiving


WINDOW = 2 << 20
"""Bytes of rows that are asked for at once."""

WINDOWS = 4
"""So many are kept."""

_NOWHERE = 1 << 62


class _Window(NamedTuple):
    batches: list[pa.RecordBatch]
    upto: int  # all below it is there


class Whole:
    """Reads as the log does, and further back.  Any thread."""

    def __init__(self, log: Log, archive: Archiving, bulk: Bulk) -> None:
        self._log, self._archive, self._bulk = log, archive, bulk
        self._kept = OrderedDict[tuple[int, int, tuple[str, ...] | None], _Window]()
        self._lock = threading.Lock()

    @property
    def origin(self) -> int:
        return self._log.origin

    @property
    def durable(self) -> int:
        return self._log.durable

    @property
    def vias(self) -> Vias:
        """What each `via` id stands for."""
        return self._log.vias

    @property
    def first_lsn(self) -> int:
        """No row with a lower LSN is kept anywhere."""
        first = self._log.first_lsn
        return min(first, self._archive.first_lsn or first)

    def batches(
        self, a: int, b: int, columns: Sequence[str] | None = None, names: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Durable rows of all kinds with LSNs in [a, b); batches without a message of such a name may be left out.

        LogDamaged, Unavailable.
        """
        log = self._log
        if a >= log.whole_from:
            yield from log.batches(a, b, columns, names)
            return
        shown = self._archive.shown()  # first: what leaves the log later is archived already
        seam = shown.seam if shown is not None else 0
        for piece in pieces(a, min(b, log.durable + 1), seam, self._archive.manifest.spans):
            if not piece.archived:
                yield from log.batches(piece.start, piece.end, columns, names)
                continue
            at, topics = piece.start, self._topics(names)
            while at < piece.end:
                window = self._window(at, piece.end, topics)
                for batch in window.batches:
                    low = int(np.searchsorted(column(batch, "lsn", "<i8"), at))
                    if low < batch.num_rows:
                        rest = batch.slice(low) if low else batch
                        yield rest if columns is None else rest.select(list(columns))
                at = window.upto

    def outlines(self, a: int, b: int, names: Wanted | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, with the lengths of the bodies in the place of them where that saves reading."""
        if a >= self._log.whole_from:
            return self._log.outlines(a, b, names)
        return self.batches(a, b, None, names)

    def spans(self, a: int, b: int, names: Wanted | None = None) -> Iterator[Span]:
        """Where `batches` would find rows, and about how many, by their first LSN."""
        log = self._log
        if a >= log.whole_from:
            yield from log.spans(a, b, names)
            return
        shown = self._archive.shown()
        seam, manifest = shown.seam if shown is not None else 0, self._archive.manifest
        for piece in pieces(a, min(b, log.durable + 1), seam, manifest.spans):
            if not piece.archived:
                yield from log.spans(piece.start, piece.end, names)
                continue
            found = list[Span]()
            for part in manifest.files:
                low, high = max(part.first, piece.start), min(part.last + 1, piece.end)
                if low < high and may_have(part, names):
                    found += pieces_of(low, high, part.rows * (high - low) // (part.last + 1 - part.first))
            yield from sorted(found)

    def _topics(self, names: Wanted | None) -> tuple[str, ...] | None:
        """The wanted ones of the topics that have files of their own; None: all rows."""
        if names is None:
            return None
        if isinstance(names, str):
            return (names,)
        known = {part.topic for part in self._archive.manifest.files if part.topic is not None}
        return tuple(sorted(name for name in known if names(name)))

    def _window(self, start: int, end: int, topics: tuple[str, ...] | None) -> _Window:
        with self._lock:
            for key, kept in self._kept.items():
                if key[1:] == (end, topics) and key[0] <= start < kept.upto:
                    self._kept.move_to_end(key)
                    return kept
        window = self._ask(start, end, topics)
        with self._lock:
            self._kept[start, end, topics] = window
            while len(self._kept) > WINDOWS:
                self._kept.popitem(last=False)
        return window

    def _ask(self, start: int, end: int, topics: tuple[str, ...] | None) -> _Window:
        notes: dict[str, int] = {}
        values: dict[str, object] = {
            "start": start, "end": end, "topics": None if topics is None else list(topics), "most": WINDOW,
        }  # fmt: skip

        def ask(listed: dict[str, object]) -> list[pa.RecordBatch]:
            return list(self._bulk.read("archived", {**values, "log": listed}, told=notes.update)[1])

        batches = on_log(self._log, ask, _NOWHERE, _NOWHERE, self._archive.shown)
        return _Window(batches, notes["upto"])
