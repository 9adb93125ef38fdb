"""The benchmarks load, one of each kind runs, and their client notices what it is there to notice.

All others run in `make conformance`: `test_benchmarks_run.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forked import ran

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
USED = ("server CPU", "rate")


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


LOADS = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
for program in sorted(Path(sys.argv[1]).glob("*.py")):
    runpy.run_path(str(program), run_name="loaded")
"""


def test_every_benchmark_loads(tmp_path: Path) -> None:
    """What was renamed in the product is missed here, not before a release."""
    loads = tmp_path / "loads.py"
    loads.write_text(LOADS)
    done = ran(str(loads), str(FOLDER), seconds=120)
    assert done.returncode == 0, done.stderr


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


def test_the_queue_alone_runs() -> None:
    done = ran(str(FOLDER / "bench_queue.py"), "--quick", seconds=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 13


def test_records_of_a_topic_cost_so_much() -> None:
    done = ran(str(FOLDER / "bench_sow.py"), "--quick", seconds=600)
    assert done.returncode == 0, done.stderr
    figures = {figure["what"]: figure["value"] for figure in map(json.loads, done.stdout.splitlines())}
    assert len(figures) == 10
    assert figures["sow: bytes of memory a record"] < 18


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
