"""What `migrate` has sent, in a file, so that whatever is broken off or run again brings no message twice.

Each run is a numbered publisher of its own, and what it sends stands in a journal before it goes out.  After a break
the server says how many of these it has; the rest is not counted as carried, and a message that was is known again by
its bytes.  The journal is a file of lines:

    {"journal": NAME}                           the first line: what tells its publishers from those of any other
    {"queue": KEY, "run": N, "sent": [...]}     the next messages of run N, by their bytes; written before they go out
    {"queue": KEY, "run": N, "kept": COUNT}     of run N only so many came
    {"queue": KEY, "gone": [...]}               these were acknowledged in the old broker: it has them no more

A message is 16 bytes of a hash over header and body, as they were published.  Of equal messages as many are known as
were sent.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Self, cast

import orjson

from penstock.cli.amqp_link import Delivered
from penstock.errors import InvalidArgument
from penstock.records.field_tables import FieldValue
from penstock.records.properties import decode, encode

ADDED = frozenset({"x-delivery-count", "x-acquired-count"})
"""Headers by which a quorum queue tells how often it gave a message: the same message has others the next time."""


def as_published(header: bytes) -> bytes:
    """The encoded header without what the old broker added to it, in one way whichever way that broker wrote it.

    RabbitMQ orders the fields anew where it adds one.
    """
    properties = decode(header)
    headers = {name: value for name, value in (properties.headers or {}).items() if name not in ADDED}
    properties.headers = cast("Mapping[str, FieldValue]", _ordered(headers)) or None
    return encode(properties)


def _ordered(value: FieldValue) -> FieldValue:
    """The tables in it by the names of their fields."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def mark_of(one: Delivered) -> str:
    """What a message is known by."""
    header = as_published(one.properties)
    found = blake2b(header, digest_size=16, key=b"penstock migrate")
    found.update(len(header).to_bytes(4, "big"))
    found.update(one.body)
    return found.hexdigest()


class Carried:
    """What one queue's messages have become in all runs."""

    def __init__(self, journal: Journal, key: str, name: str) -> None:
        self._journal, self._key, self._name = journal, key, name
        self._runs: dict[int, list[str]] = {}
        self._gone = Counter[str]()
        self._known: Counter[str] | None = None  # that may still come out of the old broker
        self._run = 0  # of this process; 0: it has sent nothing

    def read(self, line: dict[str, Any]) -> None:
        """A line of an earlier run."""
        if "sent" in line:
            self._runs.setdefault(int(line["run"]), []).extend(line["sent"])
        elif "kept" in line:
            del self._runs[int(line["run"])][int(line["kept"]) :]
        else:
            self._gone.update(line["gone"])

    @property
    def publisher(self) -> str | None:
        """Who sent in the last run; None where none has."""
        return self._publisher(max(self._runs)) if self._runs else None

    @property
    def sender(self) -> str:
        """Who sends in this run."""
        return self._publisher(self._run)

    @property
    def total(self) -> int:
        """Messages that came, in all runs."""
        return sum(map(len, self._runs.values()))

    @property
    def there(self) -> int:
        """Of these the old broker should still have so many."""
        return self.total - self._gone.total()

    def _publisher(self, run: int) -> str:
        return f"migrate {self._name} {run}"

    def keep(self, count: int) -> None:
        """Of the last run so many came."""
        last = max(self._runs)
        if len(self._runs[last]) > count:
            del self._runs[last][count:]
            self._journal.write({"queue": self._key, "run": last, "kept": count})

    def knows(self, one: Delivered) -> bool:
        """Whether it came in an earlier run; each is asked about once."""
        if self._known is None:
            self._known = Counter(mark for run, marks in self._runs.items() if run != self._run for mark in marks)
            self._known.subtract(self._gone)
        mark = mark_of(one)
        if self._known[mark] <= 0:
            return False
        self._known[mark] -= 1
        return True

    def begin(self, some: Sequence[Delivered]) -> int:
        """These are about to be sent; the sequence of the first of them."""
        if not some:
            return 0
        if not self._run:
            self._run = max(self._runs, default=0) + 1
        marks = [mark_of(one) for one in some]
        sent = self._runs.setdefault(self._run, [])
        sent += marks
        self._journal.write({"queue": self._key, "run": self._run, "sent": marks})
        return len(sent) - len(marks) + 1

    def forget(self, some: Iterable[Delivered]) -> None:
        """These are about to leave the old broker."""
        marks = [mark_of(one) for one in some]
        self._gone.update(marks)
        self._journal.write({"queue": self._key, "gone": marks})


class Journal:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._queues: dict[str, Carried] = {}
        self._lines: list[dict[str, Any]] = []
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]  # what was being written when it was killed was not sent either
            self._lines = [orjson.loads(line) for line in whole.splitlines()]
            self._file: IO[bytes] = path.open("r+b" if path.exists() else "w+b")
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{path} is no journal of a migration: {error}") from error
        self._file.seek(len(whole))
        self._file.truncate()
        if not self._lines:
            self._lines.append({"journal": os.urandom(9).hex()})
            self.write(self._lines[0])
        if "journal" not in self._lines[0]:
            raise InvalidArgument(f"{path} is no journal of a migration")
        self._name = str(self._lines[0]["journal"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def queue(self, broker: str, vhost: str, queue: str) -> Carried:
        """What is known of one queue."""
        key = f"{broker} {vhost} {queue}"
        carried = Carried(self, key, blake2b(f"{self._name} {key}".encode(), digest_size=12).hexdigest())
        for line in self._lines:
            if line.get("queue") == key:
                carried.read(line)
        return carried

    def write(self, line: dict[str, object]) -> None:
        """One more line; it is the kernel's when this returns."""
        self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()
