"""What no server takes is refused before it is sent: one that is sent far more than it takes ends the connection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.outgoing import Upload, one_row
from penstock.client.urls import parse_url
from penstock.errors import InvalidArgument
from penstock.wire.flight.received import Bounds

OVER = bytes(Bounds().body_bytes + 1)


class Nothing:
    """A stream into which nothing may be written."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        raise AssertionError(f"{batch.nbytes} bytes were sent")

    write_with_metadata = write_batch

    def close(self) -> None:
        pass


class Wired(Client):
    """A client whose calls lead to such a stream."""

    def __init__(self) -> None:
        link: Any = SimpleNamespace(
            address=parse_url("nowhere"),
            put=lambda *_: (Nothing(), None),
            going_on=lambda call, again: call(),
            heard=lambda call: call(),
        )
        super().__init__(link)


def in_transaction(client: Client) -> None:
    with client.transaction() as transaction:
        transaction.publish("a", OVER)


WAYS: dict[str, Callable[[Client], object]] = {
    "publish": lambda client: client.publish("a", OVER),
    "publish_table": lambda client: client.publish_table("a", pa.table({"body": [OVER]})),
    "stage": lambda client: client.stage("q", 0, 0, 0, [one_row({"body": OVER})], topic="a"),
    "transact": in_transaction,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_body_beyond_the_bound_is_refused_with_both_sizes_and_not_sent(way: str) -> None:
    what = "publish" if way == "publish_table" else way
    with pytest.raises(InvalidArgument, match=f"^{what}: a body has 16777217 bytes; at most 16777216 are taken$"):
        WAYS[way](Wired())


def test_a_batch_beyond_the_bound_is_refused_and_a_body_at_it_is_sent() -> None:
    row = one_row({"body": b"", "headers": [("h", "x" * (Bounds().batch_bytes + 1))]})
    with pytest.raises(InvalidArgument, match="^publish: a batch has 26843[0-9]* bytes; at most 268435456 are taken$"):
        Upload(Nothing(), None).send(row)
    with pytest.raises(AssertionError, match="were sent"):
        Upload(Nothing(), None).send(one_row({"body": OVER[1:]}))
