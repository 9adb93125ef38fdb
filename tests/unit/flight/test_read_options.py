"""Options of Spark's source that say nothing in a read are refused: rows that they should have left out would come."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import LongType, StructType

from penstock.errors import ExpressionError, InvalidArgument
from penstock.spark.options import (
    CHANGES_MODE,
    LOG,
    LOG_MODE,
    QUEUE,
    QUEUE_MODE,
    READS,
    STREAMS,
    TOPIC,
    VIEW,
    read_options,
    refuse_idle,
)
from penstock.spark.reading.batch import SnapshotReader
from penstock.spark.reading.bodies import type_of
from penstock.spark.reading.columns import layout
from penstock.spark.remote import remote
from penstock.spark.sink import write_options
from penstock.spark.source import PenstockSource
from penstock.testing import Broker

READ_AS = {
    TOPIC: {"topic": "t"},
    QUEUE: {"queue": "q"},
    VIEW: {"view": "v"},
    LOG: {"log": "true"},
    LOG_MODE: {"topic": "t", "stream": "s"},
    QUEUE_MODE: {"queue": "q", "stream": "s"},
    CHANGES_MODE: {"queue": "q", "stream": "s", "mode": "changes"},
}
"""Each read, as its options say it."""

SAID = {
    "exchange": ("x", (TOPIC, VIEW, LOG_MODE)),
    "states": ("leased", (QUEUE,)),
    "startingLsn": ("5", (LOG,)),
    "endingLsn": ("5", (LOG,)),
    "startingBookmark": ("EPOCH", (TOPIC, LOG_MODE)),
    "startingOffsets": ("earliest", (TOPIC, LOG_MODE)),
    "startingTimestamp": ("2026-11-20", (TOPIC, LOG_MODE)),
    "endingBookmark": ("NOW", (TOPIC,)),
    "endingOffsets": ("latest", (TOPIC,)),
    "filter": ("/id > 1", (TOPIC, QUEUE, VIEW, LOG_MODE)),
    "mode": ("log", STREAMS),
    "maxRowsPerTrigger": ("5", STREAMS),
    "maxBytesPerTrigger": ("5", STREAMS),
    "minRowsPerTrigger": ("5", (LOG_MODE, QUEUE_MODE)),
    "abandon_after": ("7d", STREAMS),
    "orderBy": ("/id", (QUEUE_MODE,)),
    "poisonAfter": ("3", (QUEUE_MODE,)),
    "onLostCheckpoint": ("continue", (QUEUE_MODE,)),
    "minPartitions": ("2", READS),
    "failOnDataLoss": ("false", READS),
    "direct": ("false", READS),
}
"""A value of each option, and the reads in which the pages say what it does."""


@pytest.mark.parametrize("name", SAID)
def test_an_option_is_refused_where_nothing_reads_it(name: str) -> None:
    value, said = SAID[name]
    for read, given in READ_AS.items():
        options = read_options(given | {name: value})
        if read in said:
            refuse_idle(options, read)
        else:
            *some, last = said
            places = f"{', '.join(some)} or {last}" if some else last
            with pytest.raises(InvalidArgument, match=f"option {name} has no effect in {read}: it is for {places}$"):
                refuse_idle(options, read)


@pytest.mark.parametrize("read", [TOPIC, QUEUE, VIEW, LOG])
def test_a_batch_read_asks_no_server_before_it_says_so(read: str) -> None:
    given = READ_AS[read] | {"poisonAfter": "3", "url": "penstock://127.0.0.1:1"}
    with pytest.raises(InvalidArgument, match=f"option poisonAfter has no effect in {read}"):
        PenstockSource(given).reader(None)


@pytest.mark.parametrize(("name", "read"), [("filter", TOPIC), ("orderBy", QUEUE_MODE)])
def test_an_expression_that_is_none_is_told_by_the_name_of_its_option(name: str, read: str) -> None:
    with pytest.raises(ExpressionError, match=f"^option {name}, '/id [+]' at character 6: the expression ends"):
        read_options(READ_AS[read] | {name: "/id +"})


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5000, "\u00b2", "\u0663", "-1", ""])
@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "maxBytesPerTrigger", "startingTimestamp", "startingLsn"])
def test_digits_that_are_no_number_for_64_bits_are_told_by_the_name_of_their_option(name: str, digits: str) -> None:
    given = READ_AS[LOG if name == "startingLsn" else LOG_MODE]
    if not digits:
        assert read_options(given | {name: digits}) == read_options(given)
        return
    with pytest.raises(InvalidArgument, match=f"^option {name}(:| is) "):
        read_options(given | {name: digits})


def test_a_time_behind_the_year_9999_is_told() -> None:
    with pytest.raises(InvalidArgument, match="^option startingTimestamp: '253402300800000' is no time: milliseconds"):
        read_options({"topic": "t", "startingTimestamp": "253402300800000"})


@pytest.mark.parametrize(
    ("read", "returns"),
    [
        ({"topic": "t"}, True),
        ({"topic": "^t"}, True),
        ({"topic": "^x"}, False),
        ({"topic": "t", "exchange": "x"}, False),
        ({"queue": "t"}, True),
        ({"queue": "q"}, False),
        ({"view": "t"}, True),
    ],
)
def test_bad_records_do_not_go_where_they_come_from(read: dict[str, str], returns: bool) -> None:
    given = {"url": "penstock://localhost", "schema": "id bigint", "badRecordsTopic": "t", **read}
    if not returns:
        assert read_options(given).bad_records_topic == "t"
        return
    with pytest.raises(InvalidArgument, match="option badRecordsTopic is 't', which is read here"):
        read_options(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (READ_AS[LOG] | {"startingLsn": "5", "endingLsn": "3"}, "startingLsn is 5, and endingLsn 3: that ends before"),
        (READ_AS[LOG] | {"startingLsn": str(2**53)}, "startingLsn is 9007199254740992, and at most 9007199254740991"),
        (READ_AS[LOG] | {"endingLsn": "9" * 20}, "endingLsn is 99999999999999999999, and at most 9007199254740991"),
        (READ_AS[LOG_MODE] | {"maxBytesPerTrigger": "8192TiB"}, "maxBytesPerTrigger is 8192TiB, and at most 9007199"),
        (READ_AS[LOG_MODE] | {"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger is '0', and at least 1 byte is needed"),
        (READ_AS[QUEUE_MODE] | {"maxRowsPerTrigger": "10000001"}, "maxRowsPerTrigger is 10000001, and at most 1000000"),
        (READ_AS[LOG_MODE] | {"readFrom": "x" * 5000}, f"readFrom is '{'x' * 60}', not leader or followers"),
        *((READ_AS[TOPIC] | {name: "x" * 256}, f"{name} has 256 bytes; at most 255 are allowed")
          for name in ("topic", "exchange", "stream", "badRecordsTopic")),
        *(({name: "x" * 256}, f"{name} has 256 bytes; at most 255 are allowed") for name in ("queue", "view", "path")),
    ],
)  # fmt: skip
def test_a_limit_is_told_by_the_name_of_its_option(given: dict[str, str], told: str) -> None:
    """And not by a server's word for it, when the query runs already."""
    with pytest.raises(InvalidArgument, match=f"^option {told}"):
        read_options(given)


@pytest.mark.parametrize("name", ["topic", "path"])
@pytest.mark.parametrize(("text", "why"), [("a(", "missing )"), ("x{100000}", "invalid repetition"), ("\\", "trai")])
def test_a_pattern_that_is_none_is_told_by_the_name_of_its_option(name: str, text: str, why: str) -> None:
    told = re.escape(f"option topic: {text!r} is no RE2 pattern: {why}")
    with pytest.raises(InvalidArgument, match=f"^{told}"):
        read_options({"url": "penstock://localhost", "stream": "s", name: text})


@pytest.mark.parametrize("name", ["topic", "queue", "path", "exchange", "settleStream", "txnAppId"])
def test_a_name_that_no_server_takes_is_told_before_rows_are_computed(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^option {name} has 256 bytes; at most 255 are allowed"):
        write_options({"url": "penstock://localhost", "txnVersion": "1", name: "\u00fc" * 128})


def test_bounds_of_a_read_leave_nothing_or_are_refused() -> None:
    """An `endingLsn` of 0 is before all records, and two places in the wrong order are no range."""
    with Broker() as broker:
        broker.publish("t", b"{}")

        def parts(**given: str) -> int:
            options = read_options({"url": broker.flight_url, **given})
            return len(SnapshotReader(options, layout(options, StructType().add("lsn", LongType()), None)).partitions())

        assert (parts(log="true"), parts(log="true", endingLsn="0"), parts(topic="t")) == (1, 0, 1)
        assert parts(topic="t", startingBookmark="NOW", endingBookmark="NOW") == 0
        told = "^option startingTimestamp is '2999-01-01', which is LSN .*, and endingOffsets 'EPOCH', LSN 1: that ends"
        with pytest.raises(InvalidArgument, match=told):
            parts(topic="t", startingTimestamp="2999-01-01", endingOffsets="EPOCH")


@pytest.mark.parametrize("read", [{"queue": "b"}, {"topic": "t"}])
def test_columns_of_bodies_without_fields_are_refused(read: dict[str, str]) -> None:
    """Each body was a bad one, and with badRecordsTopic a stream put the whole queue aside."""
    with Broker({"queue": [{"name": "b", "underlying_topic": "t", "message_type": "binary"}]}) as broker:
        options = read_options({"url": broker.flight_url, "schema": "id bigint", **read})
        with pytest.raises(InvalidArgument, match=f"and those of {options.what} are binary, which has none$"):
            type_of(remote(options.where), options)
