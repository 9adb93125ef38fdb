"""On which terms a batch is published: what its publisher asked for, and what is known of it already."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.core.publishing.routed import Banned


class Terms(NamedTuple):
    """One for a call of `Publisher.publish`, handed on from step to step; parameters as there."""

    persistent: bool | None
    trusted: bool
    carbon: bool
    banned: Banned | None
    numbered: bool
    admitted: bool
