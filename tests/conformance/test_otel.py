"""OpenTelemetry: one trace from the publish to what its consumer publishes; nothing where nobody asked for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import penstock
import penstock.otel
from flight_house import FlightHouse
from page_lab import blocks, page
from penstock.client import tracing

pytestmark = pytest.mark.conformance


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def __call__(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self(name)
        return span


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    penstock.otel.instrument(seen.provider)
    yield seen
    penstock.otel.uninstrument()
    seen.provider.shutdown()


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest, client: penstock.Client) -> str:
    client.declare(request.node.name)
    client.declare("bills")
    client.purge("bills")
    return request.node.name


def place(span: ReadableSpan) -> tuple[int, int]:
    """Its trace and itself."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_a_publish_its_delivery_the_work_and_the_ack_are_one_trace(
    client: penstock.Client, name: str, seen: Seen
) -> None:
    receipt = client.publish(name, {"id": 1}, headers={"source": "web"}, message_id="m1")
    with client.consume(name, timeout=30) as consumer:
        message = consumer.take()
        assert message is not None
        with message:
            client.publish("bills", {"order": 1})
    published = seen.one(f"publish {name}")
    assert published.kind is SpanKind.PRODUCER
    attributes: Any = published.attributes
    assert attributes["messaging.system"] == "penstock"
    assert attributes["messaging.destination.name"] == name
    assert attributes["messaging.operation.type"] == "send"
    assert (attributes["server.address"], attributes["penstock.bookmark"]) == ("127.0.0.1", receipt.bookmark)
    assert message.headers["source"] == "web"
    assert f"{place(published)[0]:032x}-{place(published)[1]:016x}" in message.headers["traceparent"]

    processed = seen.one(f"process {name}")
    assert (parent(processed), processed.kind) == (place(published), SpanKind.CONSUMER)
    attributes = processed.attributes
    assert (attributes["penstock.attempt"], attributes["messaging.message.id"]) == (1, "m1")
    assert parent(seen.one("publish bills")) == place(processed)
    acked = seen.one(f"ack {name}")
    assert (parent(acked), links(acked), acked.kind) == (place(processed), [place(published)], SpanKind.CLIENT)
    assert links(seen.one(f"receive {name}")) == [place(published)]


def test_an_exception_is_on_the_span_and_a_settle_by_hand_too(client: penstock.Client, name: str, seen: Seen) -> None:
    client.publish(name, b"x")
    with client.consume(name, timeout=30) as consumer:
        message = consumer.take()
        assert message is not None
        with pytest.raises(ZeroDivisionError), message:
            _ = 1 / 0
        again = consumer.take()
        assert again is not None
        again.reject("no")
    processed = seen.one(f"process {name}")
    assert processed.status.status_code is StatusCode.ERROR
    assert [event.name for event in processed.events] == ["exception"]
    assert parent(seen.one(f"retry {name}")) == place(processed)
    assert seen.one(f"reject {name}").parent is None


def test_a_refused_publish_is_an_error(client: penstock.Client, seen: Seen) -> None:
    with pytest.raises(penstock.Unroutable):
        client.publish("nobody-takes-it", b"x")
    assert seen.one("publish nobody-takes-it").status.status_code is StatusCode.ERROR


def test_tables_and_batches(client: penstock.Client, name: str, seen: Seen) -> None:
    client.publish_table(name, pa.table({"id": [1, 2]}))
    rows = {"body": ["a", "b"], "headers": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string()))}
    client.publish_table(name, pa.table(rows))
    got = list[dict[str, str]]()
    with client.consume(name, timeout=30) as consumer:
        while len(got) < 4 and (batch := consumer.take_batch()) is not None:
            got += [message.headers for message in batch]
            batch.ack()
    first, second = seen(f"publish {name}")
    assert [one.get("k") for one in got] == [None, None, "v", None]
    assert [int(one["traceparent"].split("-")[1], 16) for one in got] == [place(first)[0]] * 2 + [place(second)[0]] * 2
    told = {link for span in seen(f"ack {name}") for link in links(span)}
    assert told == {place(first), place(second)}, "each publish once"


def test_a_transaction(client: penstock.Client, name: str, seen: Seen) -> None:
    client.publish(name, b"x")
    with client.consume(name, timeout=30) as consumer:
        message = consumer.take()
        assert message is not None
        with message:
            message.ack(publish=[("bills", {"id": 1}, {"headers": {"k": "v"}})])
    [bill] = client.peek("bills")
    billed = seen.one("publish bills")
    assert bill.headers["k"] == "v"
    assert f"{place(billed)[1]:016x}" in bill.headers["traceparent"]
    assert parent(seen.one(f"ack {name}")) == place(seen.one(f"process {name}"))
    assert place(billed)[0] == place(seen.one(f"publish {name}"))[0], "one trace"


async def test_asyncio(house: FlightHouse, client: penstock.Client, name: str, seen: Seen) -> None:
    async with penstock.aio.connect(house.url) as own:
        with seen.provider.get_tracer("test").start_as_current_span("request"):
            await own.publish(name, b"x")
        async with own.consume(name, timeout=30) as consumer:
            message = await consumer.take()
            assert message is not None
            async with message:
                await own.publish("bills", b"y")
    published, processed = seen.one(f"publish {name}"), seen.one(f"process {name}")
    assert parent(published) == place(seen.one("request"))
    assert parent(processed) == place(published)
    assert parent(seen.one("publish bills")) == parent(seen.one(f"ack {name}")) == place(processed)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_workers(house: FlightHouse, client: penstock.Client, name: str, seen: Seen, kind: str) -> None:
    client.alter(name, max_deliveries=1)
    client.publish_table(name, pa.table({"body": ["good", "bad"]}))
    app = penstock.App(house.url)

    def work(body: str) -> str:
        with seen.provider.get_tracer("test").start_as_current_span(body):
            if body == "bad":
                raise ValueError("bad")
        return body

    async def work_async(body: str) -> str:
        return work(body)

    app.worker(name, publish="bills")(work if kind == "thread" else work_async)
    app.run(burst=True)
    processed = {place(span): span for span in seen(f"process {name}")}
    assert len(processed) == 2
    for span in processed.values():
        assert parent(span) == place(seen.one(f"publish {name}"))
        assert (span.attributes or {})["code.function.name"]
    good, bad = (processed[parent(seen.one(one))] for one in ("good", "bad"))
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert place(seen.one("publish bills"))[0] == place(good)[0]
    assert parent(seen.one(f"ack {name}")) == place(good)


def test_nothing_is_done_where_nobody_asked_for_it(client: penstock.Client, name: str) -> None:
    assert tracing.active is None
    client.publish(name, b"x")
    assert "traceparent" not in client.peek(name)[0].headers
    code = "import sys, penstock.client, penstock.worker.app; print(any('opentelemetry' in one for one in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_without_opentelemetry_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import penstock.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'penstock[otel]'" in done.stderr


def test_the_page_runs(house: FlightHouse) -> None:
    first = blocks(page("otel.md"), "python")[0].replace("penstock://localhost", house.url)
    told = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == ["publish to-trace", "receive to-trace", "publish traced", "ack to-trace", "process to-trace"]
