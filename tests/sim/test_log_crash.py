"""Power cuts, kills and failing calls at chosen moments: what was confirmed is there, once and in order.

Each run drives one log through random commits, rolls, checkpoints, bases, retirements and merges on a `SimDisk`, and
ends its lives by a crash, a kill, a clean stop, or a failed call before one of these.  After each start the content
must be what was confirmed, followed by whole batches of what was not, and no LSN may come back.  A failure names its
seed.
"""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from choices import examples, seeds
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from penstock.log.writer import Sync
from penstock.records.entries import Entry, Group
from penstock.records.kinds import Kind
from sim.logkit import SMALL, FakeClock, content, messages, note, opened, pending, rows_of


class World:
    """One disk, the log on it, and what must be true of it."""

    def __init__(self, seed: int, sync: Sync) -> None:
        self.random = random.Random(seed)
        self.disk = SimDisk(seed=seed)
        self.clock = FakeClock()
        self.settings = replace(
            SMALL, sync=sync, segment=7000, batch_rows=5, ahead=self.random.choice([0, 3000]), reserve=0
        )
        self.history = list[tuple[int, bytes]]()  # rows appended that may still be there, oldest first
        self.lsns = list[int]()  # the same, and those that were retired
        self.atoms = list[set[int]]()  # LSNs of groups
        self.safe = 0  # LSN that must survive
        self.given = 0  # highest LSN that anybody outside may have seen: no door opens before the boot record is synced
        self.base = 0
        self.log = opened(self.disk, self.settings, self.clock)
        self.lsn = self.log.recovery.next_lsn

    def entries(self) -> list[Entry]:
        out = list[Entry]()
        for _ in range(self.random.randint(1, 4)):
            bodies = [self.random.randbytes(self.random.choice([0, 3, 90])) for _ in range(self.random.randint(1, 7))]
            run = messages(self.lsn, *bodies)
            self.lsn += len(run)
            if self.random.random() < 0.3:
                group = Group([run, note(self.lsn, b"group")])
                self.lsn += 1
                out.append(group)
                self.atoms.append({lsn for lsn, _ in rows_of([group])})
            else:
                out.append(run)
        self.given = self.lsn - 1
        return out

    def append(self, entries: list[Entry]) -> None:
        self.history += rows_of(entries)
        self.lsns += [lsn for lsn, _ in rows_of(entries)]
        self.log.append(entries, urgent=self.random.random() < 0.7)

    def step(self) -> None:
        log, chance = self.log, self.random.random()
        if chance < 0.55:
            self.append(self.entries())
            if self.random.random() < 0.8:
                log.flush()
        elif chance < 0.65:
            self.clock.pass_by(150_000)
            log.tick()
        elif chance < 0.75:
            log.write_checkpoint(b"state of %d" % log.synced, log.synced)
        elif chance < 0.85:
            floor = self.random.randint(1, log.synced + 1)
            state = b"as of %d" % floor
            group = log.base_group(self.lsn, 0, floor, state)
            self.lsn += log.base_parts(state)
            self.given = self.lsn - 1
            self.append([group])
        elif chance < 0.93:
            log.retire(self.random.randint(1, log.synced + 1))
        else:
            self.merge()

    def merge(self) -> None:
        """Have one segment in the place of some closed ones."""
        closed = self.log.segments()[:-1]
        if closed:
            at = self.random.randrange(len(closed))
            some = closed[at : at + self.random.randint(1, 3)]
            olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in some)
            swap = self.log.swap(rewrite(self.disk, Order(olds, compress=self.random.random() < 0.3)))
            swap.prepare()
            swap.enter()
            swap.finish()

    def live(self) -> None:
        """Some steps, perhaps with a failing call on the way, then an end."""
        if self.random.random() < 0.6:
            kind = self.random.choice(["write", "sync", "folder"])
            error = self.random.choice([errno.EIO, errno.ENOSPC])
            self.disk.fail_next(kind, after=self.random.randint(0, 25), error=error)
        try:
            self.append([note(self.lsn, b"boot", Kind.BOOT)])
            self.lsn += 1
            self.log.flush()
            for _ in range(0 if self.log.broken else self.random.randint(1, 30)):
                self.step()
                assert self.log.pending.bytes == pending(self.log)
                self.safe = max(self.safe, self.log.synced)
                if self.log.broken:
                    break
        except OSError:
            pass  # a checkpoint or a retirement met the fault: the log itself goes on
        assert self.log.pending.bytes == pending(self.log)
        self.safe = max(self.safe, self.log.synced)
        match self.random.choice(["crash", "crash", "kill", "close"]):
            case "crash":
                self.disk.crash()
            case "kill":
                self.disk.kill()
            case _:
                self.log.close()
                self.safe = max(self.safe, self.log.synced)
                self.disk.kill()

    def start(self) -> None:
        """Open, compare, and go on."""
        assert not verify(self.disk).damage
        self.log = Log.open(self.disk, self.clock, self.settings)
        log = self.log
        replayed = [lsn for table in log.replay() for lsn in table["lsn"].to_pylist()]
        found = content(log)
        oldest = found[0][0] if found else self.lsn
        kept = [row for row in self.history if row[0] >= oldest]
        assert found == kept[: len(found)], "not a prefix of what was appended"
        last = found[-1][0] if found else log.durable
        assert last >= self.safe or not kept, f"LSN {self.safe} was confirmed, the log ends at {last}"
        lsns = {lsn for lsn, _ in found}
        for atom in self.atoms:
            assert atom <= lsns or not (atom & lsns) or min(atom) < oldest, "a group came apart"
        start = log.start_state()
        if start is not None:
            kind, at, state = start
            assert state == (b"state of %d" % at if kind == "checkpoint" else b"as of %d" % at)
            begin = at + 1 if kind == "checkpoint" else at
        else:
            begin = 0
        self.lsns = [lsn for lsn in self.lsns if lsn <= last]
        assert replayed == [lsn for lsn in self.lsns if lsn >= begin]
        assert log.recovery.next_lsn > self.given or (log.recovery.clean and log.recovery.next_lsn == last + 1)
        self.history = found
        self.lsn = log.recovery.next_lsn


@pytest.mark.parametrize("sync", ["commit", "interval", "off"])
def test_confirmed_means_found_after_any_end(sync: Sync) -> None:
    for seed in seeds(examples(25)):
        world = World(seed, sync)
        try:
            for _ in range(6):
                world.live()
                world.start()
        except Exception as error:
            error.add_note(f"seed {seed}, sync {sync}")
            raise
