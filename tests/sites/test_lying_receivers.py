"""A site that is told, and lies in what it answers: the link to it ends or goes on, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

from choices import SEED
from penstock.records.schema import CARRIED
from penstock.wire.flight.linking import Welcome
from sites.house import LINK, Sites, publish, work
from sites.test_attacks import OFFER
from sites.test_operating import out
from unit.core_links.test_lies import lies
from waiting import eventually


class Evil(flight.FlightServerBase):
    """Says what it is told to say, to whoever calls next, and again what it answers to each thing that it hears."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.says: list[bytes] = []
        self.answers: list[bytes] = []
        self.leaves = False
        self.called: SimpleQueue[float] = SimpleQueue()  # monotonic seconds

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        answers = self.answers
        writer.begin(CARRIED)
        for words in self.says:
            writer.write_metadata(pa.py_buffer(words))
        self.called.put(time.monotonic())
        while not self.leaves:
            try:
                reader.read_chunk()
                for words in answers:
                    writer.write_metadata(pa.py_buffer(words))
            except (StopIteration, pa.ArrowException):
                return


@pytest.fixture(scope="module")
def evil() -> Iterator[Evil]:
    with Evil() as evil:
        yield evil


@pytest.fixture(scope="module")
def sites(evil: Evil, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    link = LINK.format(name="evil", port=evil.port, topics='{ pattern = "work" }', settings="")
    with Sites(tmp_path_factory.mktemp("sites"), "a", more=link) as sites:
        yield sites
        assert "Traceback" not in sites["a"].output()


def told(sites: Sites, evil: Evil, *says: bytes, answers: Sequence[bytes] = ()) -> float:
    """The site calls again, and is told this; when that was, in monotonic seconds.  answers: as it tells something."""
    with sites["a"].client() as client:
        client.pause_link("evil")
        evil.says, evil.answers = list(says), list(answers)
        while not evil.called.empty():
            evil.called.get()
        client.resume_link("evil")
    return evil.called.get(timeout=60)


def goes_on(sites: Sites) -> None:
    publish(sites["a"], b"goes on")
    assert work(sites["a"], 1) == [b"goes on"]


def welcome(has: int = 0) -> bytes:
    return Welcome("evil", 5, "g", has, [OFFER], [("evil", 5, "g"), ("other", 33, "")]).words()


def test_who_has_more_of_the_log_than_there_is_is_refused(sites: Sites, evil: Evil) -> None:
    """What comes next would be taken for what it had once, and left out."""
    told(sites, evil, welcome(2**50))
    eventually(lambda: out(sites["a"])["state"] == "refused")
    assert f"has this log up to LSN {2**50}, and it ends at" in out(sites["a"])["why"]
    goes_on(sites)


def test_who_acknowledges_what_it_was_not_told_has_acknowledged_what_it_was(sites: Sites, evil: Evil) -> None:
    """Before it was told anything, which is nothing, and with each thing that it is told."""
    ack = b'{"ack":%d}' % (2**53 - 1)
    told(sites, evil, welcome(), *[ack] * 500, answers=[ack])
    eventually(lambda: out(sites["a"])["state"] == "up")
    goes_on(sites)
    eventually(lambda: 0 < out(sites["a"])["acked"] <= out(sites["a"])["told"] < 2**40)


def test_each_field_of_an_answer_may_be_a_lie(sites: Sites, evil: Evil, effort: int) -> None:
    random = Random(SEED)
    said = [words for _, words in lies(welcome())] + [words for _, words in lies(b'{"ack":3,"heartbeat":true}')]
    for number in range(20 * effort):
        told(sites, evil, *([random.choice(said)] if number % 3 else [welcome(), random.choice(said)]))
        if number % 10 == 9:
            goes_on(sites)
    told(sites, evil, b"\xff" * 100)
    told(sites, evil, b"[" * 100_000)
    told(sites, evil, orjson.dumps({"ended": "x" * 100_000}))
    goes_on(sites)


def test_who_welcomes_and_leaves_is_called_later_each_time(sites: Sites, evil: Evil) -> None:
    """Not ten times a second for ever, with the log from its beginning, and a line about each."""
    evil.leaves = True
    try:
        first = told(sites, evil, welcome())
        before = sites["a"].output().count("evil")
        *_, last = [evil.called.get(timeout=30) for _ in range(3)]
        assert last - first > 1.0
        assert sites["a"].output().count("evil") - before < 10
    finally:
        evil.leaves = False
