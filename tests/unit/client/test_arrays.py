"""Columns that are made without `pa.array`, which would import pandas, are those that it makes; and nothing that a
client does of itself imports pandas, so that it also works where Python ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.arrays import array_of
from penstock.records.schema import TIMESTAMP
from penstock.testing import Broker
from penstock.wire.flight.commands import HEADERS, PUBLISH, SETTLE

KINDS = {
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    TIMESTAMP: st.integers(0, 1 << 60),
    pa.binary(): st.binary(max_size=20),
    pa.string(): st.text(max_size=20),
    HEADERS: st.lists(st.tuples(st.text(max_size=5), st.none() | st.text(max_size=5)), max_size=4),
}


def test_there_is_a_way_for_each_column_that_is_sent() -> None:
    assert {*PUBLISH.types, *SETTLE.types} <= KINDS.keys()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_it_is_what_pyarrow_makes(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=20))
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.type == kind
    assert made.equals(pa.array(values, kind))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int16(), [1 << 15]), (pa.int64(), [1, 1 << 63]), (pa.int64(), ["x"]), (pa.int64(), [True, 2]),
        (pa.binary(), ["text"]), (pa.binary(), [bytearray(b"x")]), (pa.binary(), [3]), (pa.string(), ["\ud800"]),
        (pa.string(), [b"x"]), (HEADERS, [[("a",)]]), (HEADERS, [[(None, "x")]]), (HEADERS, [{"a": "b"}]),
        (HEADERS, [[("a", 1)]]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_plain_is_for_pyarrow_to_say(kind: pa.DataType, values: list[object]) -> None:
    def said(make: Callable[..., object]) -> object:
        try:
            return make(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return type(error), str(error)

    mine, its = said(array_of), said(pa.array)
    assert mine == its


EVERYTHING = """
import asyncio, sys
import penstock, penstock.aio

url = sys.argv[1]
with penstock.connect(url) as client:
    client.declare("q")
    for number in range(4):
        client.publish("q", {"id": number}, headers={"a": "b"}, priority=3, message_id="m")
    with client.consume("q", timeout="20s") as consumer:
        first, second, third = (consumer.take() for _ in range(3))
        first.ack()
        with client.transaction() as transaction:
            transaction.ack(second)
            transaction.publish("q", b"more")
        third.retry(error="no")
        batch = consumer.take_batch()
        batch.ack([0])
        consumer.flush()

async def twin():
    async with penstock.aio.connect(url) as client:
        await client.publish("q", b"again")

asyncio.run(twin())
print("pandas" in sys.modules)
"""

LATE = {
    "at_exit": """
import atexit, sys
import penstock

client = penstock.connect(sys.argv[1])
atexit.register(lambda: print(client.publish("q", b"bye").outcome))
""",
    "thread": """
import sys, threading, time
import penstock

client = penstock.connect(sys.argv[1])

def goes_on():
    threading.main_thread().join()
    print(client.publish("q", b"late").outcome)

threading.Thread(target=goes_on).start()
""",
    "at_the_last": """
import sys
import penstock

class Owner:
    def __init__(self):
        self.client = penstock.connect(sys.argv[1])

    def __del__(self):
        print(self.client.publish("q", b"last").outcome)

owner = Owner()
""",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        yield broker.flight_url


def ran(program: str, url: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout, done.stderr


def test_a_client_does_without_pandas(url: str) -> None:
    assert ran(EVERYTHING, url) == ("False\n", "")


@pytest.mark.parametrize("program", LATE.values(), ids=LATE)
def test_the_first_publish_may_come_where_python_ends(program: str, url: str) -> None:
    assert ran(program, url) == ("stored\n", "")
