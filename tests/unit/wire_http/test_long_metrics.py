"""Metrics of many things with long names: the same text, in pieces, that nobody has as a whole."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from math import inf, nan
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from http_lab import Http
from penstock.server.doors.line import Ended
from penstock.server.http import overview
from penstock.server.http.exposition import PIECE, There, detailed, exposition, pieces
from penstock.server.http.metrics import QUEUES, Family, Histogram, Line, Metrics
from penstock.server.http.overview import LONG_MOST, Long

LONG = 200
ODD = ["plain", 'a "quoted" one', "two\nlines", "back\\slash", "grün 🐇", "", "100%s {x}"]
VALUES = [0, 1, -2.5, 1e6, 123456789.0, 1e300, inf, -inf, nan, 0.1]


def of_prometheus(*found: Any) -> bytes:
    """As Prometheus' own library has it."""

    class All(Collector):
        def collect(self) -> list[Any]:
            return list(found)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(All())
    return generate_latest(registry)


def test_the_text_is_that_of_the_library_of_prometheus() -> None:
    text, lines = "What it\nis: 100 \\ 7", [([odd, "z"], value) for odd in ODD for value in VALUES]
    gauge, counter = GaugeMetricFamily("g", text, labels=["name", "a"]), CounterMetricFamily("c", text, labels=["x"])
    summary = SummaryMetricFamily("s", text)
    for named, value in lines:
        gauge.add_metric(named, float(value))
    counter.add_metric(["one"], 3.0)
    for share in ("0.5", "0.99"):
        summary.add_sample("s", {"queue": "q", "quantile": share}, 0.25)
    bare = GaugeMetricFamily("bare", text)
    bare.add_metric([], 7.0)
    sizes = HistogramMetricFamily("h", text, labels=["protocol"])
    sizes.add_metric(["amqp"], [("100", 1), ("+Inf", 3)], 1234)
    expected = of_prometheus(gauge, counter, summary, bare, GaugeMetricFamily("none", text, labels=["a"]), sizes)
    made = pieces(
        [
            Family("g", text, ["name", "a"], lines),
            Family("c", text, ["x"], [(["one"], 3)], counter=True),
            Family("s", text, ["queue", "quantile"], [(["q", "0.5"], 0.25), (["q", "0.99"], 0.25)], summary=True),
            Family("bare", text, (), [((), 7)]),
            Family("none", text, ["a"], []),
            Histogram("h", text, [(100.0, 1), (inf, 3)], 1234, ["protocol"], ["amqp"], ".0f"),
        ]
    )
    assert b"".join(made) == expected


def every_way(metrics: Metrics) -> Iterator[Iterator[bytes]]:
    """The texts with a line for each queue."""
    yield exposition(metrics, per_object=True)
    families = ["queue_coarse_metrics", "queue_metrics", "queue_delivery_metrics", "penstock_queue_metrics"]
    yield detailed(metrics, families, ["/"], There(["/"], [], {}))


def test_a_text_with_a_line_for_each_of_many_queues_takes_a_piece_at_a_time() -> None:
    values, none = [1.0] * len(QUEUES.figures), [dict[Any, float]()] * len(QUEUES.splits)
    queues = [Line(["/", f"{number:06}".ljust(LONG, "n")], values, none) for number in range(1000)]
    for text in every_way(Metrics(lines={"queues": queues})):
        tracemalloc.start()
        try:
            sizes = [len(piece) for piece in text]
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sum(sizes) > 5 << 20
        assert max(sizes) < PIECE + 1024
        assert most < 2 << 20


class Reader:
    """Reads an answer to the end once it is let."""

    def __init__(self) -> None:
        self.began, self.may = asyncio.Event(), asyncio.Event()
        self.size = 0

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.began.set()
            await self.may.wait()
            self.size += len(message["body"])

    async def receive(self) -> Any:
        await asyncio.Event().wait()


async def answer(places: asyncio.Semaphore, reader: Reader) -> None:
    async def text() -> Iterator[bytes]:
        return iter([b"a" * 10] * 3)

    await Long(text, places, asyncio.Lock())({"type": "http"}, reader.receive, reader.send)


async def test_so_many_long_texts_are_sent_at_a_time() -> None:
    places, readers = asyncio.Semaphore(LONG_MOST), [Reader() for _ in range(LONG_MOST + 1)]
    tasks = [asyncio.ensure_future(answer(places, one)) for one in readers]
    await asyncio.gather(*(one.began.wait() for one in readers[:-1]))
    assert places.locked()
    readers[-1].may.set()
    assert not readers[-1].began.is_set()
    readers[0].may.set()
    await asyncio.gather(tasks[0], tasks[-1])
    assert readers[-1].size == readers[0].size == 30
    for one in readers:
        one.may.set()
    await asyncio.gather(*tasks)


async def test_a_long_text_that_nobody_reads_gives_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    places, stuck, reader = asyncio.Semaphore(1), Reader(), Reader()
    monkeypatch.setattr(overview, "LONG_S", 0.01)
    with pytest.raises(Ended):
        await answer(places, stuck)
    monkeypatch.setattr(overview, "LONG_S", 60.0)
    reader.may.set()
    await answer(places, reader)
    assert reader.size == 30


@pytest.mark.parametrize("piece", [PIECE, 5000])
async def test_who_asks_for_a_text_at_the_same_time_gets_what_was_made_for_the_first(
    monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Each made it in a thread of its own: with 300 readers the loop waited, and others with it."""
    monkeypatch.setattr("penstock.server.http.exposition.PIECE", piece)
    made, found = list[bool](), Metrics(lines={"queues": []}, figures=defaultdict(int))

    def counted(*args: Any, **named: Any) -> Iterator[bytes]:
        made.append(True)
        return exposition(*args, **named)

    async def looked(_: object) -> Metrics:
        return found

    monkeypatch.setattr("penstock.server.http.exposition.exposition", counted)
    monkeypatch.setattr(overview, "all_metrics", looked)
    facts: Any = SimpleNamespace(
        open_metrics=lambda: True, scraped=lambda: None, membership=lambda: None, links=lambda: ()
    )
    probes = overview.Probes(facts, 60.0)
    readers = [Reader() for _ in range(30)]

    async def scrape(reader: Reader) -> None:
        reader.may.set()
        response = await probes.metrics_per_object(cast("Any", None), cast("Any", None))
        await response({"type": "http"}, reader.receive, reader.send)

    await asyncio.gather(*map(scrape, readers))
    assert len(made) == 1
    whole = b"".join(exposition(found, per_object=True, links=()))
    assert {one.size for one in readers} == {len(whole)}


def test_a_scrape_of_each_object_is_whole_however_many_pieces_it_has(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.http.exposition.PIECE", 1000)
    for path in ("per-object", "detailed?family=penstock_queue_metrics"):
        text = http.ask("GET", f"../metrics/{path}").text
        assert len(text) > 3000
        assert 'queue="q"' in text
        assert text.count("rabbitmq_identity_info{") == 1
        assert text.endswith("\n")
