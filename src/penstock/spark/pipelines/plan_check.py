"""Let Spark understand pipelines without running one: `python -m penstock.spark.pipelines.plan_check`, a job as input.

Prints a line of JSON for each: {"pipeline", "verdict", "why", "columns", "mode", "remembers"}.  The verdict is `good`,
`wrong`, or `unknown` where only a running server with a message could tell what the columns are.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.spark.pipelines.code import quieten, short
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.reading.inference import NO_MESSAGE
from penstock.spark.remote import Where
from penstock.spark.sessions import session

PATIENCE_S = 0.5
"""How long a server may take to be there that could tell what columns are."""


def check(spark: Any, pipeline: Pipeline) -> dict[str, Any]:
    """One pipeline: what Spark makes of it, and whether its checkpoint still fits."""
    told: dict[str, Any] = {"pipeline": pipeline.definition.name, "verdict": "good", "why": None}
    try:
        old = pipeline.old_manifest()
        planned = pipeline.plan(spark, {} if old is None else old.columns, PATIENCE_S)
        pipeline.refuse_misfit(old, planned.manifest)
    except (NotFound, Unavailable) as error:
        why = str(error)
        if isinstance(error, Unavailable):
            why = "no server answers, and only a message could tell its columns"
        if isinstance(error, Unavailable) or error.reason == NO_MESSAGE:
            why = f'{why}: name them, as in columns = "id BIGINT"'
        return told | {"verdict": "unknown", "why": why}
    except Exception as error:  # noqa: BLE001 - whatever Spark says is the answer
        why = str(error) if isinstance(error, PenstockError) else short(str(error))
        return told | {"verdict": "wrong", "why": why.removeprefix(f"pipeline {pipeline.definition.name}: ")}
    return told | {
        "columns": {field.name: field.dataType.simpleString() for field in planned.frame.schema.fields},
        "mode": planned.mode,
        "remembers": bool(planned.manifest.state),
    }


def main() -> int:
    """Check the pipelines of the job in the standard input; 0 whatever comes of it."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    quieten()
    job: dict[str, Any] = json.load(sys.stdin)
    sys.path[:0] = [path for path in cast("list[str]", job.get("path") or []) if path not in sys.path]
    place = Place(Where(job["url"], job.get("user"), job.get("password"), PATIENCE_S), Path(job["folder"]))
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as scratch:
        spark = session("local[1]", memory=job["memory"], folder=scratch, conf=job.get("conf"))
        for given in cast("list[dict[str, Any]]", job["pipelines"]):
            told = check(spark, Pipeline(Definition.of(given), place))
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
        spark.stop()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
