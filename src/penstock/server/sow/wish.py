"""What a subscriber to records asks for, and who takes what it is told."""

from __future__ import annotations

from typing import Protocol

from penstock.core.sow.select import SelectList
from penstock.errors import InvalidArgument, PenstockError
from penstock.records.dataclass import dataclass
from penstock.server.sow.page_work import Event

PAGE_MOST = 10_000
"""Rows of the page of a paginated subscription."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a subscriber asks for."""

    sow: bool = True  # the records there are, first
    filter: str | None = None
    delta: bool = False  # changed fields only
    no_empties: bool = False  # of deltas those without a change are left out
    oof: bool = False  # to be told what goes out of focus
    order_by: tuple[str, ...] = ()
    top_n: int | None = None
    skip_n: int = 0
    conflation: int | None = None  # microseconds: of the changes of a key within them only the last (`server.views`)
    conflation_key: tuple[str, ...] = ()  # expressions that tell keys apart for that; empty: the record's own key
    projection: tuple[str, ...] = ()  # with `grouping`: rows as a view with these would have
    grouping: tuple[str, ...] | None = None
    select: SelectList | None = None  # which fields are sent; who takes events keeps to it, `Live` for empty deltas
    timestamp: bool = False  # the time is sent with each; who takes events does it

    def __post_init__(self) -> None:
        if self.skip_n and self.top_n is None:
            raise InvalidArgument("skip_n needs top_n: it says how many of the first so many are passed over")
        if self.top_n is not None and not 0 < self.top_n <= PAGE_MOST:
            raise InvalidArgument(f"top_n of a subscription is {self.top_n}, not in 1..{PAGE_MOST}")
        if self.top_n is not None and not self.sow:
            raise InvalidArgument("top_n needs the records there are: ask for sow, too")
        if self.conflation is not None and (self.delta or self.paged):
            raise InvalidArgument("conflation does not go with deltas, nor with a page: it leaves changes out")
        if self.conflation_key and self.conflation is None:
            raise InvalidArgument("conflation_key goes with conflation")
        if self.no_empties and not self.delta:
            raise InvalidArgument("no_empties is about deltas: ask for delta, too")
        if self.select is not None and (self.projection or self.grouping is not None):
            raise InvalidArgument("select does not go with projection and grouping: those say which fields there are")

    @property
    def paged(self) -> bool:
        """Whether it follows a page of the records."""
        return self.top_n is not None

    @property
    def knowing(self) -> bool:
        """Whether what comes depends on what came before."""
        return self.delta or self.oof or self.paged


class Taker(Protocol):
    """Who takes events, on the loop."""

    def room(self) -> int:
        """How many it takes now; who says 0 calls `Live.go_on` when it has room."""
        ...

    def take(self, events: list[Event]) -> None:
        """Events in order."""
        ...

    def level(self) -> None:
        """All records of the snapshot were taken."""
        ...

    def ended(self, error: PenstockError) -> None:
        """Nothing more comes, for a reason."""
        ...
