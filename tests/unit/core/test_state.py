"""The durable state as bytes, and what the fold says about records it cannot read."""

from __future__ import annotations

import struct
from array import array
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.acted import Acted
from penstock.core.broker import Core
from penstock.core.commands.life import OF_PARTS
from penstock.core.links.carried import Numbered, Numbers, Sequences
from penstock.core.links.lasting import Began, Departed, Gone, LinkState
from penstock.core.links.ownership import Claim, Early, EarlyClaim, Foretold, Name, Place, Returned, done_by
from penstock.core.links.sharing import Site
from penstock.core.publishing.arrivals import Marks
from penstock.core.queue.order.ranks import LOWEST
from penstock.core.sow.holding import SowState
from penstock.core.state import encoding, queue_state
from penstock.core.state.durable import FORMS, ROUTES_MAX, Binding, DurableState, ExchangeState, Reign, canonical
from penstock.core.state.encoding import as_table, dump, dump_settings, load, load_settings, unwrap, wrap
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import alike, chunked, flat, ints, runs_among, runs_of, same_chunked, spread
from penstock.core.state.pending import DecidedPart, DecidedState, DeferredAck, Passing, SinkMark
from penstock.core.state.queue_state import COLUMNS, FoldedQueue, QueueState
from penstock.core.state.streams import StreamState
from penstock.core.topology.ruling import POLICY
from penstock.errors import LogDamaged
from penstock.records.chunks import pack_pairs
from penstock.records.entries import Control
from penstock.records.field_tables import Timestamp
from penstock.records.kinds import Kind
from penstock.records.queue_settings import AddressSetting, ExchangeRule, Policy, QueueSettings, Retry, Ruling
from unit.core.world import World, to_table

DATA = Path(__file__).resolve().parents[2] / "data"
LSNS = st.lists(st.integers(1, 2**52), unique=True, max_size=60).map(sorted)
GAPS = st.lists(st.sampled_from([1, 1, 1, 2, 100, 65_535, 65_536, 2**32 - 1, 2**32, 2**40]), max_size=200)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_what_is_told_of_messages_one_by_one_is_brought_to_them_together(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a start behind a kill: 30,000 jobs that had become due, each in its own moment, took 8 s of CPU."""
    monkeypatch.setattr(queue_state, "SET_AT_ONCE", at_once)
    chance = Random(at_once)
    lsns = sorted(chance.sample(range(1, 2000), 500))
    folded = FoldedQueue(QueueState(1, "/", "q"))
    folded.parts += [{"lsn": np.array(lsns[:200])}, {"lsn": np.array(lsns[200:])}]
    wanted = {lsn: {"place": 0, "not_before": 0} for lsn in lsns}
    for value in range(1, 900):
        column, first = chance.choice(("place", "not_before")), chance.randrange(1, 2000)
        pairs = [[first, first + chance.choice((1, 1, 1, 40))], [first + 50, first + 51]]
        folded.delayed.append((column, value % 60, np.array(pairs)))
        for low, high in pairs:
            for lsn in wanted.keys() & range(low, high):
                wanted[lsn][column] = value % 60
    steps, bring = list[object](), queue_state._set

    def counted(*given: Any) -> None:
        steps.append(given)
        bring(*given)

    monkeypatch.setattr(queue_state, "_set", counted)
    folded.apply()
    assert len(steps) == 4, "one for each column of each part"
    done = folded.finished(2000)
    assert flat(done.waiting).tolist() == lsns
    for column in ("place", "not_before"):
        told = spread(np.array(lsns), done.columns[column]).tolist()
        assert told == [wanted[lsn][column] for lsn in lsns]


@given(GAPS, st.integers(1, 2**40))
def test_chunks_round_trip_in_every_form(gaps: list[int], first: int) -> None:
    lsns = np.cumsum([first, *gaps])
    state = DurableState(queues={1: QueueState(1, "/", "q", waiting=[array("q", lsns.tolist())])})
    back = DurableState.decode(state.encode())
    assert flat(back.queues[1].waiting).tolist() == lsns.tolist()
    assert back.encode() == state.encode()


@pytest.mark.parametrize(
    ("lsns", "form"),
    [
        (range(5, 100_000), 0),
        ([*range(1, 40), *range(50, 90)], 1),
        ([3 * n for n in range(1, 100)], 2),
        ([70_000 * n for n in range(1, 100)], 3),
        ([2**33 * n for n in range(1, 100)], 4),
    ],
)
def test_the_smallest_form_is_taken(lsns: list[int], form: int) -> None:
    [piece] = encoding.pack_chunks(chunked(np.array(lsns, dtype=np.int64)))
    assert piece[0] == form
    chunk, end = encoding.unpack_chunk(piece, 0)
    assert list(chunk) == list(lsns)
    assert end == len(piece)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from((1, 5, 4095, 4096, 70_000))), max_size=9),
    st.randoms(use_true_random=False),
)
def test_ranges_get_the_form_of_their_lsns(runs: list[tuple[int, int]], chance: Random) -> None:
    """Whichever way they are cut, and without unfolding long ones."""
    at, chunks = 7, list[range]()
    for gap, length in runs:
        chunks.append(range(at + gap, at + gap + length))
        at += gap + length
    expected = chunked(flat(chunks))
    chance.shuffle(chunks)
    assert same_chunked(chunks) == expected


def test_ten_million_waiting_are_a_few_bytes_and_half_of_them_two_each() -> None:
    dense = DurableState(queues={1: QueueState(1, "/", "q", waiting=[range(1, 10_000_000)])})
    assert len(dense.encode()) < 1000
    lsns = np.flatnonzero(np.random.default_rng(1).random(200_000) < 0.5)
    assert len(DurableState(queues={1: QueueState(1, "/", "q", waiting=chunked(lsns))}).encode()) < 2.1 * len(lsns)


def full() -> DurableState:
    queue = QueueState(
        4, "v", "q", QueueSettings(retry=Retry(), filter="/a = 1"), True, False, True, {"x-a": 1, "x-b": [b"\xff", 1.5]}
    )  # fmt: skip
    QueueState.fill(
        queue, np.array([9, 10, 12]), {"deliveries": np.array([1, 1, 3]), "expires_at": np.array([0, 0, 5])}
    )
    return DurableState(
        last_lsn=99, unclean=5,
        exchanges={("v", "x"): ExchangeState("topic", False, True, True, {"alternate-exchange": "y"}, True)},
        bindings={Binding("v", "x", "q", "queue", "k", '{"a":1}'), Binding("v", "x", "y", "exchange", "")},
        topics={("v", "", "t"): {"key": ["/id"]}}, queues={4: queue}, vias={0: ("v", "x")}, routes={3: (4,)},
        next_route=7,
        publishers={"p": 8}, streams={"s": StreamState(4, 2, "queue", 1, 2, {1: array("q", [9, 11]), 2: array("q")})},
        sinks={"query": 3},
    )  # fmt: skip


def filled() -> DurableState:
    """A value in every field.  A new one is added here, and then whoever has to know it is asked by the tests below."""
    site = LinkState(heard=7, acked=8, paused=True, floor=3)
    part = DecidedPart("stage", 10, 100, 7, "t", "", "v")
    state = replace(
        full(),
        defaults=1,
        terms=(Reign(1, "m-a", 77, 1 << 33),),
        peers={0: Site("here", 1), 1: Site("there", 2, "group")},
        carried={1: Numbers([(5, 9, 1)], 3)},
        links={1: site},
        proxied={4: "somebody"},
        early=Early([EarlyClaim(4, 2, 50, 52, Claim("there", 1, "transfer"))]),
        beside=20,
        returned=Returned([(Place("v", "gone", 2, "there"), 40, 42, Claim("there", 2, "yielded"))]),
        foretold=Foretold([(Name("v", "gone", 2), 50, 52, done_by("there"))]),
        began=Began({4: ((2, 5),)}),
        passed={1: 44},
        numbered=Sequences([Numbered("p", 1, 7, 9, 2)]),
        gone=Departed({2: Gone("v", "gone", "group-local", "d", ("x", "k"), 60, "there")}),
        vias={0: ("v", "x"), 1: ("v", "x", "blind")},
        sink_marks={"query": SinkMark(60, True, "for people", "me", "'out'")},
        decided={"query": DecidedState(3, 70, (part,), (("s", 2),), 1, 4)},
        deferred={4: [DeferredAck(2, "ack", "me", 77, array("q", [30, 31]))]},
        acted=Acted(5, {"act": 2}, {"act": {0: [9]}}),
        policies={(False, "v", "p"): Policy("v", "p", "^q", {"max-deliveries": 5}, {"max_deliveries": 5})},
        addresses={("v", "a.#", False): AddressSetting("v", "a.#", {"max_length": 5})},
        exchange_rules={("v", "x"): ExchangeRule("p", "y")},
        sows={6: SowState(6, "v", "", "t", array("Q", [5]), array("q", [10]), array("q", [99]))},
    )
    state.sizes.add_rows(np.array([9, 10, 12]), np.array([100, 100, 7]))
    return state


MUCH = ("queues", "sows", "sizes", "measured")
"""Fields of the state that are written in forms of their own, and have no row."""


def test_each_field_has_one_row_and_a_value_in_the_sample() -> None:
    blank, sample = DurableState(), filled()
    assert {one.name for one in fields(DurableState)} == {*FORMS, *MUCH}
    assert not FORMS.keys() & MUCH
    assert [name for name in (*FORMS, "queues", "sows", "sizes") if getattr(sample, name) == getattr(blank, name)] == []
    assert FORMS.keys() > OF_PARTS


def test_every_field_lasts_over_bytes_the_fold_and_the_core() -> None:
    """Each by itself, so that what fails names the one that forgot a field."""
    expected = canonical(filled())
    core = Core.restore(filled(), origin=1, now=World().now)
    for way, state in (
        ("bytes", DurableState.decode(filled().encode())),
        ("the fold", Fold(filled()).finish()),
        ("the core", core.durable_state()),
    ):
        back = canonical(state)
        assert [one for one in (*FORMS, *MUCH) if getattr(back, one) != getattr(expected, one)] == [], way
        assert back.encode() == expected.encode(), way


def test_a_checkpoint_of_a_version_that_did_not_note_who_was_named_beside_rows() -> None:
    data = DurableState(last_lsn=9, next_route=ROUTES_MAX).encode()
    assert DurableState.decode(data).beside == 0
    head = struct.Struct("<8sII")
    magic, version, _ = head.unpack_from(data)
    told = orjson.loads(data[head.size :])
    del told["beside"]
    older = orjson.dumps(told)
    assert DurableState.decode(head.pack(magic, version, len(older)) + older).beside == 9


KEEPS: dict[str, QueueSettings] = {
    "rank": QueueSettings(priority_expression="/p"),
    "key": QueueSettings(last_value_key="/k"),
    "dedup": QueueSettings(unique=True, dedup_key="/k"),
    "barrier": QueueSettings(barrier_expression="/b"),
}
"""Settings without which a queue has no use for a column."""


def ways(state: DurableState) -> list[tuple[str, DurableState]]:
    """What becomes of a state over each way that it goes."""
    core = Core.restore(state, origin=1, now=World().now)
    return [
        ("bytes", DurableState.decode(state.encode())),
        ("the fold", Fold(state).finish()),
        ("the core", core.durable_state()),
    ]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_lasts_over_bytes_the_fold_and_the_core(column: str) -> None:
    """A value in the middle of three messages; a new column is asked for here by itself."""
    value = {"not_before": 1 << 60, "expires_at": 1 << 60, "place": 5, "claim": 5}.get(column, 1)
    plain = QueueState(4, "v", "q", KEEPS.get(column, QueueSettings()))
    queue = QueueState.fill(plain, np.array([9, 10, 12]), {column: np.array([0, value, 0])})
    assert queue.columns[column].tolist() == [10, 11, value]
    state = replace(filled(), queues={4: queue}, streams={})
    for way, back in ways(state):
        assert canonical(back).queues[4] == queue, way


OF_A_QUEUE: dict[str, object] = {
    "settings": QueueSettings(max_length=5),
    "durable": False,
    "exclusive": True,
    "auto_delete": True,
    "arguments": {"x-a": 1},
    "waiting": [range(9, 11)],
    "columns": {"deliveries": array("q", [10, 11, 2])},
    "reviewed": ((5, 7),),
    "passing": Passing(7, 20, 9),
    "ruling": Ruling(QueueSettings(max_length=7), frozenset({"max_length"}), "p"),
    "paused": 1 << 60,
    "taken": array("q", [77, 1_000_000]),
}
"""A value of each field of a queue but its names; `since` says of a capture what it knows, and is no part of what is
kept.
"""


def test_each_field_of_a_queue_has_a_value_in_the_sample() -> None:
    assert {one.name for one in fields(QueueState)} == {*OF_A_QUEUE, "id", "vhost", "name", "since"}


@pytest.mark.parametrize("field", OF_A_QUEUE)
def test_every_field_of_a_queue_lasts_over_bytes_the_fold_and_the_core(field: str) -> None:
    queue = QueueState(4, "v", "q", QueueSettings(dedup_window=10_000_000), waiting=[range(9, 11)])
    value = OF_A_QUEUE[field]
    assert getattr(queue, field) != value or field == "waiting"
    setattr(queue, field, value)
    state = replace(filled(), queues={4: queue}, streams={})
    for way, back in ways(state):
        assert canonical(back).queues[4] == canonical(state).queues[4], way


def test_what_was_copied_does_not_change_with_it() -> None:
    """Of a state, its fold and its core one goes on without the others: no field shares what may change."""
    first, copied = filled(), filled().copy()
    for name, form in FORMS.items():
        value = getattr(first, name)
        again = form.copy(value)
        assert again == value == getattr(copied, name), name
        assert again is not value or isinstance(value, int | tuple), f"{name} is shared"
        inner = zip(value.values(), again.values(), strict=True) if isinstance(value, dict) else ()
        assert not [one for one, other in inner if one is other and getattr(type(one), "__hash__", None) is None], name


def test_everything_round_trips() -> None:
    assert DurableState.decode(full().encode()) == full()
    assert Fold(full()).finish() == full()


def test_cut_or_foreign_bytes_are_refused_in_a_sentence() -> None:
    data = full().encode()
    for cut in range(len(data)):
        with pytest.raises(ValueError, match="state"):
            DurableState.decode(data[:cut])
    with pytest.raises(ValueError, match="too many"):
        DurableState.decode(data + b"x")
    with pytest.raises(ValueError, match="no encoded state"):
        DurableState.decode(b"P" + data)
    with pytest.raises(ValueError, match="version 5, this server reads versions up to 4"):
        DurableState.decode(data[:8] + b"\x05" + data[9:])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_earlier_form_is_read_and_written_again_in_the_new_one(version: int) -> None:
    """Real bytes of version 1, which wrote empty parts, and columns as runs alone; of 2, which knew no
    sizes; of 3, which wrote settings into each queue.
    """
    data = (DATA / f"state_v{version}.bin").read_bytes()
    assert data[8] == version
    expected = full()
    ranked = QueueState(6, "v", "ranked", QueueSettings(priority_expression="/p"))
    ranks = np.array([7, 7, (1 << 63) - 1, 0])
    expected.queues[6] = QueueState.fill(ranked, np.array([20, 21, 22, 30]), {"rank": ranks})
    expected.deferred = {4: [DeferredAck(9, "ack", "me", 77, array("q", [3, 5]))]}
    expected.measured = False
    state = DurableState.decode(data)
    assert state == expected
    again = state.encode()
    assert again[8] == 4
    later = {name: value for name, value in dump_settings(QueueSettings()).items() if name.encode() not in data}
    listed = len('"settings":[],')  # two queues that were declared differently share nothing
    assert len(again) - len(dump(later)) * len(state.queues) < len(data) + listed
    assert DurableState.decode(again) == expected
    assert not DurableState.decode(again).measured  # until the log was read


def test_many_queues_that_were_declared_alike_share_their_settings() -> None:
    rare = QueueSettings(max_length=7)
    queues = {n: QueueState(n, "/", f"queue-{n}", rare if n % 100 == 0 else QueueSettings()) for n in range(1, 2001)}
    data = DurableState(queues=queues).encode()
    assert len(data) < 75 * len(queues)
    again = DurableState.decode(data)
    assert again.queues == queues
    assert len({id(queue.settings) for queue in again.queues.values()}) == 2


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([7] * 5000, 3),
        ([*range(1, 5001)], ["values", 2, 1]),
        ([*range(-2500, 0), *range(1, 2501)], ["values", 2, -2500]),
        ([5, 1 << 62] * 2500, ["codes", 1, 2]),
        ([5, 0, 1 << 62, -(1 << 62)] * 1250, ["codes", 1, 3]),
        ([(1 << 40) + n * 99_999_989 % (1 << 37) for n in range(5000)], ["values", 5, None]),
        ([-(1 << 63) + 1 + n * ((1 << 64) // 5000) for n in range(5000)], ["values", 8, None]),
        ([(-(1 << 63), (1 << 63) - 1)[n % 2] for n in range(5000)], ["codes", 1, 2]),
    ],
)  # fmt: skip
def test_a_column_takes_the_form_with_the_fewest_bytes(values: list[int], form: object) -> None:
    lsns = np.arange(10, 10 + 3 * len(values), 3, dtype=np.int64)
    runs = runs_of(lsns, np.array(values, dtype=np.int64))
    told, blob = encoding.pack(runs, lsns)
    if isinstance(form, list) and form[-1] is None:
        assert isinstance(told, list)
        assert told[:2] == form[:2]
    else:
        assert told == form
    assert encoding.unpack(told, lsns, b"xx" + blob, 2) == (runs, 2 + len(blob))
    with pytest.raises(ValueError, match="short"):
        encoding.unpack(told, lsns, blob[:-1], 0)


def test_a_damaged_column_is_refused() -> None:
    lsns = np.arange(10, dtype=np.int64)
    for form in (["codes", 1, 1], ["values", 9, 0], ["other", 1, 0]):
        with pytest.raises(ValueError, match="column"):
            encoding.unpack(form, lsns, bytes(8) + b"\x02" * 10, 0)


def test_a_rank_of_its_own_for_each_message_takes_few_bytes() -> None:
    """24 bytes a message as runs; as little as the priorities need here, however the messages lie."""
    lsns = np.flatnonzero(np.random.default_rng(1).random(400_000) < 0.5)
    ranks = LOWEST - 1 - np.random.default_rng(2).integers(0, 1 << 32, len(lsns))
    state = QueueState.fill(QueueState(1, "/", "q"), lsns, {"rank": ranks})
    assert len(DurableState(queues={1: state}).encode()) < (2.1 + 4 + 1) * len(lsns)


@given(LSNS, st.data())
def test_runs_and_columns(lsns: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 3), min_size=len(lsns), max_size=len(lsns)))
    column = np.array(values, dtype=np.int64)
    there = np.array(lsns, dtype=np.int64)
    assert spread(there, runs_of(there, column)).tolist() == values


@given(
    st.lists(st.integers(1, 60), unique=True).map(sorted),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(0, 2)), max_size=8),
)
def test_runs_are_put_in_their_one_form_without_a_value_for_each_message(
    lsns: list[int], runs: list[tuple[int, int, int]]
) -> None:
    """Also those that overlap, touch, or are of messages that are not there."""
    there = np.array(lsns, dtype=np.int64)
    told = [number for first, length, value in runs for number in (first, first + length, value)]
    assert runs_among(there, told) == runs_of(there, spread(there, told))
    assert runs_among(there, array("q", told)) == runs_among(there, told)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1) | st.just(1 << 50)), max_size=40))
def test_rows_that_are_alike_are_told_together(rows: list[tuple[int, int, int]]) -> None:
    names = ("deliveries", "failures", "not_before")
    columns = {name: np.array([row[at] for row in rows], dtype=np.int64) for at, name in enumerate(names)}
    found = [
        (tuple(told.get(name, 0) for name in names), places.tolist()) for told, places in alike(len(rows), columns)
    ]
    kinds = sorted(set(rows))
    assert [kind for kind, places in found if places] == kinds
    assert [places for _, places in found if places] == [
        [at for at, row in enumerate(rows) if row == kind] for kind in kinds
    ]


def test_later_runs_win_where_they_overlap() -> None:
    assert spread(np.arange(10), array("q", [0, 8, 1, 2, 4, 5])).tolist() == [1, 1, 5, 5, 1, 1, 1, 1, 0, 0]
    assert spread(np.arange(4), array("q", [2, 4, 7, 0, 1, 9])).tolist() == [9, 0, 7, 7]


def test_marks() -> None:
    marks = Marks()
    marks.add(5, 8)
    marks.add(10, 11)  # only control records between
    marks.part()
    marks.add(20, 21)
    assert marks.pairs.tolist() == [5, 11, 20, 21]
    assert [lsn for lsn in range(30) if marks.has(lsn)] == [*range(5, 11), 20]
    marks.reset(np.array([6, 20]))
    assert marks.among(np.array([5, 6, 20, 21])).tolist() == [False, True, True, False]
    assert ints(marks.pairs).tolist() == [6, 7, 20, 21]


def test_marks_that_are_forgotten_do_not_join_what_comes_after() -> None:
    marks = Marks()
    marks.add(5, 6)
    marks.part()
    marks.add(10, 11)
    marks.retain(np.array([True, False]), 20)
    marks.add(30, 31)
    assert marks.pairs.tolist() == [5, 6, 30, 31]


def test_older_messages_are_marked_among_the_others() -> None:
    marks = Marks()
    marks.add(5, 8)
    marks.part()
    marks.add(20, 21)
    marks.add_older(np.array([2, 6, 10, 11]))
    marks.add(22, 23)  # only control records between
    assert marks.pairs.tolist() == [2, 3, 5, 8, 10, 11, 11, 12, 20, 23]
    assert [lsn for lsn in range(25) if marks.has(lsn)] == [2, 5, 6, 7, 10, 11, 20, 21, 22]
    alone = Marks()
    alone.add_older(np.array([3]))
    alone.add(7, 8)
    assert alone.pairs.tolist() == [3, 4, 7, 8]


def test_a_shape_passes_over_what_it_does_not_know_and_says_what_is_missing() -> None:
    policy = Policy("/", "p", "^a", {"max-deliveries": 5}, {"max_deliveries": 5})
    told = POLICY.dump(policy)
    assert not {"name", "alternate_exchange"} & told.keys()
    assert told["priority"] == 0
    assert POLICY.load({**told, "of a later version": 1}, name="p") == policy
    for name in ("vhost", "pattern", "definition"):
        with pytest.raises(TypeError, match=name):
            POLICY.load({key: value for key, value in told.items() if key != name}, name="p")


def test_tables_keep_their_types() -> None:
    table = {
        "t": Timestamp(5),
        "b": b"\x00\xff",
        "f": 1.5,
        "n": None,
        "i": 2**63,
        "l": [1, True, "x"],
        "$odd": {"$b": 1},
    }
    back = as_table(load(dump({"arguments": wrap(table)}))["arguments"])
    assert back == table
    assert isinstance(back["t"], Timestamp)
    with pytest.raises(TypeError):
        wrap(object())
    with pytest.raises(ValueError, match=r"\$what"):
        unwrap({"$what": 1})
    with pytest.raises(ValueError, match="unknown keys colour"):
        load_settings({"colour": 1})


def control(lsn: int, kind: int, **columns: object) -> pa.Table:
    return to_table([Control(Kind.MARK, "", lsn=lsn, **columns)]).set_column(1, "kind", pa.array([kind], pa.int8()))  # type: ignore[arg-type]


def test_the_fold_names_the_lsn_of_what_it_cannot_read() -> None:
    with pytest.raises(LogDamaged, match="LSN 7 has the unknown kind 99"):
        Fold().feed(control(7, 99))
    with pytest.raises(LogDamaged, match="QUEUE_DECLARE record at LSN 8 cannot be read"):
        Fold().feed(control(8, Kind.QUEUE_DECLARE, header=b"{}"))
    with pytest.raises(LogDamaged, match="BIND record at LSN 9 cannot be read"):
        Fold().feed(control(9, Kind.BIND, header=b"nonsense"))
    with pytest.raises(LogDamaged, match="SETTLE record at LSN 10 has a body of 16 bytes"):
        Fold().feed(control(10, Kind.SETTLE, body=pack_pairs(1, [2])))
    world = World()
    world.declare("q")
    world.publish("q")
    with pytest.raises(LogDamaged, match="names route 0, which was never told"):
        Fold().feed(world.tables[-1].slice(world.tables[-1].num_rows - 1))


def test_records_folded_already_are_passed_over() -> None:
    world = World()
    world.declare("q")
    world.publish("q", b"1", b"2")
    fold = Fold(world.core.durable_state())
    world.publish("q", b"3")
    for table in world.tables:
        fold.feed(table)
    fold.feed(pa.table([[] for _ in range(11)], schema=world.tables[0].schema))
    assert fold.finish() == canonical(world.core.durable_state())


def test_a_base_and_the_records_after_it() -> None:
    world = World()
    queue = world.declare("q")
    world.publish("q", b"1", b"2")
    base = world.core.durable_state().encode()
    kept = len(world.tables)
    consumer = world.subscribe(queue)
    world.publish("q", b"3")
    world.core.settle(
        world.now, queue, [range(world.inbox[consumer][0], world.inbox[consumer][0] + 1)], _ack(), by=consumer
    )
    world.core._out.record(Kind.BASE, "", {"part": 0, "parts": 1, "floor": 1}, base)
    world.turn()
    fold = Fold(DurableState.decode(base))
    for table in world.tables[kept:]:
        fold.feed(table)
    assert fold.finish() == canonical(world.core.durable_state()) == world.folded()
    assert fold.records == sum(table.num_rows for table in world.tables[kept:])


def _ack() -> object:
    from penstock.core.effects import Verb

    return Verb.ACK


def test_who_led_is_folded_from_boot_records_and_kept_in_the_state() -> None:
    """The first start knew no cluster; a start of one without a cluster would add nothing."""
    world = World()
    for clean, reign in ((False, Reign(1, "m-a", 77)), (True, Reign(2, "m-b", (1 << 33) + 5))):
        world.core.boot(world.now, clean=clean, next_lsn=reign.term << 33, leads=reign)
        world.turn()
    led = (Reign(1, "m-a", 77, 1 << 33), Reign(2, "m-b", (1 << 33) + 5, 2 << 33))
    assert world.core.terms == led
    folding = Fold()
    for table in world.tables:
        folding.feed(table)
    state = folding.finish()
    assert state.terms == led
    back = DurableState.decode(state.encode())
    assert back.terms == led
    assert Fold(back).finish().terms == led


def test_a_plain_queue_has_after_a_start_no_more_than_before() -> None:
    world = World()
    queue = world.core.declare_queue(world.now, "/", "q", QueueSettings())
    world.publish("q", *[b"x"] * 5)
    state = DurableState.decode(world.core.durable_state().encode())
    core = world.core.restore(state, origin=7, now=world.now)
    core.boot(world.now, clean=True, next_lsn=core.next_lsn)
    restored = core.queue("/", "q")
    assert restored.agenda == 0
    slots = {name for kind in type(queue).__mro__ for name in getattr(kind, "__slots__", ())}
    others = {name for name in slots if getattr(queue, name) != getattr(restored, name)}
    counts = {"arrived", "loaded"}  # since the start, and found by it
    assert others == {*counts, "declared", "main"}, "others are shared parts that hold nothing, or equal values"
