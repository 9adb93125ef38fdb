"""The flights of two weeks with their planes and their weather: what pipelines make of them is what DuckDB makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nyc import ROWS, Year, written
from penstock.config.load import load_mapping
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where
from spark_lab import Lab


@pytest.mark.bulk("spark/test_pipelines_page.py::test_the_examples_run")
def test_a_stream_with_a_table_and_with_a_stream(lab: Lab, tmp_path: Path) -> None:
    year = Year(days=14)
    lab.declare("flights", *ROWS)
    lab.client.declare_topic("weather")
    assert year.publish(lab.client, "weather") > 900
    assert year.publish(lab.client, "flights") > 11_000
    settings = load_mapping(year.settings(max_rows=5_000))  # several batches
    for one in settings.pipeline:
        definition = Definition.of(one.model_dump(mode="json", by_alias=True))
        pipeline = Pipeline(definition, Place(Where(lab.house.url), tmp_path / "spark"))
        query = pipeline.start(lab.spark, once=True)
        query.awaitTermination()
        assert query.exception() is None
        assert sum(batch["numInputRows"] > 0 for batch in query.recentProgress) >= 3
    for topic in ROWS:
        found, truth = written(lab.client, topic), year.truth(topic)
        assert len(truth) > 11_000
        assert found == truth
        assert lab.counts(topic)[0] == len(truth)
    assert lab.counts("flights")[:2] == (0, 0)
