"""The durable state: what folding the whole log gives, as plain values.

Checkpoints and `BASE` groups hold it encoded (`core.state.codec`), the fold builds it (`core.state.fold`), the
living core produces and restores it.  It holds positions, never bodies, and nothing of a session: no credit, no lease,
no deadline.  Equal histories give equal states, so `==` is the test that the fold is right.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from penstock.core.actions.acted import Acted
from penstock.core.sizes.sizes import Sizes
from penstock.core.sow.holding import SowState
from penstock.core.state.decided import DecidedState
from penstock.core.state.deferred import DeferredAck, DeferredAcks
from penstock.core.state.passing import Passing, Spans
from penstock.core.state.sinkmarks import SinkMark
from penstock.core.state.streams import StreamState as StreamState
from penstock.records.chunks import Chunk, Longs
from penstock.records.dataclass import dataclass
from penstock.records.policies import AddressSetting, ExchangeRule, Policy, Ruling
from penstock.records.settings import QueueSettings

Ints = npt.NDArray[np.int64]

COLUMNS = (
    "deliveries", "failures", "cancels", "not_before", "place", "expires_at", "transient", "letter", "barrier", "rank",
    "unseen", "key", "dedup",
)  # fmt: skip
"""What a queue may remember of a waiting message besides its position; 0 is the rest value of each.

deliveries, failures, cancels   how often it was granted, failed, was cancelled
unseen                          how many of the deliveries were given back before anybody saw the message
not_before                      microseconds: delayed until then
place                           the LSN whose place in the queue it took when it became due
expires_at                      microseconds: its deadline in this queue
transient                       1: the next start of the server drops it
letter                          1: the server wrote it as a dead letter, so the history in its header counts
barrier                         1: it waits for all before it and holds back all after it
key                             by what a newer message replaces it (`core.queue.last_values`)
dedup                           its key, while no other message with it may enter (`core.queue.dedup`)
rank                            its priority (`core.queue.ranks`); 0 is not known: worked out before it is delivered
"""


def empty() -> array[int]:
    """A column in which every message has the rest value."""
    return array("q")


def ints(values: Longs) -> Ints:
    """A view of an `array('q')`, or of what was one, as numpy integers."""
    return np.frombuffer(values, dtype=np.int64)


def to_array(values: Ints) -> array[int]:
    """numpy integers as an `array('q')`."""
    out = array("q")
    out.frombytes(np.ascontiguousarray(values, dtype=np.int64).tobytes())
    return out


def flat(chunks: Iterable[Chunk]) -> Ints:
    """All LSNs of the chunks, ascending."""
    parts = [np.arange(c.start, c.stop, dtype=np.int64) if isinstance(c, range) else ints(c) for c in chunks if len(c)]
    if not parts:
        return np.zeros(0, dtype=np.int64)
    lsns = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(lsns) > 1 and bool((lsns[1:] < lsns[:-1]).any()):
        lsns = np.sort(lsns, kind="stable")
    return lsns


DEFAULTS = 1
"""Settings that nobody made go by the defaults of a folder's first start, which its first BOOT record names; without
a word there it is 0.  What they are is for whoever has the settings to know; 1 has brought the log's retention."""

CHUNK = 65_536
"""LSNs in a chunk of a state at most, unless the chunk is a range."""


def chunked(lsns: Ints) -> list[Chunk]:
    """Ascending LSNs as chunks in the one form that equal sets share: long runs are ranges, the rest arrays."""
    n = len(lsns)
    if n == 0:
        return []
    if int(lsns[-1]) - int(lsns[0]) == n - 1:
        return [range(int(lsns[0]), int(lsns[0]) + n)]
    breaks = np.flatnonzero(np.diff(lsns) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [n]))
    out: list[Chunk] = []
    done = 0
    for k in np.flatnonzero(ends - starts >= LONG_RUN).tolist():
        start, end = int(starts[k]), int(ends[k])
        out += _arrays(lsns[done:start])
        out.append(range(int(lsns[start]), int(lsns[start]) + end - start))
        done = end
    return out + _arrays(lsns[done:])


def same_chunked(chunks: Iterable[Chunk]) -> list[Chunk]:
    """`chunked` of the LSNs of these chunks, each of which is there once; long ranges are not unfolded for it."""
    whole = [chunk for chunk in chunks if len(chunk)]
    ranges = sorted((chunk for chunk in whole if isinstance(chunk, range)), key=_start)
    if len(ranges) < len(whole):
        return chunked(flat(whole))
    runs = list[range]()
    for one in ranges:
        if runs and runs[-1].stop == one.start:
            runs[-1] = range(runs[-1].start, one.stop)
        else:
            runs.append(one)
    if len(runs) == 1:
        return [runs[0]]
    out, short = list[Chunk](), list[range]()
    for run in runs:
        if len(run) < LONG_RUN:
            short.append(run)
            continue
        out += _arrays(flat(short))
        short.clear()
        out.append(run)
    return out + _arrays(flat(short))


def _start(chunk: range) -> int:
    return chunk.start


def _arrays(lsns: Ints) -> list[Chunk]:
    return [to_array(lsns[i : i + CHUNK]) for i in range(0, len(lsns), CHUNK)]


LONG_RUN = 4096
"""Adjacent LSNs from so many on are a range of their own in a chunked state."""


def runs_of(lsns: Ints, values: Ints) -> array[int]:
    """A column as flat triples `a, b, value`: what waits in [a, b) has that value; rest values are left out."""
    if not len(values) or not values.any():
        return array("q")
    breaks = np.flatnonzero(np.diff(values) != 0) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(values)]))
    chosen = values[starts]
    keep = chosen != 0
    starts, ends, chosen = starts[keep], ends[keep], chosen[keep]
    return to_array(np.stack((lsns[starts], lsns[ends - 1] + 1, chosen), axis=1).reshape(-1))


def spread(lsns: Ints, runs: array[int] | Sequence[int]) -> Ints:
    """A column with one value per waiting message, from its runs (later ones win where they overlap)."""
    out = np.zeros(len(lsns), dtype=np.int64)
    if not len(runs):
        return out
    triples = (ints(runs) if isinstance(runs, array) else np.asarray(runs, dtype=np.int64)).reshape(-1, 3)
    ordered = triples[np.argsort(triples[:, 0], kind="stable")]
    starts = np.searchsorted(lsns, ordered[:, 0])
    ends = np.searchsorted(lsns, ordered[:, 1])
    lengths = ends - starts
    if bool((starts[1:] >= ends[:-1]).all()):
        where = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths) + np.arange(
            int(lengths.sum())
        )
        out[where] = np.repeat(ordered[:, 2], lengths)
        return out
    starts, ends = np.searchsorted(lsns, triples[:, 0]), np.searchsorted(lsns, triples[:, 1])
    for start, end, value in zip(starts.tolist(), ends.tolist(), triples[:, 2].tolist(), strict=True):
        out[start:end] = value
    return out


@dataclass(slots=True)
class QueueState:
    """One queue: what was declared, and what waits in it (ready, leased, delayed or dying alike)."""

    id: int  # the LSN of its declare
    vhost: str
    name: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, object] = field(default_factory=dict[str, object])
    waiting: list[Chunk] = field(default_factory=list["Chunk"])  # ascending
    columns: dict[str, array[int]] = field(
        default_factory=dict[str, "array[int]"]
    )  # name of COLUMNS -> runs; none empty
    since: int = 0  # it knows what the log says of it up to this LSN, where that is beyond the state's `last_lsn`
    reviewed: Spans = ()  # passes have been over these rows
    passing: Passing | None = None  # a pass that is under way
    ruling: Ruling | None = None  # None: nothing but its own settings, of which `told` were given
    paused: int = 0  # microseconds since the epoch: nothing is delivered before; 0: not paused
    taken: array[int] = field(default_factory=empty)  # keys that it took of late, flat (key, time), by key

    @property
    def count(self) -> int:
        """Messages that wait."""
        return sum(map(len, self.waiting))

    @classmethod
    def fill(cls, blank: QueueState, lsns: Ints, columns: Mapping[str, Ints]) -> QueueState:
        """`blank` with these messages, in canonical form."""
        runs = {name: runs_of(lsns, columns[name]) for name in COLUMNS if name in columns}
        blank.waiting = chunked(lsns)
        blank.columns = {name: values for name, values in runs.items() if len(values)}
        return blank


@dataclass(slots=True)
class ExchangeState:
    """One declared exchange."""

    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, object] = field(default_factory=dict[str, object])
    used: bool = False  # it has been a source: an auto-delete one goes with its last binding


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding.  `arguments` is its JSON text with sorted keys, so that equal tables are equal bindings."""

    vhost: str
    source: str
    destination: str
    destination_type: str  # "queue" or "exchange"
    key: str
    arguments: str = ""


@dataclass(slots=True)
class DurableState:
    """Everything the log says, as of `last_lsn`."""

    last_lsn: int = 0
    unclean: int = 0  # LSN of the last BOOT after an unclean stop: what waited then is delivered as redelivered
    exchanges: dict[tuple[str, str], ExchangeState] = field(default_factory=dict[tuple[str, str], ExchangeState])
    bindings: set[Binding] = field(default_factory=set[Binding])
    topics: dict[tuple[str, str, str], dict[str, object]] = field(
        default_factory=dict[tuple[str, str, str], dict[str, object]]
    )  # (vhost, exchange, key) -> settings
    queues: dict[int, QueueState] = field(default_factory=dict[int, QueueState])
    vias: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    blind: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])  # BCC keys of some of them
    routes: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])  # of live queues only
    next_route: int = 0  # numbers of routes are never used again
    publishers: dict[str, int] = field(default_factory=dict[str, int])  # highest sequence each
    streams: dict[str, StreamState] = field(default_factory=dict[str, StreamState])
    sinks: dict[str, int] = field(default_factory=dict[str, int])  # query id -> highest committed batch
    decided: dict[str, DecidedState] = field(default_factory=dict[str, DecidedState])  # query id -> what is unfinished
    sows: dict[int, SowState] = field(default_factory=dict[int, SowState])  # by id
    deferred: DeferredAcks = field(default_factory=dict[int, list[DeferredAck]])  # by queue id
    acted: Acted = field(default_factory=Acted)  # what actions have done
    policies: dict[tuple[bool, str, str], Policy] = field(default_factory=dict[tuple[bool, str, str], Policy])
    addresses: dict[tuple[str, str, bool], AddressSetting] = field(
        default_factory=dict[tuple[str, str, bool], AddressSetting]
    )
    exchange_rules: dict[tuple[str, str], ExchangeRule] = field(default_factory=dict[tuple[str, str], ExchangeRule])
    sizes: Sizes = field(default_factory=Sizes)  # of what waits, and perhaps of more
    sink_marks: dict[str, SinkMark] = field(default_factory=dict[str, SinkMark])  # of the queries in `sinks`, if known
    defaults: int = 0  # see `DEFAULTS`: of the version that made the folder
    measured: bool = True  # False: it was written when sizes were not known, and they have to be read from the log

    def encode(self) -> bytes:
        """For a checkpoint or a `BASE` group."""
        from penstock.core.state.codec import encode

        return encode(self)

    @classmethod
    def decode(cls, data: bytes) -> DurableState:
        """The inverse of `encode`.  Raises ValueError with a sentence for anything else."""
        from penstock.core.state.codec import decode

        return decode(data)
