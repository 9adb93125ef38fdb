"""What `migrate` has sent, in a file, so that whatever is broken off or run again brings no message twice.

Each run is a numbered publisher of its own, and what it sends stands in a journal before it goes out.  After a break
the server says how many of these it has; the rest is not counted as carried, and a message that was is known again by
its bytes.  The journal is a file of lines:

    {"journal": NAME}                           the first line: what tells its publishers from those of any other
    {"queue": KEY, "run": N, "sent": [...]}     the next messages of run N, by their bytes; written before they go out
    {"queue": KEY, "run": N, "kept": COUNT}     of run N only so many came
    {"queue": KEY, "run": N, "refused": [...]}  of run N all was answered, and these numbers were refused
    {"queue": KEY, "gone": [...]}               these were acknowledged in the old broker: it has them no more

A message is 16 bytes of a hash over header and body, as they were published.  Of equal messages as many are known as
were sent.  One command at a time writes it.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Self, cast

import orjson

from penstock.cli.amqp_link import Delivered
from penstock.errors import InvalidArgument, Refused, told_as
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
        self._runs: dict[int, list[str]] = {}  # marks by run, in the order of their numbers; empty: refused
        self._gone = Counter[str]()
        self._known: Counter[str] | None = None  # that may still come out of the old broker
        self._run = 0  # of this process; 0: it has sent nothing

    def read(self, line: dict[str, Any]) -> None:
        """A line of an earlier run."""
        if "sent" in line:
            self._runs.setdefault(int(line["run"]), []).extend(line["sent"])
        elif "kept" in line:
            self._truncate(int(line["run"]), int(line["kept"]))
        elif "refused" in line:
            self._blank(int(line["run"]), line["refused"])
        else:
            self._gone.update(line["gone"])

    @property
    def publishers(self) -> Mapping[int, str]:
        """Who sent in the runs before this one, by run."""
        return {run: self._publisher(run) for run, marks in self._runs.items() if marks}

    @property
    def sender(self) -> str:
        """Who sends in this run."""
        return self._publisher(self._run)

    @property
    def total(self) -> int:
        """Messages that came, in all runs."""
        return sum(len(marks) - marks.count("") for marks in self._runs.values())

    @property
    def there(self) -> int:
        """Of these the old broker should still have so many."""
        return self.total - self._gone.total()

    def _publisher(self, run: int) -> str:
        return f"migrate {self._name} {run}"

    def keep(self, run: int, count: int) -> None:
        """Of this run the server has all up to this number; it is another one, or was restored, where that is less."""
        marks = self._runs[run]
        answered = marks.index("") if "" in marks else len(marks)
        if count < answered:
            self._truncate(run, count)
            self._journal.write({"queue": self._key, "run": run, "kept": count})

    def _truncate(self, run: int, count: int) -> None:
        del self._runs[run][count:]
        sent = Counter(mark for marks in self._runs.values() for mark in marks)
        self._gone = Counter({mark: min(gone, sent[mark]) for mark, gone in self._gone.items()})

    def refuse(self, numbers: Sequence[int]) -> None:
        """Of this run all was answered, and these were refused."""
        self._blank(self._run, numbers)
        self._journal.write({"queue": self._key, "run": self._run, "refused": [*numbers]})

    def _blank(self, run: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._runs[run][number - 1] = ""

    def knows(self, one: Delivered) -> bool:
        """Whether it came in an earlier run; each is asked about once."""
        if self._known is None:
            runs = [marks for run, marks in self._runs.items() if run != self._run]
            self._known = Counter(mark for marks in runs for mark in marks if mark)
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
    """The file.  Refused while another command has it: two would give different messages the same numbers."""

    def __init__(self, path: Path) -> None:
        self._lines: dict[str, list[dict[str, Any]]] = {}  # by queue
        with told_as(InvalidArgument, f"{path} cannot be the journal of a migration: ", instead=OSError):
            self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock(path)
            self._file.seek(0)
            data = self._file.read()
            whole = data[: data.rfind(b"\n") + 1]  # what was being written when it was killed was not sent either
            self._name = self._read(path, whole) if data else os.urandom(9).hex()
            self._file.truncate(len(whole))
            if not data:
                self.write({"journal": self._name})
        except BaseException:
            self._file.close()
            raise

    def _read(self, path: Path, data: bytes) -> str:
        """Sort the lines by queue; the name in the first of them."""
        try:
            first, *lines = map(orjson.loads, data.splitlines())
            for line in lines:
                self._lines.setdefault(line["queue"], []).append(line)
            return str(first["journal"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument(f"{path} is no journal of a migration: {error!r}") from error

    def _lock(self, path: Path) -> None:
        """Held until the file is closed, or its process ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"{path} is the journal of a migration that is going on: wait until it has ended") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def queue(self, broker: str, vhost: str, queue: str) -> Carried:
        """What is known of one queue, which is asked for once."""
        key = " ".join(part.replace("%", "%25").replace(" ", "%20") for part in (broker, vhost, queue))
        carried = Carried(self, key, blake2b(f"{self._name} {key}".encode(), digest_size=12).hexdigest())
        for line in self._lines.pop(key, ()):
            carried.read(line)
        return carried

    def write(self, line: dict[str, object]) -> None:
        """One more line; it is the kernel's when this returns."""
        self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()
