"""The benchmarks as programs, each quickly, on real servers: in `make conformance`.

That all of them load is asked in `test_benchmarks.py`, where one of many clients and two of the core alone run.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from choices import for_conformance
from forked import ran
from http_lab import NO_TLS
from live_server import LiveServer

pytestmark = [pytest.mark.conformance, for_conformance("measures for a minute")]

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PEERS = {
    "RabbitMQ": ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    "NATS": ("nats-server",),
    "Redis": ("redis-server",),
}
"""What may be installed, and its programs."""


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
    assert figures["500 connections at rest: in its door"] > 0
    assert figures["500 connections at rest: one more is open after"] > 0


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


def test_the_replay_benchmark_runs_on_a_real_server(tmp_path: Path) -> None:
    command = [str(FOLDER / "bench_replay.py"), "--quick", "--messages", "200", "--folder", str(tmp_path)]
    done = ran(*command, seconds=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8
