"""A compiled tree: a function over the columns of a batch of messages, and which of these it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal as OneOf

from penstock.expr.batches import Table
from penstock.records.dataclass import dataclass

Column = OneOf["body", "properties", "topic", "lsn", "time", "now", "size", "context"]
Run = Callable[
    [Sequence[bytes], Iterable[bytes], Iterable[object], Iterable[object], Iterable[object], object, object, object],
    list[object],
]
RunParsed = Callable[
    [
        Sequence[bytes],
        Iterable[Table],
        Iterable[bytes],
        Iterable[object],
        Iterable[object],
        Iterable[object],
        object,
        object,
        object,
    ],
    list[object],
]


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled tree.  `needs` names the columns that `run` reads; the others may be anything of the right length."""

    run: Run
    needs: frozenset[Column]
    source: str
