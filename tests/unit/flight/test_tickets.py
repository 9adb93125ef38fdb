"""Commands of strangers: what they become, and what their mistakes are called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.wire.fields import Fields
from penstock.wire.flight import tickets
from penstock.wire.flight.commands import Consume, LogRange, Plan, Publish, QueueContent, Replay, Subscribe
from penstock.wire.flight.received import CommitWord, Settle, read_word
from penstock.wire.flight.tickets import command, parse_exchange, parse_get, parse_put, sites_of


def test_a_publish_names_its_topic_or_leaves_it_to_the_rows() -> None:
    assert parse_put(b'{"publish": {"topic": "orders"}}') == Publish("orders")
    assert parse_put(b'{"publish": {}}') == Publish(None)
    assert parse_put(
        b'{"publish": {"topic": "t", "exchange": "e", "vhost": "v", "publisher": "p", "sequence": 7}}'
    ) == Publish("t", "e", "v", "p", 7)


def test_each_read_has_its_own_ticket() -> None:
    assert parse_get(b'{"log": {"from": 3, "to": 9, "columns": ["lsn", "body"]}}') == LogRange(3, 9, ("lsn", "body"))
    assert parse_get(b'{"log": {}}') == LogRange()
    assert parse_get(b'{"replay": {"topic": "t", "bookmark": "NOW"}}') == Replay("t", bookmark="NOW")
    assert parse_get(b'{"queue": {"name": "q", "states": ["leased", "ready"]}}') == QueueContent(
        "q", states=("leased", "ready")
    )
    assert parse_get(b'{"plan": {"stream": "s", "batch": 4, "part": 1, "parts": 3}}') == Plan("s", 4, 1, 3)


def test_a_consumer_says_how_long_it_may_be_silent() -> None:
    asked = parse_exchange(b'{"consume": {"queue": "q", "backlog": 5, "heartbeat": "10s"}}')
    assert asked == Consume("q", backlog=5, heartbeat=10_000_000)
    assert parse_exchange(b'{"consume": {"queue": "q", "heartbeat": 0.001}}').heartbeat == 1_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[1, 2]", r"is \[1, 2\], not a JSON object"),
        (b"{}", "has 0 keys"),
        (b'{"publish": {}, "stage": {}}', "has 2 keys"),
        (b'{"publsh": {}}', "no operation 'publsh'; did you mean 'publish'"),
        (b'{"publish": []}', r"publish is \[\], not a JSON object"),
        (b'{"publish": {"topik": "x"}}', "unknown field 'topik'; did you mean 'topic'"),
        (b'{"publish": {"topic": 1}}', "topic is 1, not text"),
        (b'{"publish": {"publisher": "", "sequence": 1}}', "publisher is empty"),
        (b'{"publish": {"publisher": "a\\u0000b", "sequence": 1}}', r"publisher 'a\\x00b' has a zero byte"),
        (b'{"publish": {"publisher": "p"}}', "belong together"),
        (b'{"publish": {"publisher": "p", "sequence": 0}}', r"sequence is 0, not in 1\.\."),
        (b'{"publish": {"topic": "' + b"x" * 256 + b'"}}', "has 256 bytes; at most 255"),
        (b'{"stage": {"query": "q", "batch": 1}}', "partition is missing"),
        (b'{"stage": {"query": "q", "batch": 1, "partition": 0, "mandatory": true}}', "mandatory goes with a topic"),
        (b'{"stage": {"query": "", "batch": 1, "partition": 0}}', "query is empty"),
        (b'{"stage": {"query": "q", "batch": true, "partition": 0}}', "batch is true, not a whole number"),
    ],
)
def test_a_wrong_put_says_what_is_wrong(text: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_put(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"log": {"from": 9, "to": 3}}', "from 9 is above to 3"),
        (b'{"log": {"columns": ["lsm"]}}', "unknown 'lsm'; did you mean 'lsn'"),
        (b'{"log": {"columns": []}}', "empty list"),
        (b'{"replay": {}}', "either a topic or a pattern"),
        (b'{"replay": {"topic": "a", "pattern": "b"}}', "either a topic or a pattern"),
        (b'{"queue": {"name": "q", "states": ["settled"]}}', "unknown 'settled'"),
        (b'{"plan": {"stream": "s", "batch": 0}}', r"batch is 0, not in 1\.\."),
        (b'{"plan": {"stream": "s", "batch": 1, "part": 2, "parts": 2}}', "part 2 of 2 does not exist"),
    ],
)
def test_a_wrong_ticket_says_what_is_wrong(text: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_get(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b'"select": ["-/a"]', "select is for sow and for subscriptions to topics; work comes whole"),
        (b'"live": true', 'live is no option of a queue: its setting deliver = "early" is that'),
        (b'"fully_durable": true', 'fully_durable is no option of a queue: its setting deliver = "durable" is that'),
    ],
)
def test_a_consumer_is_told_what_is_not_for_it(fields: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_exchange(b'{"consume": {"queue": "q", ' + fields + b"}}")
    assert parse_exchange(b'{"consume": {"queue": "q", "timestamp": true}}') == Consume("q")


def test_the_time_comes_with_the_columns_that_were_asked_for() -> None:
    for operation in ("replay", "subscribe"):
        asked = b'{"%s": {"topic": "t", "columns": ["lsn"], "timestamp": true, "fully_durable": true}}'
        found = parse_get(asked % operation.encode())
        assert isinstance(found, Replay | Subscribe)
        assert found.columns == ("lsn", "time")
        with pytest.raises(InvalidArgument, match=f"{operation}: live is not done: of a topic only what is durable"):
            parse_get(b'{"%s": {"topic": "t", "live": true}}' % operation.encode())


@pytest.mark.parametrize(
    ("parse", "known"),
    [(parse_put, tickets._PUT), (parse_exchange, tickets._EXCHANGE), (parse_get, tickets._GET)],
)  # fmt: skip
def test_a_field_that_is_null_is_as_absent(
    parse: Callable[[bytes], object], known: Mapping[str, tickets._Command]
) -> None:
    for operation, wanted in known.items():
        least: dict[str, object] = {
            one.name: "7" if one.kind == "name" else 1 for one in wanted.fields.values() if one.needed
        }
        if operation == "replay":
            least["topic"] = "t"
        nulls = {name: None for name in wanted.fields if name not in least}
        assert parse(orjson.dumps({operation: {**least, **nulls}})) == parse(orjson.dumps({operation: least}))
        for name in least:
            without = {other: value for other, value in least.items() if other != name}
            with pytest.raises(InvalidArgument):
                parse(orjson.dumps({operation: without}))


def test_a_huge_select_list_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sow: select has 65537 characters, the most is 65536"):
        parse_get(b'{"sow": {"topic": "t", "select": ["+/' + b"a" * (65536 - 1) + b'"]}}')


def test_a_huge_command_is_not_parsed() -> None:
    with pytest.raises(InvalidArgument, match="at most 1048576"):
        parse_put(b'{"publish": {"topic": "' + b" " * (1 << 20) + b'"}}')


def test_a_command_leaves_out_what_is_none() -> None:
    assert orjson.loads(command("publish", topic="t", exchange=None)) == {"publish": {"topic": "t"}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["publish", "stage", "consume", "queue", "replay", "log", "plan", "x"])
FIELDS = st.sampled_from(
    ["topic", "queue", "name", "from", "to", "columns", "states", "batch", "stream", "filter", "sequence", "heartbeat"]
)


@given(st.dictionaries(NAMES, st.dictionaries(FIELDS, JSON, max_size=4) | JSON, max_size=2) | JSON)
def test_no_json_does_anything_but_parse_or_be_refused(value: object) -> None:
    for parse in (parse_put, parse_get, parse_exchange):
        with contextlib.suppress(InvalidArgument):
            parse(orjson.dumps(value))


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ([["a", "1", "g"]] * (tickets.SITES_MOST + 1), f"{tickets.SITES_MOST + 1} sites; {tickets.SITES_MOST} are the"),
        ([["a", "1"]], "is no site: name, origin and group"),
        ([7], "7 is no site: name, origin and group"),
        ([["a", 1, "g"]], "origin 1 is no number of a log"),
        ([["a", "1x", "g"]], "origin '1x' is no number of a log"),
        ([["a", str(2**64), "g"]], f"origin '{2**64}' is no number of a log"),
        ([[1, "1", "g"]], "is no site: its name and its group are texts"),
        ([["a", "1", None]], "is no site: its name and its group are texts"),
        ([["", "1", "g"]], "is no site: its name and its group are texts"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_wrong_site_says_what_is_wrong(sites: list[object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        sites_of(Fields("link", {"sites": sites}), "sites")


SETTLE: list[object] = ["c", "q", 7, 1, "ack", None, None]


@pytest.mark.parametrize(
    ("settles", "said"),
    [
        ({}, r"settles is \{\}, not a list"),
        ([SETTLE] * 40_000, "transact metadata has .* bytes of JSON; at most 1048576 are read"),
        ([7], r"7 is no settle: \[consumer, queue, lsn, attempt, verb, delay, reason\]"),
        ([SETTLE[:6]], "is no settle"),
        *(
            ([[*SETTLE[:at], value, *SETTLE[at + 1 :]]], said)
            for at, values, said in (
                (0, (None, 1), "consumer and queue are text"),
                (1, (1, []), "consumer and queue are text"),
                (2, (-1, True, "7", 1.5, None), "lsn, attempt and delay are whole numbers from 0 on"),
                (3, (-1, None), "lsn, attempt and delay are whole numbers from 0 on"),
                (4, ("acc", None, {}, []), "verb .* is unknown"),
                (5, (-1, "1"), "lsn, attempt and delay are whole numbers from 0 on"),
                (6, (1, "x" * 2041), "reason is text of at most 2040 bytes"),
            )
            for value in values
        ),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_wrong_settle_of_a_transaction_says_what_is_wrong(settles: object, said: str) -> None:
    def word(settles: object) -> bytes:
        return orjson.dumps({"commit": {"rows": 0, "settles": settles}})

    assert read_word(word([SETTLE])) == CommitWord(0, (Settle("c", "q", 7, 1, "ack", None, None),))
    with pytest.raises(InvalidArgument, match=said):
        read_word(word(settles))
