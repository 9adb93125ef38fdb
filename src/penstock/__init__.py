"""Penstock: a message-queue server whose log is an Arrow table.

    import penstock

    with penstock.connect("penstock://localhost") as client:
        client.publish("orders", {"id": 1, "total": 9.5})

Importing this package loads the errors alone, and what loads the rest: `connect`, `aio` and the classes behind them are
loaded when they are first used, so that a worker pays for the client and never for the server, pydantic, duckdb or
pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client import loaded
from penstock.errors import (
    AccessRefused,
    DataFolderInUse,
    DiskFull,
    ExpressionError,
    Fenced,
    InvalidArgument,
    InvalidBody,
    LogBroken,
    LogDamaged,
    NotFound,
    PenstockError,
    PreconditionFailed,
    ProtocolError,
    QueueFull,
    Refused,
    ResourceExhausted,
    ResourceLocked,
    SettingsError,
    Unavailable,
    Unroutable,
    WorkFailed,
)
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.client import Bookmarks, Client, Message, aio, connect
    from penstock.client.bodies import avro, protobuf
    from penstock.worker.app import App
    from penstock.worker.worker import Depends

_LAZY = {
    "App": ("penstock.worker.app", "App"),
    "Bookmarks": ("penstock.client", "Bookmarks"),
    "Client": ("penstock.client", "Client"),
    "Depends": ("penstock.worker.worker", "Depends"),
    "Message": ("penstock.client", "Message"),
    "avro": ("penstock.client.bodies", "avro"),
    "connect": ("penstock.client", "connect"),
    "protobuf": ("penstock.client.bodies", "protobuf"),
    "aio": ("penstock.aio", None),
}
"""Public name -> the module it lives in and its name there; None is the module itself."""

__all__ = [
    "AccessRefused",
    "App",
    "Bookmarks",
    "Client",
    "DataFolderInUse",
    "Depends",
    "DiskFull",
    "ExpressionError",
    "Fenced",
    "InvalidArgument",
    "InvalidBody",
    "LogBroken",
    "LogDamaged",
    "Message",
    "NotFound",
    "PenstockError",
    "PreconditionFailed",
    "ProtocolError",
    "QueueFull",
    "Refused",
    "ResourceExhausted",
    "ResourceLocked",
    "SettingsError",
    "Unavailable",
    "Unroutable",
    "WorkFailed",
    "__version__",
    "aio",
    "avro",
    "connect",
    "protobuf",
]


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there

    def __getattr__(name: str) -> object:
        try:
            module_name, inner = _LAZY[name]
        except KeyError:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}") from None
        globals()[name] = value = loaded(module_name, inner)  # the next access does not come here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
