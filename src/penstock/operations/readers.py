"""Who reads on and on: durable streams, and Spark pipelines as their drivers tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.operations.operation import Answer, Operation
from penstock.records.rights import REPORTS, WATCHES
from penstock.wire.fields import count, name, table, text, texts

if TYPE_CHECKING:
    from penstock.operations.house import Beside, House
    from penstock.server.access import Who

PIPELINES_MOST = 1000


def streams(house: House, who: Who) -> Iterable[Mapping[str, object]]:
    """Every durable reader."""
    return house.streams()


def pipeline_report(
    house: Beside, who: Who, driver: str, host: str, pid: int, state: str, pipelines: Mapping[str, object]
) -> Answer:
    """A driver's word about its pipelines, which it gives every second."""
    house.pipelines.tell(driver, host, pid, state, pipelines)
    return {}


def pipeline_leave(house: Beside, who: Who, pipelines: Sequence[str] | None) -> Answer:
    """These are not listed any more."""
    house.pipelines.leave(pipelines or ())
    return {}


def pipeline_status(house: Beside, who: Who, pipeline: str | None) -> Answer:
    """The last word about one, or about all that the settings name or a driver has told of."""
    found = [one for one in house.pipelines.all() if pipeline in {None, one["pipeline"]}]
    if pipeline is not None and not found:
        raise NotFound(f"no pipeline {pipeline!r}: no settings name it, and no driver has told of it")
    return {"pipelines": found}


_OF_DRIVERS = "drivers alone ask for it"

STREAMS = Operation(
    "streams", streams, "list", "every durable reader, what it holds and what it has not read yet", WATCHES,
    key="streams", sdk="streams", cli="stream list",
)  # fmt: skip
PIPELINE_REPORT = Operation(
    "pipeline_report", pipeline_report, "read", "driver, host, pid, state, pipelines: how a driver's pipelines are",
    REPORTS, (name("driver"), text("host", ""), count("pid", default=0), text("state", ""), table("pipelines")),
    missing=_OF_DRIVERS,
)  # fmt: skip
PIPELINE_LEAVE = Operation(
    "pipeline_leave", pipeline_leave, "read", "pipelines: these have left the settings", REPORTS,
    (texts("pipelines", PIPELINES_MOST),), missing=_OF_DRIVERS,
)  # fmt: skip
PIPELINE_STATUS = Operation(
    "pipeline_status", pipeline_status, "read", "pipeline: how it is, or all of them", WATCHES, (text("pipeline"),),
    cli="pipeline status", missing="who programs asks for the action, or over HTTP",
)  # fmt: skip

ROWS = (STREAMS, PIPELINE_REPORT, PIPELINE_LEAVE, PIPELINE_STATUS)
