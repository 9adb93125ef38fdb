"""Views on Spark: the same rows as the server's own view of the same definition, whatever happens to the messages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipelines.folders import Place
from penstock.spark.remote import Where
from penstock.spark.view_pipeline import ViewPipeline
from spark_lab import Lab, forget_last_commit
from waiting import eventually

SELECT = [
    "/region",
    "COUNT(/id) AS /n",
    "SUM(/total) AS /total",
    "AVG(/total) AS /mean",
    "STDDEV_POP(/total) AS /spread",
    "MIN(/total) AS /low",
    "MAX(/total) AS /high",
    "COUNT_DISTINCT(/kind) AS /kinds",
    "GROUP_CONCAT(/kind, '+') AS /list",
    "UNIQUE(/kind) AS /only",
    "ANY(/id) AS /oldest",
    "/id AS /newest",
    "SUM(/total) / COUNT(/id) AS /ratio",
]


def view(lab: Lab, folder: Path, name: str, **given: Any) -> ViewPipeline:
    section = {"name": name, "source": "work", "select": SELECT, "group_by": ["/region"], "vhost": "/", **given}
    return ViewPipeline(section, Place(Where(lab.house.url), folder))


def settle(lab: Lab, pipeline: ViewPipeline) -> Any:
    query = pipeline.start(lab.spark)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query


def rows(lab: Lab, name: str) -> dict[str, Any]:
    return {str(row.json().get("region")): row.json() for row in lab.client.sow(name)}


def wanted(lab: Lab, select: list[str] = SELECT, group_by: str = "/region") -> dict[str, Any]:
    found = lab.client.sow("work", projection=select, grouping=group_by)
    return {str(row.json().get("region")): row.json() for row in found}


def body(rng: random.Random, number: int) -> bytes:
    one: dict[str, object] = {"id": number, "region": rng.choice(["n", "s", 1, 1.0, True, None])}
    one["total"] = rng.choice([rng.randrange(1000), rng.random() * 10**9, -0.1, None, "x"])
    one["kind"] = rng.choice(["a", "b", "1", 1, None])
    return json.dumps(one).encode()


def test_the_same_rows_as_the_servers_own(lab: Lab, tmp_path: Path, effort: int) -> None:
    rng = random.Random(5)
    lab.declare("work", lease_period="1h")
    pipeline = view(lab, tmp_path, "by-region")
    number = 0
    held: list[Any] = []
    with lab.client.consume("work", backlog=60, timeout="30s") as consumer:
        messages = iter(consumer)
        for _ in range(2 if effort == 1 else 4):
            for _ in range(rng.randrange(20, 60)):
                lab.client.publish("work", body(rng, number := number + 1))
            held += [next(messages) for _ in range(rng.randrange(5, 20))]
            rng.shuffle(held)
            for _ in range(len(held) // 2):
                message = held.pop()
                rng.choice([message.ack, message.ack, message.release])()
            consumer.flush()
            settle(lab, pipeline)
            assert rows(lab, "by-region") == wanted(lab)
    # Spark loses its last commit, as by a kill; then nothing is left, and every row goes.
    forget_last_commit(pipeline.checkpoint.folder)
    eventually(lambda: lab.counts("work")[1] == 0, "what was leased is back")
    lab.client.purge("work")
    settle(lab, pipeline)
    assert rows(lab, "by-region") == wanted(lab) == {}


def test_a_changed_definition_and_a_lost_checkpoint_count_anew(lab: Lab, tmp_path: Path) -> None:
    lab.declare("work", lease_period="1h")
    lab.client.purge("work")
    for number in range(6):
        lab.client.publish("work", json.dumps({"id": number, "region": "ns"[number % 2]}).encode())
    settle(lab, view(lab, tmp_path, "small"))
    assert rows(lab, "small") == wanted(lab)
    less = {"select": ["/region", "COUNT(1) AS /n"], "filter": "/id > 0"}
    settle(lab, view(lab, tmp_path, "small", **less))
    assert rows(lab, "small") == {"n": {"region": "n", "n": 2}, "s": {"region": "s", "n": 3}}
    assert len(list(tmp_path.glob("view.small.*"))) == 1
    whole = {"select": ["COUNT(1) AS /n"], "group_by": []}
    settle(lab, view(lab, tmp_path, "small", **whole))
    [row] = lab.client.sow("small")
    assert row.json() == {"n": 6}


@pytest.mark.parametrize(("given", "told"), [({"select": ["SUM(SUM(/a)) AS /x"]}, "SUM"), ({"filter": "/a >"}, ".")])
def test_what_cannot_be_read_is_refused(lab: Lab, tmp_path: Path, given: Any, told: str) -> None:
    from penstock.errors import ExpressionError
    from penstock.spark.view_pipeline import planned

    with pytest.raises(ExpressionError, match=told):
        planned(view(lab, tmp_path, "wrong", **given).view)


def test_a_view_that_begins_anew_leaves_others_alone(tmp_path: Path) -> None:
    given = {"name": "v", "vhost": "/", "source": "q", "select": ["COUNT(1) AS /n"], "engine": "spark"}
    pipeline = ViewPipeline(given, Place(Where("penstock://nowhere:1"), tmp_path))
    others = [tmp_path / f"view.v.{name}" for name in ("other.0123abcd", "longname", "json")]
    for folder in (*others, tmp_path / "view.v.0123abcd", pipeline.checkpoint.folder):
        folder.mkdir()
    pipeline.begin_anew()
    assert sorted(tmp_path.iterdir()) == sorted(others)
