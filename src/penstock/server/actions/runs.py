"""Which triggers are done with: what the log is told, so that a start after a crash does the rest and no more.

    trigger (a record of the log) -> open -> its runs, each open -> done -> an ACTED record, at the latest with the next

The floor is below the oldest trigger that is open.  Triggers that are no records of their own, deliveries and
schedules, are not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock.core.actions.acted import HOPS_MOST, OWN
from penstock.core.actions.rules import (
    Deleting,
    Echoing,
    Executing,
    Extracting,
    Happening,
    Incrementing,
    Publishing,
    Querying,
    Rule,
)
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.actions.rules import Rules
    from penstock.server.runtime import Runtime

NONE = -1
"""The cause of what no record tells of."""

STEP = 4096
"""LSNs that the floor moves, when every message that set something off has a record of its own, before it is told."""

NOTED = 256
"""LSNs that it has to have moved to be told with a checkpoint."""


EMPTY = Happening(0, "")
"""The happening of a run for several messages: what it publishes is made already, and its last step is left."""

_NAMES: Mapping[type[object], str] = {
    Deleting: "delete_sow",
    Querying: "query_sow",
    Extracting: "extract_values",
    Executing: "execute_system",
    Incrementing: "increment_counter",
    Echoing: "echo_message",
}


@dataclass(slots=True, eq=False)
class Run:
    """One action under way for one message."""

    rule: Rule
    step: int
    happening: Happening
    hops: int  # actions before this one
    after: int  # LSN that has to be durable before it begins
    failed: str = ""
    inline: bool = False  # it ended in the call that began it
    batch: Publishes | None = None  # that is about to be published
    count: int = 1  # messages that it is for
    chunk: Chunk = range(0)  # these messages
    cause: int = NONE  # as of its event
    begins: int = 0  # before this step only values are worked out: the others were done
    written: bool = False  # a record says that it is done
    lost: int = 1  # of these, if it failed

    @property
    def place(self) -> int:
        """The LSN of its trigger; NONE without one."""
        return self.chunk[0] if self.cause == OWN else self.cause

    @property
    def trouble(self) -> str:
        """Where it failed, in the words that metrics have."""
        step = self.rule.steps[min(self.step, len(self.rule.steps) - 1)]
        if isinstance(step, Publishing):
            return "rounds" if self.hops >= HOPS_MOST else "publish"
        return _NAMES[type(step)]

    def together(self) -> Publishes:
        """What a run for several messages publishes."""
        assert self.batch is not None
        return self.batch


class Ledger:
    """Of one engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.names = frozenset(watching(runtime.core.rules))
        self.seen = 0  # the triggers up to here were told to the actions
        self._open: dict[int, int] = {}  # place -> how many
        self._places: list[int] = []  # a heap; those that are closed stay until they are at its top
        self._did: dict[tuple[str, int], list[int]] = {}  # action and cause -> messages that no record tells of yet

    def open(self, place: int) -> None:
        """Something is to be done for a trigger at this LSN; nothing for NONE."""
        if place == NONE:
            return
        count = self._open.get(place, 0)
        self._open[place] = count + 1
        if not count:
            heappush(self._places, place)

    def close(self, place: int) -> None:
        if place == NONE:
            return
        count = self._open[place] - 1
        if count:
            self._open[place] = count
        else:
            del self._open[place]

    @property
    def floor(self) -> int:
        """All triggers up to here are done with."""
        while self._places and self._places[0] not in self._open:
            heappop(self._places)
        return self._places[0] - 1 if self._places else self.seen

    def write(self, run: Run) -> None:
        """A record that a run is done; the caller puts it into one group with the last thing that it does."""
        if run.cause == NONE or not self.names:
            return
        core = self._runtime.core
        core.acts(self._runtime.now(), min(self.floor, core.acted.floor + STEP), run.rule.name, run.chunk, run.cause)
        run.written = True

    def done(self, run: Run) -> None:
        if run.cause != NONE and not run.written and self.names:
            self._did.setdefault((run.rule.name, run.cause), []).extend(run.chunk)
        self.close(run.place)

    def tell(self) -> None:
        """Write what was done since the last time."""
        did, self._did = self._did, {}
        core, floor = self._runtime.core, self.floor
        wrote = False
        for (name, cause), lsns in did.items():
            left = above(floor, cause, lsns)
            if left:
                wrote = True
                core.acts(self._runtime.now(), floor, name, as_chunk(left), cause)
        if self.names and not wrote and (did or floor - core.acted.floor >= STEP):
            core.acts(self._runtime.now(), floor)

    def note(self) -> None:
        """A checkpoint is about to be taken: a start after it need not look at what is before."""
        core, floor = self._runtime.core, self.floor
        if self.names and floor - core.acted.floor >= NOTED:
            core.acts(self._runtime.now(), floor)


def above(floor: int, cause: int, lsns: Sequence[int]) -> list[int]:
    """The messages that the floor does not cover, ascending."""
    if cause != OWN:
        return sorted(lsns) if cause > floor else []
    return sorted(lsn for lsn in lsns if lsn > floor)


def watching(rules: Rules) -> set[str]:
    """Names of the actions whose triggers are records of the log."""
    lists = [rule for _, _, _, rule in rules.publish], [rule for _, rule in rules.oof]
    by_name = [rule for some in rules.delete.values() for rule in some]
    expiring = [rule for some in rules.expire.values() for _, rule in some]
    return {rule.name for some in (*lists, by_name, expiring) for rule in some}
