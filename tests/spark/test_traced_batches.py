"""A batch of a query is linked to those who published its messages, and what it writes is in its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock.otel
from page_lab import blocks, page
from spark_lab import Lab


def test_a_batch_is_linked_to_its_messages_and_its_results_to_it(lab: Lab, tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    lab.declare("sales", "revenue")
    names: dict[str, Any] = {"penstock": penstock}
    code = blocks(page("otel.md"), "python")[1]
    exec(code.replace('.option("topic"', f'.option("url", {lab.house.url!r}).option("topic"'), names)
    penstock.otel.instrument(provider)
    try:
        for n in range(3):
            lab.client.publish("sales", {"region": "north", "total": n})
        lab.client.publish("sales", {"region": "south", "total": 7}, headers={"source": "web"})
        stream = lab.spark.readStream.format("penstock").options(
            url=lab.house.url, topic="sales", stream="traced", schema="region string, total bigint"
        ).load()  # fmt: skip
        query = stream.writeStream.foreachBatch(names["write"]).option("checkpointLocation", f"{tmp_path}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
    finally:
        penstock.otel.uninstrument()
    spans = exporter.get_finished_spans()
    published = {span.context.span_id for span in spans if span.name == "publish sales" and span.context}
    [batch] = [span for span in spans if span.name == "process batch revenue"]
    assert {link.context.span_id for link in batch.links} == published
    assert len(published) == 4
    assert batch.context is not None
    parent = f"00-{batch.context.trace_id:032x}-{batch.context.span_id:016x}-{batch.context.trace_flags:02x}"
    written = lab.client.peek("revenue")
    assert [message.headers["traceparent"] for message in written] == [parent] * 2
