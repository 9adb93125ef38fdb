"""Spark reads and writes Penstock: `format("penstock")`, a local session, and the pipelines of a settings file.

    spark = penstock.spark.session()
    spark.read.format("penstock").option("topic", "orders").load()

    frame.where(penstock.spark.column("/total > 5 AND /region IN ('n', 's')"))

Importing this package loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.expression_column import column
    from penstock.spark.reading.queue_stream import settle_on_progress
    from penstock.spark.sessions import install, register, session
    from penstock.spark.tokens import token

_LAZY = {
    "column": "penstock.spark.expression_column",
    "install": "penstock.spark.sessions",
    "register": "penstock.spark.sessions",
    "session": "penstock.spark.sessions",
    "settle_on_progress": "penstock.spark.reading.queue_stream",
    "token": "penstock.spark.tokens",
}

__all__ = ["column", "install", "register", "session", "settle_on_progress", "token"]


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there

    def __getattr__(name: str) -> object:
        try:
            module = _LAZY[name]
        except KeyError:
            raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}") from None
        value: object = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
