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

from penstock.client import names_of
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
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "penstock.aio": ("aio",),
            "penstock.client": ("Bookmarks", "Client", "Message", "connect"),
            "penstock.client.bodies": ("avro", "protobuf"),
            "penstock.worker.app": ("App",),
            "penstock.worker.worker": ("Depends",),
        },
        __all__,
    )
