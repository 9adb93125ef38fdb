"""Batch and stream over TLS: the options reach every task, and a server that is not trusted is not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from penstock.config.sections import TlsSection
from penstock.errors import InvalidArgument
from penstock.server.sockets.tls import load
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where
from penstock.spark.taker import COMMON, Taker
from pipeline_lab import define
from spark_lab import Lab
from tls_lab import Files


def test_source_and_sink_over_tls(lab: Lab, tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    identity = load(TlsSection(certificate=files.certificate, key=files.key))
    _, port = lab.house.door.entrance.listen("127.0.0.1", 0, identity)
    there = {"url": f"penstocks://localhost:{port}", "ca": files.ca}
    lab.declare("tls-in", "tls-out")
    lab.publish("tls-in", range(100))
    assert lab.read(topic="tls-in", minPartitions=2, **there).count() == 100
    stream = lab.stream(queue="tls-in", stream="over-tls", **there).select("body")
    lab.write(stream, tmp_path / "checkpoint", queue="tls-out", **there)
    assert lab.ids("tls-out") == list(range(100))
    assert lab.counts("tls-in")[0] == 0
    with pytest.raises(PySparkException, match="certificate verify failed"):
        lab.read(topic="tls-in", url=there["url"], patience="100ms").count()


def test_a_pipeline_over_tls(lab: Lab, tmp_path: Path) -> None:
    """All that a pipeline does goes through the one address: columns by the first messages, letters, a view's key."""
    files = Files(tmp_path / "files")
    identity = load(TlsSection(certificate=files.certificate, key=files.key))
    _, port = lab.house.door.entrance.listen("127.0.0.1", 0, identity)
    lab.declare("tls-jobs", "tls-odd")
    lab.publish("tls-jobs", range(10))
    definition = define(
        name="tls-pipeline",
        sql="SELECT region, max(total) AS total FROM input GROUP BY region",
        to=[{"view": "tls-view", "key": ["region"]}],
        expect={"even": {"that": "id <> 3", "otherwise": "dead-letter", "topic": "tls-odd"}},
        **{"from": {"queue": "tls-jobs"}},
    )
    place = Place(Where(f"penstocks://localhost:{port}?ca={files.ca}"), tmp_path / "spark")
    query = Pipeline(definition, place).start(lab.spark)
    query.processAllAvailable()
    query.stop()
    assert sorted(one.json()["total"] for one in lab.client.sow("tls-view")) == [4.0, 4.5]
    assert lab.ids("tls-odd") == [3]
    assert lab.counts("tls-jobs") == (0, 0, 10)


def test_the_options_become_the_address() -> None:
    def url(**given: str) -> str:
        return Taker(given, COMMON).where(1.0).url

    assert url(url="penstocks://h", ca="/a b", verify="false") == "penstocks://h?ca=/a%20b&verify=off"
    assert url(url="penstocks://h?ca=x", ca="y", cert="c", key="k") == "penstocks://h?ca=y&cert=c&key=k"
    assert url(url="penstock://h") == "penstock://h"
    with pytest.raises(InvalidArgument, match="not true or false"):
        url(url="penstocks://h", verify="no")
