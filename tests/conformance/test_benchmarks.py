"""The benchmarks run, and their client notices what it is there to notice."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from forked import ran
from http_lab import NO_TLS
from live_server import LiveServer

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
USED = ("server CPU", "rate")
PEERS = {
    "RabbitMQ": ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    "NATS": ("nats-server",),
    "Redis": ("redis-server",),
}
"""What may be installed, and its programs."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import amqp_client

    return amqp_client


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import crowd

    return crowd


def test_every_amqp_mode_runs_on_a_real_server(tmp_path: Path) -> None:
    command = [str(FOLDER / "bench_amqp.py"), "--quick", "--messages", "300"]
    folder = tmp_path / "not" / "there"
    command += ["--folder", str(folder)]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"AMQP publish: server CPU", "AMQP one message: confirmed p50", "beside saturation: confirm p99"} <= {
        figure["what"] for figure in figures
    }
    always = {"value", "unit", "budget", "ratio", "runs", "machine", "commit", "settings"}
    assert all(always <= figure.keys() for figure in figures)
    assert list(folder.iterdir()) == []


def test_many_clients_are_measured_on_real_servers(tmp_path: Path) -> None:
    command = [str(FOLDER / "bench_clients.py"), "--quick", "--folder", str(tmp_path)]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    figures = {json.loads(line)["what"]: json.loads(line)["value"] for line in done.stdout.splitlines()}
    kinds = ("publish", "work", "ten messages a second each", "ten messages a second each, work")
    asking = ("request and reply", "request and reply, direct")
    assert figures.keys() == {
        *(f"3 clients, {kind}: {what}" for kind in kinds for what in (*USED, "confirm p50", "confirm p99")),
        *(f"3 clients, {kind}: {what}" for kind in asking for what in (*USED, "answer p50", "answer p99")),
        *(f"one message alone: {what}" for what in (*USED, "confirm p50", "confirm p99", "delivered p50")),
    }
    assert all(value > 0 for value in figures.values())


def test_doors_that_end_are_measured_on_a_real_server(tmp_path: Path) -> None:
    command = [str(FOLDER / "bench_doors.py"), "--quick", "--folder", str(tmp_path)]
    faults = [sys.executable, *command, "--mode", "faults"]  # it looks for processes by the names of their modules
    dones = [subprocess.run(faults, capture_output=True, text=True, timeout=600, check=False)]
    dones.append(ran(*command, "--mode", "beside", "--mode", "cost", seconds=600))
    assert [done.returncode for done in dones] == [0, 0], dones
    lines = [json.loads(line) for done in dones for line in done.stdout.splitlines() if line.startswith("{")]
    figures = {line["what"]: line["value"] for line in lines}
    for door in ("amqp", "flight", "http"):
        assert 0 < figures[f"the {door} door killed: back"] < 30
        assert figures[f"the {door} door killed: p99 of the others"] > 0
    assert figures["small Flight publishes beside a saturated AMQP door, doors = 1"] > 0
    of_all, of_core = (figures[f"publish-3, doors = 1: CPU of {which}"] for which in ("all processes", "the core"))
    assert 0 < of_core < of_all


def test_connections_at_rest_are_measured_on_a_real_server(tmp_path: Path) -> None:
    done = ran(str(FOLDER / "bench_connections.py"), "--quick", "--folder", str(tmp_path), seconds=600)
    assert done.returncode == 0, done.stderr
    figures = {json.loads(line)["what"]: json.loads(line)["value"] for line in done.stdout.splitlines()}
    assert len(figures) == 8
    assert figures["50 connections at rest: in its door"] > 0
    assert figures["50 connections at rest: one more is open after"] > 0


def test_many_clients_are_measured_on_every_peer_that_is_installed(tmp_path: Path) -> None:
    """Each is started, does all the loads, and is gone; who is not installed is named."""
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- bench-peers: what is between these marks is written by it -->\n<!-- end of bench-peers -->\n"
    )
    command = [str(FOLDER / "run_peers.py"), "--quick", "--clients", "--folder", str(tmp_path / "data")]
    command += ["--into", str(page)]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    measured, _, missing = done.stderr.splitlines()[0].partition("; not: ")
    installed = [name for name, program in PEERS.items() if any(map(shutil.which, program))]
    for name in PEERS:
        assert (f" {name} " in measured) == (name in installed)
        assert (f"{name} (not installed)" in missing) == (name not in installed)
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(figure["value"] > 0 for figure in figures)
    servers = {figure["settings"]["server"].split()[0] for figure in figures}
    assert servers == {"Penstock", *installed}
    assert len(figures) == len(servers) * (5 * 4 + 5)
    ports = {figure["settings"]["port"] for figure in figures}
    assert len(ports) == len(servers)
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
    assert list((tmp_path / "data").iterdir()) == []
    head, *rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert [cell.split()[0] for cell in head.strip("| ").split(" | ")[2:]] == installed
    assert len(rows) == 2 + 6


@pytest.mark.parametrize("fault", ["changed", "twice", "never sent"])
def test_a_wrong_message_of_a_crowd_is_named(crowd: Any, fault: str) -> None:
    tally = crowd.Tally(2, 300)
    tally.sent(1, 7, 100.0)
    body = tally.body(1, 7)
    if fault == "changed":
        body = body[:-1] + bytes([body[-1] ^ 1])
    elif fault == "twice":
        tally.came(body, 100.5)
        assert tally.delivered == [0.5]
    else:
        body = tally.body(0, 7)
    with pytest.raises(crowd.Wrong, match="has changed" if fault == "changed" else "came twice, or was never sent"):
        tally.came(body, 101.0)


@pytest.mark.parametrize("reply_to", ["", "amq.rabbitmq.reply-to"])
def test_what_a_publisher_of_a_crowd_numbers_is_never_in_its_body(crowd: Any, reply_to: str) -> None:
    """Bodies are random: with thousands of clients one has the letters of an id in it."""
    import crowd_amqp

    class Link:
        sock = None

    tally = crowd.Tally(1, 300)
    tally._bodies[0] = b"id-co-" * 48 + bytes(300 - crowd.NUMBER.size - 6 * 48)
    sender = crowd_amqp.Publisher(Link(), tally, 0, "a.queue", reply_to)
    sender.count = 7
    data = bytes(sender.message())
    assert data.count(b"id-000000000007") == 1
    assert data.count(b"co-000000000007") == bool(reply_to)
    assert data[-1 - 300 : -1] == tally.body(0, 7)


def test_messages_of_a_crowd_are_cut_out_of_any_stream(crowd: Any) -> None:
    """Replies of Redis and messages of NATS, however the network cuts them."""
    import crowd_nats
    import crowd_redis

    redis = object.__new__(crowd_redis.Connection)
    redis._kept = b""
    data = b"$3\r\na\r\n\r\n*2\r\n:7\r\n*2\r\n$-1\r\n+OK\r\n$0\r\n\r\n"
    found = [one for at in range(len(data)) for one in redis.cut(data[at : at + 1])]
    assert found == [b"a\r\n", [7, [None, "OK"]], b""]
    with pytest.raises(crowd.Wrong, match="Redis says NOGROUP"):
        redis.cut(b"-NOGROUP no\r\n")

    nats = object.__new__(crowd_nats.Connection)
    nats._kept, nats._pongs = b"", 0
    data = b"MSG inbox.1 1 4\r\n\r\nab\r\nPONG\r\nHMSG q.1 2 ack.1 22 25\r\nNATS/1.0\r\nId: id-1\r\n\r\nabc\r\n"
    data += b"HMSG pulled.1 1 32 32\r\nNATS/1.0 408 Request Timeout\r\n\r\n\r\n"
    got = [one for at in range(len(data)) for one in nats.cut(data[at : at + 1])]
    assert got == [(b"", b"", b"\r\nab"), (b"ack.1", b"", b"abc"), (b"", b"408 Request Timeout", b"")]
    assert nats._pongs == 1
    with pytest.raises(crowd.Wrong, match="NATS says -ERR"):
        nats.cut(b"-ERR 'Authorization Violation'\r\n")


def test_tls_is_measured_beside_what_goes_without(tmp_path: Path) -> None:
    command = [str(FOLDER / "bench_tls.py"), "--quick", "--mode", "both", "--folder", str(tmp_path)]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    told = {json.loads(line)["what"] for line in done.stdout.splitlines()}
    for over in ("plain", "TLS"):
        assert {
            f"AMQP publish and consume, ack every 100, {over}: rate",
            f"AMQP connection, {over}: server CPU",
        } <= told


class Shown(LiveServer):
    """With its HTTP door."""

    http = "127.0.0.1:0"


def test_peers_are_measured_beside_ours(tmp_path: Path) -> None:
    """Another server stands for a peer: it is told by the name it gives itself, and nothing stays behind on it."""
    with Shown(tmp_path / "peer") as peer:
        command = [str(FOLDER / "run_peers.py"), "--quick", "--mode", "both", "--mode", "consume"]
        command += ["--amqp", f"amqp://guest:guest@127.0.0.1:{peer.port}", "--folder", str(tmp_path)]
        command += ["--mode", "publish-2", "--peer", "none"]
        done = ran(*command, seconds=600)
        assert done.returncode == 0, done.stderr
        figures = [json.loads(line) for line in done.stdout.splitlines()]
        assert {figure["settings"]["port"] for figure in figures} >= {peer.port}
        assert len(figures) % 4 == 0  # four of two clients, and rate and CPU of two modes, for each server
        assert "measured: Penstock, Penstock" in done.stderr
        assert "Redis (" in done.stderr
        address = f"http://{peer.ready['http']}/api"
        assert httpx.get(f"{address}/queues", verify=NO_TLS, auth=("guest", "guest"), timeout=20).json() == []
    command[command.index("--amqp") + 1] = "amqp://127.0.0.1:1"
    done = ran(*command, seconds=600)
    assert done.returncode == 2
    assert "no AMQP server answers at 127.0.0.1:1" in done.stderr


def test_fairness_among_a_thousand_runs() -> None:
    command = [str(FOLDER / "bench_fairness.py"), "--quick"]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(figures) == 12
    assert {figure["settings"]["waiting"] for figure in figures} == {2_000, 20_000}


def test_the_queue_alone_runs() -> None:
    done = ran(str(FOLDER / "bench_queue.py"), "--quick", seconds=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 13


def test_records_of_a_topic_cost_so_much() -> None:
    command = [sys.executable, str(FOLDER / "bench_sow.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    figures = {figure["what"]: figure["value"] for figure in map(json.loads, done.stdout.splitlines())}
    assert len(figures) == 10
    assert figures["sow: bytes of memory a record"] < 18


def test_the_replay_benchmark_runs_on_a_real_server(tmp_path: Path) -> None:
    command = [str(FOLDER / "bench_replay.py"), "--quick", "--messages", "200", "--folder", str(tmp_path)]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8


def test_a_stream_is_the_messages_one_after_another(client: Any) -> None:
    workload = client.Workload.make(["a", "bb"], exchange="x", smallest=50, largest=150, ids=True, count=10)
    cycle = workload.delivered("bench")
    stop = cycle.offset(25)
    data = b""
    while len(data) < stop:
        data += cycle.slice(len(data), stop)
    assert cycle.pieces_before(stop) == 25
    for number in range(25):
        piece = data[cycle.offset(number) : cycle.offset(number + 1)]
        turn, slot = divmod(number, 10)
        tag_at = 7 + 4 + len("bench") + 1
        assert int.from_bytes(piece[tag_at : tag_at + 8], "big") == number + 1
        body = workload.bodies[slot]
        assert piece[-1 - len(body) : -1] == turn.to_bytes(4, "big") + body[4:]
        assert b"%08d-%06d" % (turn, slot) in piece


@pytest.mark.parametrize("fault", ["changed", "lost", "doubled"])
def test_a_wrong_delivery_is_named(client: Any, fault: str) -> None:
    cycle = client.Workload.make(["q"], count=8).delivered("bench")
    pieces = [bytes(cycle.slice(cycle.offset(number), cycle.offset(number + 1))) for number in range(20)]
    cycle.check(b"".join(pieces), 0)
    if fault == "changed":
        pieces[12] = pieces[12][:-5] + b"!" + pieces[12][-4:]
    elif fault == "lost":
        del pieces[12]
    else:
        pieces.insert(12, pieces[11])
    with pytest.raises(client.Wrong, match="message 13 differs"):
        cycle.check(b"".join(pieces), 0)


def test_confirms_are_counted_once_each(client: Any) -> None:
    def ack(tag: int, multiple: bool) -> bytes:
        return client.method((60, 80), tag.to_bytes(8, "big") + bytes([multiple]))

    confirms = client.Confirms()
    data = ack(2, False) + ack(1, False) + ack(5, True) + ack(7, False)
    for place in range(0, len(data), 9):
        confirms.feed(data[place : place + 9])
    assert confirms.upto == 5
    confirms.feed(ack(6, False))
    assert confirms.upto == 7
    for again in (ack(7, False), ack(3, True)):
        with pytest.raises(client.Wrong, match="confirmed twice"):
            confirms.feed(again)
    with pytest.raises(client.Wrong, match="refused message 8"):
        confirms.feed(client.method((60, 120), (8).to_bytes(8, "big") + b"\0"))
