"""Filters of a command: what they ask about who asks is answered before they are compiled."""

from __future__ import annotations

from typing import overload

from penstock.expr.binding import bound
from penstock.expr.context import Context


@overload
def asked_by(text: str, *, client: str, user: str, instance: str) -> str: ...
@overload
def asked_by(text: str | None, *, client: str, user: str, instance: str) -> str | None: ...
def asked_by(text: str | None, *, client: str, user: str, instance: str) -> str | None:
    """The text for one client.  ExpressionError for one that cannot be read."""
    if not text:
        return text
    return bound(text, Context(client_name=client, user=user, instance_name=instance))
