"""Rows of many topics, as far as a user may read them.  Runs where the rows are read, perhaps in the bulk child."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from penstock.records.entries import Topic

TopicRight: TypeAlias = "tuple[str | None, bool | str]"
"""Which topics (a name, a pattern, None for all), and what of them: all, nothing, or what an expression is TRUE of."""


class TopicRights:
    """The entries of one user about the topics of one exchange, in their order."""

    def __init__(self, entries: Sequence[TopicRight], vhost: str, origin: int) -> None:
        from penstock.expr import TopicPattern  # not needed by most reads of a child

        self._entries = [(None if name is None else TopicPattern(name), right) for name, right in entries]
        self._vhost = vhost
        self._origin = origin
        self._known = dict[str, bool | str]()

    def of(self, name: str) -> bool | str:
        """What of a topic may be read."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) > 100_000:
                self._known.clear()
            matching = (right for named, right in self._entries if named is None or named.matches(name))
            found = self._known[name] = next(matching, False)
        return found

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that may be read, in the log's own columns."""
        for batch in batches:
            names = cast("list[str]", batch.column("name").to_pylist())
            rights = [self.of(name) for name in names]
            keep = np.array([right is True for right in rights], bool)
            for text in {right for right in rights if isinstance(right, str)}:
                places = np.array([place for place, right in enumerate(rights) if right == text], np.int64)
                keep[places] = self._matches(text, batch.take(cast("Any", pa.array(places))))
            if keep.all():
                yield batch
            elif keep.any():
                yield batch.filter(pa.array(keep))

    def _matches(self, text: str, batch: pa.RecordBatch) -> list[bool]:
        from penstock.expr import compile_filter

        names = cast("list[str]", batch.column("name").to_pylist())
        return compile_filter(text).matches(
            cast("list[bytes]", batch.column("body").to_pylist()),
            cast("list[bytes]", batch.column("properties").to_pylist()),
            [Topic(self._vhost, "", name) for name in names],
            lsns=cast("list[int]", batch.column("lsn").to_pylist()),
            times=cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist()),
            origin=self._origin,
        )
