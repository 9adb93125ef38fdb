"""Actions about Spark pipelines: a driver tells how they are, and anybody asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.records.rights import REPORTS, WATCHES
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.server.pipelines import PIPELINES_MOST
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.pipelines import PipelineReports

Reply = Mapping[str, object]


class PipelineActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, reports: PipelineReports) -> None:
        self._reports = reports
        self.table: Table = {
            "pipeline_report": Action(
                self._report, "driver, host, pid, state, pipelines: how a driver's pipelines are", REPORTS
            ),
            "pipeline_leave": Action(self._leave, "pipelines: these have left the settings", REPORTS),
            "pipeline_status": Action(self._status, "pipeline: how it is, or all of them", WATCHES),
        }

    def _report(self, caller: Caller, f: Fields) -> Reply:
        driver, host, pid, state = f.name("driver"), f.text("host"), f.count("pid"), f.text("state")
        pipelines = f.table("pipelines")
        f.finish()
        self._reports.tell(driver, host, pid, state, pipelines)
        return {}

    def _leave(self, caller: Caller, f: Fields) -> Reply:
        names = f.texts("pipelines", PIPELINES_MOST)
        f.finish()
        self._reports.leave(names)
        return {}

    def _status(self, caller: Caller, f: Fields) -> Reply:
        name = f.optional_text("pipeline")
        f.finish()
        found = [one for one in self._reports.all() if name in (None, one["pipeline"])]
        if name is not None and not found:
            raise NotFound(f"no pipeline {name!r}: no settings name it, and no driver has told of it")
        return {"pipelines": found}
