"""OpenTelemetry: what a message went through as one trace, from its publish over its consumers to what they publish.

    import penstock.otel

    penstock.otel.instrument()      # once, when the process starts; `uninstrument` ends it

Spans go to the provider that is given, else to the one of the process; the context travels in the header `traceparent`
(W3C), which other clients read and write too.  Names and attributes are those of OpenTelemetry's conventions for
messaging.  Metrics are the server's: /metrics.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ImportError as error:
    raise ImportError("penstock.otel needs OpenTelemetry's API: pip install 'penstock[otel]'") from error

from penstock.client import tracing
from penstock.client.messages import reason_of
from penstock.errors import InvalidArgument
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.client.tracing import Told
    from penstock.client.urls import Address

__all__ = ["instrument", "spark_batch", "uninstrument"]

LINKS_MOST = 128
"""Links of one span, as OpenTelemetry's own limit has it."""

SYSTEM = "penstock"


def instrument(provider: TracerProvider | None = None) -> None:
    """Trace what clients and workers of this process do from now on; again: with another provider."""
    if provider is not None and not hasattr(provider, "get_tracer"):
        raise InvalidArgument(f"instrument: provider is {provider!r}, not a TracerProvider or None")
    tracing.active = Spans(trace.get_tracer("penstock", __version__, provider))


def uninstrument() -> None:
    """Trace nothing more."""
    tracing.active = None


class SparkBatch:
    """One batch of a streaming query, while it is worked on."""

    def __init__(self) -> None:
        self.carried = dict[str, str]()
        """Headers that what comes of it is to have."""
        inject(self.carried)

    def carry(self, frame: Any) -> Any:
        """A frame whose column `headers` has them, beside what it has already: for the sink."""
        from pyspark.sql import functions

        pairs = [functions.lit(text) for pair in self.carried.items() for text in pair]
        more = functions.create_map(*pairs).cast("map<string,string>")
        if "headers" in frame.columns:
            known = functions.coalesce(functions.col("headers"), functions.create_map().cast("map<string,string>"))
            rest = functions.map_filter(known, lambda name, _: ~name.isin(*self.carried))
            more = functions.map_concat(rest, more)
        return frame.withColumn("headers", more)


@contextmanager
def spark_batch(frame: Any, batch: int, name: str = "") -> Generator[SparkBatch, None, None]:
    """A span for one batch of a streaming query, within `foreachBatch`, linked to who published its messages.

    frame  with the column `headers` of the source; it is read once more for the links: cache it where that is dear
    name   of the query
    """
    rows: list[Any] = []
    if "headers" in frame.columns:
        found = frame.selectExpr("headers['traceparent'] AS parent", "headers['tracestate'] AS state")
        rows = found.where("parent IS NOT NULL").distinct().limit(LINKS_MOST).collect()
    came = [{"traceparent": row["parent"], "tracestate": row["state"] or ""} for row in rows]
    attributes = _attributes("process", "process", name or "spark") | {"penstock.batch": batch}
    tracer = tracing.active.tracer if isinstance(tracing.active, Spans) else trace.get_tracer("penstock", __version__)
    with tracer.start_as_current_span(
        f"process batch {name}".strip(), kind=SpanKind.CONSUMER, attributes=attributes, links=_links(came)
    ):
        yield SparkBatch()


class Published:
    """One publish, while it lasts."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.carried = dict[str, str]()
        inject(self.carried)

    def stored(self, outcome: str, bookmark: str) -> None:
        """How a publish ended: what became of it, and its first bookmark."""
        self._span.set_attribute("penstock.outcome", outcome)
        if bookmark:
            self._span.set_attribute("penstock.bookmark", bookmark)


class Spans:
    """What the client does as spans."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    @contextmanager
    def publish(self, address: Address, place: str, count: int | None) -> Generator[Published, None, None]:
        """A producer's span, whose context goes with its messages."""
        attributes = _attributes("publish", "send", place)
        attributes |= {"server.address": address.host, "server.port": address.port}
        if count is not None and count != 1:
            attributes["messaging.batch.message_count"] = count
        name = f"publish {place}"
        with self.tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            yield Published(span)

    def received(self, queue: str, headers: Sequence[Sequence[tuple[str, str]] | None]) -> None:
        """A span for what came together, linked to who published it."""
        attributes = _attributes("receive", "receive", queue)
        attributes["messaging.batch.message_count"] = len(headers)
        some = [dict[str, str](one or ()) for one in headers[:LINKS_MOST]]
        self.tracer.start_span(
            f"receive {queue}", kind=SpanKind.CONSUMER, links=_links(some), attributes=attributes
        ).end()

    @contextmanager
    def process(self, message: Told, queue: str, by: str) -> Generator[None, None, None]:
        """A consumer's span below that of the publish, so that both are one trace, and what it does below it."""
        attributes = _attributes("process", "process", queue)
        attributes |= {"penstock.bookmark": message.bookmark, "penstock.attempt": message.attempt}
        attributes["penstock.topic"] = message.topic
        if message.message_id is not None:
            attributes["messaging.message.id"] = message.message_id
        if by:
            attributes["code.function.name"] = by
        current = trace.get_current_span().get_span_context()
        links = [Link(current)] if current.is_valid else []
        came = _context(message.headers)
        context = came if trace.get_current_span(came).get_span_context().is_valid else None
        with self.tracer.start_as_current_span(
            f"process {queue}", context, SpanKind.CONSUMER, attributes=attributes, links=links if context else []
        ):
            yield

    @contextmanager
    def settle(self, verb: str, queue: str, of: Sequence[Mapping[str, str]]) -> Generator[None, None, None]:
        """A client's span, linked to who published what is settled."""
        attributes = _attributes(verb, "settle", queue)
        if len(of) != 1:
            attributes["messaging.batch.message_count"] = len(of)
        with self.tracer.start_as_current_span(
            f"{verb} {queue}", kind=SpanKind.CLIENT, attributes=attributes, links=_links(of[:LINKS_MOST])
        ):
            yield

    def failed(self, error: BaseException) -> None:
        """The present span ends with an error."""
        span = trace.get_current_span()
        with suppress(Exception):  # of the error's own code, as that for its text
            span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, reason_of(error)))


def _attributes(name: str, kind: str, place: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": place,
    }


def _context(headers: Mapping[str, str]) -> Context:
    return extract(headers, Context())


def _links(of: Sequence[Mapping[str, str]]) -> list[Link]:
    """To who published them, each once."""
    found: dict[tuple[int, int], Link] = {}
    for headers in of:
        there = trace.get_current_span(_context(headers)).get_span_context()
        if there.is_valid:
            found.setdefault((there.trace_id, there.span_id), Link(there))
    return list(found.values())
