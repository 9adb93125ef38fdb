"""Bad bodies that tasks put aside: published at once, and stored once however often a part is read.

Whoever reads a part again gives its letters the same numbers, and the server drops what it has under a number.  So a
name stands for one cut of the rows, one schema and one set of rules: a batch that was narrowed has other parts, under
another schema or other rules other bodies are bad, and they are other publishers.  What then comes again says which
message it was, and a queue with a `dedup_window` takes that once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pyarrow as pa

from penstock.errors import AccessRefused, PreconditionFailed
from penstock.spark.executor import task_of
from penstock.spark.options import ReadOptions
from penstock.spark.reading.json_types import RULES
from penstock.spark.reading.parts import ContentPart, LogPart, PlanPart, RecordPart, ReplayPart, RowsPart
from penstock.spark.remote import Remote

SEQUENCE_BITS = 24
"""Rows that a part of one batch may put aside: the publisher's sequence is batch and row in one number."""


class Aside:
    """Bad bodies of one part of one batch of a query, or of one `load()`, published once however often it is read."""

    def __init__(self, server: Remote, options: ReadOptions, part: object, fields: Sequence[pa.Field[Any]]) -> None:
        """fields: of the schema that says which bodies are bad."""
        self._topic = options.bad_records_topic
        judged = repr([RULES, *((field.name, str(field.type)) for field in fields)])
        schema = sha256(judged.encode()).hexdigest()[:8]
        self._server: Remote | None = server  # until the topic is known to keep what it gets
        if isinstance(part, PlanPart):
            cut = f"/{part.revision}" if part.revision else ""
            self._publisher = Publisher(server, f"bad/{part.stream}/{part.part}/{part.parts}{cut}/{schema}")
        elif isinstance(part, ReplayPart) and options.stream is not None:
            self._publisher = Publisher(server, f"bad/{options.stream}/{part.part}/{schema}")
        elif isinstance(part, LogPart | ReplayPart | ContentPart | RecordPart | RowsPart) and part.held:
            self._publisher = Publisher(server, f"spark/read/{part.held}/{part.part}", 1)
        else:
            raise TypeError(f"no part whose bad bodies could be told apart: {part!r}")

    def put(
        self, bodies: Sequence[bytes | None], errors: Sequence[str | None], bookmarks: Sequence[str] | None = None
    ) -> None:
        """Publish the bodies whose error is not None; bookmarks: of the messages, where the rows are such."""
        if self._server is not None:
            try:
                self._server.act("declare_topic", topic=self._topic, vhost=self._server.vhost)
            except AccessRefused:
                pass  # who may not declare it relies on who did; what is not kept is told below
            self._server = None
        bad = [row for row, error in enumerate(errors) if error is not None]
        headers = [{"x-error": str(errors[row])} for row in bad]
        if bookmarks is not None:
            for row, header in zip(bad, headers, strict=True):
                header["x-bookmark"] = header["x-dedup-key"] = bookmarks[row]
        self._publisher.publish(str(self._topic), [bodies[row] or b"" for row in bad], headers)


class Publisher:
    """Messages from a task, stored once: whoever repeats it gives them the same numbers."""

    def __init__(self, server: Remote, name: str, first: int | None = None) -> None:
        """`name`: of the publisher, the same each time the task runs.

        first: the number of its first message; None: this is a task of a streaming query, whose number says it.
        """
        self._server = server
        if first is not None:
            self._name, self._next = name, first
            return
        task = task_of()
        if task is None:
            raise TypeError("only a task of a streaming query may publish")
        self._name = f"spark/{task[0]}/{name}"
        self._next = (task[1] << SEQUENCE_BITS) + 1

    def publish(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[dict[str, str]], exchange: str = ""
    ) -> None:
        """Publish in order; what an earlier try has stored is not stored again."""
        batch = pa.record_batch(
            {
                "body": pa.array(bodies, pa.binary()),
                "headers": pa.array([list(one.items()) for one in headers], pa.map_(pa.string(), pa.string())),
            }
        )
        for start in range(0, len(bodies), 10_000):
            piece = batch.slice(start, 10_000)
            told = self._server.put(
                "publish",
                [piece],
                topic=topic,
                exchange=exchange,
                vhost=self._server.vhost,
                publisher=self._name,
                sequence=self._next,
                mandatory=True,  # else the next try would take what was not kept for a duplicate
            )
            if told["stored"] + told["duplicates"] < piece.num_rows:
                raise PreconditionFailed(
                    f"topic {topic!r} took {told['stored']} of {piece.num_rows} messages: declare it, or a queue that "
                    "takes them, and see that the queue is not full"
                )
            self._next += piece.num_rows
