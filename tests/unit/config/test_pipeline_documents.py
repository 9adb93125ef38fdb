"""The settings in docs/pipelines.md are settings, and what its sections refuse is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.driver_jobs import groups, job
from penstock.config.load import load_mapping
from penstock.errors import SettingsError

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipelines.md").read_text()
BLOCKS = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_each_block_can_be_loaded(block: int) -> None:
    load_mapping(BLOCKS[block], environ={}, options={})


def load(**given: Any) -> Any:
    return load_mapping(given, environ={}, options={})


def view(**given: Any) -> dict[str, Any]:
    return {"name": "v", "source": "q", "select": "COUNT(1) AS /n", "engine": "spark", **given}


def test_a_view_on_spark_is_a_job_of_the_driver() -> None:
    settings = load(queue=[{"name": "q"}], view=[view(trigger="1s"), view(name="w", engine="server")])
    [(name, mine)] = groups(settings).items()
    [view_job] = job(settings, mine, name, "penstock://here")["pipelines"]
    assert (view_job["name"], view_job["source"], view_job["trigger"]) == ("v", "q", 1_000_000)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"view": [view(source="t")], "topic": [{"name": "t", "key": ["/id"]}]}, "is a topic, and engine 'spark'"),
        ({"view": [view(name="a", engine="server"), view(source="a")]}, "is a view, and engine 'spark'"),
        ({"view": [{**view(join=["[a]./x = [b]./x"]), "source": None}]}, "leave it to the server"),
        ({"view": [view(engine="server", trigger="1s")]}, "trigger goes with engine 'spark'"),
        ({"spark": {"openlineage": "marquez"}}, "is no place for events"),
    ],
)
def test_what_is_refused(given: dict[str, Any], told: str) -> None:
    for one in given.get("view", ()):
        if one["source"] is None:
            del one["source"]
    with pytest.raises(SettingsError, match=told):
        load(**given)


def test_a_backfill_is_of_one_topic() -> None:
    def pipeline(source: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": "p", "sql": "SELECT 1", "to": [{"topic": "out"}], "from": source, "backfill": {"from": "earliest"}
        }  # fmt: skip

    load(pipeline=[pipeline({"topic": "t"})])
    with pytest.raises(SettingsError, match="backfill is of a pipeline over one topic"):
        load(pipeline=[pipeline({"queue": "q"})])
    with pytest.raises(SettingsError, match="give one of them"):
        load(pipeline=[pipeline({"topic": "t", "start": "latest"})])


def pipeline(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "sql": "SELECT 1", "to": [{"topic": "out"}], "from": {"queue": "q"}, **given}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("p.a", "'p.a' is also the name of the stream of input a of pipeline 'p': give it another name"),
        ("p.json", "'p.json' is also the name of a file of pipeline 'p'"),
        ("p.backfill.nov", "'p.backfill.nov' is also the name of a backfill of pipeline 'p'"),
        ("view.v", "'view.v' is also the name of what runs the view 'v' on Spark"),
        ("view.v.0123abcd", "what runs the view 'v' on Spark"),
    ],
)
def test_a_name_that_two_would_share_is_refused(other: str, told: str) -> None:
    both = {"a": {"queue": "q"}, "b": {"queue": "r"}, "seats": {"table": "seats.parquet"}}
    first = pipeline("p", **{"from": both})
    with pytest.raises(SettingsError, match=re.escape(told)):
        load(pipeline=[pipeline(other), first], queue=[{"name": "q"}], view=[view()])
    load(pipeline=[pipeline("p.seats"), pipeline("p.x"), pipeline("view.other"), first], view=[view()])
    load(pipeline=[pipeline("p"), pipeline("p.a")])


def test_a_row_can_be_put_aside_of_one_queue_alone() -> None:
    load(pipeline=[pipeline("p", poison_after=3)])
    for source in ({"topic": "t"}, {"a": {"queue": "q"}, "b": {"queue": "r"}}):
        with pytest.raises(SettingsError, match="poison_after is of a pipeline over one queue and no topic"):
            load(pipeline=[pipeline("p", poison_after=3, **{"from": source})])
