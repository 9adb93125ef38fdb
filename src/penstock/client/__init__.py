"""The Python client: connect, publish, consume, replay, look, over Arrow Flight.

Its parts are loaded when they are first asked for: who needs an address needs no consumer.
"""

from __future__ import annotations

import os
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.batches import Batch
    from penstock.client.client import Client, connect
    from penstock.client.consumer import Consumer
    from penstock.client.messages import Message, Receipt, Refusal, TableReceipt
    from penstock.client.reading import Result
    from penstock.client.replay import Bookmarks, Replay
    from penstock.client.results import Task
    from penstock.client.transactions import Transaction

_LAZY = {
    "Batch": "batches",
    "Bookmarks": "replay",
    "Client": "client",
    "Consumer": "consumer",
    "Message": "messages",
    "Receipt": "messages",
    "Refusal": "messages",
    "Replay": "replay",
    "Result": "reading",
    "TableReceipt": "messages",
    "Task": "results",
    "Transaction": "transactions",
    "connect": "client",
}

__all__ = [
    "Batch",
    "Bookmarks",
    "Client",
    "Consumer",
    "Message",
    "Receipt",
    "Refusal",
    "Replay",
    "Result",
    "TableReceipt",
    "Task",
    "Transaction",
    "connect",
]


_loading = RLock()
"""Of who loads a part.  Python lets a child that was forked meanwhile wait for ever for the thread that had begun."""

os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def loaded(module: str, name: str | None) -> object:
    """What a module has by that name, the module itself without one; loaded now, if it was not.  A fork waits."""
    with _loading:
        found = import_module(module)
        return found if name is None else getattr(found, name)


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there

    def __getattr__(name: str) -> object:
        try:
            module = _LAZY[name]
        except KeyError:
            raise AttributeError(f"module 'penstock.client' has no attribute {name!r}") from None
        globals()[name] = value = loaded(f"penstock.client.{module}", name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
