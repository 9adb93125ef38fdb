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
needs none; old bytes of each version are kept among the tests.  Members of a cluster may be older: whoever raises it
raises `FORMAT` of the log (`records.kinds`), too, and has `encode` write the older one until `cluster finalize`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

import orjson

from penstock.core.acted import Acted
from penstock.core.links.carried import Numbered, Numbers, Sequences
from penstock.core.links.lasting import OLDER, Began, Departed, LinkState, load_gone, load_link
from penstock.core.links.ownership import Claim, Early, EarlyClaim, Foretold, Name, Place, Returned
from penstock.core.links.sharing import Site
from penstock.core.sizes import Sizes
from penstock.core.sow.holding import SowState
from penstock.core.state import pending
from penstock.core.state.encoding import (
    Shape,
    as_table,
    dump_settings,
    dump_sizes,
    dump_sows,
    load_settings,
    load_sizes,
    load_sows,
    wrap,
)
from penstock.core.state.pending import (
    DecidedState,
    DeferredAck,
    DeferredAcks,
    SinkMark,
    dump_decided,
    dump_deferred,
    dump_marks,
    load_decided,
    load_deferred,
    load_marks,
)
from penstock.core.state.queue_state import QueueState, canonical_queue, dump_queues, filled, living_pairs, load_queue
from penstock.core.state.streams import STREAM, StreamState
from penstock.core.topology.ruling import ADDRESS, POLICY, dump_exchanges, load_exchanges
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import AddressSetting, ExchangeRule, Policy, QueueSettings

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

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


EXCHANGE = Shape(
    ExchangeState, ("durable", "auto_delete", "internal", "arguments"), ("used",), arguments=(wrap, as_table)
)
"""An exchange as its record has it."""


def dump_declared(exchanges: Mapping[tuple[str, str], ExchangeState]) -> list[list[object]]:
    """Exchanges as JSON."""
    return [
        [vhost, name, x.type, x.durable, x.auto_delete, x.internal, wrap(x.arguments), x.used]
        for (vhost, name), x in sorted(exchanges.items())
    ]


def load_declared(told: list[list[object]]) -> dict[tuple[str, str], ExchangeState]:
    """The inverse of `dump_declared`."""
    return {
        (str(vhost), str(name)): ExchangeState(
            str(kind), bool(durable), bool(auto_delete), bool(internal), as_table(arguments), bool(used)
        )
        for vhost, name, kind, durable, auto_delete, internal, arguments, used in told
    }


class Form(NamedTuple):
    """What a field is as JSON, what it is of that again, and a copy that does not change with it."""

    dump: Callable[[Any], object]
    load: Callable[[Any], Any]
    copy: Callable[[Any], Any]


def kept(
    empty: Callable[[], T],
    dump: Callable[[T], object],
    load: Callable[[Any], T],
    copy: Callable[[T], T] = lambda value: value,
) -> T:
    """A field of the durable state, and all that is asked of it: bytes, the fold and the core go by this row."""
    return field(default_factory=empty, metadata={"form": Form(dump, load, copy)})


def number() -> int:
    """A field that is a number."""
    return kept(int, int, int)


def by_key(key: Callable[[V], K], dump: Callable[[V], object], load: Callable[[Any], V]) -> dict[K, V]:
    """Values that know their keys, as a list by key."""
    return kept(
        dict[K, V],
        lambda found: [dump(one) for _, one in sorted(found.items(), key=itemgetter(0))],
        lambda told: {key(one): one for one in map(load, told)},
        dict,
    )


def by_number(dump: Callable[[V], Iterable[object]], load: Callable[..., V]) -> dict[int, V]:
    """Values by numbers, as a list of (number, and what is of the value)."""
    return kept(
        dict[int, V],
        lambda found: [[one, *dump(value)] for one, value in sorted(found.items())],
        lambda told: {one: load(*values) for one, *values in told},
        copies,
    )


def copies(found: dict[K, V]) -> dict[K, V]:
    """The same by key; values that change are copied."""
    return {key: cast("V", cast("Any", one).copy()) if hasattr(one, "copy") else one for key, one in found.items()}


@dataclass(slots=True)
class DurableState:
    """Everything the log says, as of `last_lsn`.

    A field with a row is there for all who need it: it is written and read, the fold goes on with a copy of it
    (`core.state.objects`, where its records are folded), and so does the core (`CoreParts.kept`).  What a part of the
    core keeps in another form that part brings and takes (`core.commands.life`).
    """

    last_lsn: int = number()
    unclean: int = number()  # LSN of the last BOOT after an unclean stop: what waited then is delivered as redelivered
    defaults: int = number()  # see `DEFAULTS`: of the version that made the folder
    terms: tuple[Reign, ...] = kept(  # in a cluster, oldest first: who wrote which LSNs
        tuple[Reign, ...], lambda terms: list(map(list, terms)), lambda told: tuple(Reign(*one) for one in told)
    )
    peers: dict[int, Site] = by_number(iter, Site)  # sites that this one has met, and itself as 0
    carried: dict[int, Numbers] = by_number(  # by site: where its messages stand here
        lambda numbers: numbers.runs, lambda *runs: Numbers([tuple(run) for run in runs])
    )
    links: dict[int, LinkState] = by_number(LinkState.dump, load_link)  # by site
    proxied: dict[int, str] = by_number(lambda by: (by,), str)  # queues that act for absent owners: who said so
    early: Early = kept(  # claims to messages that have not come
        Early,
        lambda early: [[*one[:-1], *one.claim] for one in early],
        lambda told: Early(EarlyClaim(q, origin, a, b, Claim(*claim)) for q, origin, a, b, *claim in told),
        Early.copy,
    )
    returned: Returned = kept(  # what this site was given and could not take
        Returned,
        lambda returned: [[*place, first, stop, *claim] for place, first, stop, claim in returned],
        lambda told: Returned((Place(*one[:4]), one[4], one[5], Claim(*one[6:])) for one in told),
        Returned.copy,
    )
    foretold: Foretold = kept(  # what was told of messages that have not come, for queues that are not here
        Foretold,
        lambda foretold: [[*name, first, stop, *claim] for name, first, stop, claim in foretold],
        lambda told: Foretold((Name(*one[:3]), one[3], one[4], Claim(*one[5:])) for one in told),
        Foretold.copy,
    )
    began: Began = kept(  # how far other sites' logs were here when queues were declared
        Began,
        lambda began: [[0], *([queue, *map(list, heard)] for queue, heard in sorted(began.items()))],
        lambda told: Began({queue: tuple((one, lsn) for one, lsn in heard) for queue, *heard in told if queue}),
        Began,
    )
    passed: dict[int, int] = by_number(lambda lsn: (lsn,), int)  # by site: up to there its messages went by unheard of
    numbered: Sequences = kept(  # messages that publishers numbered
        Sequences, lambda known: list(map(list, known)), lambda told: Sequences(Numbered(*one) for one in told),
        Sequences.copy,
    )  # fmt: skip
    gone: Departed = kept(  # queues of which other sites may have to hear that they are gone
        Departed,
        lambda gone: [[number, *one.dump()] for number, one in sorted(gone.items())],
        lambda told: Departed({number: load_gone(*one) for number, *one in told}),
        Departed,
    )
    exchanges: dict[tuple[str, str], ExchangeState] = kept(
        dict[tuple[str, str], "ExchangeState"], dump_declared, load_declared,
        lambda found: {key: replace(one, arguments=dict(one.arguments)) for key, one in found.items()},
    )  # fmt: skip
    bindings: set[Binding] = kept(
        set["Binding"],
        lambda found: sorted([b.vhost, b.source, b.destination, b.destination_type, b.key, b.arguments] for b in found),
        lambda told: {Binding(*map(str, row)) for row in told},
        set,
    )
    topics: dict[tuple[str, str, str], dict[str, object]] = kept(  # (vhost, exchange, key) -> settings
        dict[tuple[str, str, str], dict[str, object]],
        lambda found: [[*key, wrap(value)] for key, value in sorted(found.items())],
        lambda told: {(str(v), str(x), str(k)): as_table(value) for v, x, k, value in told},
        copies,
    )
    vias: dict[int, tuple[str, ...]] = by_number(iter, lambda *names: names)  # vhost, exchange, BCC keys
    routes: dict[int, tuple[int, ...]] = by_number(iter, lambda *queues: queues)  # of live queues only
    next_route: int = number()  # numbers of routes are never used again
    beside: int = number()  # up to this LSN it may be said beside a row without a route who took it
    publishers: dict[str, int] = kept(  # highest sequence each
        dict[str, int], lambda found: dict(sorted(found.items())), dict, dict
    )
    streams: dict[str, StreamState] = kept(
        dict[str, StreamState],
        lambda found: {name: STREAM.dump(one) for name, one in sorted(found.items())},
        lambda told: {name: STREAM.load(one) for name, one in told.items()},
        copies,
    )
    sinks: dict[str, int] = kept(  # query id -> highest committed batch
        dict[str, int], lambda found: dict(sorted(found.items())), dict, dict
    )
    sink_marks: dict[str, SinkMark] = kept(  # of the queries in `sinks`, if known
        dict[str, SinkMark], dump_marks, load_marks, dict
    )
    decided: dict[str, DecidedState] = kept(  # query id -> what is unfinished
        dict[str, DecidedState], dump_decided, load_decided, pending.decided_copies
    )
    deferred: DeferredAcks = kept(  # by queue id
        dict[int, list[DeferredAck]], dump_deferred, load_deferred, pending.copies
    )
    acted: Acted = kept(  # what actions have done
        Acted, lambda acted: acted.dump() if acted else None, Acted.load, Acted.copy
    )
    policies: dict[tuple[bool, str, str], Policy] = by_key(
        lambda one: one.key,
        lambda one: [one.name, POLICY.dump(one)],
        lambda told: POLICY.load(told[1], name=told[0]),
    )
    addresses: dict[tuple[str, str, bool], AddressSetting] = by_key(
        lambda one: one.key,
        lambda one: [one.pattern, ADDRESS.dump(one)],
        lambda told: ADDRESS.load(told[1], pattern=told[0]),
    )
    exchange_rules: dict[tuple[str, str], ExchangeRule] = kept(
        dict[tuple[str, str], ExchangeRule],
        dump_exchanges,
        lambda told: {key: one for key, one in load_exchanges(told).items() if one is not None},
        dict,
    )
    # what is much, and is written in a form of its own
    queues: dict[int, QueueState] = field(default_factory=dict[int, "QueueState"])
    sows: dict[int, SowState] = field(default_factory=dict[int, SowState])  # by id
    sizes: Sizes = field(default_factory=Sizes)  # of what waits, and perhaps of more
    measured: bool = True  # False: it was written when sizes were not known, and they have to be read from the log

    def copy(self, but: Collection[str] = ()) -> DurableState:
        """All that has a row, as of now, but for these: of the two, one may go on without the other."""
        return DurableState(**{name: form.copy(getattr(self, name)) for name, form in FORMS.items() if name not in but})

    def encode(self) -> bytes:
        """For a checkpoint or a `BASE` group."""
        return encode(self)

    @classmethod
    def decode(cls, data: bytes) -> DurableState:
        """The inverse of `encode`.  Raises ValueError with a sentence for anything else."""
        return decode(data)


FORMS: Mapping[str, Form] = {one.name: one.metadata["form"] for one in fields(DurableState) if one.metadata}
"""The rows of the durable state, by field, in the order in which they are written."""

ROUTES_MAX = 65_536
"""So many routes have numbers at once; who took further messages is said beside them."""

DECLARED = ("exchanges", "bindings", "topics", "policies", "addresses", "exchange_rules")
"""The fields that `core.topology.Topology` brings and takes, wherever there is one."""


MAGIC = b"PENSTATE"
VERSION = 4
READABLE = (1, 2, 3, VERSION)
_HEAD = struct.Struct("<8sII")


def canonical(state: DurableState) -> DurableState:
    """The same state with each queue in the one form that equal histories share.  The queues are copies."""
    queues = {number: canonical_queue(queue) for number, queue in sorted(state.queues.items())}
    sizes = state.sizes.only(living_pairs(queues.values()))
    return replace(state, queues=queues, sows=dict(sorted(state.sows.items())), sizes=sizes)


def encode(state: DurableState, queues_of: Iterable[QueueState] | None = None) -> bytes:
    """The state as bytes; equal states give equal bytes.

    queues_of: its queues by id, instead of those in the state: one is unfolded at a time.
    """
    blobs = list[bytes]()
    plain = queues_of if queues_of is not None else (queue for _, queue in sorted(state.queues.items()))
    settings: dict[QueueSettings, int] = {}
    queues = dump_queues(plain, settings, blobs)
    head = filled(**{name: form.dump(getattr(state, name)) for name, form in FORMS.items()})
    if len(state.peers) < 2:
        head.pop("began")  # there is nobody to hear of
    if state.next_route >= ROUTES_MAX:
        head["beside"] = state.beside  # also where it is none
    if state.sows:
        head["sows"] = dump_sows(state.sows, blobs)
    if state.gone:
        head["departed"] = state.gone.names
    if settings:
        head["settings"] = [dump_settings(one) for one in settings]
    if state.measured:
        head["sizes"] = dump_sizes(state.sizes, blobs)
    parts = [orjson.dumps(head)]
    if queues:  # last, for they are many and were dumped already
        parts = [parts[0][:-1], b',"queues":[' if head else b'"queues":[', *queues, b"]}"]
    return b"".join((_HEAD.pack(MAGIC, VERSION, sum(map(len, parts))), *parts, *blobs))


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
    head = cast("dict[str, Any]", orjson.loads(data[_HEAD.size : place]))
    state = DurableState(**{name: form.load(head[name]) for name, form in FORMS.items() if name in head})
    state.gone.named(head.get("departed", ()), state.last_lsn)
    for site, numbers in state.carried.items():
        numbers.floor = state.links.get(site, LinkState()).floor
    settings = [load_settings(one) for one in head.get("settings", ())]
    for told in head.get("queues", ()):
        queue, place = load_queue(told, settings, data, place)
        state.queues[queue.id] = queue
    place = load_sows(state.sows, head.get("sows", []), data, place)
    _assume(state, head)
    state.measured = "sizes" in head or not any(queue.waiting for queue in state.queues.values())
    place = load_sizes(state.sizes, head.get("sizes"), data, place)
    if place != len(data):
        raise ValueError(f"the encoded state has {len(data) - place} bytes too many")
    return state


def _assume(state: DurableState, head: Mapping[str, object]) -> None:
    """What a version did not note that wrote this is taken for what does no harm."""
    if "began" not in head and len(state.peers) > 1:
        state.began = Began(dict.fromkeys(state.queues, OLDER))
    if "beside" not in head and state.next_route >= ROUTES_MAX:
        state.beside = state.last_lsn
