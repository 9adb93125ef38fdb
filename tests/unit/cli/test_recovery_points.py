"""Recovery points from a person's door: a settings file that is checked and served, and a queue that is altered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from live_server import LiveServer
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]

QUEUE = '[[topic]]\nname = "Work"\n[[queue]]\nname = "q"\nunderlying_topic = "Work"\nrecovery_point = "{}"\n'


def written(path: Path, point: str, data: Path | None = None) -> str:
    server = f'[server]\ndata = "{data}"\n' if data is not None else ""
    path.write_text(server + QUEUE.format(point))
    return str(path)


def test_a_narrowed_point_is_checked_served_and_told(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    written(config, "epoch")
    server = LiveServer(tmp_path, [str(config)])
    with server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", "Work", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
        _, properties, _ = next(channel.consume("q", arguments={"x-info": True}, inactivity_timeout=20))
        assert properties.headers is not None
        origin, lsn, _ = str(properties.headers["x-bookmark"]).split("|")
        server.stop()
        for point, status in ((f"{origin}|{int(lsn) + 1}|", 0), (f"{int(origin) + 1}|1|", 2), ("epoch", 0)):
            got, _, err = run("check", written(config, point, server.data))
            assert (got, err == "") == (status, status == 0), err
        written(config, f"{origin}|{int(lsn) + 1}|")
        server.start()
        said = (
            f"queue 'q' in vhost '/': its recovery_point is {origin}|{int(lsn) + 1}|, and was epoch: "
            "1 of its 3 messages came before that and have left it; the log keeps them"
        )
        server.hears(f"{said}\n")
        method = server.connect().channel().queue_declare("q", passive=True).method
        assert method.message_count == 2


def test_without_a_log_bookmarks_are_held_against_each_other(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    status, _, err = run("check", written(config, "77|12|", tmp_path / "data"))
    assert (status, err) == (
        0, f"{tmp_path / 'data'} holds no log yet, so that bookmarks of recovery points were compared with none\n",
    )  # fmt: skip
    assert not (tmp_path / "data").exists()
    with config.open("a") as file:
        file.write('[[queue]]\nname = "r"\nrecovery_point = "78|12|"\n')
    status, _, err = run("check", str(config))
    assert status == 2
    assert "the bookmark 78|12| is of the log 78, and this is the log 77" in err


@pytest.mark.parametrize("point", ["epoch", "now"])
def test_altering_asks_before_it_takes_something_away(run: Run, point: str) -> None:
    queue = {"name": "q", "underlying_topic": "Work", "recovery_point": "epoch"}
    with Broker({"topic": [{"name": "Work"}], "queue": [queue]}) as broker:
        words = ("queue", "alter", "q", "--set", f"recovery_point={point}", "--url", broker.flight_url)
        for body in (b"1", b"2"):
            broker.publish("Work", body)
        if point == "epoch":
            assert run(*words)[:2] == (0, "queue q altered\n")
            return
        status, _, err = run(*words)
        assert status == 2
        assert "queue q has 2 messages: remove those from before the new recovery_point?" in err
        assert broker.stats("q")["queue_depth"] == 2
        assert run(*words, "--yes")[:2] == (0, "queue q altered; 2 messages left it\n")
        assert broker.stats("q")["queue_depth"] == 0
        assert json.loads(run(*words, "--yes", "--json")[1])["left"] == 0
