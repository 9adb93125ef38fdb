"""Where others come before who is silent: from the first message on at which somebody's filter has still to look.

A consumer that let a lease end takes what nobody else wants (`roster`).  What a filter has not looked at yet may be
wanted, so who is silent waits there for as long as a list that has somebody else with room has still to look: without
that it would get again, each time, what its own lease gave back.  Lists look at what stands first, and one that is full
has given its matches to who has room; so that wait ends with the next answer.

Within a dispatch nothing comes and nobody gets room, so what was found is true until it is reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import END, Key

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import TargetList
    from penstock.core.queue.dispatching.filtering import Targets
    from penstock.core.queue.order.main_order import Main

FIRST: Key = (-END[0], 0)
"""Before every place."""


def to_look(lists: Iterable[TargetList], main: Main) -> tuple[Key, TargetList | None]:
    """Where the first message stands at which one of these has still to look, and which; `END` without one."""
    first, found = END, None
    for targets in lists:
        place = targets.stop(main, first)
        if place is not None:
            first, found = place, targets
    return first, found


class Precedence:
    """As far as one dispatch has to know it."""

    __slots__ = ("_first", "_list", "_main", "_targets")

    def __init__(self, targets: Targets, main: Main) -> None:
        self._targets = targets
        self._main = main
        self._first = FIRST  # nobody is waited for before this
        self._list: TargetList | None = None  # which has to look there

    def ends(self, key: Key) -> Key:
        """Up to which place who is silent may be given something, as far as that matters at this one."""
        if key >= self._first and not self._waits(key):
            others = [one for one in self._targets.to_look if one.takers.speaks]
            self._first, self._list = to_look(others, self._main)
        return self._first

    def _waits(self, key: Key) -> bool:
        """Whether the list that has been found has still to look here."""
        one = self._list
        return one is not None and one.takers.speaks and one.stop(self._main, (key[0], key[1] + 1)) is not None
