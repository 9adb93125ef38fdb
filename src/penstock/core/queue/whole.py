"""Where messages of a queue stand, what its parts ask of the whole queue, and what it has to come back to.

    ready      never delivered, come back; of a tenant; in line behind its key; its keys not known yet
    held       a barrier that waits and what it holds back; found by a pass over the log that is not over
    inactive   beyond the target depth
    delayed    in back-off, scheduled
    leased     held by a consumer, or by nobody
    dying      out of the queue as soon as its dead letter is written
    foreign    another site may lease it

A message stands in exactly one of them.  What was delivered at most once and is not acknowledged stands in none: it is
in its receiver's backlog, and no longer in the queue.

The agenda is one number, whose bits say what to come back to: at once, because a step stopped at its bound, or when a
moment has come.  Bits of `AT_ONCE` say that the step is to go on now, and whoever goes on takes the bit away.  The
others stay once they are set: they say that the queue has something which knows a moment (`core.queue.flow` has the
table of these, in the order in which they are looked at).  A queue with the number 0 is asked no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, Protocol, TypeAlias, get_args

from penstock.core.arena import Move
from penstock.core.effects import Sink
from penstock.core.queue.delays import Delays
from penstock.core.queue.dispatching.filtering import Targets
from penstock.core.queue.expiry import Expiry
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned
from penstock.core.queue.order.runs import NEVER, Run, sift_runs
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.settling.letters import Letters
from penstock.core.sizes import Sizes
from penstock.records.chunks import Chunk, Longs
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import QueueSettings

State: TypeAlias = Literal["ready", "held", "inactive", "delayed", "leased", "dying", "foreign"]

STATES: tuple[State, ...] = get_args(State)

ACTIVE: tuple[State, ...] = tuple(state for state in STATES if state != "inactive")
"""What a target depth lets be seen."""

AVAILABLE: tuple[State, ...] = ("ready", "held", "foreign")
"""What queries look at."""

WAITING: tuple[State, ...] = ("ready", "held", "inactive", "delayed", "foreign")
"""What nobody holds and what is not on its way out."""

OWNED: tuple[State, ...] = WAITING[:-1]
"""The same without what another site owns."""

Part: TypeAlias = Literal[
    "main", "returned", "tenants", "lines", "unkeyed", "barriers", "found", "tail", "retries", "scheduled", "leases",
    "letters", "theirs",
]  # fmt: skip


def _stays(move: Move) -> None:
    """Nothing moves: its size is bounded."""


class Kept(Protocol):
    """What keeps all of a place, where that may be many runs."""

    def pieces(self) -> Iterable[Chunk]:
        """All of it, each chunk ascending; nothing of it will change."""
        ...

    def among(self, wanted: Chunk, /) -> Iterable[Run]:
        """Those of the wanted that are here, as runs; they stay."""
        ...

    def copies(self) -> tuple[list[Run], list[Told]]:
        """What was delivered or has a place of its own, as runs and as columns that will not change."""
        ...


@dataclass(slots=True, eq=False)
class Place:
    """Some messages of one state, kept by one part of the queue.

    fresh    those that were never delivered and stand at their own LSN, as ascending chunks
    back     the others, as runs
    loose    the LSNs of `fresh` in any order, where that costs less
    lowest   an LSN that none here is older than, or none of the messages before which these wait
    extract  takes those of the wanted that are here, and tells nobody but whoever knows where they stood
    page     moves what may leave the heap to an arena
    between  all with LSNs in [first, stop), ascending, where that costs less than a look at everything
    after    up to so many of all that have a higher LSN, ascending, where that costs less than a look at everything
    solid    arrays within which no other message of the queue lies, but for those in `back`
    kept     keeps all that is here, and tells some of it, or a part of what is known of it, in fewer steps than `back`
    """

    state: State
    part: Part
    count: int
    fresh: Callable[[], Iterable[Chunk]] = tuple
    back: Callable[[], Iterable[Run]] = tuple
    loose: Callable[[], Iterable[Longs]] | None = None
    lowest: Callable[[], int] | None = None
    extract: Callable[[Chunk], list[Run]] | None = None
    page: Callable[[Move], None] = _stays
    solid: Callable[[], Iterable[Chunk]] = tuple
    between: Callable[[int, int], Chunk] | None = None
    after: Callable[[int, int], Chunk] | None = None
    kept: Kept | None = None

    def lsns(self) -> Iterable[Chunk]:
        """Those of `fresh`, in any order."""
        return self.fresh() if self.loose is None else self.loose()

    def chunks(self) -> Iterator[Chunk]:
        """All of it, each chunk ascending."""
        if self.kept is not None:
            yield from self.kept.pieces()
            return
        yield from self.fresh()
        yield from (run.chunk for run in self.back() if len(run.chunk))

    def runs(self) -> Iterator[Run]:
        """All of it as runs, what was never delivered too."""
        yield from (Run(chunk, False) for chunk in self.fresh())
        yield from (run for run in self.back() if len(run.chunk))

    def among(self, wanted: Chunk) -> Iterable[Run]:
        """Those of the wanted that are here, as runs."""
        return sift_runs(self.runs(), wanted)[0] if self.kept is None else self.kept.among(wanted)

    def copies(self) -> tuple[list[Run], list[Told]]:
        """Those of `back`, as runs and as columns that will not change."""
        if self.kept is None:
            return [run.copy() for run in self.back() if len(run.chunk)], []
        return self.kept.copies()

    def oldest(self, most: int = NEVER) -> int:
        """As `lowest`; where that has to be looked for, among so many chunks."""
        if self.lowest is not None:
            return self.lowest()
        return min((chunk[0] for chunk in islice(self.chunks(), min(most, NEVER)) if len(chunk)), default=NEVER)


class Whole(Protocol):
    """What the parts of a queue that hold messages back, replace or count them ask of all of it."""

    id: int
    name: str
    settings: QueueSettings
    weight: int

    @property
    def vhost(self) -> str: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def ready(self) -> int: ...
    @property
    def offered(self) -> int: ...
    @property
    def main(self) -> Main: ...
    @property
    def returned(self) -> Returned: ...
    @property
    def targets(self) -> Targets: ...
    @property
    def delays(self) -> Delays: ...
    @property
    def expiry(self) -> Expiry: ...
    @property
    def letters(self) -> Letters: ...
    @property
    def ranking(self) -> object: ...

    def total(self) -> int:
        """Messages in it, in whatever state."""
        ...

    def places(self, /, *states: State) -> Iterator[Place]:
        """The places in these states, or in all, that hold something."""
        ...

    def chunks(self, /, *states: State) -> Iterator[Chunk]:
        """Everything in these states, or in all, in no order."""
        ...

    def lives(self, lsn: int, /, *states: State) -> bool:
        """Whether a message is in one of these states, or in any."""
        ...

    def living_pieces(self) -> Iterator[Chunk]:
        """All living messages in no order, not even within a piece."""
        ...

    def leased_runs(self) -> Iterator[Run]:
        """All runs of leased messages."""
        ...

    def floor(self) -> int:
        """No living message is older than this."""
        ...

    def extract(self, wanted: Chunk, /) -> list[Run]:
        """Take those of the wanted that wait, wherever they stand."""
        ...

    def offer(self, run: Run, /) -> None:
        """Let consumers have this, which counts as ready already."""

    def evict(self, runs: Sequence[Run], reason: str, sink: Sink, /) -> None:
        """These gave way; they are counted in no state any more when this is called."""


PAUSE = 1 << 0  # deliveries go on when the pause is over
ATTEMPTS = 1 << 1  # at once: restored messages may have been tried too often
LEAVING = 1 << 2  # at once: a consumer that is gone still has something to give back
RANKS = 1 << 3  # ranks are put in order, or forgotten
SHARES = 1 << 4  # a tenant may send again; keys are forgotten
PACE = 1 << 5  # the queue may send again
ATTENDANCE = 1 << 6  # enough consumers are there; a delivery is out for too long
LETTERS = 1 << 7  # dead letters that were refused are tried again
LEASES = 1 << 8  # leases end
TIMES = 1 << 9  # delays end, messages expire
TRIM = 1 << 10  # at once: more is ready than limits allow, and goes before anything is given out
DISPATCH = 1 << 11  # at once: more can be granted

AT_ONCE = ATTEMPTS | LEAVING | TRIM | DISPATCH
