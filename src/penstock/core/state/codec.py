"""The durable state as bytes, for checkpoints and `BASE` groups.

    8 bytes   b"PENSTATE"
    u32       version of this layout, 4
    u32       length of the JSON part
    JSON      everything but positions, without what is empty; per queue the number of chunks and the forms of columns
    per queue, in the order of the JSON:
        per chunk     u8 form, u32 count, u32 length of the payload, payload
        per column    see `core.state.columns`
        keys that it took of late, and when: pairs of int64
    indexes of SOW topics, see `core.state.sows`; then the sizes of what waits, see `core.state.sizes`

Earlier versions are read as well.  3 wrote the settings into each queue, where 4 has a number: the place in a list of
different ones, since many queues are declared alike.  2 did not know sizes; 1 wrote empty parts too, and columns as
runs alone.

All integers are little-endian.  Forms of a chunk: 0 one range (a, b as int64); 1 runs (first LSN as int64, then u32
pairs gap, length); 2 and 3 differences to the one before as u16 and u32 (first LSN as int64); 4 plain int64.  The
smallest is taken, chunk by chunk.  Whoever stores these bytes adds the checksum.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import orjson

from penstock.core.actions.acted import Acted
from penstock.core.state import passing
from penstock.core.state.columns import pack, unpack
from penstock.core.state.decided import dump_decided, load_decided
from penstock.core.state.deferred import dump_deferred, load_deferred
from penstock.core.state.durable import (
    CHUNK,
    COLUMNS,
    LONG_RUN,
    Binding,
    DurableState,
    ExchangeState,
    Ints,
    QueueState,
    StreamState,
    chunked,
    flat,
    ints,
    runs_of,
    same_chunked,
    spread,
    to_array,
)
from penstock.core.state.needs import living_pairs
from penstock.core.state.plain import as_table, dump_settings, load_settings, wrap
from penstock.core.state.rulings import (
    dump_address,
    dump_exchanges,
    dump_policy,
    dump_ruling,
    load_address,
    load_exchanges,
    load_policy,
    load_ruling,
)
from penstock.core.state.sinkmarks import dump_marks, load_marks
from penstock.core.state.sizes import dump_sizes, load_sizes
from penstock.core.state.sows import dump_sows, load_sows
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.settings import QueueSettings

MAGIC = b"PENSTATE"
VERSION = 4
READABLE = (1, 2, 3, VERSION)
_HEAD = struct.Struct("<8sII")
_CHUNK = struct.Struct("<BII")
_U32 = 2**32 - 1

TOGETHER = 256
"""Queues that are made JSON at once."""


def canonical(state: DurableState) -> DurableState:
    """The same state with each queue in the one form that equal histories share.  The queues are copies."""
    queues = {number: canonical_queue(queue) for number, queue in sorted(state.queues.items())}
    return DurableState(
        state.last_lsn, state.unclean, state.exchanges, state.bindings, state.topics, queues, state.vias, state.blind,
        state.routes,
        state.next_route, state.publishers, state.streams, state.sinks, state.decided, dict(sorted(state.sows.items())),
        state.deferred, state.acted, state.policies, state.addresses, state.exchange_rules,
        state.sizes.only(living_pairs(queues.values())), state.sink_marks, state.defaults, state.measured,
    )  # fmt: skip


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
    return QueueState(
        queue.id, queue.vhost, queue.name, queue.settings, queue.durable, queue.exclusive, queue.auto_delete,
        queue.arguments, waiting, {name: runs for name, runs in columns.items() if len(runs)}, queue.since,
        queue.reviewed, queue.passing, queue.ruling, queue.paused, queue.taken,
    )  # fmt: skip


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
        exchanges=[
            [vhost, name, x.type, x.durable, x.auto_delete, x.internal, wrap(x.arguments), x.used]
            for (vhost, name), x in sorted(state.exchanges.items())
        ],
        bindings=sorted(
            [b.vhost, b.source, b.destination, b.destination_type, b.key, b.arguments] for b in state.bindings
        ),
        topics=[[*key, wrap(value)] for key, value in sorted(state.topics.items())],
        vias=[[number, *pair, *state.blind.get(number, ())] for number, pair in sorted(state.vias.items())],
        routes=[[number, *queues_of] for number, queues_of in sorted(state.routes.items())],
        next_route=state.next_route,
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
    packed = list(_pack_all(queue.waiting))
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
        **passing.dump(queue.reviewed, queue.passing),
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
    head = cast("dict[str, list[list[object]]]", orjson.loads(data[_HEAD.size : place]))
    state = DurableState(cast(int, head.get("last_lsn", 0)), cast(int, head.get("unclean", 0)))
    state.defaults = cast(int, head.get("defaults", 0))
    nothing: dict[str, object] = {}
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
    state.publishers = dict(cast("dict[str, int]", head.get("publishers", nothing)))
    state.sinks = dict(cast("dict[str, int]", head.get("sinks", nothing)))
    state.sink_marks = load_marks(head.get("sink_marks", nothing))
    state.decided = load_decided(head.get("decided", {}))
    state.deferred = load_deferred(head.get("deferred", []))
    state.acted = Acted.load(head.get("acted"))
    for name, table in cast("list[tuple[str, dict[str, object]]]", head.get("policies", ())):
        policy = load_policy(name, table)
        state.policies[policy.key] = policy
    for pattern, table in cast("list[tuple[str, dict[str, object]]]", head.get("addresses", ())):
        setting = load_address(pattern, table)
        state.addresses[setting.key] = setting
    state.exchange_rules = {
        key: one for key, one in load_exchanges(head.get("exchange_rules")).items() if one is not None
    }
    for name, one in cast("dict[str, dict[str, object]]", head.get("streams", nothing)).items():
        state.streams[name] = StreamState.load(one)
    settings = [load_settings(one) for one in cast("list[object]", head.get("settings", ()))]
    for q in cast("list[dict[str, object]]", head.get("queues", [])):
        which = q["settings"]  # a number, or before version 4 the settings
        queue = QueueState(
            cast(int, q["id"]), str(q["vhost"]), str(q["name"]),
            settings[which] if isinstance(which, int) else load_settings(which), bool(q["durable"]),
            bool(q.get("exclusive")), bool(q.get("auto_delete")), as_table(q.get("arguments")),
            since=cast(int, q.get("since", 0)), paused=cast(int, q.get("paused", 0)),
        )  # fmt: skip
        queue.reviewed, queue.passing = passing.read(q)
        queue.ruling = load_ruling(q.get("ruling"), queue.settings)
        for _ in range(cast(int, q.get("chunks", 0))):
            chunk, place = _unpack(data, place)
            queue.waiting.append(chunk)
        forms = cast("dict[str, object]", q.get("columns", {}))
        lsns = flat(queue.waiting) if forms else np.zeros(0, dtype=np.int64)
        for column, form in forms.items():
            if column not in COLUMNS:
                raise ValueError(f"the encoded state has the unknown column {column!r} of queue {queue.name!r}")
            try:
                queue.columns[column], place = unpack(form, lsns, data, place)
            except ValueError as error:
                where = f"column {column!r} of queue {queue.name!r}"
                raise ValueError(f"the encoded state is cut or damaged: {where}: {error}") from error
        end = place + 8 * cast(int, q.get("taken", 0))
        if end > len(data):
            raise ValueError(f"the encoded state is cut in the keys of queue {queue.name!r}")
        queue.taken.frombytes(data[place:end])
        place = end
        state.queues[queue.id] = queue
    place = load_sows(state.sows, head.get("sows", []), data, place)
    state.measured = "sizes" in head or not any(queue.waiting for queue in state.queues.values())
    place = load_sizes(state.sizes, head.get("sizes"), data, place)
    if place != len(data):
        raise ValueError(f"the encoded state has {len(data) - place} bytes too many")
    return state


def _pack_all(chunks: Iterable[Chunk]) -> Iterable[bytes]:
    for chunk in chunks:
        if isinstance(chunk, range):
            yield _CHUNK.pack(0, len(chunk), 16) + struct.pack("<qq", chunk.start, chunk.stop)
        else:
            lsns = ints(chunk)
            for start in range(0, len(lsns), CHUNK):
                yield _pack(lsns[start : start + CHUNK])


def _pack(lsns: Ints) -> bytes:
    """One chunk of at most `CHUNK` LSNs in its smallest form."""
    n = len(lsns)
    gaps = np.diff(lsns)
    widest = int(gaps.max()) if n > 1 else 1
    breaks = np.flatnonzero(gaps != 1)
    runs = len(breaks) + 1
    sizes: Mapping[int, int] = {
        1: 8 + 8 * runs if widest <= _U32 else 8 * n + 1,
        2: 8 + 2 * (n - 1) if widest <= 65_535 else 8 * n + 1,
        3: 8 + 4 * (n - 1) if widest <= _U32 else 8 * n + 1,
        4: 8 * n,
    }
    form = min(sizes, key=sizes.__getitem__)
    if form == 4:
        payload = lsns.astype("<i8").tobytes()
    else:
        payload = struct.pack("<q", int(lsns[0]))
        if form == 1:
            starts = np.concatenate(([0], breaks + 1))
            lengths = np.diff(np.concatenate((starts, [n])))
            between = np.concatenate(([0], gaps[breaks]))
            payload += np.stack((between, lengths), axis=1).astype("<u4").tobytes()
        else:
            payload += gaps.astype("<u2" if form == 2 else "<u4").tobytes()
    return _CHUNK.pack(form, n, len(payload)) + payload


def _unpack(data: bytes, place: int) -> tuple[Chunk, int]:
    form, count, length = _CHUNK.unpack_from(data, place)
    start = place + _CHUNK.size
    end = start + length
    if end > len(data):
        raise ValueError("the encoded state is cut in a chunk")
    payload = data[start:end]
    lsns: Ints
    if form == 0:
        first, stop = struct.unpack("<qq", payload)
        if stop - first != count:
            raise ValueError("a chunk of the encoded state is not as long as it says")
        return range(first, stop), end
    if form == 4:
        lsns = np.frombuffer(payload, dtype="<i8").astype(np.int64)
    elif form == 1:
        table = np.frombuffer(payload[8:], dtype="<u4").astype(np.int64).reshape(-1, 2)
        # a run starts `gap` after the last element of the run before
        lasts = np.cumsum(table[:, 0]) + np.concatenate(([0], np.cumsum(table[:-1, 1] - 1)))
        begins = lasts + struct.unpack_from("<q", payload)[0]
        lengths = table[:, 1]
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        lsns = np.repeat(begins, lengths) + offsets
    elif form in (2, 3):
        gaps = np.frombuffer(payload[8:], dtype="<u2" if form == 2 else "<u4").astype(np.int64)
        lsns = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(gaps))) + struct.unpack_from("<q", payload)[0]
    else:
        raise ValueError(f"a chunk of the encoded state has the unknown form {form}")
    if len(lsns) != count:
        raise ValueError("a chunk of the encoded state is not as long as it says")
    return to_array(lsns), end
