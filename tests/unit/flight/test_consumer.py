"""A consumer of the SDK whose stream has ended."""

from __future__ import annotations

import threading
from typing import cast

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.link import Link
from penstock.client.messages import Message
from penstock.errors import Unavailable


class EndedWriter:
    """pyarrow's, after `done_writing`."""

    def begin(self, schema: pa.Schema) -> None:
        """As before."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        raise pa.ArrowInvalid("Destination already closed")

    def write_metadata(self, data: bytes) -> None:
        raise pa.ArrowInvalid("Destination already closed")

    def done_writing(self) -> None:
        """As before."""

    def close(self) -> None:
        """As before."""


class SilentReader:
    """It says nothing until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def read_chunk(self) -> object:
        self.over.wait()
        raise StopIteration

    def cancel(self) -> None:
        self.over.set()


class EndedLink:
    """A connection whose streams have just ended."""

    def __init__(self) -> None:
        self.reader = SilentReader()

    def exchange(self, command: bytes) -> tuple[EndedWriter, SilentReader]:
        return EndedWriter(), self.reader


class Forgetful:
    """A client that has no more of its consumers."""

    def forget(self, consumer: object) -> None:
        """There is nothing."""


class Taken:
    """A message that was taken before."""

    lsn, attempt, queue = 7, 1, None


def test_settling_after_the_server_ended_the_stream_is_worth_a_retry() -> None:
    link = EndedLink()
    client, asked = cast("Client", Forgetful()), b'{"consume": {"queue": "q"}}'
    consumer = Consumer(client, cast("Link", link), asked, backlog=1, heartbeat=30, timeout=0)
    try:
        with pytest.raises(Unavailable, match="ended the stream"):
            consumer._exchange.settle(cast("Message", Taken()), "ack", None, None)
    finally:
        link.reader.cancel()
