"""What is left of asyncio's transports when a connection is lost: nothing that waits for a collection."""

from __future__ import annotations

import asyncio


def parted(transport: asyncio.BaseTransport) -> None:
    """Its connection is lost: asyncio's has one of its own methods among its attributes, a cycle of garbage."""
    if "_read_ready_cb" in vars(transport):
        vars(transport)["_read_ready_cb"] = None
