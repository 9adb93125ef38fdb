"""A server that says what no server says: whoever called it hears that, and nobody waits for what cannot come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from penstock.client import Client
from penstock.errors import ProtocolError

TERMS = b'{"subscribed":{"consumer":"c","effective_backlog":10}}'
WORDS = (b"{", b"[]", b"5", b"\xff", b"null", b"[" * 100_000, b'{"x":1}')


class Liar(flight.FlightServerBase):
    """Says these words to every call."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.words: Sequence[bytes] = ()

    def do_action(self, context: Any, action: Any) -> Any:
        return [b"{}"] if action.type == "health" else list(self.words)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(pa.schema([]))
        self._say(writer.write_metadata, reader)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._say(writer.write, reader)

    def _say(self, write: Callable[[Any], None], reader: Any) -> None:
        for one in self.words:
            write(pa.py_buffer(one))
        try:
            while True:
                reader.read_chunk()
        except (StopIteration, pa.ArrowException):
            return


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with Liar() as liar:
        yield liar


@pytest.fixture
def client(liar: Liar) -> Iterator[Client]:
    with penstock.connect(f"penstock://guest:guest@127.0.0.1:{liar.port}", timeout=20) as client:
        yield client


def consume(client: Client) -> None:
    with client.consume("q", reconnect=0) as consumer:
        next(iter(consumer))


def transact(client: Client) -> None:
    with client.transaction() as transaction:
        transaction.publish("q", b"x")


CALLS: dict[str, Callable[[Client], object]] = {
    "an action": lambda client: client.overview(),
    "a publish": lambda client: client.publish("q", b"x"),
    "a transaction": transact,
    "a consumer": consume,
}


@pytest.mark.parametrize("call", CALLS)
def test_what_no_server_says_is_told_to_who_called(liar: Liar, client: Client, call: str) -> None:
    ask = CALLS[call]
    for words in WORDS[: None if call in ("a publish", "a transaction") else -1]:
        liar.words = [words]
        with pytest.raises(ProtocolError, match="the server said what no server says"):
            ask(client)


def test_an_action_has_one_answer(liar: Liar, client: Client) -> None:
    for words in ([], [b"{}", b"{}"]):
        liar.words = words
        with pytest.raises(ProtocolError, match=f"the server gave {len(words)} answers to"):
            client.overview()


@pytest.mark.parametrize(
    "words",
    [
        b'{"subscribed":5}', b'{"subscribed":{}}', b'{"subscribed":{"consumer":"c","effective_backlog":"x"}}',
        b'{"subscribed":{"consumer":5,"effective_backlog":1}}', b'{"answer":"x"}', b'{"answer":1,"stale":"x"}',
    ],
)  # fmt: skip
def test_a_consumer_whose_server_lies_ends(liar: Liar, client: Client, words: bytes) -> None:
    liar.words = [words, TERMS] if b"subscribed" in words else [TERMS, words]
    with pytest.raises(ProtocolError, match="the server said what no server says"):
        consume(client)
