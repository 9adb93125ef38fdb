"""`spark-submit` to a cluster that has no Penstock, over TLS, by a token; and the settings of docs/cluster.md.

They come last but one: the session that others use is stopped.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from cluster.conftest import Site
from cluster.test_year import Up
from penstock.cli.driver_jobs import Door, url_for
from penstock.config.load import load_mapping
from progress import has_ended, ran
from spark_cluster import CONF, NODES, PATIENCE_S, bare_python
from tls_lab import Files, TlsServer

JOB = Path(__file__).with_name("submitted_job.py")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
ROWS = 4_000


def bodies(count: int, **more: Any) -> pa.Table:
    return pa.table({"body": pa.array([json.dumps({"id": i, **more}).encode() for i in range(count)], pa.binary())})


def test_a_submitted_job_over_tls_by_a_token_that_ends(site: Site, spark: Any, tmp_path: Path) -> None:
    import pyspark

    spark.stop()  # its executors would hold both cores
    files = Files(site.folder / "tls")  # which all machines see, as they see /etc
    python = bare_python(tmp_path / "bare")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environ.pop("PYTHONPATH", None)
    unseen = site.folder / "hidden" / "submitted"  # what the driver makes there is not simply found by the workers
    unseen.mkdir()
    environ |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "TMPDIR": str(unseen)}
    with TlsServer(site.folder / "hidden" / "tls-server", files) as server:
        url = server.flight_url.replace("://", "://guest:guest@")
        with penstock.connect(f"{url}?ca={files.ca}") as client:
            client.declare_topic("sent")
            client.declare_topic("other")
            client.publish_table("sent", bodies(ROWS))
            submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", site.cluster.url]
            conf = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **CONF}
            submit += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
            submit += [str(JOB), url, files.ca, str(tmp_path / "checkpoint")]
            ended = ran(submit, patience=PATIENCE_S, env=environ)
            assert ended.returncode == 0, ended.stderr[-3000:]
            found = json.loads(ended.stdout.splitlines()[-1])
            assert (found["read"], found["nodes"]) == (ROWS, sorted(NODES))
            assert client.queue("copied-by-token")["ready"] == ROWS
        assert "certificate verify failed" in found["untrusted"]
        assert "is not made for read" in found["other"]
        assert "it has ended, was revoked, or is none" in found["ended"]


def test_the_settings_of_the_page(site: Site, spark: Any) -> None:
    """Executors are told an address of this machine that nobody wrote down: `listen.flight` names all of them."""
    spark.stop()
    [block] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    settings = tomllib.loads(block)
    assert settings["listen"]["flight"].startswith("0.0.0.0:")
    settings["listen"] = {"amqp": "off", "http": "off", "flight": "0.0.0.0:0"}
    password = site.folder / "hidden" / "password"
    password.write_text("secret\n")
    [user] = settings["user"]
    user["password_file"] = str(password)
    up = Up(site, "page", settings)
    loaded = load_mapping({**settings, "spark": {"master": site.cluster.url}}, environ={}, options={})
    told = url_for(loaded, loaded.pipeline, Door(up.ready["flight"]))
    assert told == f"penstock://{site.cluster.host}:{up.ready['flight'].rpartition(':')[2]}/"
    try:
        with penstock.connect(told.replace("://", f"://{user['name']}:secret@")) as client:
            client.publish_table("flights", bodies(ROWS, carrier="AA", delay=20.0))
            client.publish_table("flights", bodies(ROWS, carrier="BB", delay=10.0))
            site.cluster.until(lambda: client.queue("flights")["acked"] == 2 * ROWS)
            found = [json.loads(one.body)["id"] for one in client.replay("delays", "EPOCH", follow=False)]
            assert sorted(found) == list(range(ROWS))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{up.told()}") from None
    finally:
        up.process.terminate()
        assert has_ended(up.process, PATIENCE_S)
