"""Which topics a subscription means, among what is live and in batches of the log."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, NotFound
from penstock.records.entries import Topic
from penstock.records.field_tables import FieldValue
from penstock.records.kinds import NO_VIA
from penstock.server.replaying.selection import BindingKey, Selection, Term, selection_of
from penstock.testing import Broker

VIAS = {NO_VIA: ("/", ""), 1: ("/", "x"), 2: ("other", "")}


def chosen(selection: Selection, rows: list[tuple[int | None, str]]) -> list[int]:
    """The rows of a batch that are meant; the same by their topics."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([via for via, _ in rows], pa.int32()), pa.array([name for _, name in rows], pa.string())],
        names=["via", "name"],
    )
    hits = selection.mask(batch, VIAS)
    found = [bool(hit) for hit in (hits.to_pylist() if isinstance(hits, pa.Array) else [hits.as_py()] * len(rows))]
    topics = [Topic(*VIAS[NO_VIA if via is None else via], name) for via, name in rows]
    assert found == [selection.wants(topic) for topic in topics]
    names = selection.names()
    for row, hit in enumerate(found):
        assert not hit or names is None or (names == rows[row][1] if isinstance(names, str) else names(rows[row][1]))
    return [row for row, hit in enumerate(found) if hit]


ROWS: list[tuple[int | None, str]] = [(None, "a"), (1, "a"), (2, "a"), (None, "ab"), (1, "b"), (1, "c.d")]


def test_one_topic_or_a_pattern_of_one_exchange_of_one_vhost() -> None:
    assert chosen(Selection.topic("/", "", "a"), ROWS) == [0]
    assert chosen(Selection.topic("/", "x", "a"), ROWS) == [1]
    assert chosen(Selection.topic("other", "", "a"), ROWS) == [2]
    assert chosen(Selection.topic("/", "gone", "a"), ROWS) == []
    assert chosen(Selection.pattern("/", "", "a"), ROWS) == [0, 3], "a pattern matches anywhere, as in underlying_topic"
    assert chosen(Selection.pattern("/", "x", "^[ab]$"), ROWS) == [1, 4]
    with pytest.raises(InvalidArgument, match="regular expression"):
        Selection.pattern("/", "", "(")


def test_equal_selections_share_the_work() -> None:
    assert Selection.topic("/", "", "a") == Selection.topic("/", "", "a")
    assert hash(Selection.pattern("/", "", "a+")) == hash(Selection.pattern("/", "", "a+"))
    assert Selection.pattern("/", "", "a+") != Selection.pattern("/", "", "b+")


def test_what_a_queue_is_a_view_of() -> None:
    with Broker({"queue": [{"name": "a"}, {"name": "v", "underlying_topic": "a"}]}) as broker:
        assert broker.instance is not None
        core, now = broker.instance.core, broker.instance.engine.now()
        assert selection_of(core, "/", "", "a") == Selection.topic("/", "", "a")
        assert selection_of(core, "/", "", "v") == Selection.topic("/", "", "a")
        core.declare_exchange(now, "/", "x", "topic")
        core.declare_exchange(now, "/", "d", "direct")
        core.declare_exchange(now, "/", "h", "headers")
        core.bind(now, "/", "x", "v", "queue", "c.*")
        assert chosen(selection_of(core, "/", "", "v"), ROWS) == [0, 5]
        core.bind(now, "/", "d", "x", "exchange", "c.e")
        assert Term("d", "c.e", (Term("x", None, (BindingKey("c.*"),)),)) in selection_of(core, "/", "", "v").terms
        core.bind(now, "/", "h", "v", "queue", "", {"x": 1})
        behind = selection_of(core, "/", "", "v")
        assert behind.by_headers
        assert selection_of(core, "/", "", "v") == behind
        core.bind(now, "/", "h", "v", "queue", "", {"x": 2})
        assert selection_of(core, "/", "", "v") != behind
        assert behind.wants(Topic("/", "h", "any"))
        assert behind.lets(Topic("/", "h", "any"), {"x": 1})
        assert not behind.lets(Topic("/", "h", "any"), {"x": 2})
        assert behind.lets(Topic("/", "", "a"), {})


def test_a_queue_that_shares_an_exchange_is_a_view_of_its_share() -> None:
    with Broker({"queue": [{"name": "a"}, {"name": "b"}, {"name": "late"}]}) as broker:
        assert broker.instance is not None
        core, now = broker.instance.core, broker.instance.engine.now()
        for name, arguments in (("by-key", {}), ("by-header", {"hash-header": "tenant"})):
            core.declare_exchange(now, "/", name, "x-consistent-hash", arguments=arguments)
            for queue in "ab":
                core.bind(now, "/", name, queue, "queue", "1")
        core.declare_exchange(now, "/", "later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
        core.bind(now, "/", "later", "late", "queue", "c.*")
        a, b = (selection_of(core, "/", "", queue) for queue in "ab")
        assert selection_of(core, "/", "", "a") == a != b
        keys = [Topic("/", "by-key", f"k{i}") for i in range(50)]
        assert [a.wants(key) for key in keys] == [not b.wants(key) for key in keys]
        assert 10 < sum(map(a.wants, keys)) < 40
        one = Topic("/", "by-header", "any")
        tenants: list[dict[str, FieldValue]] = [{"tenant": f"t{i}"} for i in range(50)]
        assert a.by_headers
        assert [a.lets(one, tenant) for tenant in tenants] == [not b.lets(one, tenant) for tenant in tenants]
        late = selection_of(core, "/", "", "late")
        assert [late.wants(Topic("/", "later", key)) for key in ("c.d", "c.d.e", "x")] == [True, False, False]


def test_a_topic_that_nobody_keeps_is_refused() -> None:
    with Broker({"queue": [{"name": "v", "underlying_topic": "a"}], "topic": [{"name": "t"}]}) as broker:
        assert broker.instance is not None
        core = broker.instance.core
        assert selection_of(core, "/", "", "t") == Selection.topic("/", "", "t")
        assert selection_of(core, "/", "", "a") == Selection.topic("/", "", "a")
        with pytest.raises(NotFound, match="keeps the messages of topic 'x/b'"):
            selection_of(core, "/", "x", "b")
