"""What a few kilobytes become when they are decompressed has a bound, for one client and for all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pyarrow as pa
import pytest

from hostile.arrow_streams import CONSUMED, QUEUE, Message, Stream, command, messages_of, valid_streams
from hostile.pressing import Pressed
from hostile.watching import MIB, Bounds
from penstock.server.base.loading import decoded_most
from penstock.wire.flight.received import Bounds as BatchBounds

PUBLISH = command("publish", topic=QUEUE)
MOST = decoded_most(64 * MIB)
SLACK = 64 * MIB
"""What a server with a budget of 64 MiB may take beside: messages that are not compressed, heaps of its threads."""


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pressed]:
    bounds = Bounds(memory=MOST + SLACK, descriptors=64, lines=0)
    with Pressed(tmp_path_factory.mktemp("compressed"), bounds) as pressed:
        yield pressed


def zeros(size: int) -> pa.Array[pa.Scalar[pa.BinaryType]]:
    """One body of so many zeros, which take no memory here."""
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(np.zeros(size, np.uint8))])


def swelling(size: int, columns: int = 1, how: str = "zstd") -> Stream:
    """A batch whose columns become so large, each of them."""
    names = ("body", "content_type", "message_id", "correlation_id", "reply_to")[:columns]
    batch = pa.record_batch({name: zeros(size) if name == "body" else zeros(size).view(pa.string()) for name in names})
    return Stream("put", PUBLISH, [*messages_of([batch], compression=how), Message(metadata=b'{"end": {"rows": 1}}')])


@pytest.mark.parametrize("how", ["zstd", "lz4"])
def test_a_batch_that_swells_is_refused_before_it_has_the_memory(pressed: Pressed, how: str) -> None:
    stream = swelling(1200 * MIB, how=how)
    assert sum(map(len, stream.frames())) < 6 * MIB
    for call, words in (
        (pressed.wire.put, PUBLISH),
        (pressed.wire.put, command("stage", query="q", batch=1, partition=0, attempt=0, topic=QUEUE)),
        (pressed.wire.put, command("transact")),
        (pressed.wire.exchange, command("consume", queue=CONSUMED)),
    ):
        outcome = call(Stream(stream.call, words, stream.messages).frames())
        assert "bytes; a batch may have 33554432" in outcome.details, outcome
    pressed.judge()
    assert pressed.watched.seen().memory < SLACK


def test_a_batch_that_is_within_the_bound_of_a_column_and_not_of_a_batch(pressed: Pressed) -> None:
    outcome = pressed.wire.put(swelling(20 * MIB, columns=3).frames())
    assert "bytes; at most 33554432 are taken" in outcome.details, outcome
    pressed.judge()


def test_many_that_swell_at_once_share_one_bound_and_others_go_on(pressed: Pressed) -> None:
    """Uploads of others may be told to try again meanwhile; nothing else of the server takes from where they do."""
    stream = swelling(30 * MIB, columns=5).frames()
    small = valid_streams()["publish bodies"].frames()
    ended = Counter[str]()

    def swell(_: int) -> None:
        outcome = pressed.wire.put(stream)
        known = ("too little memory is free", "bytes; at most 33554432 are taken")
        ended[next((words for words in known if words in outcome.details), str(outcome))] += 1

    with ThreadPoolExecutor(16) as threads:
        waiting = [threads.submit(swell, n) for n in range(64)]
        published = 0
        while not all(one.done() for one in waiting):
            published += pressed.wire.put(small).code is grpc.StatusCode.OK
    assert published
    assert set(ended) <= {"too little memory is free", "bytes; at most 33554432 are taken"}, ended
    assert ended["too little memory is free"]
    pressed.judge()


@pytest.mark.parametrize("mib", [8, 64, 200, 512, 100_000])
def test_two_batches_of_the_largest_size_have_room(mib: int) -> None:
    assert decoded_most(mib * MIB) >= 2 * BatchBounds.within(mib * MIB).batch_bytes
