"""Spark reads and writes Penstock: `format("penstock")`, a local session, and the pipelines of a settings file.

    spark = penstock.spark.session()
    spark.read.format("penstock").option("topic", "orders").load()

    frame.where(penstock.spark.column("/total > 5 AND /region IN ('n', 's')"))

Importing this package loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client import names_of

if TYPE_CHECKING:
    from penstock.spark.expression_column import column
    from penstock.spark.reading.queue_stream import settle_on_progress
    from penstock.spark.sessions import install, register, session
    from penstock.spark.tokens import token

__all__ = ["column", "install", "register", "session", "settle_on_progress", "token"]


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "penstock.spark.expression_column": ("column",),
            "penstock.spark.reading.queue_stream": ("settle_on_progress",),
            "penstock.spark.sessions": ("install", "register", "session"),
            "penstock.spark.tokens": ("token",),
        },
        __all__,
    )
