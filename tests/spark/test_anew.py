"""A pipeline begins anew: what comes again, what does not, and what a crash in the middle leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

from penstock.cli.main import command as built
from penstock.errors import PreconditionFailed, SettingsError, Unavailable
from penstock.spark.pipelines import reset
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Remote, Where
from pipeline_lab import define
from spark_lab import Lab


def made(lab: Lab, folder: Path, **given: Any) -> Pipeline:
    return Pipeline(define(**given), Place(Where(lab.house.url), folder))


def finish(lab: Lab, pipeline: Pipeline) -> None:
    query = pipeline.start(lab.spark)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_a_queue_gives_back_what_was_in_work_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights", "out")
    table = tmp_path / "table"
    given = {"name": "p", "to": [{"topic": "out"}, {"table": str(table)}], "output_mode": "update"}
    given |= {"from": {"queue": "flights", "columns": "id BIGINT"}}
    lab.publish("flights", range(5))
    finish(lab, made(lab, tmp_path, **given, sql="SELECT id FROM input"))
    lab.publish("flights", range(5, 8))
    broken = made(lab, tmp_path, **given, sql="SELECT id, CAST(raise_error('no') AS INT) AS x FROM input")
    with pytest.raises(StreamingQueryException):
        finish(lab, broken)
    assert lab.counts("flights")[:2] == (0, 3)
    summed = made(lab, tmp_path, **given, sql="SELECT max(id) AS id FROM input")
    with pytest.raises(SettingsError, match="begin anew: penstock pipeline reset p"):
        finish(lab, summed)

    [told] = reset.foreseen(summed, keep_place=False)
    assert told.text == "queue flights: 3 messages in work come again; what is settled does not"
    [first] = table.iterdir()  # a kill between the files of the next batch and its commit leaves the like
    shutil.copytree(first, table / first.name.replace("-000000000", "-000000001"))
    reset.ask(tmp_path, "p", keep_place=False)
    finish(lab, summed)
    assert lab.ids("out") == [0, 1, 2, 3, 4, 7]
    assert sorted(row["id"] for row in lab.spark.read.parquet(f"file://{table}").collect()) == lab.ids("out")
    assert lab.counts("flights") == (0, 0, 8)
    assert not summed.anew_asked()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "p.json", "p.places", "table"]


def test_a_topic_is_read_again_or_goes_on_where_it_was(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.declare("past", "sums")
    given: dict[str, Any] = {"name": "sums", "from": {"topic": "past", "columns": "id BIGINT"}}
    given |= {"to": [{"topic": "sums"}], "output_mode": "update"}
    first = made(lab, tmp_path, **given, sql="SELECT count(*) AS id FROM input")
    lab.publish("past", range(4))
    finish(lab, first)
    lab.publish("past", range(2))
    other = made(lab, tmp_path, **given, sql="SELECT 100 + count(*) AS id FROM input")
    [told] = reset.foreseen(other, keep_place=True)
    assert told.text == f"topic past: goes on at LSN {told.position}"
    reset.ask(tmp_path, "sums", keep_place=True)

    # It is interrupted after the checkpoint is out of the way; the next start does the rest.
    act = Remote.act

    def broken(self: Remote, name: str, **fields: object) -> dict[str, Any]:
        if name == "stream_release":
            raise Unavailable("gone")
        return act(self, name, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(Remote, "act", broken)
        with pytest.raises(Unavailable):
            other.begin_anew()
    assert (tmp_path / "sums.forgotten").exists()
    finish(lab, other)
    assert lab.ids("sums") == [4, 102]
    finish(lab, other)

    reset.ask(tmp_path, "sums", keep_place=False)
    [told] = reset.foreseen(other, keep_place=False)
    assert told.text.startswith("topic past: LSN ")
    finish(lab, other)
    assert lab.ids("sums") == [4, 102, 106]
    changed = made(lab, tmp_path, **{**given, "from": {"topic": "sums", "columns": "id BIGINT"}}, sql="SELECT 1")
    with pytest.raises(PreconditionFailed, match="reads something else now than its checkpoint"):
        reset.foreseen(changed, keep_place=True)


def test_the_commands(lab: Lab, tmp_path: Path) -> None:
    lab.declare("cli", "cli-out")
    lab.publish("cli", range(3))
    spark = tmp_path / "spark"
    given = {"name": "cli", "from": {"queue": "cli", "columns": "id BIGINT"}, "to": [{"topic": "cli-out"}]}
    finish(lab, made(lab, spark, **given, sql="SELECT id FROM input"))
    config = tmp_path / "penstock.toml"
    config.write_text(
        f'spark.checkpoints = "{spark}"\n[[pipeline]]\nname = "cli"\nsql = "SELECT id FROM input"\n'
        'from = { queue = "cli", columns = "id BIGINT" }\nto = [{ topic = "cli-out" }]\n'
    )

    def run(*words: str) -> Any:
        return CliRunner().invoke(built(None), ["pipeline", *words, "--url", lab.house.url], catch_exceptions=False)

    assert "queue cli: 3" in run("status", "cli", "--batches").stdout
    [batch] = json.loads(run("status", "cli", "--batches", "--json").stdout)
    assert (batch["inputs"][0]["rows"], batch["outputs"][0]["rows"]) == (3, 3)
    done = run("reset", "cli", str(config), "--yes", "--json")
    told = json.loads(done.stdout)
    assert (told["reset"], told["inputs"][0]["messages"]) == (True, 0)
    assert not (spark / "cli").exists()
    assert all(one["stream"] != "cli" for one in lab.act("streams")["streams"])


def test_rows_for_a_topic_that_nobody_keeps(lab: Lab, tmp_path: Path) -> None:
    lab.declare("mixed")
    lab.publish("mixed", range(4))
    given = {"name": "mixed", "from": {"queue": "mixed", "columns": "id BIGINT"}, "to": [{"topic": "kept"}]}
    sql = "SELECT id, if(id = 2, 'nobody-keeps', NULL) AS topic FROM input"
    with pytest.raises(StreamingQueryException) as caught:
        finish(lab, made(lab, tmp_path, **given, sql=sql))
    assert "no queue takes topic 'nobody-keeps' in vhost '/'" in str(caught.value)
    assert lab.counts("mixed")[:2] == (0, 4)
    finish(lab, made(lab, tmp_path, **given, sql=sql, unroutable="drop"))
    # The topic of the output is declared with the pipeline.
    assert [message.json()["id"] for message in lab.client.replay("kept", "EPOCH")] == [0, 1, 3]
    assert lab.counts("mixed") == (0, 0, 4)
