"""What tests of pipelines share: a definition as a settings file has it, and a run until its input is used up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config.load import load_mapping
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where
from spark_lab import Lab


def define(**given: Any) -> Definition:
    """By the settings, as a file has them."""
    base = {"from": {"queue": "flights"}, "trigger": "0s"}
    settings = load_mapping({"pipeline": [{**base, **given}]})
    return Definition.of(settings.pipeline[0].model_dump(mode="json", by_alias=True))


def run(lab: Lab, definition: Definition, folder: Path) -> Any:
    """The pipeline until its input is used up; the stopped query."""
    query = Pipeline(definition, Place(Where(lab.house.url), folder)).start(lab.spark)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query
