"""One action: what carries it out, its sentence, and what it asks of who wants it.

Every action says its right where it is registered; there is none without.  What cannot be said as data, for it is about
the topology that a name leads to, is a method of `Gatekeeper`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock.records.rights import Right

if TYPE_CHECKING:
    from penstock.server.entitlements import Rights
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.entitled import Gatekeeper
    from penstock.wire.fields import Fields

Reply = Mapping[str, object]
Body = Mapping[str, Any]

Asks: TypeAlias = "Callable[[Gatekeeper, Caller, Rights, Body], None]"
"""Raises AccessRefused; not asked where nothing is limited."""


class Action(NamedTuple):
    """One row of the table of all actions."""

    run: Callable[[Caller, Fields], Reply]
    text: str
    right: Right | Callable[[Body], Right]  # of every request, or of this one
    asks: Asks | None = None

    def right_of(self, body: Body) -> Right:
        """What a request asks."""
        return self.right if isinstance(self.right, Right) else self.right(body)


Table: TypeAlias = "dict[str, Action]"
