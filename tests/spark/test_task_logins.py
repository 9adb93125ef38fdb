"""Tasks of pipelines that run elsewhere have no password: they log in by a token of the driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where
from penstock.spark.tokens import TaskLogins, Token
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


def test_of_a_token_that_was_revoked_it_is_told_which(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Of several pipelines, addresses and sessions nobody could tell whose tasks cannot log in any more."""
    token, other = Token(lab.house.url), Token(lab.house.url)
    lab.client.revoke_token(token.id)
    token._every = other._every = 0.01
    token._renew()
    assert token.ended
    assert not other.ended
    [told] = [record.getMessage() for record in caplog.records if "cannot log in" in record.getMessage()]
    assert told.startswith(f"executors cannot log in any more, for token {token.id} was revoked or has ended: ")
    token._ended.set()
    token._thread.join()
    token._client.close()
    other.close()


def test_a_token_that_has_ended_is_followed_by_another(lab: Lab) -> None:
    logins, where = TaskLogins(), Where(lab.house.url)
    first = logins(where)
    assert logins(where) == first
    [token] = logins._tokens.values()
    token.ended = True
    assert logins(where) != first
    logins.close()
