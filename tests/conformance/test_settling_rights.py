"""Over Flight a consumer ends deliveries of its own, and of others where its user may read all of their queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from penstock.errors import Fenced
from penstock.server.flight.settles import VERBS
from penstock.testing import Broker
from penstock.wire.flight.failures import decode_error
from penstock.wire.flight.tickets import command

pytestmark = pytest.mark.conformance

SETTLES = pa.schema({"lsn": pa.int64(), "attempt": pa.int32(), "verb": pa.string(), "queue": pa.string()})
MESSAGES = pa.schema({"topic": pa.string(), "body": pa.binary()})
OWN = {"configure": "^own", "write": "", "read": "^own"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    config = {
        "user": [{"name": "root", "password": "root", "tags": ["administrator"]}, {"name": "ann", "password": "ann"}],
        "permission": [{"user": "root", "vhost": "/", **everything}, {"user": "ann", "vhost": "/", **OWN}],
        "queue": [{"name": "own"}, {"name": "own.2"}, {"name": "others"}],
    }
    with Broker(config) as broker:
        for name in ("own", "own.2", "others"):
            broker.publish(name, b"{}")
        yield broker


@pytest.fixture
def ann(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}") as client:
        yield client


class Raw:
    """A consumer without our client's care."""

    def __init__(self, client: penstock.Client, queue: str) -> None:
        self.client = client
        self.writer, self.reader = client._link.exchange(command("consume", queue=queue, backlog=1))
        self.writer.begin(SETTLES)
        self.tag = self.told("subscribed")["subscribed"]["consumer"]

    def told(self, what: str) -> dict[str, Any]:
        while True:
            said = self.reader.read_chunk().app_metadata
            if said is not None and what in (found := orjson.loads(said.to_pybytes())):
                return dict(found)

    def settle(self, queue: str, lsn: int, verb: str) -> tuple[int, int]:
        """How many had an effect, and how many had none."""
        row = {"lsn": lsn, "attempt": 1, "verb": verb, "queue": queue}
        self.writer.write_with_metadata(pa.RecordBatch.from_pylist([row], SETTLES), b'{"number": 1}')
        answer = self.told("answer")
        return answer["affected"], answer["stale"]

    def transact(self, queue: str, lsn: int, verb: str) -> str:
        """Why nothing was done."""
        settles = [[self.tag, queue, lsn, 1, verb, None, None]]
        writer, _ = self.client.open_transaction(command("transact"), MESSAGES)
        writer.write_metadata(orjson.dumps({"commit": {"rows": 0, "settles": settles}}))
        try:
            writer.close()
        except flight.FlightError as error:
            refused = decode_error(str(error), error.extra_info)
            assert isinstance(refused, Fenced)
            return str(refused)
        return ""


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("wanted", ["own", "^.*"])
def test_what_others_have_is_not_ended_by_who_may_not_read_it(
    broker: Broker, ann: penstock.Client, wanted: str, leased: bool
) -> None:
    """Whoever consumed anything removed what others were given, by its number alone."""
    with penstock.connect(broker.flight_url) as root:
        lsn = root.peek("others")[0].lsn
        holder = root.consume("others", timeout=30)
        message = holder.take() if leased else None
        consumer = Raw(ann, wanted)
        for verb in VERBS:
            for queue in ("others", "gone"):
                assert consumer.settle(queue, lsn, verb) == (0, verb != "unseen"), f"{verb} in {queue}"
                if verb != "unseen":
                    assert f"gone: no queue '{queue}' in vhost '/'" in consumer.transact(queue, lsn, verb)
        consumer.writer.close()
        if message is not None:
            message.ack()
        holder.close()
    stats = broker.stats("others")
    assert (stats["ready"], stats["acked"], stats["cancelled"]) == ((0, 1, 0) if leased else (1, 0, 0))


def test_a_token_ends_in_a_transaction_what_its_own_consumers_have(broker: Broker, ann: penstock.Client) -> None:
    """One that may read nothing removed what another login of its user was working on."""
    where = broker.flight_url.rpartition("@")[2]
    tokens = [ann.issue_token("1h", read=read)["token"] for read in ("", ".*")]
    lsn = ann.peek("own")[0].lsn
    with ExitStack() as stack:
        logins = [stack.enter_context(penstock.connect(f"penstock://ann:{one}@{where}")) for one in tokens]
        consumer = Raw(logins[1], "own")
        holder, consumer.client = consumer.client, logins[0]
        assert "held by a consumer that is closed" in consumer.transact("own", lsn, "ack")
        consumer.client = ann
        assert "held by a consumer that is closed" in consumer.transact("own", lsn, "ack")
        consumer.client = holder
        assert consumer.transact("own", lsn, "ack") == ""
        consumer.writer.close()
    assert broker.stats("own")["acked"] == 1


def test_its_own_are_ended_in_each_queue_that_it_may_read(ann: penstock.Client) -> None:
    lsns = {queue: ann.peek(queue)[0].lsn for queue in ("own", "own.2")}
    several = Raw(ann, "^own")
    assert several.settle("own.2", lsns["own.2"], "ack") == (1, 0)
    one = Raw(ann, "own.2")
    assert one.settle("own", lsns["own"], "ack") == (1, 0), "another consumer has it, and its user may read all of it"
    for consumer in (several, one):
        consumer.writer.close()
