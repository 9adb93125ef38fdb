"""A server that has no thread for a call: nobody heard of it, so it is made again, over every kind of call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import orjson
import pyarrow as pa
import pytest

import penstock
from hostile.flight_wire import field, flight_data
from penstock import aio
from penstock.client import link
from penstock.client.link import NO_THREAD
from penstock.errors import PenstockError, Unavailable
from penstock.wire.flight.commands import MESSAGES

TIMES = 3
"""So often each method is refused before it is answered."""

RECEIPT = {
    "first": 7, "last": 7, "stored": 1, "duplicates": 0, "unroutable": 0, "refused_rows": 0, "refused": [], "rows": 1,
}  # fmt: skip
ANSWERS: dict[str, list[bytes]] = {
    "DoAction": [field(1, orjson.dumps({"origin": 1, "sequence": 5}))],
    "GetSchema": [field(1, MESSAGES.serialize().to_pybytes())],
    "DoGet": [flight_data(header=MESSAGES.serialize().to_pybytes()[8:])],
    "DoPut": [field(1, orjson.dumps(RECEIPT)), field(1, orjson.dumps(RECEIPT))],
    "transaction": [field(1, orjson.dumps({"first": 7, "unroutable": []}))],
    "DoExchange": [flight_data(metadata=b'{"subscribed": {"consumer": "c", "effective_backlog": 32, "leased": true}}')],
}


class Crowded(grpc.GenericRpcHandler):
    """Answers as gRPC does where it can have no thread, so many times a method; then what a server would."""

    def __init__(self, times: float) -> None:
        self.times = times
        self.refused = Counter[str]()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = details.method.rpartition("/")[2]

        def answer(asked: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if self.refused[method] < self.times:
                self.refused[method] += 1
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, NO_THREAD)
            yield from ANSWERS["transaction" if b'"transact"' in next(asked) else method]
            if method == "DoExchange":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the consumer was there, and has ended")
            for _ in asked:
                pass

        return grpc.stream_stream_rpc_method_handler(answer)


class House:
    def __init__(self, server: grpc.Server, handler: Crowded) -> None:
        self.handler = handler
        self.url = f"penstock://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(link, "PAUSE_S", (0.001, 0.001))
    server = grpc.server(ThreadPoolExecutor(4))
    handler = Crowded(TIMES)
    server.add_generic_rpc_handlers((handler,))
    house = House(server, handler)
    server.start()
    yield house
    server.stop(None).wait()


def transacted(client: penstock.Client) -> None:
    with client.transaction() as transaction:
        transaction.publish("q", b"x")


def consumed(client: penstock.Client) -> None:
    with pytest.raises(PenstockError, match="was there"):
        client.consume("q").take()


CALLS: dict[str, Callable[[penstock.Client], object]] = {
    "DoAction": lambda client: client.last_sequence("p"),
    "GetSchema": lambda client: client._link.schema(b"x"),
    "DoGet": lambda client: client._link.get(b"x"),
    "DoPut": lambda client: client.publish("q", b"x"),
    "DoExchange": consumed,
}


@pytest.mark.parametrize("method", CALLS)
def test_a_call_that_nobody_heard_of_is_made_again(house: House, method: str) -> None:
    with penstock.connect(house.url) as client:
        CALLS[method](client)
    assert house.handler.refused[method] == TIMES


def test_a_transaction_that_nobody_heard_of_is_committed_all_the_same(house: House) -> None:
    with penstock.connect(house.url) as client:
        transacted(client)
    assert house.handler.refused["DoPut"] == TIMES


def test_a_client_of_asyncio_does_the_same(house: House) -> None:
    async def published() -> None:
        async with aio.connect(house.url) as client:
            await client.publish("q", b"x")

    asyncio.run(published())
    assert house.handler.refused == {"DoAction": TIMES, "DoPut": TIMES}


def test_whoever_finds_no_thread_for_as_long_as_a_call_may_take_is_told_why(house: House) -> None:
    house.handler.times = float("inf")
    with pytest.raises(Unavailable, match="no thread for another call"):
        penstock.connect(house.url, timeout=1)


def test_rows_that_can_be_sent_once_alone_are_not_sent_again(house: House) -> None:
    rows = pa.table({"body": [b"x"]}).to_reader()
    with penstock.connect(house.url) as client, pytest.raises(Unavailable, match="no thread"):
        client.publish_table("q", rows)
    assert house.handler.refused["DoPut"] == 1
