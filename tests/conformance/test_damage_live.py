"""A bit that flips in a cold part of the log, met by a real server: it is named, and every other queue is served."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Collection
from pathlib import Path

import pika
import pyarrow as pa
import pytest

from live_server import LiveServer
from penstock.client import connect

pytestmark = pytest.mark.conformance

SETTINGS = '[log]\nsegment = "64KiB"\n'
COUNT = 60


class WithHttp(LiveServer):
    """A server that tells how it is."""

    http = "127.0.0.1:0"


def fill(server: LiveServer, queue: str) -> None:
    channel = server.connect().channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(COUNT):
        body = f"{queue}-{number} ".encode() + bytes([65 + number % 26]) * 2000
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))  # a batch each


SILENCE_S, PATIENCE_S = 2.0, 90.0


def drained(server: LiveServer, queue: str, without: Collection[int] = ()) -> list[int]:
    """Numbers of the messages that come: all but those, and what comes then until nothing does; they all go back."""
    connection, until = server.connect(), time.monotonic() + PATIENCE_S
    channel, got = connection.channel(), list[int]()
    for method, _, body in channel.consume(queue, inactivity_timeout=SILENCE_S, auto_ack=False):
        if method is None or body is None:
            if set(range(COUNT)) <= {*got, *without} or time.monotonic() > until:
                break
            continue
        got.append(int(body.split(b" ")[0].split(b"-")[1]))
    connection.close()
    return got


def hurt_one(segments: list[Path]) -> tuple[Path, bytes, set[int]]:
    """Flip a bit of one message; its file, what that holds now, and which messages lie in one batch with it."""
    target = next(path for path in segments[1:-1] if b"hurt-30 " in path.read_bytes())
    with pa.OSFile(str(target)) as file:
        batches = [batch["body"].to_pylist() for batch in pa.ipc.open_stream(file)]
    [beside] = [bodies for bodies in batches if any(body.startswith(b"hurt-30 ") for body in bodies)]
    data = bytearray(target.read_bytes())
    data[data.index(b"hurt-30 ") + 1000] ^= 4
    target.write_bytes(bytes(data))
    return target, bytes(data), {int(body[5:].split(b" ")[0]) for body in beside if body.startswith(b"hurt-")}


def test_a_flipped_bit_in_a_cold_segment(tmp_path: Path) -> None:
    """Others are served; then one message at a time, and no lease that ends: what cannot be read is not waited for."""
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    with WithHttp(tmp_path, [str(settings)], flight=True) as server:
        for queue in ("before", "hurt", "after"):
            fill(server, queue)
        server.stop()
        segments = sorted((server.data / "log").glob("*.arrows"))
        target, data, held_back = hurt_one(segments)
        server.start()
        assert drained(server, "before") == list(range(COUNT))
        hurt = drained(server, "hurt", held_back)
        assert hurt == sorted(set(range(COUNT)) - held_back), "what is held back is what lies in one batch"
        assert drained(server, "after") == list(range(COUNT))
        channel = server.connect().channel()
        channel.basic_qos(prefetch_count=1)
        got = list[int]()
        for method, _, body in channel.consume("hurt", inactivity_timeout=20):
            if method is None or body is None:
                break
            channel.basic_ack(method.delivery_tag)
            got.append(int(body.split(b" ")[0].split(b"-")[1]))
            if got[-1] == COUNT - 1:
                break
        missing = set(range(COUNT)) - set(got)
        assert missing == held_back
        with connect(f"penstock://{server.ready['flight']}") as client:
            queue = client.queue("hurt")
            assert queue["damaged"] == len(missing) == queue["leased"]
        with urllib.request.urlopen(f"http://{server.ready['http'].removeprefix('http://')}/healthz") as answer:
            health = json.load(answer)
        assert (health["status"], health["damaged_batches"]) == ("ok", 1)
        assert target.name in health["damage"][0]
        server.hears(target.name)
        assert target.read_bytes() == data
        server.stop()
