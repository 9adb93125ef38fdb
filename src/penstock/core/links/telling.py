"""What a link tells of the log of its sender: from record batches to parcels, in log order.

Messages go on whose topic the link carries, unless they have been at the other site; of shared queues it goes on what
was settled, and who owns what.  Nothing is told twice, and what has no meaning there is left out.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.links.carried import Carried, may_go_on
from penstock.core.links.ownership import Claim, Why, is_done, is_twin
from penstock.core.links.parcels import SPANS_MOST, Numbers, Parcel, Piece, Told, split, told_blind
from penstock.core.links.sharing import Peers, Site
from penstock.core.state.encoding import load
from penstock.core.state.lsns import Ints, ints, merged
from penstock.records.causes import TWIN
from penstock.records.chunks import unpack_pairs
from penstock.records.compute import each_once
from penstock.records.entries import Topic
from penstock.records.kinds import ENDED, NO_VIA, PUBLISHES, Kind
from penstock.records.schema import CARRIED

_SAYING = frozenset({Kind.SETTLE, Kind.DROP, Kind.EXPIRE})
"""Kinds of ends whose headers say who let them go."""

_CHANGED = frozenset({Kind.QUEUE_ALTER, Kind.RECOVER, Kind.RECOVERED})
"""Kinds after which what is said of a queue may be otherwise: its settings, and how far back it looks."""

_WHOLE = frozenset({Kind.CARRIED, Kind.OWN, Kind.CLAIMED, Kind.NUMBERED, Kind.QUEUE_DELETE}) | _CHANGED | ENDED
"""Kinds whose records are looked into."""

READS = _WHOLE | PUBLISHES | {Kind.QUEUE_DECLARE}

_TOLD = np.zeros(256, dtype=np.bool_)
_TOLD[[int(kind) for kind in _WHOLE]] = True
SPAN_BYTES = 16
"""Of one in a record, beside 8 of it that say whose they are."""

_Record: TypeAlias = tuple[int, int, str, bytes, bytes]
_COLUMNS = ("lsn", "kind", "name", "properties", "body")


class Home(Protocol):
    """The sender's core."""

    origin: int
    peers: Peers

    def via_of(self, number: int) -> tuple[str, str, tuple[str, ...]]:
        """Vhost, exchange, and keys that nobody is shown, of what the log calls by a number."""
        ...

    def shared_as(self, queue: int, site: str) -> tuple[str, str] | None:
        """Vhost and name of a queue, by its id, that the site has or may come to have; None: of it is nothing said."""
        ...

    def offers(self, to: str, queues: Collection[int] | None = None) -> list[dict[str, object]]:
        """What to say to a site of queues here, as JSON; queues: of these ids alone."""
        ...

    def ends(self, to: str, queues: Collection[int] | None = None) -> list[dict[str, object]]:
        """What to say to a site of queues that are gone, as JSON; queues: of these ids alone."""
        ...

    def told_as(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Messages of this log as every site knows them."""
        ...

    def offered_by(self, site: str, vhost: str, queue: str) -> bool:
        """Whether a site has said that it has a queue of this name."""
        ...


class _Way(NamedTuple):
    """How rows came here: they are the messages [first, stop) of this log, and `there` is the first one's LSN there.

    times: LSNs here, ascending, and when their site took what follows each.
    """

    first: int
    stop: int
    there: int
    path: tuple[int, ...]
    times: tuple[int, ...] = ()


class _Topics(NamedTuple):
    """Adjacent rows [low, high) of one via: their keys, each once, and which each row has; None: all have the first."""

    low: int
    high: int
    via: int
    keys: list[str]
    places: npt.NDArray[np.int32] | None


class Telling:
    """One link's side at its sender."""

    def __init__(self, home: Home, to: Site, carried: Carried, upto: int = 0, offered: int = 0) -> None:
        """upto: so far the other side has this log.  offered: of queues that begin up to there it has been told."""
        self._home = home
        self._to = to
        self._carried = carried
        self._offered = offered
        self._said = dict[object, dict[str, object]]()  # of queues since then, by their ids
        self.upto = upto

    def parcels(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        """What a batch of the log has to say to the other side, to be heard in this order.

        Each is made as it is taken: one record may say of millions of messages that they are done.

        It is as it lies in the log, durable, and follows those that were told; what of it was told is left out.
        """
        lsns = batch.column("lsn").to_numpy()
        before, self.upto = self.upto, max(self.upto, int(lsns[-1]) if len(lsns) else 0)
        kinds = batch.column("kind").to_numpy()
        messages, records, cuts = batch, list[_Record](), list[int]()
        if not len(lsns) or lsns[0] <= before or kinds.max() > Kind.PUBLISH_TRANSIENT:  # else all are messages, and new
            new = lsns > before
            cuts = lsns[((kinds == Kind.QUEUE_DECLARE) | (kinds == Kind.QUEUE_DELETE)) & new].tolist()
            some = _rows(batch, np.flatnonzero(_TOLD[kinds.view(np.uint8)] & new))
            records = list(zip(*(some.column(name).to_pylist() for name in _COLUMNS), strict=True))
            messages = _rows(batch, np.flatnonzero((kinds <= Kind.PUBLISH_TRANSIENT) & new))
        pieces, rows = list[Piece](), None
        if messages.num_rows:
            pieces, rows = self._messages(messages, list(_ways(records)), cuts, list(_marks(records)))
        told = chain(self._settled(records), self._claims(records))  # what is gone nobody is given, whoever owns it
        numbers = tuple(self._numbers(records)) if pieces else ()
        offers = tuple(self._offers([lsn for lsn in cuts if lsn > self._offered], records))
        yield from split(Parcel(self.upto, tuple(pieces), rows, (), numbers, offers), told, before)

    def _offers(self, fresh: Sequence[int], records: Sequence[_Record]) -> Iterator[dict[str, object]]:
        """Of queues that began or ended at these LSNs, and of those that are otherwise than what was said of them."""
        if fresh:
            gone = [unpack_pairs(body)[0] for _, kind, _, _, body in records if kind == Kind.QUEUE_DELETE]
            yield from self._home.ends(self._to.name, {*gone, *fresh})  # also of what has begun and is gone since
            for number in gone:
                self._said.pop(number, None)
        some = [unpack_pairs(one[4])[0] for one in records if one[1] in _CHANGED and one[0] > self._offered]
        for offer in self._home.offers(self._to.name, {*fresh, *some}) if fresh or some else ():
            if self._said.get(offer["since"]) != offer:
                self._said[offer["since"]] = offer
                yield offer

    # -- messages

    def _messages(
        self, rows: pa.RecordBatch, ways: list[_Way], begun: Sequence[int], marks: Sequence[_Mark]
    ) -> tuple[list[Piece], pa.RecordBatch | None]:
        """Which of these messages go on: those rows.

        begun: LSNs at which queues begin or end.
        """
        here: npt.NDArray[np.int64] = rows.column("lsn").to_numpy()
        own: tuple[int, ...] = (self._home.origin,)
        parts, there = _parted(here, ways, own) if ways else ([(0, len(here), own)], here)
        goes = np.zeros(len(here), dtype=np.bool_)
        for low, high, path in parts:
            goes[low:high] = self._goes_on(path)
        if not goes.any():
            return [], None
        topics = list(_topics(rows))
        for topic in topics:
            self._judge(rows, goes, topic)
        count = int(np.count_nonzero(goes))
        if not count:
            return [], None
        out = rows.select(CARRIED.names)
        if ways:
            columns = dict(zip(CARRIED.names, out.columns, strict=True))
            columns["lsn"] = pa.array(there)
            if any(way.times for way in ways):
                columns["time"] = _times_of(columns["time"], here, ways)
            out = pa.RecordBatch.from_arrays(list(columns.values()), names=CARRIED.names)
        if count < len(goes):
            out = out.take(np.flatnonzero(goes))
        return list(self._pieces(goes, parts, topics, here, begun, _marked(here, marks))), out

    def _goes_on(self, path: tuple[int, ...]) -> bool:
        peers = self._home.peers
        group: str | None = None
        if path[-1] != self._home.origin:
            came = next((site for site in peers.sites.values() if site.origin == path[-1]), None)
            group = "" if came is None else came.group
        return may_go_on(path, group, self._to.origin, self._carried.pass_through)

    def _judge(self, rows: pa.RecordBatch, goes: npt.NDArray[np.bool_], topic: _Topics) -> None:
        """Take out of `goes` the rows of one exchange that the link does not carry."""
        low, high = topic.low, topic.high
        vhost, exchange, _ = self._home.via_of(topic.via)
        for number, key in enumerate(topic.keys):
            judges = self._carried.judges(vhost, exchange, key)
            if None in judges:
                continue
            mine = slice(low, high) if topic.places is None else low + np.flatnonzero(topic.places == number)
            if not judges:
                goes[mine] = False
                continue
            places = np.arange(low, high) if isinstance(mine, slice) else mine
            places = places[goes[places]]
            wanted = rows.take(places)
            bodies, heads = _texts(wanted, "body"), _texts(wanted, "properties")
            passing = {
                place
                for judge in judges if judge is not None
                for place in judge.matches(bodies, heads, Topic(vhost, exchange, key)).get(0, ())
            }  # fmt: skip
            goes[places] = [place in passing for place in range(len(places))]

    def _pieces(
        self, goes: npt.NDArray[np.bool_], parts: Sequence[tuple[int, int, tuple[int, ...]]],
        topics: Sequence[_Topics], here: npt.NDArray[np.int64], begun: Sequence[int],
        marked: list[_Mark],
    ) -> Iterator[Piece]:  # fmt: skip
        """What goes on, cut where the way or the exchange changes, a queue begins, or what marks do."""
        ends = {end for part in parts for end in part[:2]} | {end for one in topics for end in one[:2]}
        ends.update(end for one in marked for end in one[:2])
        cuts = sorted(ends.union(np.searchsorted(here, begun).tolist()) if begun else ends)
        ways, places, marks = iter(parts), iter(topics), iter(marked)
        way, place, mark = next(ways), next(places), next(marks, None)
        for low, high in pairwise(cuts):
            while way[1] <= low:
                way = next(ways)
            while place[1] <= low:
                place = next(places)
            while mark is not None and mark.stop <= low:
                mark = next(marks, None)
            here_marked = mark is not None and mark.first <= low
            if count := int(np.count_nonzero(goes[low:high])):
                path = way[2] if way[2][-1] == self._home.origin else (*way[2], self._home.origin)
                vhost, exchange, blind = self._home.via_of(place.via)
                yield Piece(
                    path,
                    vhost,
                    exchange,
                    told_blind(blind) if blind else (),
                    count,
                    int(here[low]),
                    mark is not None and here_marked and mark.letters,
                    mark.into if mark is not None and here_marked else "",
                )

    # -- what happened to messages

    def _claims(self, records: Sequence[_Record]) -> Iterator[Told]:
        for _, kind, name, header, body in records:
            if kind == Kind.CLAIMED:
                yield from self._given_back(name, load(header), body)
            if kind != Kind.OWN:
                continue
            number, pairs = unpack_pairs(body)
            table, shared = load(header), self._home.shared_as(number, self._to.name)
            why = cast("Why", table["why"])
            if shared is not None and why != "first":  # who owns it first every site knows by itself
                claim = Claim(str(table["site"]), cast("int", table["serial"]), why)
                yield Told(*shared, tuple(self._known(ints(pairs).reshape(-1, 2))), claim)

    def _given_back(self, queue: str, said: Mapping[str, object], body: bytes) -> Iterator[Told]:
        """What this site could not take, and whose it is now; what it answers to one site about what that found.

        The same record without a vhost is of its own alone.
        """
        to = self._to.name
        vhost = said.get("vhost") if "to" not in said else said["in"] if said["to"] == to else None
        if isinstance(vhost, str) and ("to" in said or said["site"] == to or self._home.offered_by(to, vhost, queue)):
            claim = Claim(str(said["site"]), cast("int", said["serial"]), cast("Why", said["why"]))
            pairs, origin = ints(unpack_pairs(body)[1]).reshape(-1, 2).tolist(), int(str(said["origin"]))
            spans = tuple((origin, first, stop) for first, stop in pairs)
            yield Told(vhost, queue, spans, None if is_done(claim) else claim, is_twin(claim))

    def _numbers(self, records: Sequence[_Record]) -> Iterator[Numbers]:
        for _, kind, _, header, body in records:
            if kind != Kind.NUMBERED:
                continue
            names = cast("list[str]", load(header)["publishers"])
            runs = cast("list[list[int]]", np.frombuffer(body, dtype="<i8").reshape(-1, 5).tolist())
            for name, _, sequence, lsn, count in [run for run in runs if run[0] >= 0]:  # the others are forgotten here
                for origin, first, stop in self._home.told_as(lsn, lsn + count):
                    yield Numbers(names[name], origin, sequence, first, stop - first)
                    sequence += stop - first

    def _settled(self, records: Sequence[_Record]) -> Iterator[Told]:
        """Of each queue all that ended in a batch, in few spans; not what the other side has told itself."""
        ended, barriers = self._ended(records)
        for (number, twins), some in ended.items():
            shared = self._home.shared_as(number, self._to.name)
            if shared is not None:
                for spans in _portions(self._known(merged(some))):
                    yield Told(*shared, spans, twins=twins)
        for number, let_go in barriers:  # a site that takes its messages for no barriers has them wait for it
            shared = self._home.shared_as(number, self._to.name)
            own = tuple([span for span in self._known(let_go) if span[0] == self._home.origin])
            if shared is not None and own:
                yield Told(*shared, own)

    def _ended(self, records: Sequence[_Record]) -> tuple[dict[tuple[int, bool], list[Ints]], list[tuple[int, Ints]]]:
        """Pairs by queue and whether they were twins, and the barriers that were let go, by queue."""
        ended, barriers = dict[tuple[int, bool], list[Ints]](), list[tuple[int, Ints]]()
        for _, kind, _, header, body in records:
            if kind not in ENDED or not body:
                continue
            said = load(header) if kind in _SAYING else {}
            if said.get("site") == self._to.name or "foreign" in said:
                continue
            number, pairs = unpack_pairs(body)
            if "barrier" in said:
                barriers.append((number, ints(pairs).reshape(-1, 2)))
            elif len(pairs):
                ended.setdefault((number, said.get("reason") == TWIN), []).append(ints(pairs).reshape(-1, 2))
        return ended, barriers

    def _known(self, pairs: Ints) -> Iterator[tuple[int, int, int]]:
        """Messages of this log, pairs ascending, as every site knows them."""
        ways, at = self._home.told_as(int(pairs[0, 0]), int(pairs[-1, 1])), int(pairs[0, 0])
        begins = list[int]()
        for _, first, stop in ways:
            begins.append(at)
            at += stop - first
        for first, stop in chain.from_iterable(one.tolist() for one in _parts(pairs)):
            for way in range(bisect_right(begins, first) - 1, len(ways)):
                if begins[way] >= stop:
                    break
                origin, there, end = ways[way]
                low, high = max(first, begins[way]), min(stop, begins[way] + end - there)
                yield origin, there + low - begins[way], there + high - begins[way]


def _parts(pairs: Ints) -> Iterator[Ints]:
    return (pairs[at : at + SPANS_MOST] for at in range(0, len(pairs), SPANS_MOST))


def _portions(spans: Iterator[tuple[int, int, int]]) -> Iterator[tuple[tuple[int, int, int], ...]]:
    while some := tuple(islice(spans, SPANS_MOST)):
        yield some


def _ways(records: Sequence[_Record]) -> Iterator[_Way]:
    """How those messages of a batch came that other sites published."""
    for _, kind, _, header, body in records:
        if kind == Kind.CARRIED:
            said = load(header)
            path, times = tuple(cast("list[int]", said["path"])), tuple(cast("list[int]", said.get("times", ())))
            for here, there, count in np.frombuffer(body, dtype="<i8").reshape(-1, 3).tolist():
                yield _Way(here, here + count, there, path, times)


class _Mark(NamedTuple):
    """Messages [first, stop) that no publisher's publish brought: dead letters, or moved into one queue, or both."""

    first: int
    stop: int
    into: str = ""
    letters: bool = True


def _marks(records: Sequence[_Record]) -> Iterator[_Mark]:
    """LSNs of messages of a batch that this site, or one whose they are, wrote as dead letters, or moved."""
    for _, kind, _, header, body in records:
        if kind == Kind.EXPIRE and header:
            yield from _marks_of_the_dead(load(header))
        elif kind == Kind.CARRIED:
            said = load(header)
            letters = bool(said.get("letters"))
            if (into := cast("str", said.get("into", ""))) or letters:
                runs = np.frombuffer(body, dtype="<i8").reshape(-1, 3).tolist()
                yield from (_Mark(here, here + count, into, letters) for here, _, count in runs)


def _marks_of_the_dead(said: dict[str, object]) -> Iterator[_Mark]:
    """The new messages that one EXPIRE names."""
    new = [new for _, new in cast("list[tuple[int, int]]", said.get("dead") or ())]
    new += cast("list[int]", said.get("refused") or ())
    yield from (_Mark(lsn, lsn + 1) for lsn in new)
    if into := cast("str", said.get("into", "")):
        still = set(cast("list[int]", said.get("letters") or ()))
        sent = [new for _, new in cast("list[tuple[int, int]]", said["sent"])]
        yield from (_Mark(lsn, lsn + 1, into, lsn in still) for lsn in sent)


def _marked(here: npt.NDArray[np.int64], marks: Sequence[_Mark]) -> list[_Mark]:
    """Which of the rows with these LSNs are marked: places in place of LSNs, neighbours alike as one."""
    out = list[_Mark]()
    for one in sorted(marks):
        low, high = np.searchsorted(here, one[:2]).tolist()
        if out and out[-1].stop == low and out[-1][2:] == one[2:]:
            out[-1] = out[-1]._replace(stop=high)
        elif low < high:
            out.append(one._replace(first=low, stop=high))
    return out


def _times_of(column: pa.Array[Any], lsns: npt.NDArray[np.int64], ways: Sequence[_Way]) -> pa.Array[Any]:
    """When messages were taken, by this site or by the one that they came from; lsns: theirs here."""
    out = cast("npt.NDArray[np.int64]", column.cast(pa.int64()).to_numpy()).copy()
    for way in ways:
        low, high = np.searchsorted(lsns, (way.first, way.stop)).tolist()
        if way.times and low < high:
            since, times = np.array(way.times, dtype=np.int64).reshape(-1, 2).T
            out[low:high] = times[np.searchsorted(since, lsns[low:high], side="right") - 1]
    return cast("pa.Array[Any]", pa.array(out).cast(column.type))


def _parted(
    lsns: npt.NDArray[np.int64], ways: Sequence[_Way], own: tuple[int, ...]
) -> tuple[list[tuple[int, int, tuple[int, ...]]], npt.NDArray[np.int64]]:
    """Messages, ascending, by their ways: places [low, high) and the path; and their LSNs at their origins."""
    out, at, there = list[tuple[int, int, tuple[int, ...]]](), 0, lsns.copy()
    for way in sorted(ways):
        low, high = np.searchsorted(lsns, (way.first, way.stop)).tolist()
        if at < low:
            out.append((at, low, own))
        if low < high:
            out.append((low, high, way.path))
            there[low:high] += way.there - way.first
        at = max(at, high)
    if at < len(lsns):
        out.append((at, len(lsns), own))
    return out, there


def _topics(rows: pa.RecordBatch) -> Iterator[_Topics]:
    """Which rows are of which topics, parted where the exchange changes."""
    column, count = rows.column("via"), rows.num_rows
    cuts, vias = [0, count], cast("Sequence[int]", (NO_VIA,))
    if column.null_count < count:
        vias = cast("Any", column.fill_null(NO_VIA) if column.null_count else column).to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(vias)) + 1).tolist(), count]
    for low, high in pairwise(cuts):
        yield _Topics(low, high, int(vias[low]), *each_once(rows.column("name").slice(low, high - low)))


def spans_in(batch: pa.RecordBatch) -> int:
    """Of how many spans of messages its records say what became of them, at most."""
    kinds = batch.column("kind").to_numpy()
    records = _rows(batch, np.flatnonzero(_TOLD[kinds.view(np.uint8)]))
    return sum(map(len, _texts(records, "body"))) // SPAN_BYTES


def _rows(batch: pa.RecordBatch, places: npt.NDArray[np.intp]) -> pa.RecordBatch:
    """Some rows of a batch, ascending; where they are adjacent they are not copied."""
    if not len(places):
        return batch.slice(0, 0)
    whole = len(places) == places[-1] - places[0] + 1
    return batch.slice(int(places[0]), len(places)) if whole else batch.take(places)


def _texts(rows: pa.RecordBatch, name: str) -> list[bytes]:
    return cast("list[bytes]", rows.column(name).to_pylist())
