"""One run of a pipeline over a past range, under a key of its own (`backfill`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import SettingsError
from penstock.spark.pipelines.backfill import BackfillCheckpoint, backfilled
from penstock.spark.pipelines.definition import Definition, with_vhost
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.lineage import Lineage
from penstock.spark.pipelines.pipeline import Pipeline, Planned, lineage_of
from penstock.spark.remote import Where


class BackfillPipeline(Pipeline):
    """It ends when the range is done; started again it goes on where it was."""

    def __init__(self, given: Mapping[str, Any], place: Place) -> None:
        """`given`: the JSON form of a `[[pipeline]]`, and `range`: what `backfilled` takes."""
        live = Definition.of(given)
        self._range: Mapping[str, Any] = given["range"]
        self._live = live.name
        where = Where(with_vhost(place.where.url, live.vhost), place.where.user, place.where.password)
        super().__init__(backfilled(given, self._range, where, place.folder), place)
        self.checkpoint = BackfillCheckpoint(self.checkpoint.folder)

    def start(self, spark: Any, *, once: bool = True) -> Any:
        """A running StreamingQuery that ends with the range."""
        return super().start(spark, once=True)

    def plan(self, spark: Any, columns: Mapping[str, str | None], patience: float | None = None) -> Planned:
        """As `Pipeline.plan`; SettingsError for a whole result that would replace the live table."""
        planned = super().plan(spark, columns, patience)
        tables = [one for one in self.definition.to if one.table is not None]
        if planned.mode == "complete" and tables and not self._range.get("outputs"):
            raise SettingsError(
                f"pipeline {self._live} gives whole results, and the past would replace those in the {tables[0].text}: "
                "name another output"
            )
        return planned

    @property
    def lineage(self) -> Lineage:
        """Of the pipeline, as batches of this backfill."""
        return replace(lineage_of(self.definition), pipeline=self._live, backfill=str(self._range["id"]))
