"""Lineage: what each batch of a pipeline was made of and what it became, exactly, from the log."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.spark.pipelines.lineage import about, read
from penstock.spark.remote import Where, remote
from pipeline_lab import define, run
from spark_lab import Lab, forget_last_commit


def test_each_output_names_its_input(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights", "eu", "us")
    other = lab.client.consume("flights", backlog=1, timeout="30s")
    definition = define(
        name="line",
        sql="SELECT if(region = 'EU', 'eu', 'us') AS topic, id FROM input",
        to=[{"topic": "eu"}, {"table": str(tmp_path / "all")}],
    )
    lab.publish("flights", range(5))
    messages = iter(other)
    taken = next(messages)  # somebody else has a message in the middle
    run(lab, definition, tmp_path / "spark")
    lab.publish("flights", range(5, 11))
    run(lab, definition, tmp_path / "spark")
    taken.ack()
    other.close()

    server = remote(Where(lab.house.url))
    batches = read(server, "line")
    assert [one.batch for one in batches] == [0, 1]
    lsns = {
        lsn: body for queue in ("eu", "us") for lsn, body in ((m.lsn, m.json()) for m in lab.client.peek(queue, 99))
    }
    for one, ids in zip(batches, ({0, 1, 2, 3, 4} - {taken.json()["id"]}, set(range(5, 11))), strict=True):
        [given] = one.inputs
        assert (given.kind, given.name, given.stream, given.rows) == ("queue", "flights", "line", len(ids))
        inputs = {row["id"] for a, b in given.pairs for row in rows(lab, a, b)}
        assert inputs == ids
        made = {
            lsns[lsn]["id"]
            for out in one.outputs
            for lsn in range(out.first, out.last + 1)
            if mine(lab, lsn, out.topic)
        }
        assert made == ids
        assert sum(out.rows for out in one.outputs) == len(ids)
        [folder] = one.tables
        assert Path(folder).is_dir()
    assert about(server, batches, taken.lsn) == []
    inside = batches[1].inputs[0].pairs[0][0]
    assert [(one.batch, what) for one, what in about(server, batches, inside)] == [(1, "input")]
    first = min(lsns)
    assert [(one.batch, what) for one, what in about(server, batches, first)] == [(0, "output")]

    # The last batch again, as after a kill: it is written down once.
    forget_last_commit(tmp_path / "spark" / "line")
    run(lab, definition, tmp_path / "spark")
    assert [one.batch for one in read(server, "line")] == [0, 1]


def rows(lab: Lab, a: int, b: int) -> list[dict[str, int]]:
    server = remote(Where(lab.house.url))
    found = server.rows("log", **{"from": a, "to": b}, columns=["body"], kinds=["publish"])
    return [json.loads(body) for batch in found for body in batch.column("body").to_pylist()]


def mine(lab: Lab, lsn: int, topic: str) -> bool:
    server = remote(Where(lab.house.url))
    found = server.rows("log", **{"from": lsn, "to": lsn + 1}, columns=["name"])
    return [batch.column("name").to_pylist() for batch in found] == [[topic]]


def test_a_topic_is_read_by_ranges(lab: Lab, tmp_path: Path) -> None:
    definition = define(
        name="ranges",
        sql="SELECT id FROM input",
        to=[{"topic": "copies"}],
        **{"from": {"topic": "facts", "vhost": "/", "columns": "id int"}},
    )
    lab.declare("facts", "copies")
    lab.publish("facts", range(3))
    run(lab, definition, tmp_path / "spark")
    lab.publish("facts", range(3, 5))
    run(lab, definition, tmp_path / "spark")
    first, second = read(remote(Where(lab.house.url)), "ranges")
    [(a, b)], [(c, d)] = first.inputs[0].pairs, second.inputs[0].pairs
    assert a < b == c < d
    facts = [row["id"] for row in rows(lab, a, d)]
    assert facts[:3] == [0, 1, 2]
    assert [out.rows for one in (first, second) for out in one.outputs] == [3, 2]
