"""The Python client: connect, publish, consume, replay, look, over Arrow Flight.

Its parts are loaded when they are first asked for: who needs an address needs no consumer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def loaded(module: str, name: str | None = None) -> object:
    """What a module has by that name, the module itself without one; loaded now, if it was not.  A fork waits."""
    with _loading:
        found = import_module(module)
        return found if name is None else getattr(found, name)


def names_of(
    package: str, places: Mapping[str, Sequence[str]], public: Iterable[str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.  places: by module, the names that it has for the package.

    AttributeError, as Python words it, for a name that nothing has.
    """
    module_of = {name: module for module, names in places.items() for name in names}

    def get(name: str) -> object:
        try:
            module = module_of[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        value = loaded(module, None if module == f"{package}.{name}" else name)
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return get, lambda: sorted(public)


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "penstock.client.batches": ("Batch",),
            "penstock.client.client": ("Client", "connect"),
            "penstock.client.consumer": ("Consumer",),
            "penstock.client.messages": ("Message", "Receipt", "Refusal", "TableReceipt"),
            "penstock.client.reading": ("Result",),
            "penstock.client.replay": ("Bookmarks", "Replay"),
            "penstock.client.results": ("Task",),
            "penstock.client.transactions": ("Transaction",),
        },
        __all__,
    )
