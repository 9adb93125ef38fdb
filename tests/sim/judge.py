"""What must be true of one data folder over all its lives, whatever ran beside what and however each life ended.

It keeps every row that was appended and folds them itself.  It knows neither threads nor steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.fold import Fold
from penstock.log.encode import Encoder
from penstock.log.log import Log
from penstock.log.verify import verify
from penstock.log.writer import LogSettings, slice_of
from penstock.records.entries import Control, Entry, Publishes, singly
from penstock.records.kinds import Kind
from penstock.records.schema import COLUMNS
from penstock.server.opening import fold
from penstock.testing.instance import FakeClock
from sim.stepdisk import StepDisk

T0 = 1_700_000_000_000_000


class Judge:
    """What must be true of one data folder, over all its lives.

    * What the log has is a prefix of what was appended, row by row and byte by byte; nothing confirmed, delivered by a
      reader or shown otherwise as durable is beyond its end.
    * The state folded from what is left, with and without checkpoints, equals the fold of everything ever appended.
    * Each waiting message can be read, with its bytes.
    """

    def __init__(self) -> None:
        self.bodies = dict[int, bytes]()  # of all rows ever appended that may still be there
        self.kinds = dict[int, int]()
        self.state = DurableState()  # fold of everything up to the end of the last life
        self.entries = list[Entry]()  # appended since, and not known to be gone
        self.safe = 0  # the highest LSN that anybody was told is durable
        self.given = 0  # no LSN up to this may be given out again
        self.dropped = dict[int, int]()  # rows that compaction left out, and when: a number that rises
        self.drops = 0
        self.open = False  # the boot record is durable: what is given out now may be seen outside

    def append(self, entries: Sequence[Entry]) -> None:
        """The log is handed these."""
        self.entries += entries
        for entry in entries:
            for part in singly([entry]):
                if isinstance(part, Control):
                    assert part.lsn > self.given, f"LSN {part.lsn} is given out twice"
                    self.bodies[part.lsn], self.kinds[part.lsn] = part.body, int(part.kind)
                    given = part.lsn
                else:
                    assert part.first > self.given, f"LSN {part.first} is given out twice"
                    given = part.first + len(part) - 1
                    for at, body in enumerate(part.bodies):
                        self.bodies[part.first + at], self.kinds[part.first + at] = body, int(Kind.PUBLISH)
                if self.open:
                    self.given = given

    def drop(self, lsns: Sequence[int]) -> None:
        """Compaction has left these out."""
        self.drops += 1
        for lsn in lsns:
            self.dropped.setdefault(lsn, self.drops)

    def shown(self, lsn: int) -> None:
        """Somebody was told that everything up to `lsn` is durable."""
        self.safe = max(self.safe, lsn)

    def row(self, lsn: int, body: bytes) -> None:
        """A row came out of the log."""
        assert self.bodies.get(lsn) == body, f"LSN {lsn} is {body[:40]!r}, and was {self.bodies.get(lsn, b'')[:40]!r}"

    def _state_at(self, last: int) -> DurableState:
        """The fold of all that was appended up to `last`."""
        kept = [entry for one in self.entries for entry in _until(one, last)]
        if not kept:
            return self.state
        fold = Fold(DurableState.decode(self.state.encode()))
        data = Encoder().encode(kept, 0).data
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(bytes(data))), COLUMNS)
        fold.feed(batch)
        return canonical(fold.finish())

    def looked_at(self, files: dict[str, bytes], settings: LogSettings, *, safe: int, scan: bool) -> None:
        """Judge what a folder would be for a start; `scan` reads every row, else what waits."""
        log = Log.open(StepDisk(files), FakeClock(T0), settings)
        state = canonical(fold(log)[0])
        last = log.durable
        assert last >= safe, f"LSN {safe} was durable, and the log ends at {last}"
        compare(state, self._state_at(last))
        if scan:
            self.scan(log)
        self.waiting(log, state)
        log.close(clean=False)

    def scan(self, log: Log) -> None:
        """Every row, in order, as it was written."""
        before, seen = 0, set[int]()
        for batch in log.batches(0, 1 << 60, ["lsn", "kind", "body"]):
            lsns, kinds, bodies = (batch.column(at).to_pylist() for at in range(3))
            for lsn, kind, body in zip(lsns, kinds, bodies, strict=True):
                assert lsn > before, f"LSN {lsn} comes after {before}"
                before = lsn
                if kind != Kind.MARK:
                    self.row(lsn, body)
                    assert self.kinds[lsn] == kind
                    seen.add(lsn)
        first, last = log.first_lsn, log.durable
        lost = sorted(lsn for lsn in self.kinds.keys() - seen - self.dropped.keys() if first <= lsn <= last)
        assert not lost, f"the log begins at LSN {first}, ends at {last} and lacks {lost[:10]}"

    def waiting(self, log: Log, state: DurableState) -> None:
        """What waits can be read."""
        waiting = waiting_of(state)
        found = log.read(waiting)
        assert found.lsns == waiting, f"LSNs {sorted(set(waiting) - set(found.lsns))[:10]} wait, and cannot be read"
        for lsn, body in zip(found.lsns, found.bodies, strict=True):
            self.row(lsn, body)

    def end(self, files: dict[str, bytes], settings: LogSettings, chance: random.Random) -> None:
        """A life is over and left these files.  The next start judges them; now and then more is looked at here."""
        choice = chance.random()
        if choice < 0.15:
            naked = {name: data for name, data in files.items() if not name.startswith("checkpoints/")}
            self.looked_at(naked, settings, safe=self.safe, scan=choice < 0.05)
        elif choice < 0.2:
            report = verify(StepDisk(files))
            assert report.good or not any(name.startswith("log/") for name in files), report.damage
        self.open = False

    def began(self, log: Log, state: DurableState) -> None:
        """A life has begun with this state; what its log has is on the disk for good now.

        After a kill the rows of a write that was never synced are there, until a power cut comes before this.
        """
        last = log.durable
        assert last >= self.safe, f"LSN {self.safe} was durable, and the log ends at {last}"
        self.state, self.entries = self._state_at(last), []
        compare(canonical(state), self.state)
        for lsn in [lsn for lsn in self.bodies if lsn > last]:
            del self.bodies[lsn], self.kinds[lsn]
        if len(self.bodies) > 4000:  # of the oldest only what the log still has matters
            self.bodies = {lsn: body for lsn, body in self.bodies.items() if lsn >= log.first_lsn}
            self.kinds = {lsn: self.kinds[lsn] for lsn in self.bodies}
            self.dropped = {lsn: at for lsn, at in self.dropped.items() if lsn in self.bodies}


def _until(entry: Entry, last: int) -> Iterator[Entry]:
    if isinstance(entry, Publishes):
        n = last - entry.first + 1
        if n >= len(entry):
            yield entry
        elif n > 0:
            yield slice_of(entry, 0, n)
    elif isinstance(entry, Control):
        if entry.lsn <= last:
            yield entry
    else:
        for part in singly([entry]):
            yield from _until(part, last)


def waiting_of(state: DurableState) -> list[int]:
    """LSNs of all messages in any queue, or promised to a stream."""
    out = {lsn for queue in state.queues.values() for chunk in queue.waiting for lsn in chunk}
    return sorted(out)


def compare(found: DurableState, expected: DurableState) -> None:
    """Both are canonical."""
    if found == expected:
        return
    for name in found.__slots__ if hasattr(found, "__slots__") else vars(found):
        a, b = getattr(found, name), getattr(expected, name)
        if a != b:
            if isinstance(a, dict) and isinstance(b, dict):
                keys = [key for key in {*a, *b} if a.get(key) != b.get(key)]
                raise AssertionError(f"{name} of {keys[:3]}: {[(a.get(key), b.get(key)) for key in keys[:2]]}")
            raise AssertionError(f"{name} is {a}, and {b} was expected")
    raise AssertionError("the states differ")
