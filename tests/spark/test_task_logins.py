"""Tasks of pipelines that run elsewhere have no password: they log in by a token of the driver's."""

from __future__ import annotations

from pathlib import Path

from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where
from penstock.spark.tokens import TaskLogins
from pipeline_lab import define
from spark_lab import Lab


def test_a_pipeline_reads_stages_and_puts_aside_by_its_token(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights", "eu", "odd")
    lab.publish("flights", range(40))
    definition = define(
        name="by-token",
        sql="SELECT id, total FROM input WHERE region = 'EU'",
        to=[{"topic": "eu"}, {"view": "totals", "key": ["id"]}],
        expect=[{"that": "id % 10 <> 3", "otherwise": "dead-letter", "topic": "odd"}],
    )
    logins = TaskLogins()
    pipeline = Pipeline(definition, Place(Where(lab.house.url), tmp_path / "spark", logins))
    query = pipeline.start(lab.spark)
    try:
        query.processAllAvailable()
        [token] = lab.client.tokens()
        given = pipeline.inputs.options(definition.inputs[0], None)
        address = lab.house.url.replace("guest:guest@", "")
        assert (given["user"], given["url"]) == (f"token/{token['id']}", f"{address}/")
        assert pipeline.outputs is not None
        assert pipeline.outputs.tasks.user == given["user"]
    finally:
        query.stop()
    assert lab.ids("eu") == [i for i in range(1, 40, 2) if i % 10 != 3]
    assert lab.ids("odd") == [3, 13, 23, 33]
    assert lab.counts("flights") == (0, 0, 40)
    logins.close()
    assert lab.client.tokens() == []


def test_a_token_that_has_ended_is_followed_by_another(lab: Lab) -> None:
    logins, where = TaskLogins(), Where(lab.house.url)
    first = logins(where)
    assert logins(where) == first
    [token] = logins._tokens.values()
    token.ended = True
    assert logins(where) != first
    logins.close()
