"""A view of a real server: evaluated beside the loop, level when it is asked, gathered anew after a kill."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from live_server import LiveServer

CONFIG = """
[[queue]]
name = "q"
lease_period = "60s"

[[view]]
name = "open"
source = "q"
select = "/region, COUNT(/id) AS /n, SUM(/total) AS /total, MAX(/id) AS /last, /id AS /newest"
group_by = ["/region"]

[[view]]
name = "all"
source = "open"
select = "SUM(/n) AS /n"
"""

SELECT = "/region, COUNT(/id) AS /n, SUM(/total) AS /total, MAX(/id) AS /last, /id AS /newest"


def rows(client: penstock.Client, *, anew: bool = False) -> dict[str, Any]:
    asked = client.sow("q", projection=SELECT, grouping="/region") if anew else client.sow("open")
    return {row.json()["region"]: row.json() for row in asked}


def orders(first: int, count: int) -> pa.Table:
    bodies = [f'{{"id": {id}, "region": "r{id % 7}", "total": {id % 90 / 8}}}' for id in range(first, first + count)]
    return pa.table({"body": pa.array([body.encode() for body in bodies])})


def work(url: str, seed: int) -> None:
    chance = random.Random(seed)
    with penstock.connect(url) as client:
        for done, message in enumerate(client.consume("q", backlog=200)):
            if chance.random() < 0.1:
                message.release()
            else:
                message.ack()
            if done == 600:
                return


def test_a_view_keeps_up_with_publishers_and_workers_and_comes_back_after_a_kill(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG)
    with LiveServer(tmp_path, [str(config)], flight=True) as server:
        url = f"penstock://{server.ready['flight']}"
        with penstock.connect(url) as client:
            client.publish_table("q", orders(0, 6_000))
            first = rows(client)
            assert first == rows(client, anew=True)
            assert sum(row["n"] for row in first.values()) == 6_000

            workers = [threading.Thread(target=work, args=(url, seed)) for seed in range(2)]
            for worker in workers:
                worker.start()
            for batch in range(10):
                client.publish_table("q", orders(6_000 + batch * 400, 400))
                assert sum(row["n"] for row in rows(client).values()) <= 10_000
            for worker in workers:
                worker.join()
            assert rows(client) == rows(client, anew=True)
            [everything] = client.sow("all")
            assert everything.json()["n"] == client.queue("q")["ready"]
        server.kill()
        server.start()
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            url = f"penstock://{server.ready['flight']}"
            workers = [threading.Thread(target=work, args=(url, seed)) for seed in range(2)]
            for worker in workers:  # while the view goes through what the queue holds
                worker.start()
            for batch in range(10):
                client.publish_table("q", orders(10_000 + batch * 20, 20))
            for worker in workers:
                worker.join()
            found = rows(client)
            assert found == rows(client, anew=True)
            assert sum(row["n"] for row in found.values()) == client.queue("q")["ready"] > 7_000
