"""The durable state: what folding the whole log gives, as plain values.

Checkpoints and `BASE` groups hold it as bytes, the fold builds it (`core.state.fold`), the living core produces and
restores it.  It holds positions, never bodies, and nothing of a session: no credit, no lease, no deadline.  Equal
histories give equal states, so `==` is the test that the fold is right.

    8 bytes   b"PENSTATE"
    u32       version of this layout, 4
    u32       length of the JSON part
    JSON      everything but positions, without what is empty; per queue the number of chunks and the forms of columns
    per queue, in the order of the JSON:
        its chunks, then its columns (`core.state.encoding`)
        keys that it took of late, and when: pairs of int64
    indexes of SOW topics, then the sizes of what waits (`core.state.encoding`)

Earlier versions are read as well.  3 wrote the settings into each queue, where 4 has a number: the place in a list of
different ones, since many queues are declared alike.  2 did not know sizes; 1 wrote empty parts too, and columns as
runs alone.  All integers are little-endian.  Whoever stores these bytes adds the checksum.

VERSION rises when an older Penstock would read these bytes wrongly or lose what they say: a part in another form, or a
new key of the JSON that changes what others mean.  A key that may be absent, with the default that it had before,
needs none; old bytes of each version are kept among the tests.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple, cast

import numpy as np
import orjson

from penstock.core.acted import Acted
from penstock.core.links.identity import Site
from penstock.core.links.states import Departed, EarlyClaim, LinkState, dump_sites, load_sites
from penstock.core.links.twins import Numbered
from penstock.core.sizes import Sizes
from penstock.core.sow.holding import SowState
from penstock.core.state import pending
from penstock.core.state.encoding import (
    as_table,
    dump_settings,
    dump_sizes,
    dump_sows,
    load_settings,
    load_sizes,
    load_sows,
    pack,
    pack_chunks,
    unpack,
    unpack_chunk,
    wrap,
)
from penstock.core.state.lsns import LONG_RUN, Ints, chunked, empty, flat, merged, runs_of, same_chunked, spread, within
from penstock.core.state.pending import (
    DecidedState,
    DeferredAck,
    DeferredAcks,
    Passing,
    SinkMark,
    Spans,
    dump_decided,
    dump_deferred,
    dump_marks,
    load_decided,
    load_deferred,
    load_marks,
)
from penstock.core.state.streams import StreamState as StreamState
from penstock.core.topology.ruling import (
    dump_address,
    dump_exchanges,
    dump_policy,
    dump_ruling,
    load_address,
    load_exchanges,
    load_policy,
    load_ruling,
)
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import AddressSetting, ExchangeRule, Policy, QueueSettings, Ruling

COLUMNS = (
    "deliveries", "failures", "cancels", "not_before", "place", "expires_at", "transient", "letter", "barrier", "rank",
    "unseen", "key", "dedup", "owner", "claim",
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
dedup                           its key, while no other message with it may enter (`core.queue.contained`)
owner                           the number of the site that may lease it; 0: this one (`core.links.identity`)
claim                           how that came about (`core.queue.foreign`); 0: it was published there
rank                            its priority (`core.queue.order.ranks`); 0: not known, worked out before it is delivered
"""


DEFAULTS = 1
"""Settings that nobody made go by the defaults of a folder's first start, which its first BOOT record names; without
a word there it is 0.  What they are is for whoever has the settings to know; 1 has brought the log's retention."""


class Reign(NamedTuple):
    """One leader's time in a cluster, as its BOOT record tells: its LSNs begin there, and no other term has those."""

    term: int
    member: str
    before: int  # the last LSN that it found
    first: int = 0  # LSN of the BOOT record


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
    """One exchange as it was declared, and whether it was ever a source."""

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
    terms: tuple[Reign, ...] = ()  # in a cluster, oldest first: who wrote which LSNs
    peers: dict[int, Site] = field(default_factory=dict[int, Site])  # sites that this one has met, and itself as 0
    carried: dict[int, list[tuple[int, int, int]]] = field(
        default_factory=dict[int, "list[tuple[int, int, int]]"]
    )  # by site: (LSN there, LSN here, count) of its messages
    links: dict[int, LinkState] = field(default_factory=dict[int, LinkState])  # by site
    proxied: dict[int, str] = field(default_factory=dict[int, str])  # queues that act for absent owners: who said so
    early: list[EarlyClaim] = field(default_factory=list[EarlyClaim])  # claims to messages that have not come
    numbered: list[Numbered] = field(default_factory=list[Numbered])  # messages that publishers numbered
    departed: Departed = field(default_factory=Departed)  # queues that are gone, of which other sites may have to hear
    measured: bool = True  # False: it was written when sizes were not known, and they have to be read from the log

    def encode(self) -> bytes:
        """For a checkpoint or a `BASE` group."""
        return encode(self)

    @classmethod
    def decode(cls, data: bytes) -> DurableState:
        """The inverse of `encode`.  Raises ValueError with a sentence for anything else."""
        return decode(data)


def living_pairs(queues: Iterable[QueueState]) -> Ints:
    """What waits in these queues, as ascending disjoint LSN pairs [a, b), shape (n, 2)."""
    return merged([within(chunk) for queue in queues for chunk in queue.waiting if len(chunk)])


MAGIC = b"PENSTATE"
VERSION = 4
READABLE = (1, 2, 3, VERSION)
_HEAD = struct.Struct("<8sII")
_Head = dict[str, list[list[object]]]  # of the JSON part; what is no list of lists is cast where it is read

TOGETHER = 256
"""Queues that are made JSON at once."""


def canonical(state: DurableState) -> DurableState:
    """The same state with each queue in the one form that equal histories share.  The queues are copies."""
    queues = {number: canonical_queue(queue) for number, queue in sorted(state.queues.items())}
    sizes = state.sizes.only(living_pairs(queues.values()))
    return replace(state, queues=queues, sows=dict(sorted(state.sows.items())), sizes=sizes)


def canonical_queue(queue: QueueState) -> QueueState:
    """One queue in canonical form: ascending chunks, and columns only where something waits."""
    if not queue.columns:
        columns = dict[str, "array[int]"]()
        if len(queue.waiting) == 1 and len(queue.waiting[0]) < LONG_RUN:
            waiting = [as_chunk(queue.waiting[0])]
        else:
            waiting = same_chunked(queue.waiting)
    else:
        lsns = flat(queue.waiting)
        waiting = chunked(lsns)
        columns = {name: runs_of(lsns, spread(lsns, queue.columns[name])) for name in COLUMNS if name in queue.columns}
    return replace(queue, waiting=waiting, columns={name: runs for name, runs in columns.items() if len(runs)})


def encode(state: DurableState, queues_of: Iterable[QueueState] | None = None) -> bytes:
    """The state as bytes; equal states give equal bytes.

    queues_of: its queues by id, instead of those in the state: one is unfolded at a time.
    """
    blobs = list[bytes]()
    plain = queues_of if queues_of is not None else (queue for _, queue in sorted(state.queues.items()))
    settings: dict[QueueSettings, int] = {}
    queues = _queues(plain, settings, blobs)
    head = _filled(
        last_lsn=state.last_lsn,
        unclean=state.unclean,
        defaults=state.defaults,
        terms=[list(one) for one in state.terms],
        **dump_sites(state),
        **_dump_topology(state),
        publishers=dict(sorted(state.publishers.items())),
        streams={name: one.dump() for name, one in sorted(state.streams.items())},
        sinks=dict(sorted(state.sinks.items())),
        sink_marks=dump_marks(state.sink_marks),
        decided=dump_decided(state.decided),
        sows=dump_sows(state.sows, blobs),
        deferred=dump_deferred(state.deferred),
        acted=state.acted.dump() if state.acted else None,
        policies=[[one.name, dump_policy(one)] for _, one in sorted(state.policies.items())],
        addresses=[[one.pattern, dump_address(one)] for _, one in sorted(state.addresses.items())],
        exchange_rules=dump_exchanges(state.exchange_rules),
    )
    if settings:
        head["settings"] = [dump_settings(one) for one in settings]
    if state.measured:
        head["sizes"] = dump_sizes(state.sizes, blobs)
    parts = [orjson.dumps(head)]
    if queues:  # last, for they are many and were dumped already
        parts = [parts[0][:-1], b',"queues":[' if head else b'"queues":[', *queues, b"]}"]
    return b"".join((_HEAD.pack(MAGIC, VERSION, sum(map(len, parts))), *parts, *blobs))


def _dump_topology(state: DurableState) -> dict[str, object]:
    """The inverse of `_load_topology`."""
    return {
        "exchanges": [
            [vhost, name, x.type, x.durable, x.auto_delete, x.internal, wrap(x.arguments), x.used]
            for (vhost, name), x in sorted(state.exchanges.items())
        ],
        "bindings": sorted(
            [b.vhost, b.source, b.destination, b.destination_type, b.key, b.arguments] for b in state.bindings
        ),
        "topics": [[*key, wrap(value)] for key, value in sorted(state.topics.items())],
        "vias": [[number, *pair, *state.blind.get(number, ())] for number, pair in sorted(state.vias.items())],
        "routes": [[number, *queues] for number, queues in sorted(state.routes.items())],
        "next_route": state.next_route,
    }


def _queues(plain: Iterable[QueueState], settings: dict[QueueSettings, int], blobs: list[bytes]) -> list[bytes]:
    """The queues as pieces of JSON, one after the other; settings that are new get the next number, and what is no JSON
    is appended to `blobs`.

    There may be very many: no more than `TOGETHER` are objects at a time.
    """
    out, few = list[bytes](), list[dict[str, object]]()

    def put() -> None:
        if few:
            out.append((b"," if out else b"") + orjson.dumps(few)[1:-1])
            few.clear()

    for one in plain:
        queue = canonical_queue(one)
        few.append(_queue(queue, settings.setdefault(queue.settings, len(settings)), blobs))
        if len(few) == TOGETHER:
            put()
    put()
    return out


def _queue(queue: QueueState, settings: int, blobs: list[bytes]) -> dict[str, object]:
    """One in canonical form.  settings: their number."""
    packed = list(pack_chunks(queue.waiting))
    blobs += packed
    forms = dict[str, object]()
    if queue.columns:
        lsns = flat(queue.waiting)
        for name, runs in queue.columns.items():
            forms[name], blob = pack(runs, lsns)
            blobs.append(blob)
    if queue.taken:
        blobs.append(queue.taken.tobytes())
    return {
        "id": queue.id,
        "vhost": queue.vhost,
        "name": queue.name,
        "settings": settings,
        "durable": queue.durable,
        **_filled(
            exclusive=queue.exclusive, auto_delete=queue.auto_delete, arguments=wrap(queue.arguments),
            chunks=len(packed), columns=forms, since=queue.since,
            ruling=dump_ruling(queue.ruling, queue.settings),
            paused=queue.paused, taken=len(queue.taken),
        ),
        **pending.dump(queue.reviewed, queue.passing),
    }  # fmt: skip


def _filled(**parts: object) -> dict[str, object]:
    """What is there of these; nothing that is false, zero or empty."""
    return {name: value for name, value in parts.items() if value}


def decode(data: bytes) -> DurableState:
    """The state from bytes.  Raises ValueError with a sentence when they are no whole state of a known version."""
    try:
        return _decode(data)
    except (struct.error, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"the encoded state of {len(data)} bytes is damaged: {error}") from error


def _decode(data: bytes) -> DurableState:
    magic, version, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("these bytes are no encoded state")
    if version not in READABLE:
        raise ValueError(f"the encoded state has version {version}, this server reads versions up to {VERSION}")
    place = _HEAD.size + length
    if place > len(data):
        raise ValueError(f"the encoded state is cut: {len(data)} bytes of at least {place}")
    head = cast("_Head", orjson.loads(data[_HEAD.size : place]))
    state = DurableState(cast(int, head.get("last_lsn", 0)), cast(int, head.get("unclean", 0)))
    state.defaults = cast(int, head.get("defaults", 0))
    state.terms = tuple(Reign(*cast("list[Any]", one)) for one in head.get("terms", ()))
    load_sites(state, head)
    _load_topology(state, head)
    _load_rulings(state, head)
    _load_readers(state, head)
    settings = [load_settings(one) for one in cast("list[object]", head.get("settings", ()))]
    for told in cast("list[dict[str, object]]", head.get("queues", [])):
        queue, place = _load_queue(told, settings, data, place)
        state.queues[queue.id] = queue
    place = load_sows(state.sows, head.get("sows", []), data, place)
    state.measured = "sizes" in head or not any(queue.waiting for queue in state.queues.values())
    place = load_sizes(state.sizes, head.get("sizes"), data, place)
    if place != len(data):
        raise ValueError(f"the encoded state has {len(data) - place} bytes too many")
    return state


def _load_topology(state: DurableState, head: _Head) -> None:
    """Exchanges, bindings, topics, and the numbers by which rows name what took them."""
    for vhost, name, kind, durable, auto_delete, internal, arguments, used in head.get("exchanges", ()):
        state.exchanges[str(vhost), str(name)] = ExchangeState(
            str(kind), bool(durable), bool(auto_delete), bool(internal), as_table(arguments), bool(used)
        )
    state.bindings = {Binding(*map(str, row)) for row in head.get("bindings", ())}
    state.topics = {(str(v), str(x), str(k)): as_table(value) for v, x, k, value in head.get("topics", ())}
    for number, *told in cast("list[list[object]]", head.get("vias", ())):
        vhost, exchange, *keys = map(str, told)
        state.vias[cast(int, number)] = (vhost, exchange)
        if keys:
            state.blind[cast(int, number)] = tuple(keys)
    state.routes = {cast(int, row[0]): tuple(cast("list[int]", row[1:])) for row in head.get("routes", ())}
    state.next_route = cast(int, head.get("next_route", 0))


def _load_rulings(state: DurableState, head: _Head) -> None:
    """Policies, settings of addresses, and what they make of exchanges."""
    for name, table in cast("list[tuple[str, dict[str, object]]]", head.get("policies", ())):
        policy = load_policy(name, table)
        state.policies[policy.key] = policy
    for pattern, table in cast("list[tuple[str, dict[str, object]]]", head.get("addresses", ())):
        setting = load_address(pattern, table)
        state.addresses[setting.key] = setting
    state.exchange_rules = {
        key: one for key, one in load_exchanges(head.get("exchange_rules")).items() if one is not None
    }


def _load_readers(state: DurableState, head: _Head) -> None:
    """Publishers, sinks, streams, deferred acks, actions: who goes on where it was."""
    nothing: dict[str, object] = {}
    state.publishers = dict(cast("dict[str, int]", head.get("publishers", nothing)))
    state.sinks = dict(cast("dict[str, int]", head.get("sinks", nothing)))
    state.sink_marks = load_marks(head.get("sink_marks", nothing))
    state.decided = load_decided(head.get("decided", {}))
    state.deferred = load_deferred(head.get("deferred", []))
    state.acted = Acted.load(head.get("acted"))
    for name, one in cast("dict[str, dict[str, object]]", head.get("streams", nothing)).items():
        state.streams[name] = StreamState.load(one)


def _load_queue(
    told: dict[str, object], settings: list[QueueSettings], data: bytes, place: int
) -> tuple[QueueState, int]:
    """One queue, whose chunks and columns are from `place` on; where they end."""
    which = told["settings"]  # a number, or before version 4 the settings
    queue = QueueState(
        cast(int, told["id"]), str(told["vhost"]), str(told["name"]),
        settings[which] if isinstance(which, int) else load_settings(which), bool(told["durable"]),
        bool(told.get("exclusive")), bool(told.get("auto_delete")), as_table(told.get("arguments")),
        since=cast(int, told.get("since", 0)), paused=cast(int, told.get("paused", 0)),
    )  # fmt: skip
    queue.reviewed, queue.passing = pending.read(told)
    queue.ruling = load_ruling(told.get("ruling"), queue.settings)
    for _ in range(cast(int, told.get("chunks", 0))):
        chunk, place = unpack_chunk(data, place)
        queue.waiting.append(chunk)
    forms = cast("dict[str, object]", told.get("columns", {}))
    lsns = flat(queue.waiting) if forms else np.zeros(0, dtype=np.int64)
    for column, form in forms.items():
        if column not in COLUMNS:
            raise ValueError(f"the encoded state has the unknown column {column!r} of queue {queue.name!r}")
        try:
            queue.columns[column], place = unpack(form, lsns, data, place)
        except ValueError as error:
            where = f"column {column!r} of queue {queue.name!r}"
            raise ValueError(f"the encoded state is cut or damaged: {where}: {error}") from error
    end = place + 8 * cast(int, told.get("taken", 0))
    if end > len(data):
        raise ValueError(f"the encoded state is cut in the keys of queue {queue.name!r}")
    queue.taken.frombytes(data[place:end])
    return queue, end
